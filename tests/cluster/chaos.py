"""Kills at random whatever a sweep consists of, and checks that nothing is lost, doubled or learnt otherwise.

    python tests/cluster/chaos.py --kills 100 --runs 24 --seed 1 [--keep-nodes]

Half of the runs are processes of this machine, half are jobs of the development cluster. Killed are a rank,
the supervisor, a job's step (scancel), a whole node (its power); then `daso-bench resume` where it takes one.
At the end all runs must have finished, and per run: no two attempts at the same time, every record readable,
no attempt began before the newest checkpoint, history and model equal to an unbroken run's to the last bit.
Exit code 1 if anything is not so.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from chaos_watch import CHECKPOINT_SAMPLES, Watched, ranks_alive
from slurm_site import (
    DEV_CLUSTER,
    SLURM,
    USER,
    Command,
    Site,
    run_in,
    runs_in,
    slurm,
    status_of,
)

from daso_bench.runner.launch.slurm import queue

Kind = Literal["rank", "supervisor", "step", "node"]
KINDS: dict[str, tuple[Kind, ...]] = {
    "local": ("rank", "supervisor"),
    "slurm": ("rank", "supervisor", "step"),  # and a node now and then: it takes a minute
}
BASE = (
    "--config-dir", str(USER / "conf"), "model=paced", "strategy=daso", "train.epochs=3",
    f"train.checkpoint_every_samples={CHECKPOINT_SAMPLES}", "launcher.threads_per_rank=1",
)  # fmt: skip
SHAPES = {
    "1x2": ("cluster.nodes=1", "cluster.ranks_per_node=2"),
    "2x1": ("cluster.nodes=2", "cluster.ranks_per_node=1"),
}
SIDE_BY_SIDE = 4
PAUSE_S = 0.3  # of a step: a run's 54 take 16 s
LATEST_S = 3.0  # of a kill, after the first step of the attempt that it ends
EARLY = 0.25  # the share of kills that count from the attempt's begin: its start is hit, too
STUCK_S = 300.0
ASK_S = 2.0


@dataclass
class Plan:
    """What is to happen to one run. `results`: its results folder, where it is alone."""

    name: str
    launcher: str
    shape: str
    results: Path
    kills: list[Kind]
    watched: Watched | None = None
    command: Command | None = None  # that runs it, or submits it
    attempt: int = 0  # that the next kill is for
    begun: str = ""  # its progress when it was first seen: what the one before had told
    kill_at: float | None = None
    moved: float = field(default_factory=time.monotonic)
    state: str = ""
    asked: float = 0.0

    def wants_resume(self, status: dict[str, Any]) -> bool:
        """Whether nobody runs it, nor will."""
        if self.command is None or self.command.process.poll() is None:
            return False
        if self.launcher == "local":
            return True
        if time.monotonic() - self.asked < ASK_S or "job" not in status:
            return False
        self.asked = time.monotonic()
        job = queue.job_of(status["job"]["id"])
        return job is None or not job.live


class Chaos:
    """One sweep, its kills, and the verdict."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.site, self.random = Site(folder), random.Random(options.seed)
        self.began = time.monotonic()
        self.seed, self.kills, self.killed = options.seed, options.kills, Counter[str]()
        self.keep_nodes: bool = options.keep_nodes
        self.plans = list(self._plans(options))
        self.power: Iterator[None] = iter(())  # a node that is without, on its way back

    def _plans(self, options: argparse.Namespace) -> Iterator[Plan]:
        turns = {launcher: cycle(kinds) for launcher, kinds in KINDS.items()}
        for number in range(options.runs):
            launcher = ("local", "slurm")[number % 2]
            shape = ("1x2", "2x1")[number // 2 % 2] if launcher == "slurm" else "1x2"
            share = options.kills // options.runs + (number < options.kills % options.runs)
            kinds: list[Kind] = [next(turns[launcher]) for _ in range(share)]
            self.random.shuffle(kinds)
            if launcher == "slurm" and kinds and number % 6 == 1 and not options.keep_nodes:
                kinds[-1] = "node"
            name = f"c{number}"
            yield Plan(name, launcher, shape, self.site.folder / name, kinds)

    def run(self) -> int:
        """The exit code."""
        references = self._references()
        waiting, active = list(self.plans), list[Plan]()
        while waiting or active:
            while waiting and len(active) < SIDE_BY_SIDE:
                active.append(waiting.pop(0))
                active[-1].moved = time.monotonic()
            alive = ranks_alive()
            active = [plan for plan in active if self._turn(plan, alive)]
            next(self.power, None)
            time.sleep(0.2)
        for _ in self.power:
            time.sleep(0.2)
        whole: dict[str, Path] = {}
        for shape, (command, results) in references.items():
            done = command.done()
            assert done.code == 0, done.text
            whole[shape] = run_in(results)
        return self._verdict(whole)

    def end(self) -> None:
        """Leave nothing behind, whatever went wrong: the processes of unfinished runs, and their jobs."""
        for plan in self.plans:
            if plan.command is not None and plan.command.process.poll() is None:
                plan.command.process.terminate()
                plan.command.process.wait()
        self.site.give_up()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # -------------------------------------------------------------- one run

    def _words(self, launcher: str, shape: str, results: Path, arm: str) -> list[str]:
        start = [*SLURM, "launcher.max_requeues=100"] if launcher == "slurm" else ["launcher=local"]
        if launcher == "slurm" and self.keep_nodes:
            start.append("+launcher.sbatch.exclude=n2")  # other tests switch it off
        return [
            *BASE, *start, *SHAPES[shape], f"results_dir={results}", f"seed={self.seed}", f"run.arm={arm}",
        ]  # fmt: skip

    def _references(self) -> dict[str, tuple[Command, Path]]:
        """Unbroken runs of each shape, on this machine: what starts the ranks must not matter, either."""
        references: dict[str, tuple[Command, Path]] = {}
        for shape in dict.fromkeys(plan.shape for plan in self.plans):
            results = self.site.folder / f"whole_{shape}"
            references[shape] = self.site.begin(*self._words("local", shape, results, "whole")), results
        return references

    def _turn(self, plan: Plan, alive: dict[str, dict[int, list[int]]]) -> bool:
        """Look after a run; False once it is over."""
        if plan.watched is None:
            if plan.command is None:
                words = self._words(plan.launcher, plan.shape, plan.results, plan.name)
                plan.command = self.site.begin(*words, pause_s=PAUSE_S)
            if runs_in(plan.results):
                plan.watched = Watched(run_in(plan.results))
            elif plan.command.process.poll() is not None:
                raise AssertionError(plan.command.log.read_text())
            return True
        ranks = alive.get(plan.watched.path.name, {})
        status = plan.watched.look(ranks)
        if status.get("status") == "finished" and plan.command is not None:
            return plan.command.process.poll() is None
        self._look_for_hang(plan, status)
        if plan.wants_resume(status):
            plan.command = self.site.begin("resume", str(plan.watched.path), pause_s=PAUSE_S)
        elif plan.kills and status.get("status") == "running":
            self._kill_if_due(plan, status, ranks)
        return True

    def _look_for_hang(self, plan: Plan, status: dict[str, Any]) -> None:
        state = repr((status.get("status"), status.get("progress"), len(status.get("attempts", ()))))
        if state != plan.state:
            plan.state, plan.moved = state, time.monotonic()
        assert time.monotonic() - plan.moved < STUCK_S, f"{plan.name} does not move: {status}"

    # -------------------------------------------------------------- kills

    def _kill_if_due(self, plan: Plan, status: dict[str, Any], ranks: dict[int, list[int]]) -> None:
        attempt = len(status["attempts"])
        now = time.monotonic()
        if plan.attempt != attempt:
            plan.attempt = attempt
            early = self.random.random() < EARLY
            plan.begun = repr(status.get("progress"))
            plan.kill_at = now + self.random.uniform(0, LATEST_S) if early else None
        if plan.kill_at is None and repr(status.get("progress")) != plan.begun:
            plan.kill_at = now + self.random.uniform(0, LATEST_S)
        if plan.kill_at is None or now < plan.kill_at:
            return
        what = self._kill(plan, plan.kills[0], status, ranks)
        if what is None:
            return  # nobody there yet: in the next turn
        kind = plan.kills.pop(0)
        self.killed[kind] += 1
        plan.kill_at = float("inf")  # for this attempt
        assert plan.watched is not None
        step, saved = (status.get("progress") or {}).get("step", 0), plan.watched.newest_checkpoint()
        self.say(
            f"kill {self.killed.total()}/{self.kills}: {plan.name} ({plan.launcher} {plan.shape}), {what}, "
            f"attempt {attempt}, step {step}, checkpoint {saved}"
        )

    def _kill(
        self, plan: Plan, kind: Kind, status: dict[str, Any], ranks: dict[int, list[int]]
    ) -> str | None:
        """What was killed; None if it is not there."""
        if kind == "rank" and ranks:
            rank = self.random.choice(sorted(ranks))
            with suppress(ProcessLookupError):
                os.kill(ranks[rank][0], signal.SIGKILL)
                return f"rank {rank}"
        elif kind == "supervisor":
            with suppress(ProcessLookupError):
                os.kill(status["attempts"][-1]["pid"], signal.SIGKILL)
                return "the supervisor"
        elif kind == "step":
            ids = slurm("squeue", "--noheader", "--steps", "--format=%i").split()
            mine = [id for id in ids if id.startswith(f"{status['job']['id']}.") and id[-1].isdecimal()]
            if mine:
                slurm("scancel", mine[-1])
                return f"step {mine[-1]}"
        elif kind == "node" and next(self.power, self) is self:
            node = self.random.choice(status["attempts"][-1]["nodes"])
            self.power = self._off_and_on(node)
            return f"node {node}"
        return None

    def _off_and_on(self, node: str) -> Iterator[None]:
        """Cut the node's power, and give it back once Slurm has noticed; a step with each turn."""
        folder = str(Path(os.environ["SLURM_CONF"]).parent)
        for verb in ("node-down", "node-up"):
            words = (sys.executable, str(DEV_CLUSTER), verb, "--folder", folder, node)
            command = self.site.begin_other(*words)
            while command.process.poll() is None:
                yield
            assert command.process.returncode == 0, command.log.read_text()
        self.say(f"node {node} is back")

    # -------------------------------------------------------------- the end

    def _verdict(self, references: dict[str, Path]) -> int:
        wrong = [
            f"{plan.name} ({plan.launcher} {plan.shape}) {text}: {plan.results}"
            for plan in self.plans
            if plan.watched is not None
            for text in plan.watched.violations(references[plan.shape])
        ]
        left = [plan.name for plan in self.plans if plan.watched and plan.watched.path.name in ranks_alive()]
        wrong += [f"{name} has left processes behind" for name in left]
        if self.killed.total() < self.kills:
            wrong.append(f"only {self.killed.total()} of {self.kills} kills: the runs were too short")
        attempts = sum(len(status_of(p.watched.path)["attempts"]) for p in self.plans if p.watched)
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.killed.items()))
        self.say(f"{len(self.plans)} runs in {attempts} attempts; kills: {kinds}")
        for text in wrong:
            print(f"WRONG: {text}")
        print(
            f"{len(wrong)} violations" if wrong else "nothing lost, nothing doubled, nothing learnt otherwise"
        )
        return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="chaos.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--kills", type=int, default=8, help="in all (8)")
    top.add_argument("--runs", type=int, default=4, help="of the sweep (4)")
    top.add_argument("--seed", type=int, default=0, help="of the kills and of the runs (0)")
    top.add_argument("--keep-nodes", action="store_true", help="no node loses its power; n2 is not used")
    top.add_argument(
        "--folder", type=Path, help="for the runs; default: a temporary one, kept if all is not well"
    )
    return top


def main(words: list[str] | None = None) -> int:
    """The exit code: 0 all is well, 1 something is not."""
    options = parser().parse_args(words)
    if "SLURM_CONF" not in os.environ:
        print('chaos: no cluster (SLURM_CONF): eval "$(scripts/slurm/dev_cluster env)"')
        return 1
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos."))
    folder.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(options, folder)
    try:
        code = chaos.run()
    finally:
        chaos.end()
    if code == 0 and options.folder is None:
        shutil.rmtree(folder)
    else:
        print(f"the runs are in {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
