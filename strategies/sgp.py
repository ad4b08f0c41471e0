"""Stochastic gradient push: each rank steps by itself, then sends a share of its parameters to a few peers.

Peers change from step to step, so that the parameters of each rank reach all ranks in about log R steps.
Push-sum weights correct for ranks that received more than they sent. A rank waits only for its in-peers.

Update rule (rank i; p out-peers; z_i = x_i / w_i, w_i = 1 at first):

    x_i = optimizer(x_i, g_i)                       g_i: gradient at z_i
    send (x_i, w_i)/(p+1) to each out-peer, keep the same share
    (x_i, w_i) = kept + Σ received
    out-peers of i in step k: (i + j·(p+1)^e) mod R, j = 1 … p, e = k mod (⌊log_{p+1}(R-1)⌋ + 1)

Bytes: p · 4(m+1) per rank and step (one element carries a stop request), 4 more with `send_weight: true`.

Paper: M. Assran, N. Loizou, N. Ballas, M. Rabbat, Stochastic Gradient Push for Distributed Deep Learning,
ICML 2019, arXiv:1811.10792.

Ours differs: gloo's point-to-point messages instead of the authors' NCCL code; the weight is not sent while
it is 1 on every rank, as it is on these graphs; ranks agree to stop by a stop request that is passed on with
the gossip; `graph` and `direction: push_pull` (symmetric averaging, as D-PSGD's) are options.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Strategy
from .communicator import Communicator
from .errors import ConfigError, at_least, one_of
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import WORLD


@dataclass(frozen=True, kw_only=True)
class SGPConfig:
    num_peers: int = 1  # p, ranks that each rank sends to in a step
    graph: str = "exponential"  # whom: exponential | ring | complete
    direction: str = "push"  # push, or push_pull: peers send to each other
    send_weight: str = "auto"  # auto: not while it is 1 everywhere; true: always

    def __post_init__(self) -> None:
        at_least("strategy.num_peers", self.num_peers, 1)
        one_of("strategy.graph", self.graph, ["exponential", "ring", "complete"])
        one_of("strategy.direction", self.direction, ["push", "push_pull"])
        one_of("strategy.send_weight", self.send_weight, ["auto", "true"])

    def hops(self, ranks: int) -> list[list[int]]:
        """Distances to the out-peers, step by step of one cycle."""
        p = self.num_peers
        if ranks == 1:
            return [[]]
        if self.graph == "complete":
            return [list(range(1, ranks))]
        if self.graph == "ring":
            return [list(range(1, p + 1))]
        return [[j * base for j in range(1, p + 1)] for base in _powers(p + 1, ranks - 1)]

    def reach(self, ranks: int) -> int:
        """Steps in which a rank's information reaches all ranks, from any step on."""
        if self.graph == "ring":
            return math.ceil((ranks - 1) / self.num_peers)
        return len(self.hops(ranks))


def _powers(base: int, most: int) -> list[int]:
    """1, base, base² … up to `most`, in whole numbers: a logarithm could miss one by rounding."""
    powers = [1]
    while powers[-1] * base <= most:
        powers.append(powers[-1] * base)
    return powers


