"""What `cluster.like` came to: both sides with all ratios, for the record and for people."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..strategies.gradients import DEFAULT_BUCKET_MIB
from .likeness import Likeness
from .schema import RunConfig, strategy_name
from .similarity import Side, bucket_mib_like, likeness_of, run_side
from .train_config import ITEMSIZES

CLOSE = 0.01  # relative; of shares: of the whole. Numbers no further apart are called matched
HOLDS_FOR = "throughputs of strategies relative to each other; samples to target never follow"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One ratio on both sides."""

    name: str
    named: Any
    run: Any

    @property
    def matched(self) -> bool:
        """Whether both are the same, or no further apart than CLOSE."""
        one, other = self.named, self.run
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(
                abs(a - b) <= CLOSE for a, b in zip(one, other, strict=True)
            )
        if isinstance(one, float) and isinstance(other, float):
            return math.isclose(one, other, rel_tol=CLOSE)
        return one == other


def describe(config: RunConfig) -> dict[str, Any]:
    """For environment.json: `similarity` with both sides and what is not matched; empty without `like`.

    Raises ConfigError where the run's data set has to be loaded to know its shape, and cannot be.
    """
    named = config.cluster.like.named
    if not named.step_s:
        return {}
    side = _side(config)
    run = likeness_of(side)
    found = ratios(named, run)
    return {
        "similarity": {
            "named": asdict(named),
            "run": asdict(run),
            "matched": [ratio.name for ratio in found if ratio.matched],
            "not_matched": {
                ratio.name: {"named": ratio.named, "run": ratio.run} for ratio in found if not ratio.matched
            },
            "bucket_mib": side.bucket_mib,
            "bucket_mib_like_named": bucket_mib_like(side, named),
            "holds_for": HOLDS_FOR,
        }
    }


def lines(config: RunConfig) -> list[str]:
    """The same for people, a line each; empty without `cluster.like`."""
    named = config.cluster.like.named
    if not named.step_s:
        return []
    side = _side(config)
    run = likeness_of(side)
    return [
        f"like {named.model} on {named.cluster}: {named.bytes:,} bytes of gradients, "
        f"{named.samples_per_rank:g} samples a rank, step {_shown(named.step_s)} s; here {run.bytes:,} "
        f"bytes, {run.samples_per_rank:g} samples, step {_shown(run.step_s)} s",
        *(
            f"{'matched' if ratio.matched else 'not matched'}: {ratio.name}: {_shown(ratio.named)}"
            + ("" if ratio.matched else f", here {_shown(ratio.run)}")
            for ratio in ratios(named, run)
            if ratio.named is not None or ratio.run is not None
        ),
        *([] if named.buckets == run.buckets else [_way_out(config, side, named, run)]),
        f"holds for {HOLDS_FOR}",
    ]


def ratios(named: Likeness, run: Likeness) -> list[Ratio]:
    """All that is compared, in reading order; None where a side has no such number."""
    pairs: list[tuple[str, Any, Any]] = [
        ("communication over computation (kappa)", named.kappa, run.kappa),
        ("latency of an all-reduce over step, inside nodes", named.latency_intra, run.latency_intra),
        ("latency of an all-reduce over step, between nodes", named.latency_inter, run.latency_inter),
        ("rate inside nodes over rate between them", named.rate_ratio, run.rate_ratio),
        ("share of a step that does not grow with the batch", named.fixed_share, run.fixed_share),
        ("jitter", _jitter(named), _jitter(run)),
        ("speeds", _list(named.speeds), _list(run.speeds)),
        ("straggler", named.straggler or None, run.straggler or None),
        ("buckets of gradients", named.buckets, run.buckets),
        ("buckets ready after (share of backward)", _list(named.ready), _list(run.ready)),
        ("bucket sizes (share of gradients)", _list(named.sizes), _list(run.sizes)),
    ]
    return [Ratio(name=name, named=one, run=other) for name, one, other in pairs]


def _side(config: RunConfig) -> Side:
    train = config.train
    return run_side(
        config.cluster,
        model=config.model,
        dataset=config.dataset,
        batch=train.global_batch_size,
        itemsize=ITEMSIZES[train.precision],
        bucket_mib=getattr(config.strategy, "bucket_mib", DEFAULT_BUCKET_MIB),
    )


def _way_out(config: RunConfig, side: Side, named: Likeness, run: Likeness) -> str:
    """What makes the numbers of buckets equal, or that nothing does."""
    here = f"{run.buckets} of {named.buckets} buckets"
    if not hasattr(config.strategy, "bucket_mib"):
        return f"{here}: strategy={strategy_name(config)} has no bucket_mib: it sums no gradients in buckets"
    wanted = bucket_mib_like(side, named)
    reached = len(side.profile.buckets(side.itemsize, wanted))
    if reached != named.buckets:
        return (
            f"{here}: strategy.bucket_mib={wanted:g} would make it {reached}, and no size comes nearer; a "
            "model of more layers has more"
        )
    return f"{here}: strategy.bucket_mib={wanted:g} would make it {reached}"


def _jitter(side: Likeness) -> str:
    return side.jitter if side.jitter == "none" else f"{side.jitter}, cv {side.jitter_cv:g}"


def _list(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else list(values)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{entry:.2f}" for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
