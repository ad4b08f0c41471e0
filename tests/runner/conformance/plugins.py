"""Strategies as a user would write them: one that keeps the contract, others that break it in one place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from daso_bench.strategies.base import AsynchronousStrategy, Strategy
from daso_bench.strategies.communicator import Communicator
from daso_bench.strategies.daso import DASO
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.lasgd import LASGD
from daso_bench.strategies.progress import Plan, Progress
from daso_bench.strategies.replica import Replica
from daso_bench.strategies.topology import WORLD


class Averager(Strategy):
    """Local steps, and the mean of all parameters after every `every` of them. It keeps the contract."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Its one key."""

        every: int = 3

    config: Config

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.since, self.stop_requested, self.heard = 0, False, False
        replica.average_gradients_over(None)

    def after_step(self, progress: Progress) -> None:
        self.heard = False
        self.since += 1
        if self.since == self.config.every:
            self.average()

    def average(self) -> None:
        """The end of a round."""
        flat = self.replica.flat(self.replica.parameters.empty(extra=1))
        flat[-1] = float(self.stop_requested or self.replica.stop_requested)
        self.comm.all_reduce(flat, WORLD).wait()
        self.replica.load(flat / self.comm.topology.ranks)
        self.heard, self.since = bool(flat[-1] > 0), 0

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        self.stop_requested = (self.stop_requested or stop_requested) and not self.heard
        return self.heard

    def is_sync_point(self, progress: Progress) -> bool:
        return self.since == 0 or progress.last_step

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        own = self.replica.flat()
        mean = own.clone()
        self.comm.all_reduce(mean, WORLD).wait()
        self.replica.load(mean / self.comm.topology.ranks)
        with super().averaged_model():
            yield
        self.replica.load(own)

    def finalize(self) -> None:
        if self.since:
            self.average()

    def state_dict(self) -> dict[str, Any]:
        return {"since": self.since, "stop_requested": self.stop_requested}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.since, self.stop_requested = state["since"], state["stop_requested"]


class ForgetsTheEnd(Averager):
    """Does not average where a round was cut short."""

    def finalize(self) -> None:
        return


class ForgetsState(Averager):
    """Begins its round anew after a resume."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stop_requested = state["stop_requested"]


class OtherOrderAfterResume(Averager):
    """Makes the calls of a step in another order after a resume."""

    lengths = (1, 2)

    def before_step(self, progress: Progress) -> None:
        for length in self.lengths:
            self.comm.broadcast(torch.zeros(length), 0, WORLD).wait()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.lengths = (2, 1)


class IgnoresStopRequests(Averager):
    """Never tells."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        return False


class ForgetsStopRequests(Averager):
    """Tells a request made in the step of the average alone."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        return self.heard


class TellsOneRank(Averager):
    """Tells only the rank that asked."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        return stop_requested


class MeetsAnywhere(Averager):
    """Lets all be evaluated in the middle of a round."""

    def is_sync_point(self, progress: Progress) -> bool:
        return True


class Alone(Averager):
    """Rank 0 alone waits for everybody."""

    def before_step(self, progress: Progress) -> None:
        if self.comm.rank == 0 and progress.step == 3:
            self.comm.barrier(WORLD)


class OtherSizes(Averager):
    """Ranks hand in vectors of other lengths."""

    def before_step(self, progress: Progress) -> None:
        self.comm.broadcast(torch.zeros(1 + self.comm.rank), 0, WORLD, async_op=True)


class NeverWaits(Averager):
    """Leaves a transfer behind."""

    def finalize(self) -> None:
        super().finalize()
        self.comm.all_reduce(torch.zeros(1), WORLD, async_op=True)


class LeavesTraces(Averager):
    """Does not put its parameters back after an evaluation."""

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        with super().averaged_model():
            mean = self.replica.flat()
            yield
        self.replica.load(mean)


class OwnBuffers(Averager):
    """Shows each rank's own batch normalisation statistics."""

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        buffers = self.replica.buffers.pack()
        with super().averaged_model():
            self.replica.buffers.unpack(buffers)
            yield


class Raises(Averager):
    """Has a bug in the third step."""

    def after_step(self, progress: Progress) -> None:
        super().after_step(progress)
        if progress.step == 2:
            raise KeyError("momentum")


class NeverEnds(Averager, AsynchronousStrategy):
    """Ranks at their own pace that never find the run over."""

    def samples(self, progress: Progress) -> int:
        return progress.samples

    def global_samples(self, progress: Progress) -> int:
        return progress.samples

    def ended(self, progress: Progress) -> bool:
        return False


class Refuses(Averager):
    """Works on one node alone."""

    @classmethod
    def check(cls, config: Any, plan: Plan) -> None:
        if plan.topology.nodes > 1:
            raise ConfigError("refuses: needs one node")


def over_gloo(comm: Communicator) -> bool:
    """Whether ranks are real processes; where they check a cluster, virtual time runs in these, too."""
    return type(comm).__name__ == "TorchCommunicator"


class OtherOverGloo(Averager):
    """Trains otherwise in real processes than in virtual time."""

    def after_step(self, progress: Progress) -> None:
        if over_gloo(self.comm) and progress.step == 7:
            self.replica.load(self.replica.flat() + 1e-3)
        super().after_step(progress)


class CallsMoreOverGloo(Averager):
    """Calls more in real processes than in virtual time."""

    def after_step(self, progress: Progress) -> None:
        super().after_step(progress)
        if over_gloo(self.comm) and progress.step == 7:
            self.comm.barrier(WORLD)


class HangsOverGloo(Averager):
    """Raises on one rank while the other waits for it."""

    def after_step(self, progress: Progress) -> None:
        super().after_step(progress)
        if over_gloo(self.comm) and progress.step == 7 and self.comm.rank == 1:
            raise RuntimeError("no memory left")


class ForgetsBadEpochs(DASO):
    """Counts the epochs without improvement anew after a resume."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rule.bad_epochs = 0


class OneBucket(DDP):
    """Sums all gradients at once, whatever `bucket_mib` says."""

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        super().setup(replica, comm, progress)
        replica.average_gradients_over(WORLD, bucket_mib=1.0)


class NoOverlap(DDP):
    """Sums its buckets when the backward pass is over."""

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        super().setup(replica, comm, progress)
        replica.average_gradients_over(WORLD, bucket_mib=self.config.bucket_mib, overlap=False)


class CopiesLackBuffers(LASGD):
    """Sets parameters aside and no buffers."""

    def reserve(self, copies: int) -> None:
        return


class CopiesOwnBuffers(LASGD):
    """Sets rank 0's buffers aside with the mean of all parameters."""

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        if self.mean is not None and self.comm.rank == 0:
            self.replica.buffers.pack(self.mean[self.replica.numel :])
        return super().snapshot(progress)
