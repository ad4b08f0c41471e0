"""Runs that something happens to, side by side: each function sees one to its end and returns what it saw.

Nothing is judged here; the tests do that. Node n2 loses its power while `lost_node` runs: all others keep to
n1 and n3.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learnt
from slurm_site import (
    BENCH,
    ENDED,
    LONG_S,
    SLURM,
    USER,
    Command,
    Done,
    Site,
    dev_cluster,
    ended,
    job_of,
    pids,
    queue_of,
    run_in,
    runs_in,
    slurm,
    status_of,
    step_of,
    table,
    trains,
    until,
)

BASE = (*SLURM, "launcher.threads_per_rank=1", "--config-dir", str(USER / "conf"), "model=paced")
# 2 nodes x 2 ranks, 6 epochs of 18 steps, a checkpoint every 320 samples: 5 steps.
RUN = (*BASE, "strategy=daso", "train.epochs=6", "train.checkpoint_every_samples=320")
ELSEWHERE = "+launcher.sbatch.nodelist='n1,n3'"
SMALLER = ("cluster.ranks_per_node=1", ELSEWHERE)


@dataclass
class Story:
    """A run's end: its status.json, its row of `daso-bench status`, what was learnt."""

    run: Path
    status: dict[str, Any]
    row: dict[str, str]
    history: list[dict[str, Any]]
    seen: dict[str, Any] = field(default_factory=dict)  # whatever else there was to see

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return self.status["attempts"]

    @property
    def reasons(self) -> list[str | None]:
        return [attempt["reason"] for attempt in self.attempts]


class Stories:
    """All scenarios, begun in this order, the long ones first; `stories[name]` waits for the end of one."""

    def __init__(self, site: Site, scenarios: dict[str, Callable[..., Any]]) -> None:
        self._pool = ThreadPoolExecutor(len(scenarios))
        self._futures: dict[str, Future[Any]] = {
            name: self._pool.submit(scenario, site, site.folder / name.replace(" ", "_"))
            for name, scenario in scenarios.items()
        }

    def __getitem__(self, name: str) -> Any:
        return self._futures[name].result()

    def all_over(self) -> None:
        """Wait for all, however they ended."""
        for future in self._futures.values():
            future.exception()


def story_of(site: Site, run: Path, **seen: Any) -> Story:
    said = site.bench("status", str(run))
    return Story(run, status_of(run), table(said.text)[0], learnt.history(run), seen)


def submitted(site: Site, results: Path, *words: str, pause_s: float) -> Path:
    """A run in the queue; returns once it trains."""
    with site.start():
        done = site.bench(*RUN, f"results_dir={results}", *words, pause_s=pause_s)
        assert done.code == 0, done.text
        trains(run_in(results))
    return run_in(results)


def followed(site: Site, results: Path, *words: str, pause_s: float) -> tuple[Path, Command]:
    """The same with the command waiting for the end."""
    with site.start():
        command = site.begin(*RUN, f"results_dir={results}", "launcher.wait=true", *words, pause_s=pause_s)
        until(lambda: runs_in(results) or command.process.poll() is not None, "a run directory")
        if not runs_in(results):
            raise AssertionError(command.done().text)
        trains(run_in(results))
    return run_in(results), command


# ------------------------------------------------------------------ scenarios


def unbroken(site: Site, results: Path) -> Story:
    run, command = followed(site, results, ELSEWHERE, pause_s=0.0)
    return story_of(site, run, done=command.done())


def lost_node(site: Site, results: Path) -> Story:
    run = submitted(site, results, "+launcher.sbatch.nodelist='n1,n2'", pause_s=0.3)
    trains(run, 20)
    dev_cluster("node-down", "n2")
    try:
        until(lambda: status_of(run)["status"] != "running", "the loss is noticed")
    finally:
        dev_cluster("node-up", "n2")
    ended(run)
    return story_of(site, run)


def time_limit(site: Site, results: Path) -> Story:
    """Its steps alone take 86 s, and half a minute before the end of two it is told. 2 nodes x 1 rank."""
    limit = ("launcher.timeout_min=2", "launcher.max_requeues=20")
    run = submitted(site, results, *SMALLER, *limit, pause_s=0.8)
    ended(run)
    return story_of(site, run)


def stopped_twice(site: Site, results: Path) -> Story:
    """Told to stop, then requeued by hand. The user waits, and has no sacct."""
    run, command = followed(site.without("sacct"), results, ELSEWHERE, pause_s=0.2)
    trains(run, 20)
    slurm("scancel", "--signal=USR2", job_of(run))
    trains(run, 50, attempts=2)
    slurm("scontrol", "requeue", job_of(run))
    return story_of(site, run, done=command.done())


