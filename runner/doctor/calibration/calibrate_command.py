"""`daso-bench calibrate`: measures this machine with real processes, and writes the file of a cluster."""

import dataclasses
import datetime
import math
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....strategies.ddp import DDP
from ....strategies.errors import ConfigError
from ...config import groups, load
from ...config.cluster import ClusterConfig
from ...config.launchers import SimulatedConfig
from ...config.overrides import key_of
from ...config.run_config import RunConfig
from ...launch import local
from ...launch.launcher import launcher_of, threads_of
from ...machine.environment import processor, usable_cores
from ...records import display
from ...records.json_lines import write_json
from ...records.run_directory import INTERRUPTED, Outcome, RunDirectory
from . import fit, measure
from .fit import About, Calibration, HoldOut, LinkClass, Overlap, Steps
from .measure import MeasureTask
from .write import cluster_of, render, rows, trace, write

PAYLOADS = tuple(1024 * 4**power for power in range(9))  # 1 KiB to 64 MiB
LOOK_STEPS, OWN_STEPS, STEPS = 3, 20, 4
STEPS_S, OVERLAP_S, SUMS_S = 40.0, 15.0, 15.0  # what a part may take
SUMS_OF_A_ROUND_S = 0.3  # all payloads twice, on a slow machine
RUNS, RUN_S, START_S = 3, 5.0, 3.0
_PATIENCE_S = 0.5  # after Ctrl-C: nothing is to be saved
_NEVER = 10**12  # samples


