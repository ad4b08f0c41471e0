"""Ways of computing that a launcher, a cluster or a strategy cannot have: refused before processes start."""

from typing import Any

from ...strategies.base import Strategy
from ...strategies.errors import ConfigError
from .cluster import ClusterConfig
from .launchers import LauncherConfig


def check(
    *,
    precision: str,
    compiled: bool,
    accumulate: int,
    cluster: ClusterConfig,
    launcher: LauncherConfig,
    strategy_class: type[Any],
    strategy: Any,
    name: str,
) -> None:
    """Refuse `train.precision` and `train.compile` where they cannot be. Raises ConfigError.

    Args:
        strategy: an instance of `strategy_class.Config`, `name` for people.
    """
    virtual = launcher.name == "simulated"
    if precision == "tf32" and virtual and not launcher.timing_only:
        raise ConfigError(
            "train.precision=tf32: products of TF32 are a GPU's, and launcher=simulated computes on CPUs; "
            "take fp32 (the virtual clock has its times from cluster.device either way)"
        )
    if precision == "fp16" and not launcher.timing_only:
        _check_loss_scaling(cluster, strategy_class, strategy, name)
    if compiled:
        _check_compile(virtual, accumulate, cluster, strategy_class, name)


def needs_numbers(kind: type[Strategy], strategy: Any) -> str | None:
    """The `strategy.key=value` of `Strategy.needs_numbers` that the keys have; None: they have none."""
    having = [(key, value) for key, value in kind.needs_numbers if getattr(strategy, key) == value]
    return f"strategy.{having[0][0]}={having[0][1]}" if having else None


def _check_loss_scaling(cluster: ClusterConfig, kind: type[Any], strategy: Any, name: str) -> None:
    # Who has the default `stop_agreed` averages gradients over all ranks in every step: all see one overflow.
    if cluster.ranks > 1 and kind.stop_agreed is not Strategy.stop_agreed:
        raise ConfigError(
            "train.precision=fp16: an overflow has to leave out a step on all ranks at once, and with "
            f"strategy={name} not all would see it: backward does not end with sums over all ranks; take "
            "bf16, which needs no scale"
        )
    remembers = needs_numbers(kind, strategy)
    if remembers is not None:
        raise ConfigError(
            f"train.precision=fp16: {remembers} remembers gradients, and would never forget one that "
            "overflowed; take bf16, which needs no scale"
        )


def _check_compile(
    virtual: bool, accumulate: int, cluster: ClusterConfig, kind: type[Any], name: str
) -> None:
    if virtual:
        raise ConfigError(
            "train.compile=true: the virtual clock has step times from cluster.device, and compiling changes "
            "none of them; it is for real processes (launcher=local, slurm, torchrun)"
        )
    if cluster.device.paces:
        raise ConfigError(
            "train.compile=true: devices are slowed down between a model's layers, and a compiled model has "
            "none; take train.compile=false, or the real device (cluster=laptop)"
        )
    if accumulate > 1:
        raise ConfigError(
            f"train.compile=true: with train.accumulate={accumulate} the last part of a batch would run the "
            "others' code, which gives no gradient before the end of backward; take one of the two"
        )
    if kind.shares is not Strategy.shares:
        raise ConfigError(
            f"train.compile=true: strategy={name} changes the sizes of batches, and each new one would be "
            "compiled in training time; take train.compile=false"
        )
