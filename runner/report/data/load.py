"""Run directories as they lie on disk, read without trusting them: damage is noted and the rest is used."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ....strategies.errors import ConfigError
from ...config.groups import shipped
from ...machine.folders import check_folder
from ...records.json_lines import Row, read_json, read_records, surviving
from ...records.rows import StartRow, TrainIntervalRow
from ...records.study_plan import REPEATS, block_of
from ...records.target_crossing import Crossing, crossing, is_number
from ...records.trees import load_yaml
from .metric import Metric, metric_of

# What the study is about; the rest (failed, cancelled, …) is listed with it and counts for nothing.
COUNTED = ("finished", "diverged", "timed_out")
PARTS = ("compute", "exposed", "waiting", "data", "step_other")  # of training time
LINKS = ("intra", "inter")


def _text_at(part: str, *names: str, default: str = "") -> "cached_property[str]":
    """An attribute of `Run`: what stands at `names` in `part` of it, as text; `default` for nothing."""
    return cached_property(lambda run: str(value_at(getattr(run, part), *names) or default))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory. `place` is its path below the reported folder; units: docs/records.md.

    `evaluations` holds the rows of the work that survived.
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
    damage: list[str] = field(default_factory=list)
    start: StartRow = field(default_factory=lambda: StartRow.read({}))
    copies: tuple[str, ...] = ()
    folder: Path = Path()
    distrusted: tuple[str, ...] = ()

    arm_name = _text_at("config", "study", "arm")  # the study's name for what is compared
    own_name = _text_at("config", "run", "arm")  # the user's own
    size = _text_at("config", "study", "size")  # "" if the study has one size only
    assumption = _text_at("config", "study", "assumption")  # the one departure from what is assumed otherwise
    role = _text_at("config", "study", "role")  # "same_seeds", "fresh_seeds", "placebo", "one_core" or ""
    tuned = _text_at("config", "study", "tuned")  # the arm whose tuned settings it has; or ""
    strategy_class = _text_at("config", "strategy", "_target_")  # "" where the configuration is lost
    stop = _text_at("config", "train", "stop", default="budget")  # or the target: "first", "confirmed"
    metric = _text_at("config", "train", "target_metric", default="accuracy")  # what the target is about
    state = _text_at("status", "status", default="unknown")
    network = _text_at("summary", "validity", "network")  # "kernel" or "modelled" makes links slower; or ""

    @property
    def run_id(self) -> str:
        return str(self.status.get("run_id") or value_at(self.config, "run", "id") or Path(self.place).name)

    @property
    def found_again(self) -> str:
        """That its directory has copies, and where; "" if it has none."""
        places = (self.place, *self.copies)
        times = "twice" if len(places) == 2 else f"{len(places)} times"
        return f"{self.run_id} was found {times} and counts once: {', '.join(places)}" if self.copies else ""

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
    def built_in(self) -> str:
        """The name of its strategy if that is one of the project's own; "" for others."""
        head, _, rest = self.strategy_class.partition("daso_bench.strategies.")
        return "" if head else rest.partition(".")[0]

    def may_be_called(self, name: str) -> bool:
        """Whether its strategy is the built-in one of that name; True if no built-in strategy has it."""
        return name == self.built_in or name not in shipped("strategy").values()

    @property
    def world(self) -> str:
        """The launcher, "local" or "simulated", with what makes links slower, if any: "emulated/kernel"."""
        launcher = self.name("launcher") if self.config else str(self.environment.get("world") or "unknown")
        return f"{launcher}/{self.network}" if self.network else launcher

    @property
    def invalid(self) -> bool:
        """Whether its own checks say that it measured the machine instead: it gives no numbers."""
        return bool(self.network and self.timing_reasons)

    @property
    def timing_only(self) -> bool:
        """Whether only the clocks ran: nothing is learnt."""
        return bool(value_at(self.config, "launcher", "timing_only"))

    @property
    def computed_on(self) -> str | None:
        """The GPU that computed virtual ranks, or CPU; None where nothing did, or nothing is known of it."""
        if self.world != "simulated" or self.timing_only or not self.environment:
            return None
        return str(self.environment.get("computed_on", "CPU"))

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
        return list(dict.fromkeys(map(str, labels)))

    @property
    def timing_reasons(self) -> list[str]:
        """Why the times of this run are not to be trusted; empty if they are, or if that is not recorded."""
        timing = self.status.get("timing") or {}
        reasons = timing.get("reasons") or ["no reason recorded"]
        return [] if timing.get("valid", True) else [str(reason) for reason in reasons]

    @property
    def target(self) -> float | None:
        return value_at(self.config, "train", "target")

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
        return len(self.status.get("attempts") or []) > 1

    @property
    def train_s(self) -> float | None:
        """Useful training time, T_train, up to the last thing recorded."""
        return self._latest("train_s")

    @property
    def samples(self) -> float | None:
        return self._latest("samples")

    def _latest(self, name: str) -> float | None:
        recorded = number(self.summary.get(name))
        if recorded is None and self.evaluations:
            return number(self.evaluations[-1].get(name))
        return recorded

    @property
    def samples_per_s(self) -> float | None:
        recorded = number(self.summary.get("samples_per_s"))
        if recorded is None and self.samples and self.train_s:
            return self.samples / self.train_s
        return recorded

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
        of_last = self.evaluations[-1].get(key) if self.evaluations else None
        return self.summary.get(f"final_{key}", of_last)

    def payload_bytes(self, link: str) -> float | None:
        """Counted bytes of the whole run over `link` ("intra" or "inter"), summed over ranks."""
        return number(value_at(self.summary, "payload_bytes", link))

    @property
    def parts_s(self) -> dict[str, float]:
        parts: dict[str, Any] = self.summary.get("parts_s") or {}
        return {name: value for name, item in parts.items() if (value := number(item)) is not None}

    def stamps(self, name: str) -> list[float]:
        """The times of all attempts under `name`, s since 1970."""
        attempts = self.status.get("attempts") or []
        return [value for a in attempts if (value := number(a.get(name))) is not None]

    @property
    def started_unix(self) -> float | None:
        """The start of the first attempt, s since 1970."""
        return min(self.stamps("started_unix"), default=None)

    @property
    def ended_unix(self) -> float | None:
        """The end of the last attempt, s since 1970."""
        return max(self.stamps("ended_unix"), default=None)


