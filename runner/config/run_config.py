"""`RunConfig`: one run, all its keys as typed values, and the checks of what they do not allow together.

A part checks the ranges of its own keys. `CHECKS` is the one list of the rest, in the order in which errors
are reported: each check takes a whole `RunConfig` and raises ConfigError.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ... import models
from ...datasets.dataset import Dataset
from ...datasets.sampler import Sampler
from ...models.spec import Model, Sized
from ...strategies.base import AsynchronousStrategy, Strategy
from ...strategies.errors import ConfigError, unknown, within
from ...strategies.progress import Plan
from ...strategies.topology import Topology
from ..records.trees import id_of_tree
from . import tasks
from .cluster import ClusterConfig
from .launchers import LAUNCHERS, LauncherConfig, SimulatedConfig
from .model_building import built, check_batch_norm, check_build, input_spec, normalises
from .optimizers import Optimizer
from .parts import RunInfo, StudyInfo, TrainConfig
from .reader_config import NoReader, PackedReader, ReaderConfig
from .schedules import Schedule
from .typed import TARGET, part_name


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run that has passed all of `CHECKS`; so has every copy made by `dataclasses.replace`.

    `strategy` is an instance of `strategy_class.Config`.
    """

    strategy_class: type[Strategy]
    strategy: Any
    model: Model
    dataset: Dataset
    optimizer: Optimizer
    schedule: Schedule
    cluster: ClusterConfig
    launcher: LauncherConfig
    train: TrainConfig
    seed: int
    run: RunInfo
    study: StudyInfo
    results_dir: Path
    reader: ReaderConfig = field(default_factory=NoReader)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """All of `CHECKS`, with the sizes of the data set as far as it knows them: all once it is prepared.

        Raises ConfigError.
        """
        for each in CHECKS:
            each(self)

    @property
    def strategy_name(self) -> str:
        """The strategy's name for people: its `name` if it has one, else the name of its file."""
        return part_name(self.strategy_class)

    @property
    def path(self) -> Path:
        """Its run directory, absolute."""
        return self.results_dir / self.study.name / self.run_id

    @property
    def title(self) -> str:
        return self.run_id + (f" ({self.run.name})" if self.run.name else "")

    @cached_property
    def run_id(self) -> str:
        """See `trees.id_of_tree`; computed once, since a sweep needs it often."""
        names = (self.strategy_name, part_name(self.model), part_name(self.dataset))
        return id_of_tree(_tree_without_id(self), names)

    @cached_property
    def arm_id(self) -> str:
        """The run id without what tells repetitions of an arm apart: seed, evaluation phase, repeat."""
        train = dataclasses.replace(self.train, eval_phase=0.0)
        return dataclasses.replace(self, seed=0, train=train, run=RunInfo(arm=self.run.arm)).run_id

    @property
    def tree(self) -> dict[str, Any]:
        """What `config.yaml` holds: builtin values only, `_target_` of each part, and `run.id`."""
        tree = _tree_without_id(self)
        tree["run"]["id"] = self.run_id
        return tree

    def task(self, classes: int) -> tasks.Task:
        """The task on data of so many classes. Raises ConfigError where they are too few for the target."""
        tasks.check_top5(self.train.target_metric, classes)
        kind = tasks.kind_of(self.dataset.task, "dataset")
        return kind(classes=classes, label_smoothing=self.train.label_smoothing)

    def plan(self) -> Plan:
        """The plan that the strategy checks, as far as it is known before the data are loaded."""
        train, sampler = self.train, self.sampler()
        per_epoch = None if sampler is None else sampler.steps_per_epoch
        steps = None if per_epoch is None else per_epoch * train.epochs
        if train.max_steps is not None:
            steps = train.max_steps if steps is None else min(steps, train.max_steps)
        topology = Topology.of(self.cluster.ranks_of_nodes)
        return Plan(topology, train.epochs, train.global_batch_size, per_epoch, steps)

    @property
    def training_samples(self) -> int | None:
        """Of all epochs or `max_steps`, for plans; None while the size of the data set is not known."""
        train, samples = self.train, self.dataset.expected_info().samples
        if samples is None:
            return None
        most = math.inf if train.max_steps is None else train.max_steps * train.global_batch_size
        return int(min(train.epochs * samples["train"], most))

    def sampler(self) -> Sampler | None:
        """How an epoch is cut; None while the number of samples is not known. Raises ConfigError."""
        samples = self.dataset.info().samples
        if samples is None:
            return None
        try:
            return Sampler(
                samples["train"],
                self.train.global_batch_size,
                self.cluster.ranks,
                0,
                short_batch=self.train.short_batch,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def _tree_without_id(config: RunConfig) -> dict[str, Any]:
    """The keys of a run in reading order, `_target_` of each part but for what is built in by its name."""
    values = _builtin(dataclasses.asdict(config))
    groups = ("model", "dataset", "reader", "optimizer", "schedule")
    kinds = {"strategy": config.strategy_class, **{group: type(getattr(config, group)) for group in groups}}
    tree = {group: _with_target(kind, values[group]) for group, kind in kinds.items()}
    launcher, kind = values["launcher"], type(config.launcher)
    built_in = LAUNCHERS.get(config.launcher.name) is kind
    tree |= {
        "cluster": _cluster(config.cluster),
        "launcher": launcher if built_in else _with_target(kind, launcher),
    }
    return tree | {key: values[key] for key in ("train", "seed", "run", "study", "results_dir")}


def _cluster(cluster: ClusterConfig) -> dict[str, Any]:
    """Its keys; hardware that is not described is left out: real runs have none to describe."""
    given, usual = dataclasses.asdict(cluster), dataclasses.asdict(ClusterConfig())
    if len(cluster.device.kind) < 2:  # as it is written: one word
        given["device"]["kind"], usual["device"]["kind"] = "".join(cluster.device.kind), ""
    described = ("links", "device", "failures_s", "validated_ranks")
    return _builtin({key: v for key, v in given.items() if key not in described or v != usual[key]})


def _with_target(kind: type[Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **keys}


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _builtin(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_builtin(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def check_batch_of_ranks(run: RunConfig) -> None:
    """A rank has at least one sample of a batch."""
    batch, ranks = run.train.global_batch_size, run.cluster.ranks
    if batch < ranks:
        raise ConfigError(
            f"train.global_batch_size={batch}: must be >= {ranks}, the number of ranks "
            f"(cluster.nodes={len(run.cluster.ranks_of_nodes)}, cluster.ranks_per_node), one sample each"
        )


def check_timing_only(run: RunConfig) -> None:
    """A run without numbers reaches no target, and its strategy sends what sizes alone tell."""
    if not run.launcher.timing_only:
        return
    if run.train.target is not None:
        raise ConfigError(f"train.target={run.train.target}: launcher.timing_only=true learns nothing")
    needing = _needs_numbers(run)
    if needing is not None:
        raise ConfigError(
            f"{needing}: sends what depends on trained numbers, which launcher.timing_only=true has not"
        )


def _needs_numbers(run: RunConfig) -> str | None:
    """The `strategy.key=value` of `Strategy.needs_numbers` that the run has; None: it has none."""
    listed = run.strategy_class.needs_numbers
    pairs = [(key, value) for key, value in listed if getattr(run.strategy, key) == value]
    return f"strategy.{pairs[0][0]}={pairs[0][1]}" if pairs else None


def check_precision(run: RunConfig) -> None:
    """TF32 needs a GPU; fp16 needs that all ranks see an overflow, and that none remembers it."""
    launcher, precision = run.launcher, run.train.precision
    if launcher.timing_only:
        return
    if precision == "tf32" and isinstance(launcher, SimulatedConfig) and launcher.device != "cuda":
        raise ConfigError(
            f"train.precision=tf32: products of TF32 are a GPU's, and launcher.device={launcher.device} may "
            "compute on CPUs; take launcher.device=cuda, or fp32 (the clock is that of cluster.device)"
        )
    if precision != "fp16":
        return
    # Who has the default `stop_agreed` averages gradients over all ranks in every step: all see one overflow.
    if run.cluster.ranks > 1 and run.strategy_class.stop_agreed is not Strategy.stop_agreed:
        raise ConfigError(
            "train.precision=fp16: all ranks have to leave out a step that overflows, and with "
            f"strategy={run.strategy_name} not all would see it; take bf16, which needs no scale"
        )
    remembers = _needs_numbers(run)
    if remembers is not None:
        raise ConfigError(
            f"train.precision=fp16: {remembers} remembers gradients, and would never forget one that "
            "overflowed; take bf16, which needs no scale"
        )


def check_schedule(run: RunConfig) -> None:
    """A schedule that reads the loss of each epoch needs epochs that all ranks have in common."""
    if run.schedule.reads_epoch_loss and issubclass(run.strategy_class, AsynchronousStrategy):
        raise ConfigError(
            f"schedule={type(run.schedule).__name__.lower()}: reads the loss of each epoch, and with "
            f"strategy={run.strategy_name} ranks have no common epoch; take another schedule"
        )


def check_sized_model(run: RunConfig) -> None:
    if isinstance(run.model, Sized) and not run.launcher.timing_only:
        raise ConfigError(f"model={run.model.name}: has no layers; it is for launcher.timing_only=true")


def check_cluster(run: RunConfig) -> None:
    """Virtual time needs every number of the cluster, real processes have those of their machine."""
    launcher = run.launcher
    if launcher.virtual:
        run.cluster.check_virtual(extrapolate=launcher.extrapolate)
    else:
        run.cluster.check_real(launcher.name, launcher.asked_network)


def check_reader(run: RunConfig) -> None:
    """A packed file feeds common batches of labelled images, read by its own reader."""
    reader, launcher = run.reader, run.launcher
    if not isinstance(reader, PackedReader):
        return
    kind = tasks.kind_of(run.dataset.task, "dataset")
    impossible = {
        "gives all ranks equal steps of common batches, and with this strategy each draws its own samples at "
        "its own pace": issubclass(run.strategy_class, AsynchronousStrategy),
        "deals the pieces of a batch by itself, and this strategy wants them moved from rank to rank": bool(
            run.strategy_class.piece_shift
        ),
        "launcher.timing_only=true has no samples to read": launcher.timing_only,
        f"a packed file has one label an image, and the data set is for {kind.name}": kind
        is not tasks.Classification,
    }
    for reason, applies in impossible.items():
        if applies:
            raise ConfigError(f"reader={reader.name}: {reason}; take reader=none")
    for key, given, usual in (
        ("loader_workers", launcher.asked_workers, 0),
        ("prefetch_batches", launcher.prefetch_batches, LauncherConfig.prefetch_batches),
    ):
        if given != usual:
            raise ConfigError(
                f"reader={reader.name}: reads ahead by itself (reader.prefetch_batches); take "
                f"launcher.{key}={usual}, not {given}"
            )
    for key in ("cold", "warm"):
        if getattr(reader, key) and not launcher.real_time:
            raise ConfigError(f"reader.{key}=true: nothing is read with launcher={launcher.name}; take false")
    reader.check_place(run.dataset)


def check_task(run: RunConfig) -> None:
    """The metric, the label smoothing and the model are of the data set's task."""
    train, kind = run.train, tasks.kind_of(run.dataset.task, "dataset")
    if train.target_metric not in tasks.METRICS:
        raise unknown("train.target_metric", train.target_metric, kind.metrics)
    if train.target_metric not in kind.metrics:
        raise ConfigError(
            f"train.target_metric={train.target_metric}: the data set is for {kind.name}, which has "
            f"{', '.join(kind.metrics)}; train.target_metric=auto takes {kind.metrics[0]}"
        )
    if train.label_smoothing and not kind.smooths:
        raise ConfigError(
            f"train.label_smoothing={train.label_smoothing}: is for classification, the data set for "
            f"{kind.name}; set it to 0"
        )
    if not run.launcher.timing_only and (model_kind := tasks.kind_of(run.model.task, "model")) is not kind:
        raise ConfigError(
            f"model={getattr(run.model, 'name', type(run.model).__name__)}: is for {model_kind.name}, "
            f"the data set for {kind.name}; `daso-bench list models` says what each is for (a class of your "
            f'own says task = "{kind.name}")'
        )
    classes = run.dataset.info().classes
    if classes is not None:
        tasks.check_top5(train.target_metric, classes)


def check_batches(run: RunConfig) -> None:
    """The data fill a batch, every part of it has a sample, and batch normalisation gets two."""
    train, sampler = run.train, run.sampler()
    batch, ranks, parts = train.global_batch_size, run.cluster.ranks, train.accumulate
    if sampler is not None and batch > sampler.samples:
        raise ConfigError(
            f"train.global_batch_size={batch}: the data set has {sampler.samples} training samples; "
            "take at most as many"
        )
    most = batch // ranks
    if parts > max(1, most):
        raise ConfigError(
            f"train.accumulate={parts}: must be <= {most}, the samples of a rank in a batch "
            f"({batch} over {ranks} ranks); take fewer parts, or a larger train.global_batch_size"
        )
    if sampler is None or run.launcher.timing_only:
        return
    try:
        check_batch_norm(sampler, parts)
    except ConfigError:
        spec = input_spec(run.dataset)
        if spec is not None and normalises(built(run.model, spec)):
            raise


def check_own_model(run: RunConfig) -> None:
    """A model of the user's own can be built, where the data set knows the shape of its samples."""
    spec = input_spec(run.dataset)
    own = not type(run.model).__module__.startswith(f"{models.__name__}.")
    if own and spec is not None:
        check_build(run.model, spec)


CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    lambda run: within("seed", run.seed, 0, 2**63 - 1),
    check_batch_of_ranks,
    check_timing_only,
    check_precision,
    check_schedule,
    check_sized_model,
    check_cluster,
    check_reader,
    check_task,
    check_batches,
    check_own_model,
    lambda run: run.strategy_class.check(run.strategy, run.plan()),
)
