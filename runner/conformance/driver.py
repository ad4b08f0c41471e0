"""Runs a scenario in virtual time with the real trainer, and returns each rank's history."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ...datasets.stream_seeds import stream_seed
from ...strategies.communicator import Operation, Work
from ...strategies.replica import Replica
from ..communication.link_costs import Network
from ..communication.traffic import CountedCommunicator
from ..simulation.simulated_communicator import SimulatedCommunicator
from ..simulation.simulated_replica import SimulatedReplica
from ..simulation.virtual_time import Deadlock, Simulator
from ..training import checkpoint
from ..training.device_model import Device, StepTime
from .checks import Failed
from .given_workload import given_data
from .observer import LoggedTraffic, ScenarioObserver, observed_run
from .scenario import History, Saved, Scenario

MakeObserver = Callable[[Scenario, CountedCommunicator, Callable[[], None]], ScenarioObserver]


class Watched(Work):
    """A launched operation that records whether it was waited for."""

    def __init__(self, work: Work) -> None:
        self.work, self.waited = work, False

    def wait(self) -> None:
        self.work.wait()
        self.waited = True

    def is_completed(self) -> bool:
        return self.work.is_completed()

    def transfer_ns(self) -> int | None:
        return self.work.transfer_ns()


class WatchedCommunicator(SimulatedCommunicator):
    """A simulated communicator that logs its calls and keeps what it launched."""

    def __init__(self, simulator: Simulator, rank: int) -> None:
        super().__init__(simulator, rank)
        self.traffic = LoggedTraffic(self.topology, rank)
        self.launched: list[Watched] = []

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        return self._watch(super()._exchange(messages))

    def _launch(self, op: Operation) -> Work:
        work = super()._launch(op)
        return self._watch(work) if op.async_op else work

    def _watch(self, work: Work) -> Work:
        self.launched.append(Watched(work))
        return self.launched[-1]


def drive(
    scenario: Scenario,
    *,
    network: Network | None = None,
    step_time: int | StepTime = 0,
    resume: Sequence[Saved] | None = None,
    observer: MakeObserver = ScenarioObserver,
) -> list[History]:
    """Train `scenario` in virtual time with the real trainer; returns the ranks' histories.

    step_time: nanoseconds of forward and backward, or (rank, samples) -> nanoseconds (see `jittered`).
    resume: each rank's `History.saved[k]` of an earlier drive, from where the run continues with new objects.
    Raises ConfigError if the strategy refuses, Deadlock if no rank can go on, Failed if that is since ranks
    disagree about a stop.
    """
    scenario.strategy_class.check(scenario.config, scenario.plan)
    took: StepTime = step_time if callable(step_time) else lambda rank, samples: step_time
    simulator = Simulator(scenario.topology, network)
    data = given_data(scenario)
    agreed: list[dict[int, bool]] = [{} for _ in range(scenario.topology.ranks)]

    def body(rank: int) -> History:
        comm = WatchedCommunicator(simulator, rank)

        def make_replica(model: nn.Module, criterion: nn.Module) -> Replica:
            return SimulatedReplica(model, criterion, comm, Device(comm.rank, took))

        observing = observer(scenario, comm, lambda: simulator.advance(rank, scenario.begin_ns(rank)))
        if resume is not None and observing.independent:
            observing.meetings, _ = resume[rank]
        agreed[rank] = observing.history.agreed
        history = observed_run(observing, make_replica, data, checkpoints)
        history.unwaited = sum(not work.waited for work in comm.launched)
        return history

    with torch.random.fork_rng(devices=[]), _checkpoints(scenario, resume) as checkpoints:
        try:
            return simulator.run(body)
        except Deadlock as error:
            for step, heard in agreed[0].items():
                answers = [of_rank.get(step, heard) for of_rank in agreed]
                if len(set(answers)) > 1:
                    raise Failed(
                        f"ranks disagree about the stop at step {step}: stop_agreed() is {answers}"
                    ) from error
            raise


@contextmanager
def _checkpoints(scenario: Scenario, resume: Sequence[Saved] | None) -> Iterator[Path | None]:
    """A folder for the run's checkpoints, with the one to resume from; None for a run without any."""
    if resume is None and not scenario.save_after:
        yield None
        return
    # In memory where that can be: each file is flushed.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        folder = Path(name)
        if resume is not None:
            partial = folder / "partial"
            partial.mkdir()
            for rank, (_, content) in enumerate(resume):
                (partial / checkpoint.rank_file(rank)).write_bytes(content)
            checkpoint.write_file(partial / checkpoint.MODEL, None)
            checkpoint.publish(partial, resume[0][0], len(resume))
        yield folder


def jittered(base_ns: int, seed: int, spread: float = 1.0) -> StepTime:
    """Step times between `base_ns` and (1 + spread)·`base_ns`, at random, each rank its own stream."""
    streams: dict[int, torch.Generator] = {}

    def step_time(rank: int, samples: int) -> int:
        if rank not in streams:
            streams[rank] = torch.Generator().manual_seed(stream_seed(seed, "step time", rank))
        return base_ns + int(torch.rand((), generator=streams[rank]).item() * spread * base_ns)

    return step_time
