"""What a run is: the composed configuration as frozen dataclasses, its plain YAML, and its run id.

`from_composed` is used by the front end, `load` by the workers and by `resume`: they read `config.yaml` of
the run directory and never compose.
"""

import dataclasses
import hashlib
import json
import math
import os.path
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from ..datasets.sampler import Sampler
from ..models.sized import Sized
from ..models.spec import InputSpec
from ..strategies.errors import ConfigError, above, at_least, one_of, within
from ..strategies.progress import Plan
from ..strategies.topology import Topology
from . import batch_parts, computing, plain_yaml, similarity
from .hardware import ClusterConfig
from .launcher_config import LAUNCHERS, LauncherConfig
from .readers.choice import Reader
from .readers.choice import check as check_reader
from .readers.none import NoReader
from .repetitions import FRESH, phase_of
from .tasks import choice
from .tasks.task import Task
from .trials import TRIALS, check_trials
from .typed import TARGET, locate_target, plain, shown, typed, unknown_key

GROUPS = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "cluster", "launcher")
OPTIONAL = ("reader",)  # a run that says nothing has none, as those of the days before them
TOP_LEVEL = (*GROUPS, "train", "seed", "run", "study", "results_dir")
STOPS = ("budget", "confirmed", "first")
EVAL_SPLITS = ("test", "validation")
EVAL_MODES = ("auto", "inline", "deferred")
SHORT_BATCHES = ("join", "keep", "drop")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp64")
# At their defaults a run's id is that of the days before them.
LATER = ("label_smoothing", "accumulate", "channels_last", "compile")
ITEMSIZES = {"fp32": 4, "tf32": 4, "bf16": 4, "fp16": 4, "fp64": 8}  # bytes of a gradient's number
NO_READER = NoReader()
LARGEST_SEED = 2**63 - 1
ROLES = ("", "clock", "fresh", "placebo", "overhead", "one_core")
INTERVALS = ("welch", "paired")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Budget, evaluation, target and arithmetic of a run. Sizes are global: over all ranks."""

    epochs: int = 12
    max_steps: int | None = None
    max_seconds: float | None = None
    global_batch_size: int = 64
    short_batch: str = "join"
    target: float | None = None
    target_metric: str = "accuracy"
    stop: str = "budget"
    eval_every_samples: int | None = None
    eval_phase: float = 0.0
    eval_split: str = "test"
    eval_mode: str = "auto"
    eval_copies_mib: float = 4096.0
    checkpoint_every_samples: int | str | None = "auto"
    precision: str = "fp32"
    channels_last: bool = False
    compile: bool = False
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        at_least("train.epochs", self.epochs, 1)
        at_least("train.global_batch_size", self.global_batch_size, 1)
        at_least("train.accumulate", self.accumulate, 1)
        for key in ("max_steps", "eval_every_samples"):
            if getattr(self, key) is not None:
                at_least(f"train.{key}", getattr(self, key), 1)
        for key in ("max_seconds", "clip_norm"):
            if getattr(self, key) is not None:
                above(f"train.{key}", getattr(self, key), 0)
        within("train.eval_phase", self.eval_phase, 0, 1)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"train.label_smoothing={self.label_smoothing}: must be >= 0 and < 1")
        one_of("train.stop", self.stop, STOPS)
        one_of("train.eval_split", self.eval_split, EVAL_SPLITS)
        one_of("train.eval_mode", self.eval_mode, EVAL_MODES)
        one_of("train.short_batch", self.short_batch, SHORT_BATCHES)
        above("train.eval_copies_mib", self.eval_copies_mib, 0)
        if self.eval_mode == "deferred" and self.stop != "budget":
            raise ConfigError(
                f"train.stop={self.stop}: needs evaluations while training goes on; train.eval_mode=deferred "
                "has them afterwards"
            )
        one_of("train.precision", self.precision, PRECISIONS)
        self._check_target()
        self._check_checkpoints()

    def _check_target(self) -> None:
        if self.target is not None and self.target_metric != "loss" and not 0 < self.target <= 1:
            raise ConfigError(
                f"train.target={self.target}: must be above 0 and at most 1 (a share, 0.95 for 95 %)"
            )
        if self.target is not None and self.target_metric == "loss":
            above("train.target", self.target, 0)
        if self.target is None and self.stop != "budget":
            raise ConfigError(f"train.stop={self.stop}: needs a train.target to stop at")

    def _check_checkpoints(self) -> None:
        every = self.checkpoint_every_samples
        if isinstance(every, str) and every != "auto":
            raise ConfigError(
                f"train.checkpoint_every_samples={every}: must be auto, a number of samples or null"
            )
        if isinstance(every, int):
            at_least("train.checkpoint_every_samples", every, 1)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Labels of a run. `arm` and `repeat` are part of its identity, `name` and `tag` are for people."""

    name: str = ""
    tag: str = ""
    arm: str = ""
    repeat: int = 0

    def __post_init__(self) -> None:
        at_least("run.repeat", self.repeat, 0)


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """The study a run belongs to, its folder below `results_dir`; and the run's place in the study's sets.

    `assumption`: the departure from what the study assumes otherwise; "" for none. `baseline`: the arm that
    the others are held against; "": the first with `ddp`. `role`: a second baseline that tells how much two
    equal arms differ, with the same seeds (`clock`, the first `clock_share` of the schedule) or with others
    (`fresh`); the `placebo`; or one more run that tells what the clock costs (`overhead`). `interval` and
    `level`: of ratios.

    `tune_trials`: what `daso-bench tune` tries of each arm. It writes the others, into the arms of the study
    that it makes: `tuned`, the arm whose tuned settings this one has, "" for the study's own settings;
    `tune_space`, what was searched of all arms; `tune_failed`, trials without a result; `tune_device_hours`.
    """

    name: str = "runs"
    arm: str = ""
    assumption: str = ""
    size: str = ""
    baseline: str = ""
    role: str = ""
    clock_share: float = 0.2
    interval: str = "welch"
    level: float = 0.95
    tune_trials: int = TRIALS
    tuned: str = ""
    tune_space: str = ""
    tune_failed: int = 0
    tune_device_hours: float = 0.0

    def __post_init__(self) -> None:
        one_of("study.role", self.role, ROLES)
        check_trials(self.tune_trials)
        one_of("study.interval", self.interval, INTERVALS)
        above("study.clock_share", self.clock_share, 0)
        within("study.clock_share", self.clock_share, 0, 1)
        above("study.level", self.level, 0.5)
        within("study.level", self.level, 0.5, 0.999)
        if self.name in ("", ".", "..") or "/" in self.name or "\0" in self.name:
            raise ConfigError(
                f"study.name={self.name}: must be the name of one folder (not empty, no slash); "
                "where studies go is results_dir"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, checked. `strategy` is an instance of `strategy_class.Config`."""

    strategy_class: type[Any]
    strategy: Any
    model: Any
    dataset: Any
    optimizer: Any
    schedule: Any
    cluster: ClusterConfig
    launcher: LauncherConfig
    train: TrainConfig
    seed: int
    run: RunInfo
    study: StudyInfo
    results_dir: Path
    reader: Reader = NO_READER

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, LARGEST_SEED)
        batch, ranks = self.train.global_batch_size, self.cluster.ranks
        if batch < ranks:
            raise ConfigError(
                f"train.global_batch_size={batch}: must be >= {ranks}, the number of ranks "
                f"(cluster.ranks_per_node={list(self.cluster.ranks_of_nodes)}), one sample each"
            )
        if self.train.accumulate > 1 and self.launcher.sync_batch_norm != "none":
            raise ConfigError(
                f"train.accumulate={self.train.accumulate}: statistics over ranks are modelled for whole "
                f"batches only (launcher.sync_batch_norm={self.launcher.sync_batch_norm})"
            )
        if self.launcher.timing_only and self.train.target is not None:
            raise ConfigError(
                f"train.target={self.train.target}: launcher.timing_only=true learns nothing to reach it"
            )
        needing = self.strategy_class.needs_numbers(self.strategy) if self.launcher.timing_only else None
        if needing is not None:
            raise ConfigError(
                f"{needing}: sends what depends on trained numbers, which launcher.timing_only=true has not"
            )
        computing.check(
            precision=self.train.precision,
            compiled=self.train.compile,
            accumulate=self.train.accumulate,
            cluster=self.cluster,
            launcher=self.launcher,
            strategy_class=self.strategy_class,
            strategy=self.strategy,
            name=strategy_name(self),
        )
        if self.watches_loss and self.strategy_class.sampling(self.strategy) != "global":
            raise ConfigError(
                f"schedule={type(self.schedule).__name__.lower()}: reads the loss of each epoch over all "
                f"ranks, and with strategy={strategy_name(self)} ranks have no common epoch; "
                "take another schedule"
            )
        if isinstance(self.model, Sized) and not self.launcher.timing_only:
            raise ConfigError(
                f"model={self.model.name}: has sizes and no layers; it is for launcher.timing_only=true"
            )
        if self.launcher.name == "simulated":
            self.cluster.check_virtual(extrapolate=self.launcher.extrapolate)
        else:
            self.cluster.check_real(self.launcher.name, self.launcher.asked_network)
        check_reader(self.reader, self.strategy_class, self.strategy, self.launcher, self.dataset)
        self.check_data()

    @property
    def watches_loss(self) -> bool:
        """Whether the schedule is told each epoch's training loss."""
        return getattr(self.schedule, "reads_epoch_loss", False)

    def check_data(self, spec: Callable[[], InputSpec] | None = None) -> None:
        """Refuse what does not fit to the data, of which all is known once they are prepared.

        spec: asked only where the shape of samples decides; None: as far as the data set tells it by itself.
        Raises ConfigError.
        """
        choice.check(
            self.dataset,
            None if self.launcher.timing_only else self.model,
            label_smoothing=self.train.label_smoothing,
            target_metric=self.train.target_metric,
        )
        self._check_parts(spec or (lambda: similarity.told_spec(self.dataset)))
        self.check_plan()

    def _check_parts(self, spec: Callable[[], InputSpec | None]) -> None:
        train, sampler = self.train, self._sampler()
        samples = None if sampler is None else sampler.samples
        batch_parts.check_parts(train.accumulate, train.global_batch_size, self.cluster.ranks, samples)
        if sampler is None or self.launcher.timing_only:
            return
        try:
            batch_parts.check_batch_norm(sampler, train.accumulate)
        except ConfigError:
            found = spec()
            if found is not None and batch_parts.normalises(batch_parts.built(self.model, found)):
                raise

    def check_plan(self) -> None:
        """Refuse what the strategy cannot do, as far as it is known. Raises ConfigError."""
        check = getattr(self.strategy_class, "check", None)
        if check is not None:
            check(self.strategy, self.plan())

    @cached_property
    def _run_id(self) -> str:
        return _digested(self)

    @cached_property
    def _arm_id(self) -> str:
        train = dataclasses.replace(self.train, eval_phase=0.0)
        return run_id(dataclasses.replace(self, seed=0, train=train, run=RunInfo(arm=self.run.arm)))

    def task(self, classes: int) -> Task:
        """What is learnt, of so many classes. Raises ConfigError where they are too few for the target."""
        return choice.task_of(
            self.dataset,
            classes,
            label_smoothing=self.train.label_smoothing,
            target_metric=self.train.target_metric,
        )

    def plan(self) -> Plan:
        """What the strategy is asked to do, as far as it is known before the data are loaded."""
        train, sampler = self.train, self._sampler()
        per_epoch = None if sampler is None else sampler.steps_per_epoch
        steps = None if per_epoch is None else per_epoch * train.epochs
        if train.max_steps is not None:
            steps = train.max_steps if steps is None else min(steps, train.max_steps)
        topology = Topology.of(self.cluster.ranks_of_nodes)
        return Plan(topology, train.epochs, train.global_batch_size, per_epoch, steps)

    def _sampler(self) -> Sampler | None:
        """How an epoch is cut; None while the number of samples is not known. Raises ConfigError."""
        samples = getattr(self.dataset, "train_samples", None)
        if not isinstance(samples, int):
            return None
        try:
            return Sampler(
                samples,
                self.train.global_batch_size,
                self.cluster.ranks,
                0,
                short_batch=self.train.short_batch,
                minimum=self.strategy_class.minimum_batch(self.strategy),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def from_composed(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> RunConfig:
    """The checked run of a composed configuration; relative paths count from `cwd`. Raises ConfigError."""
    tree = {key: value for key, value in plain(cfg).items() if key != "hydra"}
    for key in tree:
        if key not in TOP_LEVEL:
            raise unknown_key("", key, TOP_LEVEL)
    missing = [key for key in TOP_LEVEL if tree.get(key) is None and key not in OPTIONAL]
    if missing:
        raise ConfigError(f"{missing[0]}: must be given")
    strategy_class = locate_target(tree["strategy"], "strategy")
    config_class = getattr(strategy_class, "Config", None)
    if config_class is None:
        raise ConfigError(f"strategy.{TARGET}={strategy_class.__name__}: the class has no Config")
    model = _part(tree, "model")
    strategy = typed(config_class, tree["strategy"], "strategy")
    dataset = _part(_rooted(tree, cwd), "dataset")
    seed = _seed(tree["seed"])
    asked = _with_metric(_with_epochs(tree["train"], model), dataset)
    train = typed(TrainConfig, _with_phase(asked, seed), "train")
    cluster = typed(ClusterConfig, _traced(tree["cluster"], cwd), "cluster")
    cluster = similarity.resolve(
        cluster,
        model=model,
        dataset=dataset,
        batch=train.global_batch_size,
        itemsize=ITEMSIZES[train.precision],
        cwd=cwd,
    )
    config = RunConfig(
        strategy_class=strategy_class,
        strategy=strategy,
        model=model,
        dataset=dataset,
        reader=reader_of(tree, cwd),
        optimizer=_part(tree, "optimizer"),
        schedule=_part(tree, "schedule"),
        cluster=cluster,
        launcher=_launcher(tree["launcher"]),
        train=train,
        seed=seed,
        run=typed(RunInfo, tree["run"], "run"),
        study=typed(StudyInfo, tree["study"], "study"),
        results_dir=_absolute(str(tree["results_dir"]), cwd),
    )
    return _in_its_role(config)


def dataset_of(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> Any:
    """The checked data set of a composed configuration; relative paths count from `cwd`.

    Raises ConfigError.
    """
    return _part(_rooted({"dataset": plain(cfg)["dataset"]}, cwd), "dataset")


def reader_of(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> Reader:
    """The checked reader of a composed configuration; a relative path counts from `cwd`.

    Raises ConfigError.
    """
    group = plain(cfg).get("reader")
    if group is None:
        return NoReader()
    if isinstance(group, Mapping) and group.get("path"):
        group = {**group, "path": str(_absolute(str(group["path"]), cwd))}
    return _part({"reader": group}, "reader")


def to_plain(config: RunConfig) -> dict[str, Any]:
    """What `config.yaml` holds: builtin values only, `_target_` of each part, and `run.id`."""
    tree = _identity(config)
    tree["run"]["id"] = run_id(config)
    return tree


def load(path: Path) -> RunConfig:
    """The run of a `config.yaml` that holds `to_plain(config)`: equal to `config`. Raises ConfigError."""
    try:
        tree = plain_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
        raise ConfigError(f"{path}: is not the configuration of a run")
    tree["run"].pop("id", None)
    return from_composed(tree, path.absolute().parent)


def dump(config: RunConfig) -> str:
    """`config.yaml` as text, keys in reading order."""
    return plain_yaml.dump(to_plain(config))


def run_id(config: RunConfig) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>`, a hash of what decides the result.

    Part of it: every key of strategy, model, dataset, reader (if there is one), optimizer, schedule, cluster
    and train, what a trace of step times holds, the launcher's name and network, seed, `run.arm`,
    `run.repeat`. Not part of it: where results go, labels, the study, and how the launcher waits, binds and
    divides the cores. Computed once for each `config`: a sweep asks for the same again and again.
    """
    return config._run_id


def arm_id(config: RunConfig) -> str:
    """The run id without what tells repetitions of an arm apart: seed, phase of the evaluations, repeat."""
    return config._arm_id


def _digested(config: RunConfig) -> str:
    """See `run_id`."""
    tree = _identity(config)
    launcher: dict[str, Any] = {"name": config.launcher.name}
    if config.launcher.timing_only:
        launcher["timing_only"] = True
    if config.launcher.sync_batch_norm != "none":
        launcher["sync_batch_norm"] = config.launcher.sync_batch_norm
    if config.launcher.asked_network != "none":
        launcher["network"] = config.launcher.asked_network
    tree["launcher"] = launcher
    for key in LATER:
        if tree["train"][key] == getattr(TrainConfig, key):
            del tree["train"][key]
    tree["cluster"].pop("validated_ranks", None)  # what is known about the times does not change them
    tree["cluster"].pop("like", None)  # whose ratios they are neither
    trace = config.cluster.device.trace
    if trace is not None:
        tree["cluster"]["device"]["trace"] = _content(Path(trace))
    tree["run"] = {"arm": config.run.arm, "repeat": config.run.repeat}
    del tree["results_dir"], tree["study"]
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, allow_nan=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    names = [strategy_name(config), _name(config.model), _name(config.dataset)]
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), f"s{config.seed}", digest])


def _content(path: Path) -> str:
    """A hash of what a file holds; its path while it cannot be read, which the run itself complains about."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return str(path)


def strategy_name(config: RunConfig) -> str:
    """The strategy's name for people: its `name` if it has one, else the name of its file."""
    return _name(config.strategy_class)


def _name(part: Any) -> str:
    named = getattr(part, "name", None)
    if isinstance(named, str) and named:
        return named
    kind = part if isinstance(part, type) else type(part)
    return kind.__module__.rpartition(".")[2]


def _part(tree: Mapping[str, Any], group: str) -> Any:
    return typed(locate_target(tree[group], group), tree[group], group)


def _launcher(node: Any) -> LauncherConfig:
    """Each launcher has keys of its own; one that another launcher has is unknown to it."""
    name = str(node.get("name")) if isinstance(node, Mapping) else ""
    one_of("launcher.name", name, tuple(LAUNCHERS))
    return typed(LAUNCHERS[name], node, "launcher")


def _with_epochs(train: Any, model: Any) -> Any:
    """`train` with `epochs: auto` resolved: what the model suggests, else 12. The record holds the number."""
    if isinstance(train, Mapping) and train.get("epochs") == "auto":
        return {**train, "epochs": getattr(model, "suggested_epochs", TrainConfig.epochs)}
    return train


def _with_metric(train: Any, dataset: Any) -> Any:
    """`train` with `target_metric: auto` resolved: what models of the data set's task are judged by."""
    if isinstance(train, Mapping) and train.get("target_metric") == "auto":
        return {**train, "target_metric": choice.kind_of(dataset, "dataset").metrics[0]}
    return train


def _with_phase(train: Any, seed: int) -> Any:
    """`train` with `eval_phase: auto` resolved. The record holds the number."""
    if isinstance(train, Mapping) and train.get("eval_phase") == "auto":
        return {**train, "eval_phase": phase_of(seed)}
    return train


def _in_its_role(config: RunConfig) -> RunConfig:
    """The run with what its role in the study changes; `run.arm` says that this has been done."""
    role, train = config.study.role, config.train
    # Tuned settings may be the default ones: their runs have a name, and directories, of their own.
    name = " ".join(word for word in ("tuned" if config.study.tuned else "", role) if word)
    if not name or config.run.arm == name:
        return config
    if config.run.arm:
        key = f"study.role={role}" if role else f"study.tuned={config.study.tuned}"
        raise ConfigError(f"run.arm={config.run.arm}: {key} names the arm; leave run.arm empty")
    changes: dict[str, Any] = {"run": dataclasses.replace(config.run, arm=name)}
    if role == "fresh":
        if config.seed >= FRESH:
            raise ConfigError(
                f"seed={config.seed}: must be below {FRESH} with study.role=fresh, which adds it"
            )
        changes["seed"] = config.seed + FRESH
    if role == "overhead" and config.launcher.name == "simulated":
        raise ConfigError("study.role=overhead: the virtual clock costs no time; real ranks can tell")
    if role == "overhead" and config.strategy_class.sampling(config.strategy) != "global":
        raise ConfigError(
            f"study.role=overhead: needs a strategy whose ranks take equal steps, not {strategy_name(config)}"
        )
    if role == "one_core" and (config.cluster.ranks > 1 or config.launcher.threads_per_rank != 1):
        raise ConfigError(
            "study.role=one_core: is one process of one thread (cluster.nodes=1 cluster.ranks_per_node=1 "
            "launcher.threads_per_rank=1)"
        )
    if role == "one_core" and config.launcher.name == "simulated":
        raise ConfigError("study.role=one_core: no model tells what cores do; real ranks can")
    if role == "clock" and config.study.clock_share < 1:
        steps = config.plan().steps
        if steps is None:
            raise ConfigError(
                f"study.clock_share={config.study.clock_share}: of a schedule whose length is known once "
                "the data are loaded; set train.max_steps, or study.clock_share=1"
            )
        first = max(1, math.ceil(config.study.clock_share * steps))
        changes["train"] = dataclasses.replace(train, max_steps=first)
    return dataclasses.replace(config, **changes)


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"seed={shown(value)}: must be a whole number")
    return value


def _absolute(text: str, cwd: Path) -> Path:
    # `..` is resolved by text and links are kept: the user's own spelling of the folder stays recognisable.
    try:
        return Path(os.path.normpath(cwd / Path(text).expanduser()))
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error


def _rooted(tree: dict[str, Any], cwd: Path) -> dict[str, Any]:
    """The tree with the folders of the data set (where it has such keys) absolute."""
    dataset = tree["dataset"]
    if not isinstance(dataset, Mapping):
        return tree
    folders = {key: dataset[key] for key in ("root", "prepared") if dataset.get(key)}
    return {**tree, "dataset": {**dataset, **{k: str(_absolute(str(v), cwd)) for k, v in folders.items()}}}


def _traced(cluster: Any, cwd: Path) -> Any:
    """The cluster with `device.trace` (if there is one) absolute."""
    device = cluster.get("device") if isinstance(cluster, Mapping) else None
    if not isinstance(device, Mapping) or not device.get("trace"):
        return cluster
    return {**cluster, "device": {**device, "trace": str(_absolute(str(device["trace"]), cwd))}}


def _identity(config: RunConfig) -> dict[str, Any]:
    parts = {
        group: _dump_part(getattr(config, group)) for group in ("model", "dataset", "optimizer", "schedule")
    }
    if not isinstance(config.reader, NoReader):
        parts["reader"] = _dump_part(config.reader)
    return {
        "strategy": _dump_part(config.strategy, config.strategy_class),
        **parts,
        "cluster": _cluster(config.cluster),
        "launcher": _builtin(dataclasses.asdict(config.launcher)),
        "train": _builtin(dataclasses.asdict(config.train)),
        "seed": config.seed,
        "run": _builtin(dataclasses.asdict(config.run)),
        "study": _builtin(dataclasses.asdict(config.study)),
        "results_dir": str(config.results_dir),
    }


def _cluster(cluster: ClusterConfig) -> dict[str, Any]:
    """Its keys; hardware that is not described is left out: real runs have none to describe."""
    given, usual = dataclasses.asdict(cluster), dataclasses.asdict(ClusterConfig())
    if len(cluster.device.kind) < 2:  # as it is written: one word
        given["device"]["kind"], usual["device"]["kind"] = "".join(cluster.device.kind), ""
    described = ("links", "device", "failures_s", "validated_ranks", "like")
    # Without a straggler a run's id is that of the days before there was one.
    usual_straggler = usual["device"].pop("straggler")
    if given["device"]["straggler"] == usual_straggler:
        del given["device"]["straggler"]
    return _builtin({key: v for key, v in given.items() if key not in described or v != usual[key]})


def _dump_part(part: Any, target: type[Any] | None = None) -> dict[str, Any]:
    kind = target or type(part)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **_builtin(dataclasses.asdict(part))}


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _builtin(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_builtin(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
