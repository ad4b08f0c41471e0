"""One rank's walk through a course, in any world: the train loop without records, evaluation and limits.

Instead it can look, copy, save, resume and ask to stop at every step. It makes the loop's calls in the loop's
order.
"""

import io
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...datasets.sampler import split
from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.base import Shares
from ...strategies.progress import Progress
from ...strategies.replica import Batch, Replica
from ...strategies.seeds import derive
from ...strategies.topology import WORLD, Topology
from ..communication.traffic import CountedCommunicator, Traffic
from ..training.warm_up import undone_step
from .checks import Failed
from .scenario import Call, Course, Data, History

ENDLESS = 20
"""A rank at its own pace that takes so many times the steps of the schedule will never end."""


class LoggedTraffic(Traffic):
    """A traffic book that also keeps every call in order."""

    def __init__(self, topology: Topology, rank: int) -> None:
        super().__init__(topology, rank)
        self.log: list[Call] = []
        self.step, self.during = 0, "setup"

    def count(self, verb: str, channel: str, members: tuple[int, ...], payload: int, source: int = 0) -> None:
        super().count(verb, channel, members, payload, source)
        self.log.append(Call(self.step, self.during, channel, verb, members, payload))


class Walker:
    """One rank's walk through a course, in any world."""

    def __init__(
        self,
        course: Course,
        comm: CountedCommunicator,
        make_replica: Callable[[nn.Module, nn.Module], Replica],
        data: Data,
        late: Callable[[], None] = lambda: None,
    ) -> None:
        assert isinstance(comm.traffic, LoggedTraffic)
        self.course, self.comm, self.data, self.late = course, comm, data, late
        self.traffic: LoggedTraffic = comm.traffic
        self.rank = comm.rank
        self.history = History(comm.rank, traffic=comm.traffic)
        self.independent = issubclass(course.strategy_class, AsynchronousStrategy)
        self.progress = Progress(
            course.epochs,
            course.steps_per_epoch,
            budget=course.epochs * self._samples_of_epoch(),
            global_batch_size=course.global_batch_size,
        )
        self.history.budget = self.progress.budget
        self.shares: Shares | None = None
        self.meetings = 0
        self.copies: dict[int, Callable[[], Tensor]] = {}
        self.epoch_loss = torch.zeros(2, dtype=torch.float64)  # Σ n_r · loss, Σ n_r of the epoch so far
        self._set_up(make_replica)

    def walk(self, resume: bytes | None = None) -> History:
        """Train to the end and finish; returns what happened."""
        history, progress = self.history, self.progress
        if resume is not None:
            self._load(resume)
        self.traffic.during = "loop"
        self.comm.barrier(WORLD)
        self.traffic.clear()
        self.started = self.comm.now()
        self.late()
        history.names = [(slot.name, slot.numel) for slot in self.replica.parameters.slots]
        self._note()
        self._share()
        ended = False
        while progress.epoch < progress.epochs and not ended:
            self._step()
            ended = self._after_step()
        self._end()
        return history

    # ------------------------------------------------------------------ start

    def _set_up(self, make_replica: Callable[[nn.Module, nn.Module], Replica]) -> None:
        course, problem = self.course, self.course.problem
        torch.manual_seed(derive(course.seed, "init"))
        model = problem.model().train()
        torch.manual_seed(derive(course.seed, "dropout", self.rank))
        self.replica = make_replica(model, problem.criterion())
        if course.start is not None:
            self.replica.load(course.start(self.rank))
        course.strategy_class.check(course.config, course.plan)
        self.strategy = course.strategy_class(course.config)
        self.strategy.setup(self.replica, self.comm, self.progress)
        # A rank may own no parameter at all; optimizers refuse an empty list.
        self.replica.optimizer = problem.optimizer(self.replica.stepped or [torch.zeros(0)])
        self.replica.noise = self._noise
        sizes = tuple(len(self.data(rank, 0)[1]) for rank in range(self.comm.topology.ranks))
        undone_step(self.replica, Batch(*self._noise(sizes[self.rank]), sizes), self.comm)
        if course.copies_after and isinstance(self.strategy, AsynchronousStrategy):
            self.strategy.reserve(len(course.copies_after))
        self.history.strategy, self.history.replica = self.strategy, self.replica

    def _noise(self, samples: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.data(0, 0)
        places = torch.arange(samples) % len(targets)
        return inputs[places], targets[places]

    def _samples_of_epoch(self) -> int:
        if self.independent:
            return self.course.steps_per_epoch * self.course.global_batch_size
        ranks = range(self.comm.topology.ranks)
        steps = range(self.course.steps_per_epoch)
        return sum(len(self.data(rank, step)[1]) for rank in ranks for step in steps)

    # ------------------------------------------------------------------ one step

    def _step(self) -> None:
        course, progress, replica, strategy = self.course, self.progress, self.replica, self.strategy
        self.traffic.step, self.traffic.during = progress.step, "step"
        strategy.before_batch(progress)
        inputs, targets, progress.samples_of_rank = self._batch(progress.step)
        known = progress.samples
        if isinstance(strategy, AsynchronousStrategy):
            known = strategy.global_samples(progress)
        self.history.known[progress.step] = known
        if course.rate is not None:
            rate = course.rate(known // progress.global_batch_size if self.independent else progress.step)
            for group in replica.optimizer.param_groups:
                group["lr"] = rate
        replica.requests_stop = course.stop_request(self.rank, progress.step)
        loss = replica.compute_gradients(Batch(inputs, targets, progress.samples_of_rank))
        strategy.before_step(progress)
        if course.clip_norm is not None:
            replica.clip(course.clip_norm)
        replica.optimizer.step()
        strategy.after_step(progress)
        self.epoch_loss += torch.tensor([loss.double().item() * len(targets), len(targets)])
        self.history.losses[progress.step + 1] = loss.item()
        self.history.sizes[progress.step + 1] = progress.samples_of_rank

    def _batch(self, step: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        ranks, shift = self.comm.topology.ranks, self.course.strategy_class.piece_shift
        pieces = [self.data((rank + shift) % ranks, step) for rank in range(ranks)]
        if self.shares is None:
            inputs, targets = pieces[self.rank]
            return inputs.clone(), targets.clone(), tuple(len(targets) for _, targets in pieces)
        sizes = cut(sum(len(targets) for _, targets in pieces), self.shares)
        before = sum(sizes[: self.rank])
        mine = slice(before, before + sizes[self.rank])
        return torch.cat([x for x, _ in pieces])[mine], torch.cat([t for _, t in pieces])[mine], sizes

    def _after_step(self) -> bool:
        """What the loop does between two steps; returns whether the run ends here."""
        progress, strategy, history, course = self.progress, self.strategy, self.history, self.course
        agreed, met = (
            strategy.stop_agreed(progress, self.replica.stop_requested),
            strategy.is_sync_point(progress),
        )
        if not isinstance(strategy, AsynchronousStrategy):
            progress.samples += sum(progress.samples_of_rank)
        elif met:
            progress.samples = strategy.samples(progress)
        progress.step += 1
        if self.independent and progress.step > ENDLESS * progress.steps:
            raise Failed(f"rank {self.rank} has taken {progress.step} steps and the run does not end")
        history.agreed[progress.step], history.met[progress.step] = agreed, met
        history.samples[progress.step] = progress.samples
        ended = isinstance(strategy, AsynchronousStrategy) and met and strategy.ended(progress)
        place = self.meetings + met if self.independent else progress.step
        ended = ended or place == course.stop_after
        self._note()
        self._advance()
        self.meetings += met
        if met or not self.independent:
            self._look(place)
        return ended

    def _advance(self) -> None:
        progress = self.progress
        if self.independent:
            progress.batch += 1
            over = progress.epoch < min(progress.samples // self._samples_of_epoch(), progress.epochs)
        else:
            over = progress.last_batch
            progress.batch += not over
        if over:
            self._end_epoch()

    def _end_epoch(self) -> None:
        progress, strategy, course = self.progress, self.strategy, self.course
        if strategy.reads_epoch_loss:
            self.traffic.during = "loop"
            sums = self.epoch_loss.clone()
            self.comm.all_reduce(sums, WORLD, channel="control").wait()
            told = course.losses
            progress.epoch_loss = (sums[0] / sums[1]).item() if told is None else told(progress.epoch)
        self.traffic.during = "epoch"
        strategy.after_epoch(progress)
        self.history.records.append(strategy.record(progress))
        self.epoch_loss.zero_()
        progress.epoch += 1
        progress.batch = 0
        if progress.epoch < progress.epochs:
            self._share()

    def _share(self) -> None:
        if not self.independent:
            self.traffic.during = "shares"
            entered = self.comm.now()
            self.shares = self.strategy.shares(self.progress)
            self.history.sharing_ns += self.comm.now() - entered

    def _note(self) -> None:
        history, step = self.history, self.progress.step
        history.parameters[step] = self.replica.flat()
        history.buffers[step] = self.replica.buffers.pack()
        history.clock_ns[step] = self.comm.now() - self.started

    # ------------------------------------------------------------------ looking, saving, ending

    def _look(self, place: int) -> None:
        course = self.course
        if place in course.copies_after:
            self.traffic.during = "snapshot"
            entered = self.comm.now()
            self.copies[place] = self.strategy.snapshot(self.progress)
            self.history.snapshot_ns += self.comm.now() - entered
        if place in course.consensus_after:
            before = self._image()
            self.history.averaged_model[place] = self._averaged_model()
            self.history.disturbed[place] = changed(before, self._image())
        if place in course.save_after:
            before = self._image()
            self.history.saved[place] = self._save()
            now_changed = changed(before, self._image())
            self.history.disturbed[place] = [*self.history.disturbed.get(place, []), *now_changed]

    def _averaged_model(self) -> Tensor:
        self.traffic.during = "averaged_model"
        self.strategy.wait_pending()
        with self.strategy.averaged_model():
            return self._whole()

    def _whole(self) -> Tensor:
        parameters = self.replica.flat()
        return torch.cat([parameters, self.replica.buffers.pack().to(parameters.dtype)])

    def _end(self) -> None:
        history = self.history
        self.traffic.during = "copy"
        for place, part in self.copies.items():
            history.copies[place] = part()
        self.traffic.during = "finalize"
        history.blocked_ns = self.traffic.blocked_ns
        self.strategy.finalize()
        history.end_ns = self.comm.now() - self.started
        history.final = self.replica.flat()
        history.given = self._averaged_model()
        history.summary = self.strategy.summary()
        history.labels = self.strategy.labels(None)
        history.calls = self.traffic.log

    def _image(self) -> dict[str, Tensor]:
        """Copies of all that training depends on, by name."""
        replica = self.replica
        found = {name: value.detach().clone() for name, value in replica.model.state_dict().items()}
        places = {id(tensor): place for place, tensor in enumerate(replica.parameters.tensors)}
        for tensor, state in replica.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    name = f"optimizer state {key} of parameter {places.get(id(tensor), '?')}"
                    found[name] = value.detach().clone()
        return found | {f"random numbers ({name})": v.clone() for name, v in replica.rng_state().items()}

    def _save(self) -> bytes:
        self.traffic.during = "save"
        self.strategy.wait_pending()
        progress, replica = self.progress, self.replica
        state = {
            "progress": {
                name: getattr(progress, name) for name in ("step", "epoch", "batch", "samples", "epoch_loss")
            },
            "meetings": self.meetings,
            "epoch_loss": self.epoch_loss,
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
            "strategy": self.strategy.state_dict(),
            "rng": replica.rng_state(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def _load(self, saved: bytes) -> None:
        # As from a file: numbers, text, containers and tensors, nothing that would be executed.
        state = torch.load(io.BytesIO(saved), weights_only=True)
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)
        self.meetings, self.epoch_loss = state["meetings"], state["epoch_loss"]
        self.replica.model.load_state_dict(state["model"])
        self.replica.optimizer.load_state_dict(state["optimizer"])
        self.strategy.load_state_dict(state["strategy"])
        self.replica.load_rng_state(state["rng"])


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """The names under which `after` differs from `before`, bit for bit (NaN equals NaN)."""
    names = sorted(before.keys() | after.keys())
    return [
        name
        for name in names
        if name not in before or name not in after or not same(before[name], after[name])
    ]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit (but NaN equals NaN and 0 equals -0)."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(one.nan_to_num(nan=1.25e30), other.nan_to_num(nan=1.25e30))
        if one.is_floating_point()
        else torch.equal(one, other)
    )


def cut(size: int, shares: Shares) -> tuple[int, ...]:
    """`size` samples in the ratio of `shares`; a piece below their minimum goes to the largest."""
    if size == sum(shares.values):
        return shares.values
    sizes = list(split(size, tuple(float(value) for value in shares.values)))
    largest = max(range(len(sizes)), key=lambda rank: (shares.values[rank], -rank))
    for rank, piece in enumerate(sizes):
        if 0 < piece < shares.minimum and rank != largest:
            sizes[largest] += piece
            sizes[rank] = 0
    return tuple(sizes)
