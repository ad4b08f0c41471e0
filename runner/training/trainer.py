"""The train loop of one rank, for every strategy and backend: gradients, optimizer step, strategy, record."""

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ...strategies.base import AsynchronousStrategy
from ...strategies.topology import WORLD
from ..records.rows import EpochRow, SegmentsRow, StartRow
from ..records.run_directory import FAILED, OK, Outcome
from ..records.target_crossing import crossing
from . import checkpoint
from .context import TrainContext
from .evaluation import Evaluator
from .precision import is_lost
from .time_accounting import TimeAccounting


class Observer:
    """Base class: hooks of the train loop that do nothing. The conformance kit and tests use it.

    A hook may read the rank's state, copy its model, save it (`Trainer.save`) and end the run
    (`Trainer.ended`), if all ranks do so at the same place.
    """

    def on_prepared(self, trainer: "Trainer") -> None:
        """`TrainContext.prepare` has ended; no checkpoint has been restored yet."""

    def on_train_start(self, trainer: "Trainer") -> None:
        """The training clock has just started."""

    def on_phase(self, trainer: "Trainer", phase: str) -> None:
        """A phase begins: shares, step, epoch (`after_epoch`), checkpoint, finalize; `loop` between them."""

    def on_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:
        """The strategy's `after_step` has ended; `loss` []: of this rank's batch."""

    def on_step_counted(self, trainer: "Trainer", *, agreed: bool, met: bool) -> None:
        """`progress` counts the step, before its epoch ends.

        `agreed`, `met`: what `stop_agreed` and `is_sync_point` have returned.
        """

    def on_boundary(self, trainer: "Trainer", *, met: bool, last: bool) -> None:
        """Between two steps, before the trainer itself evaluates, saves or stops. `last`: the run ends."""

    def on_finalized(self, trainer: "Trainer") -> None:
        """The strategy's `finalize` has ended, or `wait_pending` where the run did not finish."""


