"""`daso-bench calibrate`: measures this machine with real processes, and writes the file of a cluster."""

import dataclasses
import datetime
import math
import platform
import re
import shlex
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...strategies.ddp import DDP
from ...strategies.errors import ConfigError
from ..config import groups, load
from ..config.cluster import ClusterConfig
from ..config.compose import compose_one
from ..config.launchers import SimulatedConfig
from ..config.overrides import key_of
from ..config.run_config import RunConfig
from ..config.typed import plain, typed
from ..launch import local
from ..launch.launcher import launcher_of, threads_of
from ..machine.cores import usable_cores
from ..machine.environment import processor
from ..machine.folders import folder_facts
from ..records import display
from ..records.json_lines import write_json
from ..records.run_directory import INTERRUPTED, Outcome, RunDirectory
from . import calibration_fit as fit
from . import calibration_ranks as ranks_entry
from . import nccl_table
from .calibration_file import cluster_of, held_out_lines, render, trace, write
from .calibration_fit import Calibration, HoldOut, Overlap, Steps

PAYLOADS = tuple(1024 * 4**power for power in range(9))  # 1 KiB to 64 MiB
LOOK_STEPS, OWN_STEPS, STEPS = 3, 20, 4
STEPS_S, OVERLAP_S, SUMS_S = 40.0, 15.0, 15.0  # what a part may take
SUMS_OF_A_ROUND_S = 0.15  # all payloads, on a slow machine
RUNS, RUN_S = 3, 5.0
_PATIENCE_S = 0.5  # after Ctrl-C: nothing is to be saved