# ------------------------------------------------------------------ values of records


def number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    return value if is_number(value) else None


def value_at(tree: Mapping[str, Any], *names: str) -> Any:
    """What stands at `names`, each inside the one before; None where one is missing."""
    value: Any = tree
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text(value: Any) -> str:
    """A value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def merged(values: Sequence[Any]) -> Any:
    """What all attempts recorded of their machine, as one value; `values` has one for each attempt.

    Equal values stay as they are. Mappings are merged by key, lists of equal length item by item. Of other
    values each is named once: "1a2b, then 3c4d". What an attempt lacks is "nothing".
    """
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merged([value.get(key) for value in values]) for key in keys}
    rows = [v for v in values if isinstance(v, list) and all(isinstance(item, Mapping) for item in v)]
    if len(rows) == len(values) and len(set(map(len, rows))) == 1:
        return [merged(items) for items in zip(*rows, strict=True)]
    return ", then ".join(dict.fromkeys("nothing" if value is None else text(value) for value in values))


# ------------------------------------------------------------------ folders and files


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
    places = {path: path.relative_to(directory).as_posix() for path in find_runs(directory)}
    runs = [load_run(path, "the run" if place == "." else place) for path, place in places.items()]
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
        kept.append(replace(furthest, copies=tuple(run.place for run in copies if run is not furthest)))
    return kept


def load_run(path: Path, place: str) -> Run:
    """Read one run directory; nothing in it makes this fail, all trouble ends up in `damage`."""
    damage: list[str] = []
    rows = rows_of(path / "metrics.jsonl", f"{place}/metrics.jsonl", damage)
    kept = surviving(rows)
    rank_rows = [
        (int(file.stem) if file.stem.isdigit() else -1, _train_interval(row))
        for file in sorted((path / "ranks").glob("*.jsonl"))
        for row in rows_of(file, f"{place}/ranks/{file.name}", damage)
        if row.get("kind") == TrainIntervalRow.kind
    ]
    status = mapping_of(path / "status.json", place, damage)
    summaries = [row for row in kept if row.get("kind") == "summary"]
    return Run(
        place=place,
        config=mapping_of(path / "config.yaml", place, damage),
        environment=_environment(path, place, damage),
        status=status,
        evaluations=[
            row
            for row in kept
            if row.get("kind") == "evaluation" and all(is_number(row.get(x)) for x in ("train_s", "samples"))
        ],
        summary=summaries[-1] if summaries else status.get("summary") or {},
        rank_rows=rank_rows,
        start=StartRow.read(next((row for row in rows if row.get("kind") == StartRow.kind), {})),
        damage=damage,
        folder=path,
    )


def rows_of(path: Path, name: str, damage: list[str]) -> list[Row]:
    """The whole records of a JSON Lines file, [] without one; `damage` gets a sentence about file `name`."""
    try:
        read = read_records(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        damage.append(f"{name}: {error.strerror}")
        return []
    damage += [f"{name}, {sentence}" for sentence in read.damage]
    return read.rows


def mapping_of(path: Path, place: str, damage: list[str]) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; else {}, and `damage` gets a sentence."""
    try:
        value = load_yaml(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else read_json(path)
        if isinstance(value, dict):
            return value
        trouble = "not a mapping"
    except FileNotFoundError:
        trouble = "missing"
    except OSError as error:
        trouble = str(error.strerror)
    except (ValueError, yaml.YAMLError):
        trouble = "cannot be read, it is damaged"
    damage.append(f"{place}/{path.name}: {trouble}")
    return {}


def _environment(path: Path, place: str, damage: list[str]) -> dict[str, Any]:
    """environment.json, environment_2.json, … of all attempts as one mapping (`merged`)."""
    later = [file for file in path.glob("environment_*.json") if file.stem[12:].isdecimal()]
    files = [path / "environment.json", *sorted(later, key=lambda file: int(file.stem[12:]))]
    attempts = [facts for file in files if (facts := mapping_of(file, place, damage))]
    return merged(attempts) if attempts else {}


def _train_interval(row: Row) -> TrainIntervalRow:
    """What a report needs of a train interval. Keys are shared: of many ranks they take much memory."""
    parts = row.get("parts_s")
    if isinstance(parts, dict):
        parts = {sys.intern(name): seconds for name, seconds in parts.items()}
    return TrainIntervalRow.read({**row, "parts_s": parts, "segments_s": {}, "payload_bytes": {}})
