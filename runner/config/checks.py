"""Checks of a whole run before a process starts: what its parts do not allow together.

`CHECKS` is the one list, in the order in which errors are reported. Each check takes the parts of a run and
raises ConfigError.
"""

from collections.abc import Callable

from ...datasets.sampler import Sampler
from ...models.spec import InputSpec, Sized
from ...strategies.base import AsynchronousStrategy, Strategy
from ...strategies.errors import ConfigError, unknown, within
from .launchers import LauncherConfig
from .model_building import built, input_spec, normalises
from .parts import RunParts
from .reader_config import PackedReader, path_of, reads
from .tasks import METRICS, Classification, check_top5, kind_of


def check(run: RunParts) -> None:
    """Every check that needs no data, then those of the data as far as their keys tell."""
    for each in CHECKS:
        each(run)


def check_data(run: RunParts, spec: Callable[[], InputSpec] | None = None) -> None:
    """The checks of a run with its data, of which all is known once they are prepared.

    spec: called only where the shape of samples decides; None: as far as the keys of the data set tell.
    """
    check_task(run)
    check_batches(run, spec)
    run.strategy_class.check(run.strategy, run.plan())


def check_batch_of_ranks(run: RunParts) -> None:
    """A rank has at least one sample of a batch."""
    batch, ranks = run.train.global_batch_size, run.cluster.ranks
    if batch < ranks:
        raise ConfigError(
            f"train.global_batch_size={batch}: must be >= {ranks}, the number of ranks "
            f"(cluster.nodes={len(run.cluster.ranks_of_nodes)}, cluster.ranks_per_node), one sample each"
        )


def check_timing_only(run: RunParts) -> None:
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


def _needs_numbers(run: RunParts) -> str | None:
    """The `strategy.key=value` of `Strategy.needs_numbers` that the run has; None: it has none."""
    listed = run.strategy_class.needs_numbers
    pairs = [(key, value) for key, value in listed if getattr(run.strategy, key) == value]
    return f"strategy.{pairs[0][0]}={pairs[0][1]}" if pairs else None


def check_precision(run: RunParts) -> None:
    """TF32 needs a GPU; fp16 needs that all ranks see an overflow, and that none remembers it."""
    launcher, precision = run.launcher, run.train.precision
    if launcher.timing_only:
        return
    if precision == "tf32" and launcher.virtual:
        raise ConfigError(
            "train.precision=tf32: products of TF32 are a GPU's, and launcher=simulated computes on CPUs; "
            "take fp32 (the virtual clock has its times from cluster.device either way)"
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


def check_schedule(run: RunParts) -> None:
    """A schedule that reads the loss of each epoch needs epochs that all ranks have in common."""
    if run.schedule.reads_epoch_loss and issubclass(run.strategy_class, AsynchronousStrategy):
        raise ConfigError(
            f"schedule={type(run.schedule).__name__.lower()}: reads the loss of each epoch, and with "
            f"strategy={run.strategy_name} ranks have no common epoch; take another schedule"
        )


def check_sized_model(run: RunParts) -> None:
    if isinstance(run.model, Sized) and not run.launcher.timing_only:
        raise ConfigError(f"model={run.model.name}: has no layers; it is for launcher.timing_only=true")


def check_cluster(run: RunParts) -> None:
    """Virtual time needs every number of the cluster, real processes have those of their machine."""
    launcher = run.launcher
    if launcher.virtual:
        run.cluster.check_virtual(extrapolate=launcher.extrapolate)
    else:
        run.cluster.check_real(launcher.name, launcher.asked_network)


def check_reader(run: RunParts) -> None:
    """A packed file feeds common batches of labelled images, read by its own reader."""
    reader, launcher = run.reader, run.launcher
    if not isinstance(reader, PackedReader):
        return
    kind = kind_of(run.dataset.task, "dataset")
    impossible = {
        "gives all ranks equal steps of common batches, and with this strategy each draws its own samples at "
        "its own pace": issubclass(run.strategy_class, AsynchronousStrategy),
        "deals the pieces of a batch by itself, and this strategy wants them moved from rank to rank": bool(
            run.strategy_class.piece_shift
        ),
        "launcher.timing_only=true has no samples to read": launcher.timing_only,
        f"a packed file has one label an image, and the data set is for {kind.name}": kind
        is not Classification,
    }
    for reason, applies in impossible.items():
        if applies:
            raise ConfigError(f"reader={reader.name}: {reason}; take reader=none")
    for key, usual in (("loader_workers", 0), ("prefetch_batches", LauncherConfig.prefetch_batches)):
        if (given := getattr(launcher, key)) != usual:
            raise ConfigError(
                f"reader={reader.name}: reads ahead by itself (reader.prefetch_batches); take "
                f"launcher.{key}={usual}, not {given}"
            )
    for key in ("cold", "warm"):
        if getattr(reader, key) and not reads(reader, launcher):
            raise ConfigError(f"reader.{key}=true: nothing is read with launcher={launcher.name}; take false")
    path_of(run.dataset, reader)


def check_task(run: RunParts) -> None:
    """The metric, the label smoothing and the model are of the data set's task."""
    train, kind = run.train, kind_of(run.dataset.task, "dataset")
    if train.target_metric not in METRICS:
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
    if not run.launcher.timing_only and (model_kind := kind_of(run.model.task, "model")) is not kind:
        raise ConfigError(
            f"model={getattr(run.model, 'name', type(run.model).__name__)}: is for {model_kind.name}, "
            f"the data set for {kind.name}; `daso-bench list models` says what each is for (a class of your "
            f'own says task = "{kind.name}")'
        )
    classes = run.dataset.info().classes
    if classes is not None:
        check_top5(train.target_metric, classes)


def check_batches(run: RunParts, spec: Callable[[], InputSpec] | None = None) -> None:
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
        shape = spec() if spec is not None else input_spec(run.dataset)
        if shape is not None and normalises(built(run.model, shape)):
            raise


def check_batch_norm(sampler: Sampler, parts: int) -> None:
    """Refuse batches of which a rank, or a part, has one sample, for a model with batch normalisation.

    Raises ConfigError.
    """
    last = sampler.steps_per_epoch - 1
    of_first, of_last = (min(sampler.samples_of_rank(batch)) // parts for batch in (0, last))
    if of_first >= 2 and of_last >= 2:
        return
    size, ranks = sampler.global_batch_size, sampler.ranks
    of_parts = f" x {parts} parts (train.accumulate)" if parts > 1 else ""
    if of_first < 2:
        way_out = f"use at least 2 x {ranks} ranks{of_parts}"
    else:
        way_out = (
            f"the last batch of an epoch has {sampler.sizes(last)} samples, and needs 2 x {ranks} "
            f"ranks{of_parts}; leave it out with train.short_batch=drop, or take another size"
        )
    raise ConfigError(
        f"train.global_batch_size={size}: gives a rank one sample at a time, which batch normalisation "
        f"refuses; {way_out}"
    )


CHECKS: tuple[Callable[[RunParts], None], ...] = (
    lambda run: within("seed", run.seed, 0, 2**63 - 1),
    check_batch_of_ranks,
    check_timing_only,
    check_precision,
    check_schedule,
    check_sized_model,
    check_cluster,
    check_reader,
    check_data,
)
