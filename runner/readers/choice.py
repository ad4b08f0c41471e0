"""Which reader a run has, and what does not go together with one."""

from typing import Any

from ...datasets.dataset import Dataset
from ...strategies.errors import ConfigError
from ..launcher_config import LauncherConfig
from ..tasks import choice
from ..tasks.classification import Classification
from .base import PackedReader
from .none import NoReader
from .packed_set import path_of

Reader = NoReader | PackedReader
ORDER_ALONE = "its order alone: samples come from memory, and cluster.device says what data cost"


def reads(reader: Reader, launcher: LauncherConfig) -> bool:
    """Whether files are read in training: not in virtual or emulated time, which has no disk."""
    return isinstance(reader, PackedReader) and order_alone(launcher) is None


def order_alone(launcher: LauncherConfig) -> str | None:
    """Why a reader gives a run no more than the order of its samples, in words; None where it reads."""
    if launcher.name == "simulated" or launcher.asked_network != "none":
        return ORDER_ALONE
    return None


def check(
    reader: Reader, strategy_class: Any, strategy: Any, launcher: LauncherConfig, dataset: Dataset
) -> None:
    """Refuse what a reader cannot feed: ConfigError."""
    if isinstance(reader, NoReader):
        return
    start = f"reader={reader.name}"
    if strategy_class.sampling(strategy) != "global":
        raise ConfigError(
            f"{start}: gives all ranks equal steps of common batches, and with this strategy each draws its "
            "own samples at its own pace; take reader=none"
        )
    if strategy_class.piece_shift:
        raise ConfigError(
            f"{start}: deals the pieces of a batch by itself, and this strategy wants them moved from rank "
            "to rank; take reader=none"
        )
    if launcher.timing_only:
        raise ConfigError(f"{start}: launcher.timing_only=true has no samples to read; take reader=none")
    if launcher.loader_workers:
        raise ConfigError(
            f"{start}: reads ahead by itself (reader.prefetch_batches); take launcher.loader_workers=0, not "
            f"{launcher.loader_workers}"
        )
    if launcher.prefetch_batches != LauncherConfig.prefetch_batches:
        raise ConfigError(
            f"{start}: launcher.prefetch_batches={launcher.prefetch_batches} is of launcher.loader_workers, "
            "which read no packed file; take reader.prefetch_batches"
        )
    for key in ("cold", "warm"):
        if getattr(reader, key) and not reads(reader, launcher):
            raise ConfigError(f"reader.{key}=true: nothing is read with launcher={launcher.name}; take false")
    if choice.kind_of(dataset.task, "dataset") is not Classification:
        raise ConfigError(
            f"{start}: a packed file has one label an image, and the data set is for "
            f"{choice.kind_of(dataset.task, 'dataset').name}; take reader=none"
        )
    path_of(dataset, reader)
