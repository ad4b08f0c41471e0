"""The observer of a scenario: it records what a rank does, copies and saves its model, and requests stops."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...strategies.base import AsynchronousStrategy
from ...strategies.replica import Replica
from ...strategies.topology import Topology
from ..communication.traffic import CountedCommunicator, Traffic
from ..simulation.simulated_world import Recorded
from ..training import checkpoint
from ..training.context import Backend, TrainContext
from ..training.trainer import Observer, Trainer
from .checks import Failed
from .given_workload import GivenRates, config_of, splits_of, workload_of
from .scenario import Call, Data, History, Scenario

CPU = torch.device("cpu")
ENDLESS = 20
"""With independent sampling, a rank that takes this many times the schedule's steps will never end."""


class LoggedTraffic(Traffic):
    """A traffic book that also keeps every call in order."""

    def __init__(self, topology: Topology, rank: int) -> None:
        super().__init__(topology, rank)
        self.log: list[Call] = []
        self.step, self.during = 0, "setup"

    def count(self, verb: str, channel: str, members: tuple[int, ...], payload: int, source: int = 0) -> None:
        super().count(verb, channel, members, payload, source)
        self.log.append(Call(self.step, self.during, channel, verb, members, payload))


class ScenarioObserver(Observer):
    """Records one rank's run of a scenario as a `History`. As the trainer's listener it requests stops.

    A stop request is withdrawn before the ranks act on it, so that the run goes on. `delay` is called when
    the rank starts to train, to make it start late.
    """

    def __init__(
        self, scenario: Scenario, comm: CountedCommunicator, delay: Callable[[], None] = lambda: None
    ) -> None:
        assert isinstance(comm.traffic, LoggedTraffic)
        self._delay = delay
        self.scenario, self.comm, self.traffic = scenario, comm, comm.traffic
        self.history = History(comm.rank, traffic=comm.traffic)
        self.rows = Recorded()
        self.independent = issubclass(scenario.strategy_class, AsynchronousStrategy)
        self.meetings = 0
        self.step = 0
        self._copies: dict[int, Callable[[], Tensor]] = {}
        self._phase, self._phase_began = "setup", 0
        self._started = 0

    # ------------------------------------------------------------------ the trainer's listener

    def progress(self, **numbers: Any) -> None:
        self.step = numbers.get("step", self.step)

    def interrupted(self) -> str | None:
        """Request a stop during a step; withdrawn once the step has ended."""
        asks = self._phase == "step" and self.scenario.stop_request(self.comm.rank, self.step)
        return "stop requested" if asks else None

    # ------------------------------------------------------------------ the trainer's observer

    def on_prepared(self, trainer: Trainer) -> None:
        strategy = trainer.context.strategy
        if self.scenario.copies_after and isinstance(strategy, AsynchronousStrategy):
            strategy.reserve(len(self.scenario.copies_after))

    def on_train_start(self, trainer: Trainer) -> None:
        context, history = trainer.context, self.history
        history.strategy, history.replica = context.strategy, context.replica
        history.budget = context.progress.budget
        history.names = [(slot.name, slot.numel) for slot in context.replica.parameters.slots]
        self._started = self.comm.now()
        self._delay()
        self._record_model(trainer)

    def on_phase(self, trainer: Trainer, phase: str) -> None:
        now = self.comm.now()
        if self._phase == "shares":
            self.history.sharing_ns += now - self._phase_began
        self._phase, self._phase_began = phase, now
        self.traffic.during = phase
        progress = trainer.context.progress
        if phase == "step":
            self.traffic.step = self.step = progress.step
        reads_loss = trainer.context.strategy.reads_epoch_loss
        if phase == "epoch" and reads_loss and self.scenario.losses is not None:
            progress.epoch_loss = self.scenario.losses(progress.epoch)

    def on_step(self, trainer: Trainer, loss: Tensor) -> None:
        progress, schedule = trainer.context.progress, trainer.context.config.schedule
        assert isinstance(schedule, GivenRates)
        self.history.known[progress.step] = schedule.before
        self.history.sizes[progress.step + 1] = progress.samples_of_rank

    def on_step_counted(self, trainer: Trainer, *, agreed: bool, met: bool) -> None:
        progress, history = trainer.context.progress, self.history
        if self.independent and progress.step > ENDLESS * progress.steps:
            raise Failed(f"rank {self.comm.rank} has taken {progress.step} steps and the run does not end")
        history.agreed[progress.step], history.met[progress.step] = agreed, met
        history.samples[progress.step] = progress.samples
        self._record_model(trainer)

    def on_boundary(self, trainer: Trainer, *, met: bool, last: bool) -> None:
        self.meetings += met
        place = self.meetings if self.independent else trainer.context.progress.step
        if met or not self.independent:
            self._look(trainer, place)
        if last or (place == self.scenario.stop_after and (met or not self.independent)):
            trainer.ended = ("finished", None)
            self.traffic.during = "copy"
            for copied, part in self._copies.items():
                self.history.copies[copied] = part()

    def on_finalized(self, trainer: Trainer) -> None:
        strategy, history = trainer.context.strategy, self.history
        history.end_ns = self.comm.now() - self._started
        history.final = trainer.context.replica.flat()
        history.given = self._averaged_model(trainer)
        history.summary = strategy.summary()
        history.labels = strategy.labels(None)
        history.calls = list(self.traffic.log)
        history.records = [row["strategy"] for row in self.rows.rows if row["kind"] == "epoch"]
        self.traffic.during = "end"

    # ------------------------------------------------------------------ looking and saving

    def _record_model(self, trainer: Trainer) -> None:
        history, step = self.history, trainer.context.progress.step
        history.parameters[step] = trainer.context.replica.flat()
        history.buffers[step] = trainer.context.replica.buffers.pack()
        history.clock_ns[step] = self.comm.now() - self._started

    def _look(self, trainer: Trainer, place: int) -> None:
        scenario, history = self.scenario, self.history
        if place in scenario.copies_after:
            self.traffic.during = "snapshot"
            entered = self.comm.now()
            self._copies[place] = trainer.context.strategy.snapshot(trainer.context.progress)
            history.snapshot_ns += self.comm.now() - entered
        if place in scenario.consensus_after:
            before = image(trainer)
            history.averaged_model[place] = self._averaged_model(trainer)
            history.disturbed[place] = changed(before, image(trainer))
        if place in scenario.save_after:
            before = image(trainer)
            folder = trainer.save(waits=False)
            assert folder is not None, "a scenario that saves has a folder to save to"
            content = (folder / checkpoint.rank_file(self.comm.rank)).read_bytes()
            history.saved[place] = (place, content)
            history.disturbed[place] = [
                *history.disturbed.get(place, []),
                *changed(before, image(trainer)),
            ]
        self.traffic.during = "loop"

    def _averaged_model(self, trainer: Trainer) -> Tensor:
        """Parameters and floating-point buffers inside `averaged_model`, [m + F]."""
        self.traffic.during = "averaged_model"
        context = trainer.context
        context.strategy.wait_pending()
        with context.strategy.averaged_model():
            parameters = context.replica.flat()
            return torch.cat([parameters, context.replica.buffers.pack().to(parameters.dtype)])


