"""What a run is: its parts as frozen dataclasses, checked; as a tree of plain values; and its run id."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...datasets.dataset import Dataset
from ...datasets.sampler import Sampler
from ...models.sized import Sized
from ...models.spec import InputSpec
from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.errors import ConfigError, within
from ...strategies.progress import Plan
from ...strategies.topology import Topology
from . import batch_parts, option_checks
from .cluster import ClusterConfig
from .launchers import LauncherConfig
from .reader_config import NoReader, PackedReader, ReaderConfig, check_reader, order_alone
from .study import RunInfo, StudyInfo
from .tasks import task_choice
from .tasks.task import Task
from .train import TrainConfig
from .typed import TARGET, part_name

NO_READER = NoReader()
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, checked. `strategy` is an instance of `strategy_class.Config`."""

    strategy_class: type[Any]
    strategy: Any
    model: Any
    dataset: Dataset
    optimizer: Any
    schedule: Any
    cluster: ClusterConfig
    launcher: LauncherConfig
    train: TrainConfig
    seed: int
    run: RunInfo
    study: StudyInfo
    results_dir: Path
    reader: ReaderConfig = NO_READER

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, LARGEST_SEED)
        batch, ranks = self.train.global_batch_size, self.cluster.ranks
        if batch < ranks:
            raise ConfigError(
                f"train.global_batch_size={batch}: must be >= {ranks}, the number of ranks "
                f"(cluster.nodes={len(self.cluster.ranks_of_nodes)}, cluster.ranks_per_node), one sample each"
            )
        if self.launcher.timing_only and self.train.target is not None:
            raise ConfigError(
                f"train.target={self.train.target}: launcher.timing_only=true learns nothing to reach it"
            )
        needing = None
        if self.launcher.timing_only:
            needing = option_checks.needs_numbers(self.strategy_class, self.strategy)
        if needing is not None:
            raise ConfigError(
                f"{needing}: sends what depends on trained numbers, which launcher.timing_only=true has not"
            )
        option_checks.check(
            precision=self.train.precision,
            compiled=self.train.compile,
            accumulate=self.train.accumulate,
            cluster=self.cluster,
            launcher=self.launcher,
            strategy_class=self.strategy_class,
            strategy=self.strategy,
            name=strategy_name(self),
        )
        if self.watches_loss and issubclass(self.strategy_class, AsynchronousStrategy):
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
        task_choice.check(
            self.dataset,
            None if self.launcher.timing_only else self.model,
            label_smoothing=self.train.label_smoothing,
            target_metric=self.train.target_metric,
        )
        self._check_parts(spec or (lambda: batch_parts.input_spec(self.dataset)))
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
        return digested(self)

    @cached_property
    def _arm_id(self) -> str:
        train = dataclasses.replace(self.train, eval_phase=0.0)
        return run_id(dataclasses.replace(self, seed=0, train=train, run=RunInfo(arm=self.run.arm)))

    def task(self, classes: int) -> Task:
        """What is learnt, of so many classes. Raises ConfigError where they are too few for the target."""
        return task_choice.task_of(
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


def run_id(config: RunConfig) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>`, a hash of what decides the result.

    Part of it: every key of strategy, model, dataset, reader (if there is one), optimizer, schedule, cluster
    and train, what a trace of step times holds, the launcher's name and network, seed, `run.arm`,
    `run.repeat`. Not part of it: where results and packed files lie, labels, the study, how the launcher
    waits and divides the cores (without `pin`), and how a reader would read where it gives its order alone.
    Computed once for each `config`: a sweep asks for the same again and again.
    """
    return config._run_id


def arm_id(config: RunConfig) -> str:
    """The run id without what tells repetitions of an arm apart: seed, phase of the evaluations, repeat."""
    return config._arm_id


def tree_of(config: RunConfig) -> dict[str, Any]:
    """Builtin values only: the keys of a run in reading order, `_target_` of each part."""
    groups = ("model", "dataset", "reader", "optimizer", "schedule")
    return {
        "strategy": _dump_part(config.strategy, config.strategy_class),
        **{group: _dump_part(getattr(config, group)) for group in groups},
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
    described = ("links", "device", "failures_s", "validated_ranks")
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


def digested(config: RunConfig) -> str:
    """See `run_id`."""
    tree = tree_of(config)
    launcher = config.launcher
    tree["launcher"] = {
        "name": launcher.name,
        "timing_only": launcher.timing_only,
        "network": launcher.asked_network,
        "pin": launcher.pin,
    }
    if isinstance(config.reader, PackedReader):
        _digest_reader(config.reader, launcher, tree["reader"])
    tree["cluster"].pop("validated_ranks", None)  # what is known about the times does not change them
    trace = config.cluster.device.trace
    if trace is not None:
        tree["cluster"]["device"]["trace"] = _content(Path(trace))
    tree["run"] = {"arm": config.run.arm, "repeat": config.run.repeat}
    del tree["results_dir"], tree["study"]
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, allow_nan=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    names = [strategy_name(config), part_name(config.model), part_name(config.dataset)]
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), f"s{config.seed}", digest])


def _digest_reader(reader: PackedReader, launcher: LauncherConfig, keys: dict[str, Any]) -> None:
    """Leave of a reader's keys what decides: the data set says what is in its file, wherever that lies."""
    usual = _dump_part(type(reader)())
    keys["path"] = usual["path"]
    if order_alone(launcher) is not None:
        keys.update({key: usual[key] for key in reader.of_reading})


def _content(path: Path) -> str:
    """A hash of what a file holds; its path while it cannot be read, which the run itself complains about."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return str(path)


def strategy_name(config: RunConfig) -> str:
    """The strategy's name for people: its `name` if it has one, else the name of its file."""
    return part_name(config.strategy_class)
