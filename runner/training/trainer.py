"""The train loop. It names no strategy, and reads like the papers: gradients, step, mix, record."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.topology import WORLD
from . import checkpoint
from .context import Session
from .evaluator import Evaluator
from .precision import is_lost
from .state import restore, snapshot
from .time_accounting import Ledger


@dataclass(frozen=True)
class Result:
    """How a rank's run ended; `summary` is equal on all ranks but for rank 0's own times."""

    status: str
    reason: str | None
    summary: dict[str, Any]


class Loop:
    """Trains one rank of a prepared session."""

    def __init__(self, session: Session) -> None:
        self.s = session
        self.ledger = Ledger(session)
        self.evaluator = Evaluator(session, self.ledger)
        self.ended: tuple[str, str | None] | None = None

    def run(self) -> Result:
        """Train to the end of the schedule, the target, a limit or a wish.

        All ranks leave at the same step.
        """
        session = self.s
        session.prepare()
        resumed = restore(session, self.ledger.account)
        self.begin(resumed)
        session.share()
        if session.owed:
            self._catch_up()
        if self.ended is None and not session.over():
            while self.ended is None:
                self.step()
                self.after_step()
        return self._end()

    # ------------------------------------------------------------------ one step

    def step(self) -> None:
        """One optimizer step of this rank."""
        session, progress, clock, replica = self.s, self.s.progress, self.s.clock, self.s.replica
        session.strategy.before_batch(progress)
        progress.samples_of_rank = session.feed.sizes(progress)
        clock.lap("step_other")
        batch = session.next_batch()
        clock.lap("data")
        session.set_learning_rate()
        replica.wish = self._wishes_something()
        loss = replica.compute_gradients(batch)
        clock.lap("compute")
        session.strategy.before_step(progress)
        if session.config.train.clip_norm is not None:
            replica.clip(session.config.train.clip_norm)
        replica.step()
        session.strategy.after_step(progress)
        self._add_loss(loss, len(batch.targets))
        clock.lap("step_other")

    def after_step(self) -> None:
        """Bookkeeping between two steps: epochs, agreement, evaluation, checkpoint, limits."""
        session, progress = self.s, self.s.progress
        before = progress.samples
        agreed = session.strategy.agree(progress, session.replica.wished)
        met = session.strategy.meets(progress)
        if isinstance(session.strategy, AsynchronousStrategy):
            progress.samples = session.strategy.samples(progress) if met else before
        else:
            progress.samples += session.feed.counted(progress.samples_of_rank)
        progress.step += 1
        for _ in range(session.feed.advance(progress)):
            self._end_epoch()
        last = (met or not session.independent) and session.over()
        session.listener.progress(
            step=progress.step,
            steps=progress.steps,
            epoch=progress.epoch,
            epochs=progress.epochs,
            samples=progress.samples,
        )
        session.owed = met or last or session.deferred
        # On GPUs a step's wish is known in the next one: before the last step counts, or its model is judged
        # or saved, everybody is asked.
        if (agreed or (session.replica.late and (last or self._pauses(met)))) and self._heed_wishes():
            return
        if session.owed:
            self._evaluate_if_due(last)
            session.owed = False
        if last and self.ended is None:
            self.ended = ("finished", session.cut_short())
        if self.ended is None and met and session.stops_from_copies and session.copies.waiting:
            self._judge_copies()
        if self.ended is None and self._save_is_due(met):
            self._save(session.strategy.never_syncs or not met)
            self._stop_at_target()
        session.clock.lap("step_other")

    def _save_is_due(self, met: bool) -> bool:
        """Whether to save now: at a number of samples that was asked for, else where nobody waits for it."""
        session = self.s
        auto = session.config.train.checkpoint_every_samples == "auto"
        return (met or not auto) and session.checkpoint_marks.passed(
            session.saved_samples, session.progress.samples
        )

    def _pauses(self, met: bool) -> bool:
        """Whether training stands still for an evaluation or a checkpoint of the step just taken."""
        session, samples = self.s, self.s.progress.samples
        due = session.owed and session.evaluation_marks.passed(session.judged_samples, samples)
        if session.deferred:
            due = met and session.stops_from_copies and (due or bool(session.copies.waiting))
        return due or (session.checkpoints is not None and self._save_is_due(met))

    def _catch_up(self) -> None:
        """Do what the checkpoint's step still owed: a run that is told to stop saves before it judges."""
        last = self.s.over()
        self._evaluate_if_due(last)
        self.s.owed = False
        if last and self.ended is None:
            self.ended = ("finished", self.s.cut_short())

    def _evaluate_if_due(self, last: bool) -> None:
        session, progress = self.s, self.s.progress
        due = session.evaluation_marks.passed(session.judged_samples, progress.samples)
        if session.deferred and due and not last:
            self.evaluator.set_aside(self.s.rate)
        elif due or last:
            self._evaluate()
            if not last:
                self._stop_at_target()
        session.judged_samples = progress.samples  # with those that an inline evaluation has counted

    def _end_epoch(self) -> None:
        session, progress = self.s, self.s.progress
        if session.strategy.reads_epoch_loss or session.watch is not None:
            sums = torch.stack(
                [session.epoch_losses, session.epoch_losses.new_tensor(session.epoch_samples)]
            ).cpu()
            session.comm.all_reduce(sums, WORLD, channel="control").wait()
            progress.epoch_loss = (sums[0] / sums[1]).item()
            if session.watch is not None:
                session.watch = session.config.schedule.after_epoch(session.watch, progress.epoch_loss)
        session.strategy.after_epoch(progress)
        session.clock.lap("step_other")
        with session.clock.within("log"):
            row = {
                "kind": "epoch",
                **self.ledger.where(),
                "learning_rate": self.s.rate,
                "train_loss": progress.epoch_loss,
            }
            row["strategy"] = session.strategy.record(progress)
            counters = session.loader.counters()
            if counters is not None:
                row["reader"] = asdict(counters)
            session.own.write(row)
            if session.metrics is not None:
                session.metrics.write(row)
        session.epoch_losses.zero_()
        session.epoch_samples = 0
        progress.epoch += 1
        progress.batch = 0
        if progress.epoch < progress.epochs:
            session.share()

    def _add_loss(self, loss: torch.Tensor, samples: int) -> None:
        session = self.s
        session.trained_samples += samples
        session.loss_sums.add_(loss, alpha=samples)
        session.loss_samples += samples
        session.epoch_samples += samples

    # ------------------------------------------------------------------ agreement

    def _out_of_time(self) -> bool:
        limit = self.s.config.train.max_seconds
        if limit is None:
            return False
        clock = self.s.clock
        here = clock.total() - self._stretch_started
        return (self.ledger.account.train_ns + here) / 1e9 > limit

    def _wishes_something(self) -> bool:
        return self.s.listener.interrupted() is not None or self._out_of_time()

    def _heed_wishes(self) -> bool:
        """All ranks know that some rank wishes something; ask everybody what. True if the run ends here."""
        own = [
            not bool(self.s.all_losses.isfinite()),
            self.s.listener.interrupted() is not None,
            self._out_of_time(),
            is_lost(self.s.replica.scaler),
        ]
        wishes = torch.tensor(own, dtype=torch.int64)
        self.s.comm.all_reduce(wishes, WORLD, channel="control").wait()
        not_finite, interrupted, out_of_time, lost = (bool(count) for count in wishes.tolist())
        if not_finite:
            self.ended = (
                "diverged",
                f"the training loss is not finite (found at step {self.s.progress.step})",
            )
        elif lost:
            self.ended = (
                "diverged",
                "gradients overflow in float16 with the loss as it is "
                f"(found at step {self.s.progress.step}); take train.precision=bf16 or fp32",
            )
        elif interrupted or out_of_time:
            self._save(waits=False)  # the run ends here
            limit = self.s.config.train.max_seconds
            self.ended = (
                ("cancelled", "interrupted") if interrupted else ("timed_out", f"train.max_seconds={limit}")
            )
        return self.ended is not None

    # ------------------------------------------------------------------ evaluation and checkpoints

    def _evaluate(self) -> None:
        self.evaluator.inline(self.s.rate)
        self._go_on()

    def _go_on(self) -> None:
        self.s.clock.enter("train")
        self._stretch_started = self.s.clock.total()

    def _judge_copies(self) -> None:
        """Evaluate what was set aside since ranks met last, and stop if the target was reached by then."""
        self.evaluator.copies_and_go_on()
        self._go_on()
        self._stop_at_target()

    def _stop_at_target(self) -> None:
        """Stop at the target if asked to: decided from global numbers, so by all ranks alike.

        A run that is stopped by a copy ends with an evaluation, as every run does.
        """
        evaluations, stop = self.ledger.account.evaluations, self.s.config.train.stop
        reached = [bool(row["reached"]) for row in evaluations]
        confirmed = any(both == (True, True) for both in pairwise(reached))
        if self.ended is None and ((stop == "first" and any(reached)) or (stop == "confirmed" and confirmed)):
            if evaluations[-1]["mode"] == "deferred":
                self._evaluate()
            self.ended = ("finished", f"target reached (train.stop={stop})")

    def _save(self, waits: bool) -> None:
        """Save; `waits`: whether ranks wait for it that would not have waited for each other here."""
        session, clock = self.s, self.s.clock
        session.saved_samples = session.progress.samples
        if session.checkpoints is None:
            return
        session.saves_between += waits
        session.strategy.settle()
        self.evaluator.copies()
        clock.lap("step_other")
        clock.enter("checkpoint")
        session.world.spend("checkpoint", 0)
        self.ledger.close_stretch(0)
        self.ledger.account.checkpoints += 1
        with session.strategy.consensus():
            model = self._model_state() if session.comm.rank == 0 else None
        checkpoint.save(
            session.checkpoints,
            self._step_to_save(),
            session.comm.rank,
            snapshot(session, self.ledger.account, self.evaluator.begun_ns),
            model,
            lambda: session.comm.barrier(WORLD),
            session.comm.topology.ranks,
        )
        self._go_on()

    def _step_to_save(self) -> int:
        """The step that names a checkpoint: rank 0's, where ranks at paces of their own are at others."""
        session = self.s
        if not session.independent:
            return session.progress.step
        step = torch.tensor([session.progress.step])
        session.comm.broadcast(step, 0, WORLD, channel="control").wait()
        return int(step)

    def _model_state(self) -> dict[str, Any]:
        return {
            "model": {
                name: value.detach().cpu().clone()
                for name, value in self.s.replica.model.state_dict().items()
            }
        }

    # ------------------------------------------------------------------ start and end

    def begin(self, resumed_from: str | None) -> None:
        """Write the start row, meet at a barrier, and open the clock on the first real batch."""
        session = self.s
        row = {
            "kind": "start",
            **self.ledger.where(),
            "resumed_from": resumed_from,
            "world": session.world.name,
            "ranks_of_nodes": list(session.comm.topology.ranks_of_nodes),
            "parameters": session.replica.numel,
        }
        if session.loader.still_cached is not None:
            row["still_cached"] = session.loader.still_cached
        session.own.write(row)
        if session.metrics is not None:
            session.metrics.write(row)
        session.listener.progress(
            step=session.progress.step,
            steps=session.progress.steps,
            epoch=session.progress.epoch,
            epochs=session.progress.epochs,
            samples=session.progress.samples,
        )
        session.comm.barrier(WORLD)
        session.comm.traffic.clear_stamps()
        session.clock.enter("train")
        self.evaluator.begun_ns = self._stretch_started = session.clock.total()

    def _end(self) -> Result:
        session, clock = self.s, self.s.clock
        status, reason = self.ended or ("finished", None)
        if clock.segment == "train":
            self.evaluator.copies()
        if status == "finished":
            session.strategy.finish()
        else:
            session.strategy.settle()
        clock.lap("step_other")
        clock.enter("other")
        session.loader.close()
        self.ledger.count_samples()
        self.ledger.close_stretch(0)
        if status == "finished" and session.checkpoints is not None:
            with clock.within("checkpoint"), session.strategy.consensus():
                if session.comm.rank == 0:
                    checkpoint.save_final(session.checkpoints, self._model_state())
                session.comm.barrier(WORLD)
        summary = self.ledger.summary(status)
        with clock.within("log"):
            session.own.write({"kind": "segments", **self.ledger.where(), **self.ledger.times()})
            if session.metrics is not None:
                session.metrics.write(
                    {"kind": "summary", **self.ledger.where(), **summary, **self.ledger.times()}
                )
        return Result(status, reason, {**summary, **self.ledger.times()})
