"""Run directories as they lie on disk, read without trusting them: damage is noted and the rest is used."""

import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ....strategies.errors import ConfigError
from ...config.groups import shipped
from ...machine.folders import check_folder
from ...records.json_lines import Row, read_json, surviving
from ...records.rows import StartRow, TrainIntervalRow
from ...records.study_plan import REPEATS, block_of
from ...records.target_crossing import Crossing, crossing
from .metric import Metric, metric_of
from .run_files import environment_of, mapping_of, read_yaml, rows_of

# What the study is about; the rest (failed, cancelled, …) is listed beside it and counts for nothing.
COUNTED = ("finished", "diverged", "timed_out")
PARTS = ("compute", "exposed", "waiting", "data", "step_other")  # of training time


@dataclass(frozen=True)
class StudyKey:
    """An attribute of `Run` that reads `study.<key>`; "" where the study gives none."""

    key: str

    def __get__(self, run: "Run", owner: type) -> str:
        return str(value_at(run.config, "study", self.key) or "")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory. `place` is its path below the reported folder; units: docs/records.md.

    `evaluations` holds the surviving rows only; `replaced_rows` counts those that a later attempt replaced.
    `rank_rows` holds every train interval of every attempt with its rank.
    `environment` is that of all attempts, what differs between them as text; `start` the row with which the
    first began. `copies`: places of other copies of this run directory. `folder`: where it lies.
    `distrusted`: why its records cannot be believed (`examination.examined`); such a run gives no numbers.
    """

    place: str
    config: dict[str, Any]
    status: dict[str, Any]
    summary: Row
    rank_rows: list[tuple[int, TrainIntervalRow]]
    environment: dict[str, Any] = field(default_factory=dict)
    evaluations: list[Row] = field(default_factory=list)
    replaced_rows: int = 0
    damage: list[str] = field(default_factory=list)
    start: StartRow = field(default_factory=lambda: StartRow.read({}))
    copies: tuple[str, ...] = ()
    folder: Path = Path()
    distrusted: tuple[str, ...] = ()

    arm_name = StudyKey("arm")  # the study's name for what is compared
    size = StudyKey("size")  # "" if the study has one size only
    assumption = StudyKey("assumption")  # the one departure from what the study assumes otherwise
    role = StudyKey("role")  # "same_seeds" or "fresh_seeds" of a second baseline, "placebo", or ""
    tuned = StudyKey("tuned")  # the arm whose tuned settings it has; "" for the study's own settings

    @property
    def run_id(self) -> str:
        return str(self.status.get("run_id") or value_at(self.config, "run", "id") or Path(self.place).name)

    @property
    def found_again(self) -> str:
        """That its directory has copies, and where; "" if it has none."""
        places = ", ".join([self.place, *self.copies])
        times = "twice" if len(self.copies) == 1 else f"{len(self.copies) + 1} times"
        return f"{self.run_id} was found {times} and counts once: {places}" if self.copies else ""

    @property
    def study(self) -> str:
        return str(self.status.get("study") or value_at(self.config, "study", "name") or "runs")

    def name(self, group: str) -> str:
        """The short name of what config group `group` holds ("strategy" -> "daso")."""
        named = value_at(self.config, group, "name")
        if isinstance(named, str) and named:
            return named
        # Run ids are <strategy>-<model>-<dataset>-s<seed>-<hash>, their names free of hyphens.
        names = self.run_id.split("-")
        if len(names) == 5 and group in ("strategy", "model", "dataset"):
            return names[("strategy", "model", "dataset").index(group)]
        target = str(value_at(self.config, group, "_target_") or "unknown")
        # A class of one's own has the name of its file.
        return shipped(group).get(target) or ".".join(target.split(".")[-2:]).partition(".")[0]

    @property
    def strategy(self) -> str:
        return self.name("strategy")

    @property
    def strategy_class(self) -> str:
        """The dotted path of its class; "" where the configuration is lost."""
        return str(value_at(self.config, "strategy", "_target_") or "")

    @property
    def built_in(self) -> str:
        """The name of its strategy if that is one of the project's own; "" for others."""
        head, _, rest = self.strategy_class.partition("daso_bench.strategies.")
        return "" if head else rest.partition(".")[0]

    def may_be_called(self, name: str) -> bool:
        """Whether its strategy is the built-in one of that name; True if no built-in strategy has it."""
        return name == self.built_in or name not in shipped("strategy").values()

    @property
    def world(self) -> str:
        """The launcher, "local" or "simulated"; from environment.json if config.yaml is lost.

        Where something makes links slower than they are, that as well: "emulated/kernel".
        """
        launcher = self.name("launcher") if self.config else str(self.environment.get("world") or "unknown")
        return f"{launcher}/{self.network}" if self.network else launcher

    @property
    def network(self) -> str:
        """What makes the links slower than the machine's, "kernel" or "modelled"; "" for nothing."""
        return str((self.summary.get("validity") or {}).get("network") or "")

    @property
    def invalid(self) -> bool:
        """Whether its own checks say that it measured the machine instead: it gives no numbers."""
        return bool(self.network and self.timing_reasons)

    @property
    def jitters(self) -> bool:
        """Whether steps of virtual time scatter."""
        device = value_at(self.config, "cluster", "device") or {}
        return value_at(device, "jitter") not in (None, "none") and value_at(device, "jitter_cv") != 0

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def repeats_baseline(self) -> bool:
        """Whether it repeats a run of the baseline to the nanosecond: same seeds or placebo, virtual time."""
        return self.world == "simulated" and self.role in REPEATS and not self.jitters

    @property
    def block(self) -> Any:
        """The repetition: runs of one have the same seed, but for a second baseline with fresh ones."""
        return block_of(self.seed, self.role)

    @property
    def state(self) -> str:
        """The status word, or "unknown" if status.json could not be read."""
        return str(self.status.get("status") or "unknown")

    @property
    def counted(self) -> bool:
        return self.state in COUNTED and not self.invalid and not self.distrusted

    @property
    def reason(self) -> str:
        """Why it gives no numbers, or how it ended; "" if it finished."""
        if self.distrusted:
            return f"its records contradict each other: {'; '.join(self.distrusted)}"
        return "; ".join(self.timing_reasons) if self.invalid else str(self.status.get("reason") or "")

    @property
    def labels(self) -> list[str]:
        labels = [*(self.status.get("labels") or []), *(self.summary.get("labels") or [])]
        return list(dict.fromkeys(str(label) for label in labels))

    @property
    def timing_reasons(self) -> list[str]:
        """Why the times of this run are not to be trusted; empty if they are, or if nothing was said."""
        timing = self.status.get("timing") or {}
        if timing.get("valid", True):
            return []
        return [str(reason) for reason in timing.get("reasons") or ["no reason recorded"]]

    @property
    def target(self) -> float | None:
        return value_at(self.config, "train", "target")

    @property
    def stop(self) -> str:
        """What ends it: "budget", or the target ("first", "confirmed")."""
        return str(value_at(self.config, "train", "stop") or "budget")

    @property
    def metric(self) -> str:
        """What the target is about: "accuracy", "miou", "loss" and so on."""
        return str(value_at(self.config, "train", "target_metric") or "accuracy")

    @cached_property
    def crossing(self) -> Crossing | None:
        """Where the target was crossed, from the evaluations; None without a target or a crossing."""
        return None if self.target is None else crossing(self.evaluations, self.target, metric=self.metric)

    @property
    def to_target_s(self) -> float | None:
        """The scored time of the crossing, seconds of T_train."""
        return self.crossing.scored_s if self.crossing else None

    @property
    def resumed(self) -> bool:
        return len(self.status.get("attempts") or []) > 1 or self.replaced_rows > 0

    @property
    def train_s(self) -> float | None:
        """Useful training time, T_train, up to the last thing recorded."""
        return self._latest("train_s")

    @property
    def samples(self) -> float | None:
        return self._latest("samples")

    @property
    def samples_per_s(self) -> float | None:
        recorded = number(self.summary.get("samples_per_s"))
        if recorded is not None:
            return recorded
        return self.samples / self.train_s if self.samples and self.train_s else None

    @cached_property
    def judged_by(self) -> Metric:
        """What its models are judged by."""
        return metric_of(self.metric, self.evaluations, self.summary, task=self.start.task)

    def points(self, x: str) -> list[tuple[float, float]]:
        """Field `x` of each evaluation, and what its model is judged."""
        return [(row[x], self.judged_by.of(row)) for row in self.evaluations]

    @property
    def final(self) -> float | None:
        """What the last model is judged; NaN stays NaN."""
        key = self.judged_by.key
        if f"final_{key}" in self.summary:
            return self.summary[f"final_{key}"]
        return self.evaluations[-1].get(key) if self.evaluations else None

    def payload_bytes(self, link: str) -> float | None:
        """Counted bytes of the whole run over `link` ("intra" or "inter"), summed over ranks."""
        return number((self.summary.get("payload_bytes") or {}).get(link))

    @property
    def parts_s(self) -> dict[str, float]:
        parts: dict[str, Any] = self.summary.get("parts_s") or {}
        return {name: value for name, item in parts.items() if (value := number(item)) is not None}

    @property
    def spent_s(self) -> float | None:
        """Recorded training time of all attempts, redone work included: each interval's slowest rank."""
        slowest: dict[tuple[Any, Any], float] = defaultdict(float)
        for _, row in self.rank_rows:
            key = (row.attempt, row.index)
            slowest[key] = max(slowest[key], number(row.train_s) or 0.0)
        return sum(slowest.values()) if slowest else None

    @property
    def started_unix(self) -> float | None:
        """The start of the first attempt, s since 1970."""
        return min(self.stamps("started_unix"), default=None)

    @property
    def ended_unix(self) -> float | None:
        """The end of the last attempt, s since 1970."""
        return max(self.stamps("ended_unix"), default=None)

    @property
    def calendar_s(self) -> float | None:
        """From the first start to the last end, waiting between attempts included."""
        start, end = self.started_unix, self.ended_unix
        return None if start is None or end is None else end - start

    def stamps(self, name: str) -> list[float]:
        """The times of all attempts under `name`, s since 1970."""
        attempts = self.status.get("attempts") or []
        return [value for a in attempts if (value := number(a.get(name))) is not None]

    def _latest(self, field: str) -> float | None:
        recorded = number(self.summary.get(field))
        if recorded is not None:
            return recorded
        return number(self.evaluations[-1].get(field)) if self.evaluations else None


