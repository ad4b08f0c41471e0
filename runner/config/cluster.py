"""What a cluster is made of: which ranks share a node, the links, the devices, and what goes wrong with them.

Numbers left null are those of the machine that the run is on: real processes take them as they are, virtual
time needs them all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...strategies.errors import ConfigError, above, at_least, one_of, within

ALGORITHMS = ("auto", "ring", "tree", "hierarchical")
SHARINGS = ("fifo", "fair")
MODELS = {"alpha_beta": ALGORITHMS, "nccl": ("auto",), "gloo": ("auto", "ring")}  # with their algorithms
FLAGGED, REFUSED = 8, 64  # times the ranks that were validated
REAL_KINDS = ("cpu", "cuda")
TESTED = 4  # ranks on which virtual time and real processes are compared by this project's own tests
JITTERS = ("none", "gaussian", "lognormal", "student_t3")


def compared_words(validated_ranks: int) -> str:
    """Whether modelled step times of a cluster were compared with measured ones, and on how many ranks."""
    if not validated_ranks:
        return "no step time of this cluster was compared with a measured one"
    return f"step times of this cluster were compared with measured ones on {validated_ranks} ranks"


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """A class of links: α seconds a message, and payload at `efficiency` · rate."""

    rate_gbit: float | None = None  # of one network card, or of a rank inside its node
    latency_us: float = 0.0  # of a message; with model=nccl of one of its hops
    efficiency: float = 1.0
    cap_gbit: float | None = None  # with model=gloo: what one process moves, whatever the cards

    def check(self, where: str) -> None:
        """Raises ConfigError for a number that no link has."""
        if self.rate_gbit is not None and not self.rate_gbit > 0:
            raise ConfigError(f"{where}.rate_gbit={self.rate_gbit}: must be > 0 (inf: takes no time)")
        within(f"{where}.latency_us", self.latency_us, 0, 1e9)
        if not 0 < self.efficiency <= 1:
            raise ConfigError(f"{where}.efficiency={self.efficiency}: must be above 0 and at most 1")
        if self.cap_gbit is not None:
            above(f"{where}.cap_gbit", self.cap_gbit, 0)

    @property
    def bytes_per_s(self) -> float:
        assert self.rate_gbit is not None, "checked before virtual time begins"
        return self.rate_gbit * self.efficiency * 1e9 / 8

    @property
    def cap_bytes_per_s(self) -> float:
        return math.inf if self.cap_gbit is None else self.cap_gbit * 1e9 / 8

    def or_free(self) -> "LinkConfig":
        """This link; where no rate was asked for, one that takes no time beyond the real one."""
        return replace(self, rate_gbit=math.inf) if self.rate_gbit is None else self


@dataclass(frozen=True, kw_only=True)
class LinksConfig:
    """The links of a cluster, and the model of what a collective on them costs.

    alpha_beta: `latency_us` a message, bytes over rate. nccl: `launch_us` and hops of `latency_us`, bytes
    over rate, a `ramp` between them. gloo: alpha_beta as a ring, one process at most at `cap_gbit`.
    """

    intra: LinkConfig = field(default_factory=LinkConfig)  # between the ranks of a node; all pairs at once
    inter: LinkConfig = field(default_factory=LinkConfig)  # from a node to the others
    nics: int = 1  # network cards of a node; its ranks are dealt over them in order
    algorithm: str = "auto"  # of an all-reduce over several ranks of several nodes
    sharing: str = "fifo"  # of a card by transfers at the same time: one after the other, or fair shares
    node_speeds: tuple[float, ...] | None = None  # by node: its cards have so many times the rate
    model: str = "alpha_beta"
    launch_us: float = 0.0  # with model=nccl, once an operation: start of the kernel
    ramp: float = 0.0  # with model=nccl: 0 latency, then rate; 1 as slow between them as a pipelined chain
    nvls_gbit: float | None = None  # with model=nccl: rate of a rank where the node's switches add (NVLS)

    def or_free(self) -> "LinksConfig":
        """These links; those without a rate take no time beyond the real one."""
        return replace(self, intra=self.intra.or_free(), inter=self.inter.or_free())

    def check(self, nodes: int) -> None:
        """Raises ConfigError for links that cannot be."""
        self.intra.check("cluster.links.intra")
        self.inter.check("cluster.links.inter")
        at_least("cluster.links.nics", self.nics, 1)
        one_of("cluster.links.algorithm", self.algorithm, ALGORITHMS)
        self._check_model()
        one_of("cluster.links.sharing", self.sharing, SHARINGS)
        _speeds("cluster.links.node_speeds", self.node_speeds, nodes, "nodes")

    def _check_model(self) -> None:
        one_of("cluster.links.model", self.model, MODELS)
        if self.algorithm not in MODELS[self.model]:
            raise ConfigError(
                f"cluster.links.algorithm={self.algorithm}: cluster.links.model={self.model} has its own; "
                "leave it at auto"
            )
        within("cluster.links.launch_us", self.launch_us, 0, 1e9)
        within("cluster.links.ramp", self.ramp, 0, 1)
        if self.nvls_gbit is not None:
            above("cluster.links.nvls_gbit", self.nvls_gbit, 0)
        caps = (self.intra.cap_gbit, self.inter.cap_gbit)
        given = {
            "launch_us": (self.launch_us, "nccl"),
            "ramp": (self.ramp, "nccl"),
            "nvls_gbit": (self.nvls_gbit, "nccl"),
            "intra.cap_gbit": (caps[0], "gloo"),
            "inter.cap_gbit": (caps[1], "gloo"),
        }
        for key, (value, model) in given.items():
            if value and model != self.model:
                raise ConfigError(
                    f"cluster.links.{key}={value}: is for cluster.links.model={model}, not {self.model}"
                )


@dataclass(frozen=True, kw_only=True)
class StragglerConfig:
    """A rank that is slow now and then: `times` slower in the first `steps` of every `every` steps."""

    rank: int | None = None  # null: none is
    times: float = 4.0
    every: int = 100
    steps: int = 20

    def check(self, ranks: int) -> None:
        """Raises ConfigError for a straggler that cannot be among `ranks` ranks."""
        where = "cluster.device.straggler"
        if self.rank is not None:
            within(f"{where}.rank", self.rank, 0, ranks - 1)
        within(f"{where}.times", self.times, 1, 1e9)
        at_least(f"{where}.every", self.every, 1)
        within(f"{where}.steps", self.steps, 1, self.every)

    def slows(self, rank: int, step: int) -> bool:
        """Whether `rank` is slow in its step `step`, counted from 0."""
        return rank == self.rank and step % self.every < self.steps


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """How long a rank's forward and backward take: t = (fixed + n · per sample) / speed · jitter.

    The time of a sample follows from `samples_per_second`, of the run's own model, or from `tflops` and the
    model's operations: three times the forward pass's. A straggler's step takes `times` as long, a traced one
    too.
    """

    kind: tuple[str, ...] = ()  # for people; real processes take cpu and cuda, one for all or by rank
    samples_per_second: float | None = None
    tflops: float | None = None  # sustained, not the data sheet's
    fixed_ms: float = 0.0  # of a step, whatever the batch: launches, optimizer
    forward_share: float = 1 / 3
    overlap_loss: float = 0.0  # of the time that sums run beside backward, so much is added to it
    bucket_us: float = 0.0  # of the backward pass, for each bucket whose sum is started (virtual time)
    speeds: tuple[float, ...] | None = None  # by rank
    jitter: str = "none"
    jitter_cv: float = 0.05  # standard deviation of a step's time over its mean
    trace: str | None = None  # a CSV file with columns rank, step_s: measured step times, repeated for ever
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    input_stall_ms: float = 0.0  # of each step, waiting for data
    checkpoint_s: float = 0.0  # of each checkpoint

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", tuple(kind for kind in self.kind if kind))  # "": nothing was said

    @property
    def real_kinds(self) -> bool:
        """Whether the kinds are those of devices that real processes can be told to take."""
        return bool(self.kind) and set(self.kind) <= set(REAL_KINDS)

    def kind_of(self, rank: int) -> str | None:
        """cpu or cuda, as real processes are told for this rank; None: as the machine has it."""
        return self.kind[rank % len(self.kind)] if self.real_kinds else None

    @property
    def paces(self) -> bool:
        """Whether it says how long a step takes."""
        return self.samples_per_second is not None or self.tflops is not None or self.trace is not None

    @property
    def varies(self) -> bool:
        """Whether it changes how long a step takes."""
        slowed = self.speeds is not None or self.jitter != "none" or self.straggler.rank is not None
        return slowed or self.fixed_ms > 0

    def check(self, ranks: int) -> None:
        """Raises ConfigError for a device that cannot be."""
        for name in ("samples_per_second", "tflops"):
            value = getattr(self, name)
            if value is not None:
                above(f"cluster.device.{name}", value, 0)
        if self.samples_per_second is not None and self.tflops is not None:
            raise ConfigError(
                f"cluster.device.samples_per_second={self.samples_per_second}, cluster.device.tflops="
                f"{self.tflops}: only one of them can tell a sample's time; set the other to null"
            )
        for name in ("fixed_ms", "bucket_us", "input_stall_ms", "checkpoint_s"):
            within(f"cluster.device.{name}", getattr(self, name), 0, 1e9)
        within("cluster.device.forward_share", self.forward_share, 0, 1)
        within("cluster.device.overlap_loss", self.overlap_loss, 0, 1)
        one_of("cluster.device.jitter", self.jitter, JITTERS)
        # Beyond, too many steps would have to be cut at the shortest: neither mean nor deviation would hold.
        most = {"gaussian": 0.3, "student_t3": 0.3}.get(self.jitter, 1)
        within("cluster.device.jitter_cv", self.jitter_cv, 0, most)
        _speeds("cluster.device.speeds", self.speeds, ranks, "ranks")
        self.straggler.check(ranks)
        if len(self.kind) > 1 and len(self.kind) != ranks:
            raise ConfigError(f"cluster.device.kind={list(self.kind)}: must be one, or one for each rank")
        if len(self.kind) > 1 and not self.real_kinds:
            raise ConfigError(f"cluster.device.kind={list(self.kind)}: by rank it is cpu or cuda")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Which ranks share a node, and what they are. `ranks_per_node`: one number, or one per node."""

    nodes: int = 2
    ranks_per_node: tuple[int, ...] = (2,)
    links: LinksConfig = field(default_factory=LinksConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    failures_s: tuple[float, ...] = ()  # attempt k of a run loses a node after so many seconds
    validated_ranks: int = 0  # ranks on which modelled step times were compared with measured ones

    def __post_init__(self) -> None:
        at_least("cluster.nodes", self.nodes, 1)
        given = self.ranks_per_node
        if len(given) not in (1, self.nodes):
            raise ConfigError(
                f"cluster.ranks_per_node={list(given)}: must be one number or {self.nodes} numbers "
                f"(cluster.nodes={self.nodes})"
            )
        for ranks in given:
            at_least("cluster.ranks_per_node", ranks, 1)
        # One number and its written-out list are the same cluster, so they get the same run id.
        object.__setattr__(self, "ranks_per_node", given * self.nodes if len(given) == 1 else given)
        at_least("cluster.validated_ranks", self.validated_ranks, 0)
        self.links.check(self.nodes)
        self.device.check(self.ranks)
        for seconds in self.failures_s:
            above("cluster.failures_s", seconds, 0)

    @property
    def ranks_of_nodes(self) -> tuple[int, ...]:
        return self.ranks_per_node

    @property
    def ranks(self) -> int:
        return sum(self.ranks_per_node)

    def check_real(self, launcher: str, network: str) -> None:
        """Raises ConfigError for what real processes do not have on the machine they are on.

        `network`: none, modelled, kernel, or auto of the last two.
        """
        device = replace(self.device, kind=()) if self.device.real_kinds else self.device
        if network == "none":
            if self.links != LinksConfig() or device != DeviceConfig() or self.failures_s:
                raise ConfigError(
                    f"launcher={launcher}: real processes have the links and devices of their machine; "
                    "cluster.links, cluster.device and cluster.failures_s are for launcher=emulated and "
                    "launcher=simulated; or take cluster=laptop"
                )
            return
        if self.failures_s:
            raise ConfigError(
                f"cluster.failures_s={list(self.failures_s)}: nodes are lost in virtual time alone "
                "(launcher=simulated)"
            )
        if self.links.sharing != "fifo" and network == "modelled":
            raise ConfigError(
                f"cluster.links.sharing={self.links.sharing}: launcher.network=modelled is fifo; "
                "launcher.network=kernel shares fairly"
            )
        lacking = self.kernel_lacks()
        if network == "kernel" and lacking is not None:
            raise ConfigError(f"{lacking}; launcher.network=modelled has it")
        if device.varies and not device.paces:
            raise ConfigError(
                "cluster.device.samples_per_second=null: a device with speeds, jitter, a straggler or a "
                "fixed part needs a time to vary: samples_per_second, tflops or trace"
            )
        if device.paces and "cuda" in self.device.kind:
            raise ConfigError(
                f"cluster.device.kind={list(self.device.kind)}: a GPU cannot be slowed down layer by layer; "
                "set cluster.device.samples_per_second (tflops, trace) to null"
            )
        links = (self.links.intra, self.links.inter)
        if not any(link.rate_gbit is not None or link.latency_us for link in links) and not device.paces:
            raise ConfigError(
                f"launcher.network={network}: nothing to emulate; give cluster.links.inter.rate_gbit or "
                "cluster.device.samples_per_second, or take cluster=slow_link"
            )

    def kernel_lacks(self) -> str | None:
        """What the kernel's queues do not shape of these links; None if they shape all."""
        links = self.links
        if links.model == "nccl" or links.inter.cap_gbit is not None:
            return f"cluster.links.model={links.model}: the kernel network has this machine's gloo"
        if links.nics > 1:
            return f"cluster.links.nics={links.nics}: nodes of the kernel network have one card"
        if links.intra.rate_gbit not in (None, math.inf) or links.intra.latency_us:
            return "cluster.links.intra: the kernel network shapes links between nodes alone"
        if set(self.device.kind) == {"cuda"}:
            return "cluster.device.kind=cuda: NCCL passes by the kernel network between GPUs of one machine"
        return None

    @property
    def validity(self) -> str:
        """What modelled times of this cluster rest on, in words."""
        compared = compared_words(self.validated_ranks)
        if self.ranks > FLAGGED * max(TESTED, self.validated_ranks):
            return f"extrapolated to {self.ranks} ranks, {compared}"
        return compared

    def check_virtual(self, *, extrapolate: bool = False) -> None:
        """Raises ConfigError where virtual time lacks a number, or goes too far unless it is to."""
        validated = max(TESTED, self.validated_ranks)
        if self.ranks > REFUSED * validated and not extrapolate:
            raise ConfigError(
                f"cluster: {self.ranks} ranks (nodes x ranks_per_node) are more than {REFUSED} times the "
                f"{validated} on which modelled runs were compared with real ones (cluster.validated_ranks); "
                "launcher.extrapolate=true runs it, and says so in every result"
            )
        for name, needed in (("intra", max(self.ranks_per_node) > 1), ("inter", self.nodes > 1)):
            if needed and getattr(self.links, name).rate_gbit is None:
                raise ConfigError(
                    f"cluster.links.{name}.rate_gbit=null: virtual time needs a rate (inf: takes no time); "
                    "`daso-bench list clusters` shows clusters that have one"
                )
        device = self.device
        if not device.paces:
            raise ConfigError(
                "cluster.device.samples_per_second=null: virtual time needs samples_per_second, tflops or "
                "trace; `daso-bench list clusters` shows clusters that have one"
            )


def _speeds(where: str, given: Sequence[float] | None, count: int, what: str) -> None:
    if given is None:
        return
    shown: list[Any] = list(given)
    if len(given) != count:
        raise ConfigError(f"{where}={shown}: must be {count} numbers, one for each of the {what}")
    if not all(0 < speed < math.inf for speed in given):
        raise ConfigError(f"{where}={shown}: must be > 0, and finite")