class Ended(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def rounds(budget_s: float, round_s: float, low: int, high: int, effort: float = 1.0) -> int:
    """How many rounds of `round_s` fit into the time for a part; `effort`: of the usual number."""
    return max(2, round(effort * low), min(round(effort * high), round(effort * budget_s / round_s)))


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

    With links=FILE nothing is measured: the links are those of a table of nccl-tests.
    `effort`: of the usual number of rounds. Raises ConfigError, MachineError where nothing could be started.
    """
    console = display.make_console(goes_on=True)
    file = _file(output, name, force, cwd)
    if any(key_of(word) == "links" for word in words):
        return _links_of_table(console, words, file, config_dir, cwd)
    config, names = _config(words, config_dir, cwd)
    local.warm()
    command = ["daso-bench", "calibrate", *words, "--name", name]
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(console, config, Path(scratch), effort)
        try:
            machine.look()
            results = machine.measured(shlex.join(command), *names)
            hold_out = machine.hold_out(cluster_of(render(results, name)))
            results = dataclasses.replace(results, hold_out=hold_out)
        except Ended as ended:
            display.say(console, ended.outcome.details.rstrip(), "dim")
            display.say(console, f"nothing is written: {ended.outcome.reason}", "red")
            return ended.outcome.exit_code or 1
    write(file.with_suffix(".csv"), trace(results.steps.own))
    write(file, render(results, name))
    for line in held_out_lines(results):
        display.say(console, line)
    display.say(console, f"written: {file}")
    kept = [word for word in words if key_of(word).partition(".")[0] not in ("cluster", "launcher")]
    use = ["--config-dir", str(output), "launcher=simulated", f"cluster={name}", *kept]
    display.say(console, f"use it with: daso-bench {shlex.join(use)}")
    return 0


def _links_of_table(
    console: Console, words: Sequence[str], file: Path, config_dir: Path | None, cwd: Path
) -> int:
    """The cluster that `words` name, with the links of the table links=FILE, written to `file`."""
    tables = [word.partition("=")[2] for word in words if key_of(word) == "links"]
    chosen = [word for word in words if key_of(word) != "links"]
    for word in [*tables[1:], *(word for word in chosen if key_of(word).partition(".")[0] != "cluster")]:
        raise ConfigError(f"{word}: links=FILE takes one table, cluster=NAME and keys of the cluster alone")
    table = nccl_table.read_table(cwd / Path(tables[0]).expanduser())
    named = typed(ClusterConfig, plain(compose_one(chosen, config_dir=config_dir))["cluster"], "cluster")
    cluster = nccl_table.calibrated(named, table, f"links={tables[0]}")
    command = shlex.join(["daso-bench", "calibrate", *words, "--name", file.stem])
    for line in nccl_table.table_lines(cluster, table):
        display.say(console, line)
    write(file, nccl_table.render_links(cluster, named, table, command))
    display.say(console, f"written: {file}")
    use = ["--config-dir", str(file.parent.parent), "launcher=simulated", f"cluster={file.stem}"]
    display.say(console, f"use it with: daso-bench {shlex.join(use)}")
    return 0


class Machine:
    """Measures this machine, by one group of processes after the other. All methods raise Ended."""

    def __init__(self, console: Console, config: RunConfig, scratch: Path, effort: float) -> None:
        self._console, self._config, self._scratch, self._effort = console, config, scratch, effort
        self._launches = 0
        self._step_s: dict[int, float] = {}  # by samples
        self.ranks = config.cluster.ranks
        self.own = max(1, config.train.global_batch_size // self.ranks)
        self.sizes = tuple(fit.sizes_around(self.own))
        of_nodes = config.cluster.ranks_of_nodes
        self.pairs = {
            kind: ClusterConfig(nodes=nodes, ranks_per_node=(2 // nodes,))
            for kind, nodes, there in (("intra", 1, max(of_nodes) > 1), ("inter", 2, len(of_nodes) > 1))
            if there
        }

    def look(self) -> None:
        """Run a few steps of each size: what a step takes decides how many rounds are measured."""
        steps: dict[str, Any] = {"rounds": 1, "steps": LOOK_STEPS, "own_steps": LOOK_STEPS}
        took = self._measure("a first look", "steps", sizes=self.sizes, **steps)
        self._step_s = dict(zip(self.sizes, np.max(took["sizes"], (0, 2)).tolist(), strict=True))
        own_ms = 1e3 * self._step_s[self.own]
        display.say(self._console, f"{self.ranks} ranks, a step of {self.own} samples {own_ms:.2f} ms")

    def measured(self, command: str, model: str, dataset: str) -> Calibration:
        """Measure all parts but the hold-out; the texts are for the file."""
        own_s, effort = self._step_s[self.own], self._effort
        round_s = sum((1 + STEPS) * step_s for step_s in self._step_s.values()) + OWN_STEPS * own_s
        number = rounds(STEPS_S, round_s, 6, 100, effort)
        steps: dict[str, Any] = {"rounds": number, "steps": STEPS, "own_steps": OWN_STEPS}
        took = self._measure("1/4 step times", "steps", sizes=self.sizes, **steps)
        number = rounds(SUMS_S, len(PAYLOADS) * own_s + SUMS_OF_A_ROUND_S, 8, 40, effort)
        links = {}
        for kind, pair in self.pairs.items():
            sums = self._measure(f"2/4 links, {kind}", "sums", pair, rounds=number, payloads=PAYLOADS)
            links[kind] = fit.line_fit(PAYLOADS, np.array(sums["sums"]))
        overlap = None
        if self.ranks > 1:
            number = rounds(OVERLAP_S, 3 * own_s, 10, 150, effort)
            overlap = overlap_of(self._measure("3/4 overlap", "overlap", rounds=number))
        nodes, cpu = self._config.cluster.ranks_of_nodes, processor() or platform.machine()
        device = took["device"] or cpu
        about = (
            f"This machine with {' + '.join(map(str, nodes))} ranks, {model} on {dataset}, measured "
            "(virtual time)",
            "",
            command,
            f"{datetime.date.today()}; {cpu}, {usable_cores()} usable cores; torch {version('torch')}",
            f"{self.ranks} processes on {device}, threads of each: {threads_of(self._config)}.",
            f"Step times are those of {model} on samples like {dataset}'s alone.",
        )
        return Calibration(
            about=about,
            batch=self.own,
            device=device,
            on_gpus=took["device"] is not None,
            ranks_of_nodes=nodes,
            steps=steps_of(took, self.sizes),
            links=links,
            overlap=overlap,
        )

    def hold_out(self, cluster: ClusterConfig) -> HoldOut | None:
        """Real runs of ddp, and the same run on `cluster` in virtual time.

        None if the data are too few for such a batch.
        """
        samples = len(self._config.dataset.load().train)
        batch = fit.held_out(self.own, self.sizes, samples // self.ranks)
        if batch is None:
            return None
        steps = rounds(RUN_S, self._step_s[self.own], 60, 600, self._effort)
        train = dataclasses.replace(
            ranks_entry.endless(self._config.train),
            global_batch_size=batch * self.ranks,
            epochs=math.ceil(steps / max(1, samples // (batch * self.ranks))) + 1,
            max_steps=steps,
        )
        real = dataclasses.replace(self._config, train=train)
        measured = [
            _step_s(self._launch(f"4/4 hold-out, run {number + 1}", real, self.ranks, local.ENTRY))
            for number in range(max(1, round(self._effort * RUNS)))
        ]
        launcher = SimulatedConfig(timing_only=True)
        virtual = dataclasses.replace(real, cluster=cluster, launcher=launcher)
        modelled = _step_s(self._launch("4/4 hold-out, virtual time", virtual, 1, local.ALL_RANKS))
        return HoldOut(batch=batch, steps=steps, measured=tuple(measured), modelled=modelled)

    def _measure(
        self, title: str, part: str, cluster: ClusterConfig | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """What the ranks of `cluster`, by default the run's, measure: the `part` of `calibration_ranks`."""
        config = self._config
        if cluster is not None:
            train = dataclasses.replace(config.train, global_batch_size=self.own * cluster.ranks)
            config = dataclasses.replace(config, cluster=cluster, train=train)
        task = {"part": part, "own": self.own, **arguments}
        return self._launch(title, config, config.cluster.ranks, ranks_entry.ENTRY, task)

    def _launch(
        self, title: str, config: RunConfig, ranks: int, entry: str, task: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self._launches += 1
        directory = RunDirectory.create(config.tree, self._scratch / str(self._launches))
        if task is not None:
            write_json(directory.path / ranks_entry.TASK, task)
        display.say(self._console, title, "bold")
        with display.progress(self._console, title) as on_event:
            outcome = local.launch(
                directory,
                ranks=ranks,
                threads=threads_of(self._config),
                # Other entries measure steps on batches that are in memory.
                workers=config.launcher.asked_workers if entry == local.ENTRY else 0,
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


def steps_of(took: dict[str, Any], sizes: tuple[int, ...]) -> Steps:
    by_rank, single = np.array(took["sizes"]), np.array(took["own"])
    jitter, jitter_cv = fit.jitter_fit(single)
    return Steps(
        sizes=sizes,
        own=single,
        fit=fit.line_fit(sizes, by_rank.mean(2)),
        forward_share=float(np.median(np.array(took["own_forward"]) / single)),
        jitter=jitter,
        jitter_cv=jitter_cv,
        # Relative to the mean of its round and size, all sizes count for a rank's speed.
        speeds=fit.rank_speeds((by_rank / by_rank.mean(2, keepdims=True)).reshape(-1, by_rank.shape[2])),
        data_ms=1e3 * float(np.mean(took["data"])),
    )


def overlap_of(took: dict[str, Any]) -> Overlap:
    """The results of the part `overlap`, of medians over rounds."""
    alone, ddp, sums = (np.array(took[key]) for key in ("alone", "ddp", "sums"))

    def parts(of_rounds: np.ndarray) -> tuple[float, float, float]:
        forward, both, stretched, *each = np.median(of_rounds, 0).tolist()
        hidden = fit.overlapped(forward, both - forward, took["ready"], each)
        return fit.overlap_loss(stretched, hidden), 1e3 * stretched, 1e3 * hidden

    # Differences within a round: a longer disturbance of the machine slows both steps of it.
    samples = np.concatenate([alone, ddp[:, 1:] - alone[:, 1:], sums], 1)
    interval, *_ = fit.bootstrap(samples, parts)
    return Overlap(*parts(samples), interval=interval, rounds=len(samples))


def _file(output: Path, name: str, force: bool, cwd: Path) -> Path:
    """The absolute path of the file. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"--name={name}: must be the name of a file: letters, digits, _, - and points")
    if name in groups.entries("cluster"):
        raise ConfigError(f"--name={name}: is a cluster of daso-bench itself; take another name")
    file = cwd / output.expanduser() / "cluster" / f"{name}.yaml"
    if error := folder_facts(file.parent)["error"]:
        raise ConfigError(f"{file.parent}: {error}; --output names another folder")
    existing = next((path for path in (file, file.with_suffix(".csv")) if path.exists()), None)
    if existing is not None and not force:
        raise ConfigError(f"{existing}: is there already; --force replaces it, --name writes another one")
    return file


def _config(words: Sequence[str], config_dir: Path | None, cwd: Path) -> tuple[RunConfig, tuple[str, str]]:
    """The run to measure, and the names of its model and data set. Raises ConfigError for a run that real
    processes cannot measure."""
    config = load.run_config(words, config_dir=config_dir, cwd=cwd)
    if config.launcher.name != "local":
        raise ConfigError(f"launcher={config.launcher.name}: calibrate needs real processes; take local")
    if config.strategy_class is not DDP or config.strategy != DDP.Config():
        raise ConfigError(
            f"strategy={config.strategy_name}: calibrate measures the machine by plain ddp, for all "
            "strategies; leave strategy and its keys out"
        )
    launcher_of(config).refuse(config)
    _, model, dataset, *_ = config.run_id.split("-")
    return config, (model, dataset)


def _step_s(summary: dict[str, Any]) -> float:
    return summary["train_s"] / summary["steps"]