class SGP(Strategy):
    """The replica holds the numerator x while the optimizer steps, z while gradients are computed."""

    Config = SGPConfig
    config: SGPConfig
    remembers = ("weight", "numerator", "steps", "first_stop_request", "lowest", "highest")
    tuned = (("num_peers", (1, 2)), ("graph", ("exponential", "ring")))
    caveats = (
        "Stragglers still hold up their neighbours, and through them everybody: it is not asynchronous.",
        "Ranks agree exactly after a cycle only where the number of ranks is a power of num_peers + 1.",
        "Point-to-point messages over gloo are not the authors' NCCL code.",
        "With a fixed set of ranks and nothing delayed push-sum weights are 1: push-sum does nothing then.",
        "BatchNorm statistics stay with their ranks and are averaged where a model is judged or saved.",
    )
    may_differ = ("strategy", "evaluation.mode", "evaluation.count")  # its ranks never all meet

    @classmethod
    def check(cls, config: SGPConfig, plan: Plan) -> None:
        ranks = plan.topology.ranks
        if ranks > 1 and config.graph != "complete" and config.num_peers > ranks - 1:
            raise ConfigError(f"strategy.num_peers={config.num_peers}: must be <= {ranks - 1}, other ranks")

    @classmethod
    def copies_held(cls, config: SGPConfig, plan: Plan, memory: RankMemory) -> float:
        """x, and each message with its sender, on its way and with its receiver."""
        ranks, ways = plan.topology.ranks, 1 + (config.direction == "push_pull")
        messages = max(len({hop % ranks for hop in hops} - {0}) for hops in config.hops(ranks)) * ways
        return max(1 + 3 * messages, 3) + (config.send_weight == "true") + max(0, memory.copies(math.inf) - 2)

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.ranks = comm.topology.ranks
        self.never_syncs = self.ranks > 1
        self.cycle = self.config.hops(self.ranks)
        self.reach = self.config.reach(self.ranks)
        self.sends_weight = self.config.send_weight == "true"
        self.weight = 1.0
        self.numerator: Tensor | None = None  # x where it is not z
        self.steps = 0
        # The earliest step with a stop request, as far as this rank knows.
        self.first_stop_request: int | None = None
        self.lowest, self.highest = 1.0, 1.0
        replica.average_gradients_over(None)

    def before_step(self, progress: Progress) -> None:
        if self.numerator is not None:
            self.replica.load(self.numerator)

    def after_step(self, progress: Progress) -> None:
        if self.ranks > 1:
            self._gossip()
        self.steps += 1

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        """True on all ranks in the step in which the earliest request has reached all; all know that step."""
        if self.ranks == 1:
            return stop_requested
        if self.first_stop_request is None or self.steps < self.first_stop_request + self.reach:
            return False
        self.first_stop_request = None
        return True

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        parts = self._parts()
        return lambda: self._assemble(parts)

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        with self.replica.kept():
            self._load(self._assemble(self._parts()))
            yield

    def finalize(self) -> None:
        if self.ranks > 1:
            self._load(self._assemble(self._parts()))
            self.weight, self.numerator = 1.0, None

    def summary(self) -> dict[str, Any]:
        return {"cycle": self.cycle, "mixings": self.steps, "push_sum_weights": [self.lowest, self.highest]}

    # ---------------------------------------------------------------- gossip

    def _gossip(self) -> None:
        """Send shares and add the received ones; the rank waits only for its in-peers."""
        rank, ranks = self.comm.rank, self.ranks
        hops = [hop % ranks for hop in self.cycle[self.steps % len(self.cycle)]]
        if self.config.direction == "push_pull":
            hops += [-hop % ranks for hop in hops]
        counts = Counter(hops)  # several hops may lead to one rank, or back to this one
        share = 1 / (len(hops) + 1)
        x = self.replica.flat()
        stop_requested = self.steps if self.replica.stop_requested else None
        self.first_stop_request = min(
            (s for s in (self.first_stop_request, stop_requested) if s is not None), default=None
        )
        sends = {
            (rank + hop) % ranks: self._payload(x, share * count) for hop, count in counts.items() if hop
        }
        size = x.numel() + 1 + self.sends_weight
        receives = {(rank - hop) % ranks: x.new_empty(size) for hop in counts if hop}
        # Every rank sends and receives equally often; the step's number matches the messages.
        self.comm.exchange(sends, receives, tag=self.steps).wait()
        kept = share * (1 + counts[0])
        x *= kept
        self.weight *= kept
        self._take_in(x, [receives[source] for source in sorted(receives)])
        if not self.sends_weight:
            self.weight = 1.0  # on a regular graph without delays a rank receives as much as it sends
        self.lowest, self.highest = min(self.lowest, self.weight), max(self.highest, self.weight)
        if self.weight == 1.0:
            self.numerator = None
            self.replica.load(x)
        else:
            self.numerator = x
            self.replica.load(x / self.weight)

    def _payload(self, x: Tensor, share: float) -> Tensor:
        """[m+1] or [m+2]: share of x, steps since the earliest request (0: none, 1: made now), share of w."""
        age = 0 if self.first_stop_request is None else self.steps - self.first_stop_request + 1
        message = x.new_empty(x.numel() + 1 + self.sends_weight)
        torch.mul(x, share, out=message[: x.numel()])
        self.comm.write_stop_flag(message[x.numel()], age)
        if self.sends_weight:
            message[-1].fill_(self.weight * share)  # an assignment would wait for a GPU
        return message

    def _take_in(self, x: Tensor, messages: Sequence[Tensor]) -> None:
        m = x.numel()
        for message in messages:
            x += message[:m]
        if not messages or not (self.comm.stop_possible or self.sends_weight):
            return
        # One read for all messages: each read waits for a GPU.
        tails = torch.stack([message[m:] for message in messages]).tolist()
        for age, *weight in tails:
            if age:
                since = self.steps - int(age) + 1
                self.first_stop_request = (
                    since if self.first_stop_request is None else min(self.first_stop_request, since)
                )
            if self.sends_weight:
                self.weight += weight[0]

    # ---------------------------------------------------------------- the model

    def _assemble(self, parts: Tensor) -> Tensor:
        """The model [m + F] of all ranks' `parts`."""
        total = parts.clone()
        if self.ranks > 1:
            self.comm.all_reduce(total, WORLD).wait()
        m = self.replica.numel
        return torch.cat([total[:m] / total[-1].item(), total[m:-1] / self.ranks])

    def _parts(self) -> Tensor:
        """This rank's x, buffers and w [m + F + 1]."""
        parameters = self.numerator if self.numerator is not None else self.replica.flat()
        buffers = self.replica.buffers.pack().to(parameters.dtype)
        return torch.cat([parameters, buffers, parameters.new_tensor([self.weight])])

    def _load(self, model: Tensor) -> None:
        m = self.replica.numel
        self.replica.load(model[:m])
        self.replica.buffers.unpack(model[m:])
