"""What decides how strategies compare in throughput, as ratios that stay when time and size are scaled."""

from dataclasses import dataclass, field

from ..strategies.errors import ConfigError, at_least


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """A model on a cluster, as ratios. `step_s` > 0 tells that the numbers are there.

    bytes: of all gradients. samples_per_rank: of a step. step_s: mean seconds of forward and backward of a
    rank of speed 1. kappa: seconds of all gradients through a node's cards (one node: through a rank's link)
    over step_s. latency_*: seconds of the latencies of one ring all-reduce over all ranks (inside: of a node)
    over step_s. rate_ratio: rate inside a node over the rate of a card between nodes. ready: for each bucket,
    the share of the backward pass after which its sum may start. sizes: its share of the gradients.
    Null: there is no such link.
    """

    model: str = ""
    cluster: str = ""
    parameters: int = 0
    bytes: int = 0
    samples_per_rank: float = 0.0
    step_s: float = 0.0
    fixed_share: float = 0.0  # of a step, what does not grow with the batch
    kappa: float = 0.0
    latency_intra: float | None = None
    latency_inter: float | None = None
    rate_ratio: float | None = None
    ready: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()
    jitter: str = "none"
    jitter_cv: float = 0.0
    speeds: tuple[float, ...] | None = None
    straggler: str = ""  # for people: which rank, how slow, how often

    @property
    def buckets(self) -> int:
        """How many sums DDP makes of its gradients in a step."""
        return len(self.ready)


@dataclass(frozen=True, kw_only=True)
class LikeConfig:
    """`cluster.like`: the model and the cluster whose ratios this run's links and devices are to have.

    `model`, `cluster`, `dataset`: names of configuration files, or paths to such (they end in .yaml).
    """

    model: str | None = None
    cluster: str | None = None
    dataset: str = "imagenet_sized"  # the shape of the named model's samples
    samples_per_rank: int | None = 32  # of the named side's step; null: as many as this run's
    named: Likeness = field(default_factory=Likeness)  # filled in once links and device have been matched

    def check(self) -> None:
        """Raises ConfigError where only one of the two is named, or a batch is empty."""
        if (self.model is None) != (self.cluster is None):
            given, lacking = ("model", "cluster") if self.cluster is None else ("cluster", "model")
            raise ConfigError(
                f"cluster.like.{given}={getattr(self, given)}: needs cluster.like.{lacking} too, ratios are "
                "those of a model on a cluster (cluster.like={model: resnet50, cluster: ethernet_10g})"
            )
        if self.samples_per_rank is not None:
            at_least("cluster.like.samples_per_rank", self.samples_per_rank, 1)

    @property
    def to_be_matched(self) -> bool:
        """Whether a side is named and the numbers beside do not stand for it yet."""
        return self.model is not None and not self.named.step_s
