"""The train loop. It names no strategy, and reads like the papers: gradients, step, mix, record."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch

from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.topology import WORLD
from ..records.outcome import FAILED, OK, Outcome
from . import checkpoint
from .context import TrainContext
from .evaluator import Evaluator
from .precision import is_lost
from .state import restore, snapshot
from .time_accounting import Ledger


class Trainer:
    """Trains one rank of a prepared session."""

    def __init__(self, context: TrainContext) -> None:
        self.context = context
        self.ledger = Ledger(context)
        self.evaluator = Evaluator(context, self.ledger)
        self.ended: tuple[str, str | None] | None = None

    def run(self) -> Outcome:
        """Train to the end of the schedule, the target, a limit or a stop request.

        All ranks leave at the same step.
        """
        context = self.context
        context.prepare()
        resumed = restore(context, self.ledger.account)
        self.begin(resumed)
        context.share()
        if context.owed:
            self._catch_up()
        if self.ended is None and not context.over():
            while self.ended is None:
                self.step()
                self.after_step()
        return self._end()

    # ------------------------------------------------------------------ one step

    def step(self) -> None:
        """One optimizer step of this rank."""
        context, progress, clock, replica = (
            self.context,
            self.context.progress,
            self.context.clock,
            self.context.replica,
        )
        context.strategy.before_batch(progress)
        progress.samples_of_rank = context.feed.sizes(progress)
        clock.lap("step_other")
        batch = context.next_batch()
        clock.lap("data")
        context.set_learning_rate()
        replica.requests_stop = self._requests_stop()
        loss = replica.compute_gradients(batch)
        clock.lap("compute")
        context.strategy.before_step(progress)
        if context.config.train.clip_norm is not None:
            replica.clip(context.config.train.clip_norm)
        replica.step()
        context.strategy.after_step(progress)
        self._add_loss(loss, len(batch.targets))
        clock.lap("step_other")

    def after_step(self) -> None:
        """Bookkeeping between two steps: epochs, agreement, evaluation, checkpoint, limits."""
        context, progress = self.context, self.context.progress
        before = progress.samples
        agreed = context.strategy.stop_agreed(progress, context.replica.stop_requested)
        met = context.strategy.is_sync_point(progress)
        if isinstance(context.strategy, AsynchronousStrategy):
            progress.samples = context.strategy.samples(progress) if met else before
        else:
            progress.samples += context.feed.counted(progress.samples_of_rank)
        progress.step += 1
        for _ in range(context.feed.advance(progress)):
            self._end_epoch()
        last = (met or not context.independent) and context.over()
        context.listener.progress(
            step=progress.step,
            steps=progress.steps,
            epoch=progress.epoch,
            epochs=progress.epochs,
            samples=progress.samples,
        )
        context.owed = met or last or context.deferred
        # On GPUs a step's stop request is known in the next one: before the last step counts, or its model is
        # judged or saved, everybody is asked.
        if (agreed or (context.replica.late and (last or self._pauses(met)))) and self._handle_stop_request():
            return
        if context.owed:
            self._evaluate_if_due(last)
            context.owed = False
        if last and self.ended is None:
            self.ended = ("finished", context.cut_short())
        if self.ended is None and met and context.stops_from_copies and context.copies.waiting:
            self._judge_copies()
        if self.ended is None and self._save_is_due(met):
            self._save(context.strategy.never_syncs or not met)
            self._stop_at_target()
        context.clock.lap("step_other")

    def _save_is_due(self, met: bool) -> bool:
        """Whether to save now: at a number of samples that was asked for, else where nobody waits for it."""
        context = self.context
        auto = context.config.train.checkpoint_every_samples == "auto"
        return (met or not auto) and context.checkpoint_marks.passed(
            context.saved_samples, context.progress.samples
        )

    def _pauses(self, met: bool) -> bool:
        """Whether training stands still for an evaluation or a checkpoint of the step just taken."""
        context, samples = self.context, self.context.progress.samples
        due = context.owed and context.evaluation_marks.passed(context.judged_samples, samples)
        if context.deferred:
            due = met and context.stops_from_copies and (due or bool(context.copies.waiting))
        return due or (context.checkpoints is not None and self._save_is_due(met))

    def _catch_up(self) -> None:
        """Do what the checkpoint's step still owed: a run that is told to stop saves before it judges."""
        last = self.context.over()
        self._evaluate_if_due(last)
        self.context.owed = False
        if last and self.ended is None:
            self.ended = ("finished", self.context.cut_short())

    def _evaluate_if_due(self, last: bool) -> None:
        context, progress = self.context, self.context.progress
        due = context.evaluation_marks.passed(context.judged_samples, progress.samples)
        if context.deferred and due and not last:
            self.evaluator.set_aside(self.context.rate)
        elif due or last:
            self._evaluate()
            if not last:
                self._stop_at_target()
        context.judged_samples = progress.samples  # with those that an inline evaluation has counted

    def _end_epoch(self) -> None:
        context, progress = self.context, self.context.progress
        if context.strategy.reads_epoch_loss or context.watch is not None:
            sums = torch.stack(
                [context.epoch_losses, context.epoch_losses.new_tensor(context.epoch_samples)]
            ).cpu()
            context.comm.all_reduce(sums, WORLD, channel="control").wait()
            progress.epoch_loss = (sums[0] / sums[1]).item()
            if context.watch is not None:
                context.watch = context.config.schedule.after_epoch(context.watch, progress.epoch_loss)
        context.strategy.after_epoch(progress)
        context.clock.lap("step_other")
        with context.clock.within("log"):
            row = {
                "kind": "epoch",
                **self.ledger.where(),
                "learning_rate": self.context.rate,
                "train_loss": progress.epoch_loss,
            }
            row["strategy"] = context.strategy.record(progress)
            counters = context.loader.counters()
            if counters is not None:
                row["reader"] = asdict(counters)
            context.own.write(row)
            if context.metrics is not None:
                context.metrics.write(row)
        context.epoch_losses.zero_()
        context.epoch_samples = 0
        progress.epoch += 1
        progress.batch = 0
        if progress.epoch < progress.epochs:
            context.share()

    def _add_loss(self, loss: torch.Tensor, samples: int) -> None:
        context = self.context
        context.trained_samples += samples
        context.loss_sums.add_(loss, alpha=samples)
        context.loss_samples += samples
        context.epoch_samples += samples

    # ------------------------------------------------------------------ agreement

    def _out_of_time(self) -> bool:
        limit = self.context.config.train.max_seconds
        if limit is None:
            return False
        clock = self.context.clock
        here = clock.total() - self._stretch_started
        return (self.ledger.account.train_ns + here) / 1e9 > limit

    def _requests_stop(self) -> bool:
        return self.context.listener.interrupted() is not None or self._out_of_time()

    def _handle_stop_request(self) -> bool:
        """All ranks know that some rank asks to stop; ask everybody what. True if the run ends here."""
        own = [
            not bool(self.context.all_losses.isfinite()),
            self.context.listener.interrupted() is not None,
            self._out_of_time(),
            is_lost(self.context.replica.scaler),
        ]
        stop_flags = torch.tensor(own, dtype=torch.int64)
        self.context.comm.all_reduce(stop_flags, WORLD, channel="control").wait()
        not_finite, interrupted, out_of_time, lost = (bool(count) for count in stop_flags.tolist())
        if not_finite:
            self.ended = (
                "diverged",
                f"the training loss is not finite (found at step {self.context.progress.step})",
            )
        elif lost:
            self.ended = (
                "diverged",
                "gradients overflow in float16 with the loss as it is "
                f"(found at step {self.context.progress.step}); take train.precision=bf16 or fp32",
            )
        elif interrupted or out_of_time:
            self._save(waits=False)  # the run ends here
            limit = self.context.config.train.max_seconds
            self.ended = (
                ("cancelled", "interrupted") if interrupted else ("timed_out", f"train.max_seconds={limit}")
            )
        return self.ended is not None

    # ------------------------------------------------------------------ evaluation and checkpoints

    def _evaluate(self) -> None:
        self.evaluator.inline(self.context.rate)
        self._go_on()

    def _go_on(self) -> None:
        self.context.clock.enter("train")
        self._stretch_started = self.context.clock.total()

    def _judge_copies(self) -> None:
        """Evaluate what was set aside since ranks met last, and stop if the target was reached by then."""
        self.evaluator.copies_and_go_on()
        self._go_on()
        self._stop_at_target()

    def _stop_at_target(self) -> None:
        """Stop at the target if asked to: decided from global numbers, so by all ranks alike.

        A run that is stopped by a copy ends with an evaluation, as every run does.
        """
        evaluations, stop = self.ledger.account.evaluations, self.context.config.train.stop
        reached = [bool(row["reached"]) for row in evaluations]
        confirmed = any(both == (True, True) for both in pairwise(reached))
        if self.ended is None and ((stop == "first" and any(reached)) or (stop == "confirmed" and confirmed)):
            if evaluations[-1]["mode"] == "deferred":
                self._evaluate()
            self.ended = ("finished", f"target reached (train.stop={stop})")

    def _save(self, waits: bool) -> None:
        """Save; `waits`: whether ranks wait for it that would not have waited for each other here."""
        context, clock = self.context, self.context.clock
        context.saved_samples = context.progress.samples
        if context.checkpoints is None:
            return
        context.saves_between += waits
        context.strategy.wait_pending()
        self.evaluator.copies()
        clock.lap("step_other")
        clock.enter("checkpoint")
        context.backend.spend("checkpoint", 0)
        self.ledger.close_stretch(0)
        self.ledger.account.checkpoints += 1
        with context.strategy.averaged_model():
            model = self._model_state() if context.comm.rank == 0 else None
        checkpoint.save(
            context.checkpoints,
            self._step_to_save(),
            context.comm.rank,
            snapshot(context, self.ledger.account, self.evaluator.begun_ns),
            model,
            lambda: context.comm.barrier(WORLD),
            context.comm.topology.ranks,
        )
        self._go_on()

    def _step_to_save(self) -> int:
        """The step that names a checkpoint: rank 0's, where ranks at paces of their own are at others."""
        context = self.context
        if not context.independent:
            return context.progress.step
        step = torch.tensor([context.progress.step])
        context.comm.broadcast(step, 0, WORLD, channel="control").wait()
        return int(step)

    def _model_state(self) -> dict[str, Any]:
        return {
            "model": {
                name: value.detach().cpu().clone()
                for name, value in self.context.replica.model.state_dict().items()
            }
        }

    # ------------------------------------------------------------------ start and end

    def begin(self, resumed_from: str | None) -> None:
        """Write the start row, meet at a barrier, and open the clock on the first real batch."""
        context = self.context
        row = {
            "kind": "start",
            **self.ledger.where(),
            "resumed_from": resumed_from,
            "world": context.backend.name,
            "ranks_of_nodes": list(context.comm.topology.ranks_of_nodes),
            "parameters": context.replica.numel,
        }
        if context.loader.still_cached is not None:
            row["still_cached"] = context.loader.still_cached
        context.own.write(row)
        if context.metrics is not None:
            context.metrics.write(row)
        context.listener.progress(
            step=context.progress.step,
            steps=context.progress.steps,
            epoch=context.progress.epoch,
            epochs=context.progress.epochs,
            samples=context.progress.samples,
        )
        context.comm.barrier(WORLD)
        context.comm.traffic.clear_stamps()
        context.clock.enter("train")
        self.evaluator.begun_ns = self._stretch_started = context.clock.total()

    def _end(self) -> Outcome:
        context, clock = self.context, self.context.clock
        status, reason = self.ended or ("finished", None)
        if clock.segment == "train":
            self.evaluator.copies()
        if status == "finished":
            context.strategy.finalize()
        else:
            context.strategy.wait_pending()
        clock.lap("step_other")
        clock.enter("other")
        context.loader.close()
        self.ledger.count_samples()
        self.ledger.close_stretch(0)
        if status == "finished" and context.checkpoints is not None:
            with clock.within("checkpoint"), context.strategy.averaged_model():
                if context.comm.rank == 0:
                    checkpoint.save_final(context.checkpoints, self._model_state())
                context.comm.barrier(WORLD)
        summary = self.ledger.summary(status)
        with clock.within("log"):
            context.own.write({"kind": "segments", **self.ledger.where(), **self.ledger.times()})
            if context.metrics is not None:
                context.metrics.write(
                    {"kind": "summary", **self.ledger.where(), **summary, **self.ledger.times()}
                )
        return Outcome(
            status=status,
            reason=reason,
            exit_code=OK if status == "finished" else FAILED,
            summary={**summary, **self.ledger.times()},
        )