class Ended(Exception):
    """A measurement failed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan:
    """Rounds of each part, steps of a real run, and the seconds that all of it takes."""

    steps: int
    overlap: int
    sums: int
    run: int
    seconds: float

    @classmethod
    def of(
        cls, step_s: dict[int, float], own: int, ranks: int, links: int, effort: float
    ) -> "CalibrationPlan":
        """From the seconds of a step by its samples. `links`: how many classes of them."""
        round_s = sum((1 + STEPS) * took for took in step_s.values()) + OWN_STEPS * step_s[own]
        sums_s = len(PAYLOADS) * step_s[own] + SUMS_OF_A_ROUND_S
        steps = _rounds(STEPS_S / round_s, 6, 100, effort)
        overlap = _rounds(OVERLAP_S / (3 * step_s[own]), 10, 150, effort) if ranks > 1 else 0
        sums = _rounds(SUMS_S / sums_s, 8, 40, effort) if links else 0
        run = _rounds(RUN_S / step_s[own], 60, 600, effort)
        runs = _runs(effort) * (START_S + 2 * run * step_s[own])
        parts = steps * (round_s + OWN_STEPS * step_s[own])
        parts += overlap * 3 * step_s[own] + links * sums * sums_s
        seconds = parts + runs + START_S * (5 + links)
        return cls(steps=steps, overlap=overlap, sums=sums, run=run, seconds=seconds)


def calibrate(
    words: Sequence[str],
    *,
    name: str,
    output: Path,
    cwd: Path,
    force: bool = False,
    config_dir: Path | None = None,
    effort: float = 1.0,
) -> int:
    """Measure the run that `words` name and write `output`/cluster/`name`.yaml; returns the exit code.

    `effort`: of the usual number of rounds. Raises ConfigError, MachineError where nothing could be started.
    """
    console = display.make_console(goes_on=True)
    file = _file(output, name, force, cwd)
    config, names = _config(words, config_dir, cwd)
    local.warm()
    command = ["daso-bench", "calibrate", *words, "--name", name]
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(console, config, Path(scratch), effort)
        try:
            plan = machine.look()
            results = machine.measured(plan, shlex.join(command), *names)
            hold_out = machine.hold_out(results, cluster_of(render(results, name)), plan)
            results = dataclasses.replace(results, hold_out=hold_out)
        except Ended as ended:
            display.say(console, ended.outcome.details.rstrip(), "dim")
            display.say(console, f"nothing is written: {ended.outcome.reason}", "red")
            return ended.outcome.exit_code or 1
    write(file.with_suffix(".csv"), trace(results.steps.own))
    write(file, render(results, name))
    console.print(_table(results))
    display.say(console, f"written: {file}")
    kept = [word for word in words if key_of(word).partition(".")[0] not in ("cluster", "launcher")]
    use = ["--config-dir", str(output), "launcher=simulated", f"cluster={name}", *kept]
    display.say(console, f"use it with: daso-bench {shlex.join(use)}")
    return 0


class Machine:
    """Measures this machine, by one group of processes after the other."""

    def __init__(self, console: Console, config: RunConfig, scratch: Path, effort: float) -> None:
        self._console, self._config, self._scratch, self._effort = console, config, scratch, effort
        self._launches = 0
        self.ranks = config.cluster.ranks
        self.own = max(1, config.train.global_batch_size // self.ranks)
        self.sizes = tuple(fit.sizes_around(self.own))
        self.threads = threads_of(config)
        of_nodes = config.cluster.ranks_of_nodes
        self.pairs = {
            kind: ClusterConfig(nodes=nodes, ranks_per_node=(2 // nodes,))
            for kind, nodes, there in (("intra", 1, max(of_nodes) > 1), ("inter", 2, len(of_nodes) > 1))
            if there
        }

    def look(self) -> CalibrationPlan:
        """Run a few steps of each size, and plan the measurement. Raises Ended, KeyboardInterrupt."""
        took = self._measure("a first look", self._steps(rounds=1, steps=LOOK_STEPS, own_steps=LOOK_STEPS))
        step_s = dict(zip(self.sizes, np.max(took["sizes"], (0, 2)).tolist(), strict=True))
        plan = CalibrationPlan.of(step_s, self.own, self.ranks, len(self.pairs), self._effort)
        who = f"{self.ranks} ranks, a step of {self.own} samples {step_s[self.own] * 1e3:.2f} ms"
        display.say(self._console, f"{who}; all in all about {display.duration(plan.seconds)}")
        return plan

    def measured(self, plan: CalibrationPlan, command: str, model: str, dataset: str) -> Calibration:
        """Measure all parts but the hold-out; the texts are for the file. Raises Ended, KeyboardInterrupt."""
        took = self._measure(
            "1/4 step times", self._steps(rounds=plan.steps, steps=STEPS, own_steps=OWN_STEPS)
        )
        links = {}
        for kind, pair in self.pairs.items():
            task = MeasureTask(part="sums", rounds=plan.sums, own=self.own, payloads=PAYLOADS)
            links[kind] = link_of(self._measure(f"2/4 links, {kind}", task, pair), PAYLOADS)
        overlap = None
        if self.ranks > 1:
            task = MeasureTask(part="overlap", rounds=plan.overlap, own=self.own)
            overlap = overlap_of(self._measure("3/4 overlap", task))
        about = self._about(command, model, dataset, accelerator=took["device"])
        return Calibration(about=about, steps=steps_of(took, self.sizes), links=links, overlap=overlap)

    def hold_out(self, results: Calibration, cluster: ClusterConfig, plan: CalibrationPlan) -> HoldOut | None:
        """Real runs of ddp, and the same run on `cluster` in virtual time; then the step alone once more.

        None if the data are too few for such a batch. Raises Ended, KeyboardInterrupt.
        """
        samples = len(self._config.dataset.load().train)
        batch = fit.held_out(self.own, self.sizes, samples // self.ranks)
        if batch is None:
            return None
        size, steps = batch * self.ranks, plan.run
        train = dataclasses.replace(
            self._config.train,
            global_batch_size=size,
            epochs=math.ceil(steps / max(1, samples // size)) + 1,
            max_steps=steps,
            max_seconds=None,
            target=None,
            stop="budget",
            eval_every_samples=_NEVER,
            eval_mode="inline",
            checkpoint_every_samples=None,
        )
        real = dataclasses.replace(self._config, train=train)
        measured = [
            _step_s(self._launch(f"4/4 hold-out, run {number + 1}", real, self.ranks, local.ENTRY))
            for number in range(_runs(self._effort))
        ]
        launcher = SimulatedConfig(timing_only=True)
        virtual = dataclasses.replace(real, cluster=cluster, launcher=launcher)
        modelled = _step_s(self._launch("4/4 hold-out, virtual time", virtual, 1, local.ALL_RANKS))
        task = MeasureTask(
            part="steps", own=self.own, sizes=(self.own,), rounds=plan.steps, own_steps=OWN_STEPS
        )
        again = np.array(self._measure("4/4 hold-out, the step once more", task)["sizes"])
        before = np.median(results.steps.seconds[:, self.sizes.index(self.own)])
        drift = float(np.median(again.mean(2)) / before - 1)
        return HoldOut(batch=batch, steps=steps, measured=tuple(measured), modelled=modelled, drift=drift)

    def _steps(self, *, rounds: int, steps: int, own_steps: int) -> MeasureTask:
        own, sizes = self.own, self.sizes
        return MeasureTask(
            part="steps", own=own, sizes=sizes, rounds=rounds, steps=steps, own_steps=own_steps
        )

    def _measure(self, title: str, task: MeasureTask, cluster: ClusterConfig | None = None) -> dict[str, Any]:
        config = self._config
        if cluster is not None:
            train = dataclasses.replace(config.train, global_batch_size=self.own * cluster.ranks)
            config = dataclasses.replace(config, cluster=cluster, train=train)
        return self._launch(title, config, config.cluster.ranks, measure.ENTRY, task)

    def _launch(
        self, title: str, config: RunConfig, ranks: int, entry: str, task: MeasureTask | None = None
    ) -> dict[str, Any]:
        self._launches += 1
        directory = RunDirectory.create(load.to_plain(config), self._scratch / str(self._launches))
        if task is not None:
            write_json(directory.path / measure.TASK, dataclasses.asdict(task))
        display.say(self._console, title, "bold")
        with display.progress(self._console, title) as on_event:
            outcome = local.launch(
                directory,
                ranks=ranks,
                threads=self.threads,
                # Other entries measure steps on batches that are in memory.
                workers=config.launcher.loader_workers if entry == local.ENTRY else 0,
                port=self._config.launcher.port,
                stall_s=self._config.launcher.stall_s,
                patience_s=_PATIENCE_S,
                entry=entry,
                on_event=on_event,
            )
        if outcome.exit_code == INTERRUPTED:
            raise KeyboardInterrupt
        if outcome.status != "finished" or not outcome.summary:
            raise Ended(outcome)
        return outcome.summary

    def _about(self, command: str, model: str, dataset: str, *, accelerator: str | None) -> About:
        return About(
            command=command,
            date=datetime.date.today().isoformat(),
            processor=processor() or platform.machine(),
            cores=usable_cores(),
            accelerator=accelerator,
            torch=version("torch"),
            threads=self.threads,
            model=model,
            dataset=dataset,
            batch=self.own,
            ranks_of_nodes=self._config.cluster.ranks_of_nodes,
        )


def steps_of(took: dict[str, Any], sizes: tuple[int, ...]) -> Steps:
    """The fits of the part `steps`."""
    by_rank, own = np.array(took["sizes"]), np.array(took["own"])
    return Steps(
        sizes=sizes,
        seconds=by_rank.mean(2),
        own=own,
        fit=fit.step_fit(sizes, by_rank.mean(2)),
        forward_share=float(np.median(np.array(took["own_forward"]) / own)),
        jitter=fit.jitter_fit(own),
        # Relative to the mean of its round and size, all sizes count for a rank's speed.
        speeds=fit.rank_speeds((by_rank / by_rank.mean(2, keepdims=True)).reshape(-1, by_rank.shape[2])),
        data_ms=1e3 * float(np.mean(took["data"])),
    )


def link_of(took: dict[str, Any], payloads: tuple[int, ...]) -> LinkClass:
    """The fits of the part `sums`."""
    return LinkClass(
        payloads=payloads,
        rounds=len(took["paused"]),
        paused=fit.link_fit(payloads, np.array(took["paused"])),
        back_to_back=fit.link_fit(payloads, np.array(took["back_to_back"])),
    )


def overlap_of(took: dict[str, Any]) -> Overlap:
    """The results of the part `overlap`, of medians over rounds."""
    alone, ddp, sums = (np.array(took[key]) for key in ("alone", "ddp", "sums"))
    ready = took["ready"]

    def parts(of_rounds: np.ndarray) -> tuple[float, float, float]:
        forward, both, stretched, *each = np.median(of_rounds, 0).tolist()
        hidden = fit.overlapped(forward, both - forward, ready, each)
        return fit.overlap_loss(stretched, hidden), stretched, hidden

    # Differences within a round: a longer disturbance of the machine slows both steps of it.
    samples = np.concatenate([alone, ddp[:, 1:] - alone[:, 1:], sums], 1)
    loss, stretched, hidden = parts(samples)
    interval = fit.bootstrap(samples, parts)[0]
    return Overlap(
        loss=loss,
        interval=interval,
        stretched_ms=1e3 * stretched,
        hidden_ms=1e3 * hidden,
        rounds=len(samples),
    )


def _file(output: Path, name: str, force: bool, cwd: Path) -> Path:
    """The absolute path of the file. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"--name={name}: must be the name of a file: letters, digits, _, - and points")
    if name in groups.entries("cluster"):
        raise ConfigError(f"--name={name}: is a cluster of daso-bench itself; take another name")
    file = cwd / output.expanduser() / "cluster" / f"{name}.yaml"
    folder = next(parent for parent in file.parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: is no folder to write in; --output names another one")
    existing = next((path for path in (file, file.with_suffix(".csv")) if path.exists()), None)
    if existing is not None and not force:
        raise ConfigError(f"{existing}: is there already; --force replaces it, --name writes another one")
    return file


def _config(words: Sequence[str], config_dir: Path | None, cwd: Path) -> tuple[RunConfig, tuple[str, str]]:
    """The run to measure, and the names of its model and data set. Raises ConfigError for a run that real
    processes cannot measure."""
    config = load.run_config(words, config_dir=config_dir, cwd=cwd)
    if config.launcher.name != "local":
        raise ConfigError(
            f"launcher={config.launcher.name}: calibrate measures real processes; leave launcher=local"
        )
    if config.strategy_class is not DDP or config.strategy != DDP.Config():
        raise ConfigError(
            f"strategy={config.strategy_name}: calibrate measures the machine by plain ddp, for all "
            "strategies; leave strategy and its keys out"
        )
    launcher_of(config).refuse(config)
    _, model, dataset, *_ = config.run_id.split("-")
    return config, (model, dataset)


def _rounds(wanted: float, low: int, high: int, effort: float) -> int:
    return max(2, round(effort * low), min(round(effort * high), round(effort * wanted)))


def _runs(effort: float) -> int:
    return max(1, round(effort * RUNS))


def _step_s(summary: dict[str, Any]) -> float:
    return summary["train_s"] / summary["steps"]


def _table(results: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("measured", "value", "95 %, and the worst of the fit"):
        table.add_column(header, overflow="fold")
    for row in rows(results):
        table.add_row(*(Text(cell) for cell in row))
    return table