def killed_rank(site: Site, results: Path) -> Story:
    """2 nodes x 1 rank; compared with the arm of `cancelled` that had not begun."""
    run, command = followed(site, results, *SMALLER, pause_s=0.2)
    trains(run, 20)
    os.kill(pids(run)[1], signal.SIGKILL)
    first = command.done()
    broken, row = status_of(run), table(site.bench("status", str(run)).text)[0]
    with site.start():
        again = site.bench("resume", str(run))
    return story_of(site, run, first=first, broken=broken, broken_row=row, again=again)


def cancelled(site: Site, results: Path) -> dict[str, Story]:
    """Two arms of which one waits for the other's end: "running" and "waiting" when they are cancelled."""
    arms = ("-m", "run.arm=A,B", "launcher.array_parallelism=1")
    with site.start():
        done = site.bench(*RUN, *SMALLER, *arms, f"results_dir={results}", pause_s=0.8)
        assert done.code == 0, done.text
        until(lambda: any(step_of(run) for run in runs_in(results)), "one trains")
    study = runs_in(results)[0].parent
    before = table(site.bench("status", str(study)).text)
    names = {run.name: "running" if step_of(run) else "waiting" for run in runs_in(results)}
    said = site.bench("cancel", str(study))
    for run in runs_in(results):
        ended(run, well=False)
    until(lambda: not live(results), "no job is left")
    after = table(site.bench("status", str(study)).text)
    with site.start():
        again = site.bench("resume", str(study))
        until(lambda: any(step_of(run) for run in runs_in(results)), "one trains")
    for run in runs_in(results):
        ended(run)
    return {
        names[run.name]: story_of(site, run, before=before, said=said, after=after, again=again)
        for run in runs_in(results)
    }


# ------------------------------------------------------------------ submissions


def sweep_twice(site: Site, results: Path) -> dict[str, Any]:
    """Two commands for the same 4 runs at the same moment."""
    words = (
        *BASE, "-m", "strategy=ddp,daso", "seed=0,1", "cluster.nodes=1", "cluster.ranks_per_node=1",
        "train.epochs=3", "launcher.array_parallelism=2", "+launcher.sbatch.nodelist=n3", "study.name=four",
        f"results_dir={results}",
    )  # fmt: skip
    with site.start():
        both = [site.begin(*words, pause_s=0.05) for _ in range(2)]
        said = [command.done() for command in both]
        until(lambda: any(step_of(run) for run in runs_in(results)), "one trains")
    assert runs_in(results), said
    study, at_once, halfway = runs_in(results)[0].parent, 0, None
    while True:
        words_of = [status_of(run)["status"] for run in runs_in(results)]
        jobs = live(results)
        at_once = max(at_once, sum(job["state"] in ("RUNNING", "CONFIGURING") for job in jobs))
        if halfway is None and "finished" in words_of:
            halfway = table(site.bench("status", str(study)).text)
        if not jobs:
            break
        time.sleep(1.0)
    for run in runs_in(results):
        ended(run)
    report = site.bench("report", str(study))
    return {
        "said": said,
        "at_once": at_once,
        "halfway": halfway,
        "after": table(site.bench("status", str(study)).text),
        "jobs": queue_of(results),
        "report": report,
        "study": study,
    }


def killed_submission(site: Site, results: Path) -> dict[str, Any]:
    """The command dies of sbatch's yes. Repeated, it waits for the runs."""
    bin = site.folder / "deadly"
    bin.mkdir()
    sbatch = shutil.which("sbatch")
    (bin / "sbatch").write_text(f"""#!/bin/sh
[ "$1" = --version ] && exec {sbatch} "$@"
{sbatch} "$@" >{bin}/said && kill -9 $PPID
""")
    (bin / "sbatch").chmod(0o755)
    words = (
        *BASE, "strategy=ddp", "-m", "seed=0,1", "cluster.nodes=1", "cluster.ranks_per_node=1",
        "+launcher.sbatch.nodelist=n3", "launcher.wait=true", "train.epochs=1", f"results_dir={results}",
    )  # fmt: skip
    with site.start():
        first = site.bench(*words, PATH=f"{bin}:{os.environ['PATH']}")
        again = site.bench(*words)
    return {
        "first": first,
        "sbatch": (bin / "said").read_text(),
        "again": again,
        "jobs": queue_of(results),
        "status": [status_of(run) for run in runs_in(results)],
    }