class Trainer:
    """Trains one rank. `ended`: status and reason once the run ends, else None."""

    def __init__(self, context: TrainContext, observer: Observer | None = None) -> None:
        self.context, self.observer = context, observer or Observer()
        self.accounting = TimeAccounting(context)
        self.evaluator = Evaluator(context, self.accounting)
        self.ended: tuple[str, str | None] | None = None

    def run(self) -> Outcome:
        """Train to the end of the schedule, the target, a limit or a stop request.

        All ranks leave at the same step.
        """
        context = self.context
        context.prepare()
        self.observer.on_prepared(self)
        self.begin(context.state.restore(context.checkpoints, context.comm))
        self._share()
        if context.state.schedule.step_is_open:  # a run that stops on request saves before it evaluates
            self._close_step(context.over())
        if self.ended is None and not context.over():
            while self.ended is None:
                self.step()
                self.after_step()
        return self._end()

    # ------------------------------------------------------------------ one step

    def step(self) -> None:
        """One optimizer step of this rank."""
        context = self.context
        progress, clock, replica = context.progress, context.clock, context.replica
        self.observer.on_phase(self, "step")
        context.strategy.before_batch(progress)
        progress.samples_of_rank = context.batch_order.sizes(progress)
        clock.record_time("step_other")
        batch = context.next_batch()
        clock.record_time("data")
        self._set_learning_rate()
        replica.requests_stop = context.interrupted() or self._out_of_time()
        loss = replica.compute_gradients(batch)
        clock.record_time("compute")
        context.strategy.before_step(progress)
        if context.config.train.clip_norm is not None:
            replica.clip(context.config.train.clip_norm)
        replica.step()
        context.strategy.after_step(progress)
        context.state.losses.add(loss, len(batch.targets))
        self.observer.on_step(self, loss)
        clock.record_time("step_other")

    def _set_learning_rate(self) -> None:
        """Set the learning rate of the next step, a function of the global samples before and after it.

        Samples of other ranks count only as far as this rank knows of them.
        """
        context, progress = self.context, self.context.progress
        before = progress.samples
        if isinstance(context.strategy, AsynchronousStrategy):
            before = context.strategy.global_samples(progress)
        after = before + context.batch_order.counted(progress.samples_of_rank)
        factor = context.config.schedule.factor(before, after, context.total_samples, len(context.data.train))
        if context.state.watch is not None:
            factor *= context.state.watch.factor
        context.state.learning_rate = context.config.optimizer.lr * factor
        for group in context.replica.optimizer.param_groups:
            group["lr"] = context.state.learning_rate

    def after_step(self) -> None:
        """All that may follow a step: end of epoch, stop request, evaluation, checkpoint, end of the run."""
        context, progress, schedule = self.context, self.context.progress, self.context.state.schedule
        before = progress.samples
        agreed = context.strategy.stop_agreed(progress, context.replica.stop_requested)
        met = context.strategy.is_sync_point(progress)
        if isinstance(context.strategy, AsynchronousStrategy):
            progress.samples = context.strategy.samples(progress) if met else before
        else:
            progress.samples += context.batch_order.counted(progress.samples_of_rank)
        progress.step += 1
        self.observer.on_phase(self, "loop")
        self.observer.on_step_counted(self, agreed=agreed, met=met)
        for _ in range(context.batch_order.advance(progress)):
            self._end_epoch()
        last = (met or not context.independent) and context.over()
        self._report_progress()
        self.observer.on_boundary(self, met=met, last=last)
        if self.ended is not None:
            return
        schedule.step_is_open = met or last or schedule.deferred
        # On GPUs a step's stop request is known only in the next one: all ranks are asked before the last
        # step counts, and before a model is evaluated or saved.
        saves = context.checkpoints is not None
        asks = context.replica.delayed_flag and (last or schedule.pauses(progress.samples, met, saves=saves))
        if (agreed or asks) and self._handle_stop_request():
            return
        self._close_step(last)
        if self.ended is None and met and schedule.stops_from_copies and schedule.copies:
            self.evaluator.copies_and_go_on()
            self._go_on()
            self._stop_at_target()
        if self.ended is None and schedule.checkpoint_due(progress.samples, met):
            self.save(waits=context.strategy.never_syncs or not met)
            self._stop_at_target()
        context.clock.record_time("step_other")

    def _report_progress(self) -> None:
        names = ("step", "steps", "epoch", "epochs", "samples")
        self.context.report(**{name: getattr(self.context.progress, name) for name in names})

    def _close_step(self, last: bool) -> None:
        """Evaluate where the step's marks are not done yet, and end the run after its last step."""
        schedule = self.context.state.schedule
        if schedule.step_is_open:
            self._evaluate_if_due(last)
            schedule.step_is_open = False
        if last and self.ended is None:
            self.ended = ("finished", self.context.cut_short())

    def _evaluate_if_due(self, last: bool) -> None:
        progress, schedule = self.context.progress, self.context.state.schedule
        due = schedule.evaluation_due(progress.samples)
        if schedule.deferred and due and not last:
            self.evaluator.set_aside(self.context.state.learning_rate)
        elif due or last:
            self._evaluate()
            if not last:
                self._stop_at_target()
        # After an inline evaluation, which may update `progress.samples`.
        schedule.evaluated_samples = progress.samples

    def _end_epoch(self) -> None:
        context, progress, state = self.context, self.context.progress, self.context.state
        if context.strategy.reads_epoch_loss or state.watch is not None:
            progress.epoch_loss = self._epoch_loss()
            if state.watch is not None:
                state.watch = context.config.schedule.after_epoch(state.watch, progress.epoch_loss)
        self.observer.on_phase(self, "epoch")
        context.strategy.after_epoch(progress)
        self.observer.on_phase(self, "loop")
        context.clock.record_time("step_other")
        with context.clock.within("log"):
            counters = context.loader.counters()
            row = EpochRow(
                **self.accounting.where(),
                learning_rate=state.learning_rate,
                train_loss=progress.epoch_loss,
                strategy=context.strategy.record(progress),
                reader=None if counters is None else asdict(counters),
            )
            context.write_row(row)
        state.losses.epoch_ended()
        progress.epoch += 1
        progress.batch = 0
        if progress.epoch < progress.epochs:
            self._share()

    def _share(self) -> None:
        self.observer.on_phase(self, "shares")
        self.context.share()
        self.observer.on_phase(self, "loop")

    def _epoch_loss(self) -> float:
        """The mean training loss over all samples and ranks of the epoch that has just ended."""
        losses = self.context.state.losses
        sums = torch.stack([losses.of_epoch, losses.of_epoch.new_tensor(losses.samples_of_epoch)]).cpu()
        self.context.comm.all_reduce(sums, WORLD, channel="control").wait()
        return (sums[0] / sums[1]).item()

    # ------------------------------------------------------------------ agreement

    def _out_of_time(self) -> bool:
        limit = self.context.config.train.max_seconds
        if limit is None:
            return False
        clock = self.context.clock
        here = clock.total() - self._interval_started
        return (self.accounting.account.train_ns + here) / 1e9 > limit

    def _handle_stop_request(self) -> bool:
        """Find out why some rank requests a stop; all ranks call it. True if the run ends here."""
        flags = [
            not bool(self.context.state.losses.of_run.isfinite()),
            self.context.interrupted(),
            self._out_of_time(),
            is_lost(self.context.replica.scaler),
        ]
        stop_flags = torch.tensor(flags, dtype=torch.int64)
        self.context.comm.all_reduce(stop_flags, WORLD, channel="control").wait()
        not_finite, interrupted, out_of_time, lost = (bool(count) for count in stop_flags.tolist())
        at = f"(found at step {self.context.progress.step})"
        if not_finite:
            self.ended = "diverged", f"the training loss is not finite {at}"
        elif lost:
            reason = f"gradients overflow in float16 with the loss as it is {at}"
            self.ended = "diverged", f"{reason}; take train.precision=bf16 or fp32"
        elif interrupted or out_of_time:
            self.save(waits=False)  # the run ends here
            limit = f"train.max_seconds={self.context.config.train.max_seconds}"
            self.ended = ("cancelled", "interrupted") if interrupted else ("timed_out", limit)
        return self.ended is not None

    # ------------------------------------------------------------------ evaluation and checkpoints

    def _evaluate(self) -> None:
        self.evaluator.inline(self.context.state.learning_rate)
        self._go_on()

    def _go_on(self) -> None:
        self.context.clock.enter("train")
        self._interval_started = self.context.clock.total()

    def _stop_at_target(self) -> None:
        """End the run at the target, if `train.stop` says so; all ranks decide from the same numbers.

        A run that ends after a deferred evaluation makes an inline one, as every run does at its end. If that
        one takes the crossing back, the run goes on.
        """
        if self.ended is None and self._at_target():
            if self.accounting.account.evaluations[-1]["mode"] == "deferred":
                self._evaluate()
            if self._at_target():
                self.ended = ("finished", f"target reached (train.stop={self.context.config.train.stop})")

    def _at_target(self) -> bool:
        evaluations, train = self.accounting.account.evaluations, self.context.config.train
        if train.target is None or train.stop == "budget":
            return False
        if train.stop == "confirmed":
            return any(row["reached"] and after["reached"] for row, after in pairwise(evaluations))
        return crossing(evaluations, train.target, metric=train.target_metric) is not None

    def save(self, *, waits: bool) -> Path | None:
        """Write a checkpoint and return its folder; None where the run keeps none. All ranks call it.

        `waits`: whether ranks have to wait for each other that would not have done so here.
        """
        context, clock = self.context, self.context.clock
        context.state.schedule.saved_samples = context.progress.samples
        if context.checkpoints is None:
            return None
        self.observer.on_phase(self, "checkpoint")
        context.state.schedule.saves_that_waited += waits
        context.strategy.wait_pending()
        self.evaluator.copies()
        clock.record_time("step_other")
        clock.enter("checkpoint")
        context.backend.spend("checkpoint", 0)
        self.accounting.close_interval(0)
        self.accounting.account.checkpoints += 1
        with context.strategy.averaged_model():
            model = self._model_state() if context.comm.rank == 0 else None
        folder = checkpoint.save(
            context.checkpoints,
            self._step_to_save(),
            context.comm.rank,
            context.state.state_dict(),
            model,
            lambda: context.comm.barrier(WORLD),
            context.comm.topology.ranks,
        )
        self._go_on()
        self.observer.on_phase(self, "loop")
        return folder

    def _step_to_save(self) -> int:
        """The step that names a checkpoint; with independent sampling that of rank 0."""
        context = self.context
        if not context.independent:
            return context.progress.step
        step = torch.tensor([context.progress.step])
        context.comm.broadcast(step, 0, WORLD, channel="control").wait()
        return int(step)

    def _model_state(self) -> dict[str, Any]:
        state = self.context.replica.model.state_dict()
        return {"model": {name: value.detach().cpu().clone() for name, value in state.items()}}

    # ------------------------------------------------------------------ start and end

    def begin(self, resumed_from: str | None) -> None:
        """Write the start row, wait for all ranks, and start the training clock."""
        context = self.context
        row = StartRow(
            **self.accounting.where(),
            resumed_from=resumed_from,
            world=context.backend.name,
            ranks_of_nodes=list(context.comm.topology.ranks_of_nodes),
            parameters=context.replica.numel,
            task=context.task.name,
            may_differ=list(context.strategy.may_differ),
            loader_workers=context.loader.workers,
            still_cached=context.loader.still_cached,
        )
        context.write_row(row)
        self._report_progress()
        context.comm.barrier(WORLD)
        context.comm.traffic.clear_stamps()
        context.clock.enter("train")
        context.state.begun_ns = self._interval_started = context.clock.total()
        self.observer.on_train_start(self)

    def _end(self) -> Outcome:
        context, clock = self.context, self.context.clock
        status, reason = self.ended or ("finished", None)
        if clock.segment == "train":
            self.evaluator.copies()
        self.observer.on_phase(self, "finalize")
        if status == "finished":
            context.strategy.finalize()
        else:
            context.strategy.wait_pending()
        clock.record_time("step_other")
        clock.enter("other")
        self.observer.on_finalized(self)
        context.loader.close()
        self.accounting.count_samples()
        self.accounting.close_interval(0)
        if status == "finished" and context.checkpoints is not None:
            with clock.within("checkpoint"), context.strategy.averaged_model():
                if context.comm.rank == 0:
                    checkpoint.save_final(context.checkpoints, self._model_state())
                context.comm.barrier(WORLD)
        summary = self.accounting.summary(status)
        with clock.within("log"):
            segments = SegmentsRow(**self.accounting.where(), **self.accounting.times())
            context.rank_rows.write(segments.as_row())
            if context.metrics is not None:
                context.metrics.write(summary.as_row())
        return Outcome(
            status=status,
            reason=reason,
            exit_code=OK if status == "finished" else FAILED,
            summary=summary.as_summary(),
        )