def observed_run(
    observer: ScenarioObserver,
    make_replica: Callable[[nn.Module, nn.Module], Replica],
    data: Data,
    checkpoints: Path | None = None,
    device: torch.device = CPU,
) -> History:
    """Train one rank of the observer's scenario on `data`; returns its history.

    It resumes from the newest of `checkpoints`, if there is one.
    """
    scenario, comm = observer.scenario, observer.comm
    backend = Backend(
        "check",
        comm,
        make_replica,
        device,
        make_workload=lambda config, splits, comm, device: workload_of(scenario, data, comm),
    )
    splits = splits_of(scenario)
    context = TrainContext(
        config_of(scenario), backend, splits, observer.rows, None, observer, checkpoints=checkpoints
    )
    Trainer(context, observer).run()
    return observer.history


def image(trainer: Trainer) -> dict[str, Tensor]:
    replica = trainer.context.replica
    tensors = {name: value.detach().clone() for name, value in replica.model.state_dict().items()}
    places = {id(tensor): place for place, tensor in enumerate(replica.parameters.tensors)}
    for tensor, state in replica.optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                name = f"optimizer state {key} of parameter {places.get(id(tensor), '?')}"
                tensors[name] = value.detach().clone()
    return tensors | {f"random numbers ({name})": v.clone() for name, v in replica.rng_state().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """The names under which `after` differs from `before`, bit for bit (NaN equals NaN)."""
    names = sorted(before.keys() | after.keys())
    return [
        name
        for name in names
        if name not in before or name not in after or not same(before[name], after[name])
    ]


def same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are equal bit for bit (but NaN equals NaN and 0 equals -0)."""
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and torch.equal(left.nan_to_num(nan=1.25e30), right.nan_to_num(nan=1.25e30))
        if left.is_floating_point()
        else torch.equal(left, right)
    )