def number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


def value_at(tree: Mapping[str, Any], *names: str) -> Any:
    """What stands at `names`, each inside the one before; None where one is missing."""
    value: Any = tree
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def find_runs(directory: Path) -> Iterator[Path]:
    """Every run directory at or below `directory`, in sorted order; what lies inside one is not searched."""
    for folder, folders, files in os.walk(directory):
        folders.sort()
        if "status.json" in files or "metrics.jsonl" in files:
            folders.clear()
            yield Path(folder)


def load_runs(directory: Path, asked: str) -> list[Run]:
    """Every run at or below `directory` once, in sorted order; `asked`: the command, for messages.

    Raises ConfigError if there is no such folder or no run in it.
    """
    check_folder(directory, f"{asked} {directory}")
    runs: list[Run] = []
    for path in find_runs(directory):
        place = path.relative_to(directory).as_posix()
        runs.append(load_run(path, "the run" if place == "." else place))
    if not runs:
        raise ConfigError(f"{asked} {directory}: no run directory in it (a folder with status.json)")
    return without_copies(runs)


def without_copies(runs: Iterable[Run]) -> list[Run]:
    """Each run once: of several copies of its directory the one that got furthest, which names the others.

    Copies have the same study, id and start. A run without a start is taken for itself. Of copies that got as
    far, the one whose folder has the name of the run is kept.
    """
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        started = run.started_unix
        groups[(run.place,) if started is None else (run.study, run.run_id, started)].append(run)
    kept: list[Run] = []
    for copies in groups.values():
        furthest = max(copies, key=lambda r: (r.counted, r.train_s or 0.0, r.folder.name == r.run_id))
        places = tuple(run.place for run in copies if run is not furthest)
        kept.append(replace(furthest, copies=places) if places else furthest)
    return kept