def raising(site: Site, results: Path) -> dict[str, Any]:
    """A sweep whose model raises on rank 1, on rank 0, on none; the command waits."""
    words = (
        *BASE, "strategy=daso", "model=raises", "-m", "model.rank=1,0,-1", "cluster.ranks_per_node=1",
        "+launcher.sbatch.nodelist='n1,n3'", "launcher.wait=true", "train.epochs=3",
        f"results_dir={results}",
    )  # fmt: skip
    with site.start():
        command = site.begin(*words)
        until(lambda: _one_ended(results) or command.process.poll() is not None, "one ended")
    done = command.done()
    runs = {run_of_rank(run): run for run in runs_in(results)}
    return {
        "done": done,
        "done_unix": time.time(),
        "jobs": queue_of(results),
        "status": {rank: status_of(run) for rank, run in runs.items()},
        "runs": runs,
    }


def _one_ended(results: Path) -> bool:
    return any(status_of(run).get("status") in ENDED for run in runs_in(results))


def run_of_rank(run: Path) -> int:
    """Which rank of it raises."""
    found = re.search(r"^  rank: (-?\d+)$", (run / "config.yaml").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def from_inside(site: Site, results: Path) -> dict[str, Any]:
    """Submitted by a job of another shape, bound to a core, with variables of a step around it."""
    words = [
        str(BENCH), *BASE, "strategy=ddp", "cluster.ranks_per_node=1", "train.epochs=1",
        "launcher.wait=true", "+launcher.sbatch.nodelist='n1,n3'",
        f"launcher.setup=['env >{site.folder}/inner.txt']", f"results_dir={results}",
    ]  # fmt: skip
    script = f"""#!/bin/sh
#SBATCH --nodes=1 --ntasks=3 --nodelist=n1 --time=7 --output={site.folder}/outer.log
export SLURM_CPU_BIND=quiet,mask_cpu:0x1 SLURM_CPU_BIND_TYPE=mask_cpu: SLURM_CPU_BIND_LIST=0x1
export SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_JOB_ID=1 SLURM_DISTRIBUTION=cyclic SLURM_NTASKS_PER_NODE=3
env >{site.folder}/outer.txt
{shlex.join(words)}
"""
    with site.start():
        code = sbatch_and_wait(site, script)
    return {
        "code": code,
        "text": (site.folder / "outer.log").read_text(),
        "outer": variables_in(site.folder / "outer.txt"),
        "inner": variables_in(site.folder / "inner.txt"),
        "jobs": queue_of(results),
        "run": run_in(results),
    }


def variables_in(file: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in file.read_text().splitlines())
    return {name: value for name, _, value in pairs if name.startswith(("SLURM", "SBATCH", "SRUN"))}


def wrong_shapes(site: Site, results: Path) -> dict[str, Any]:
    """Hand-written batch files with too few tasks, and with too few nodes, for 2 nodes x 2 ranks."""
    found: dict[str, Any] = {}
    for name, shape in (("tasks", "--nodes=2 --ntasks-per-node=1"), ("nodes", "--nodes=1 --ntasks=4")):
        words = [str(BENCH), *RUN, "launcher.submit=false", f"results_dir={results / name}"]
        log = site.folder / f"few_{name}.log"
        script = f"""#!/bin/bash
#SBATCH {shape} --exclude=n2 --time=7 --output={log}
time {shlex.join(words)}
"""
        with site.start():
            code = sbatch_and_wait(site, script)
        found[name] = {"code": code, "text": log.read_text(), "run": results / name}
    return found


def sbatch_and_wait(site: Site, script: str) -> int:
    """The exit code of a batch file, of a user who exports everything."""
    return subprocess.run(
        ["sbatch", "--wait"],
        input=script,
        text=True,
        env=site.environ(0.0),
        cwd=site.folder,
        timeout=LONG_S,
        check=False,
        capture_output=True,
    ).returncode


def live(results: Path) -> list[dict[str, str]]:
    """The jobs of a results folder that wait or run."""
    over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
    return [job for job in queue_of(results) if job["state"] not in over]


def chaos(site: Site, results: Path) -> Done:
    """Random kills of a run here and one in a job."""
    program = str(Path(__file__).with_name("chaos.py"))
    words = ("--kills", "4", "--runs", "2", "--keep-nodes", "--folder", str(results))
    return site.begin_other(sys.executable, program, *words).done()


def check(site: Site, results: Path) -> tuple[Done, Path]:
    words = (*SLURM, f"results_dir={results}", "+launcher.sbatch.exclude=n2")
    with site.start():
        return site.bench("check", *words), results


SCENARIOS: dict[str, Callable[..., Any]] = {
    "time limit": time_limit,
    "lost node": lost_node,
    "stopped twice": stopped_twice,
    "chaos": chaos,
    "cancelled": cancelled,
    "unbroken": unbroken,
    "killed rank": killed_rank,
    "killed submission": killed_submission,
    "raising": raising,
    "sweep twice": sweep_twice,
    "from inside": from_inside,
    "wrong shapes": wrong_shapes,
    "check": check,
}