def load_run(path: Path, place: str) -> Run:
    """Read one run directory; nothing in it makes this fail, all trouble ends up in `damage`."""
    damage: list[str] = []
    rows = rows_of(path / "metrics.jsonl", f"{place}/metrics.jsonl", damage)
    kept = surviving(rows)
    rank_rows: list[tuple[int, TrainIntervalRow]] = []
    for file in sorted((path / "ranks").glob("*.jsonl")):
        rank = int(file.stem) if file.stem.isdigit() else -1
        of_rank = rows_of(file, f"{place}/ranks/{file.name}", damage)
        rank_rows += [
            (rank, _train_interval(row)) for row in of_rank if row.get("kind") == TrainIntervalRow.kind
        ]
    status = mapping_of(path / "status.json", place, read_json, damage)
    summaries = [row for row in kept if row.get("kind") == "summary"]
    return Run(
        place=place,
        config=mapping_of(path / "config.yaml", place, read_yaml, damage),
        environment=environment_of(path, place, damage),
        status=status,
        evaluations=[_shared(row) for row in kept if row.get("kind") == "evaluation" and is_placed(row)],
        summary=summaries[-1] if summaries else status.get("summary") or {},
        rank_rows=rank_rows,
        start=StartRow.read(next((row for row in rows if row.get("kind") == StartRow.kind), {})),
        replaced_rows=len(rows) - len(kept),
        damage=damage,
        folder=path,
    )


def _shared(value: Any) -> Any:
    """A mapping with keys that all rows share: of many runs they would take most of the memory."""
    return {sys.intern(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _train_interval(row: Row) -> TrainIntervalRow:
    """What a report needs of a train interval: of many runs the rest would take most of the memory."""
    return TrainIntervalRow.read(
        {**row, "parts_s": _shared(row.get("parts_s")), "segments_s": {}, "payload_bytes": {}}
    )


def is_placed(row: Row) -> bool:
    """Whether an evaluation has a place on both axes: training time and samples."""
    return number(row.get("train_s")) is not None and number(row.get("samples")) is not None
