"""Judges models during a run: at once, with all ranks standing still, or later, from copies set aside."""

from typing import Any

import torch

from ...datasets.sampler import evaluation_indices
from ...strategies.topology import WORLD
from ..records.json_lines import meets
from .context import TrainContext
from .eval_schedule import Copy
from .evaluation import Score, add_scores, score
from .time_accounting import TimeAccounting, judged_by


class Evaluator:
    """Evaluates one rank's share of each model; what it returns and records is equal on all ranks."""

    def __init__(self, context: TrainContext, accounting: TimeAccounting) -> None:
        self.context, self.accounting = context, accounting

    def inline(self, rate: float) -> dict[str, Any]:
        """Evaluate the strategy's model now; all ranks call it at the same step. Returns the row.

        Ends in segment `log`.
        """
        context, clock = self.context, self.context.clock
        # Waiting for what is in flight is training; nothing of it goes on later.
        context.strategy.wait_pending()
        self.copies()
        clock.record_time("step_other")
        before = dict(clock.segments)
        clock.enter("make_model")
        with context.strategy.averaged_model():
            clock.enter("eval")
            made = clock.segments["make_model"] - before["make_model"]
            total = self._score()
        self.accounting.count_samples()
        made = self.accounting.close_interval(made)
        train_loss = self.accounting.train_loss()
        context.comm.barrier(WORLD)
        clock.enter("log")
        account = self.accounting.account
        row = {
            **self._row(self.accounting.where(), total, train_loss, rate),
            "mode": "inline",
            "train_s": (account.train_ns + made) / 1e9,
            "wall_s": (account.wall_before_ns + clock.total() - context.state.begun_ns) / 1e9,
            "eval_s": (clock.segments["eval"] - before["eval"]) / 1e9,
            "make_model_s": made / 1e9,
            "samples_per_s": self.accounting.rate_since_evaluation(
                context.progress.samples, account.train_ns
            ),
        }
        return self._keep(row, self.accounting.where(), self.accounting.payload_bytes())

    def set_aside(self, rate: float) -> None:
        """Put this rank's part of the present model aside: no wait, no collective, no synchronise."""
        context, losses, copies = self.context, self.context.state.losses, self.context.state.schedule.copies
        kept = copies.free
        copies.add(
            Copy(
                place=self.accounting.where(),
                part=context.strategy.snapshot(context.progress) if kept else None,
                kept=kept,
                train_ns=self.accounting.account.train_ns + context.clock.interval_so_far(),
                payload_bytes=self.accounting.payload_bytes(),
                rate=rate,
                loss_sum=losses.since_evaluation.clone(),
                loss_samples=losses.samples_since_evaluation,
            )
        )
        losses.evaluated()

    def copies_and_go_on(self) -> None:
        """Evaluate what was set aside where training brought all ranks together. Ends in segment `eval`."""
        context, clock = self.context, self.context.clock
        context.strategy.wait_pending()
        self.copies()
        clock.record_time("step_other")
        clock.enter("eval")
        self.accounting.close_interval(0)
        context.comm.barrier(WORLD)

    def copies(self) -> None:
        """Evaluate what was set aside, off the training clock; all ranks call it where they have met."""
        context, clock = self.context, self.context.clock
        deferred = context.state.schedule.copies
        copies = deferred.waiting
        if not copies:
            return
        clock.record_time("step_other")
        segment = clock.segment
        clock.enter("eval")
        times = self.accounting.gather(deferred.times().flatten()).view(-1, len(copies), 3)
        with context.replica.kept():
            cost = 0
            for number, copy in enumerate(copies):
                if copy.kept:
                    cost = self._evaluate_copy(copy, times[:, number], cost)
        copies.clear()
        clock.enter(segment)

    def _evaluate_copy(self, copy: Copy, times: torch.Tensor, cost: int) -> int:
        """Evaluate one copy; `times` [R, 3] are all ranks' stamps and losses. Returns an average's cost."""
        context, replica, clock = self.context, self.context.replica, self.context.clock
        started = clock.total()
        assert copy.part is not None
        model = copy.part()
        if not cost and not context.strategy.copies_are_whole:
            averaging_ns = torch.tensor([clock.total() - started], dtype=torch.int64)
            cost = int(self.accounting.gather(averaging_ns).max())  # added to each stamp
        replica.load(model[: replica.numel])
        replica.buffers.unpack(model[replica.numel :])
        total = self._score()
        stamp, loss_sum, loss_samples = times.unbind(1)
        loss = (loss_sum.sum() / loss_samples.sum()).item()
        row = self._deferred_row(copy, total, loss, int(stamp.max()), cost, clock.total() - started)
        self._keep(row, copy.place, copy.payload_bytes)
        copy.part = None
        return cost

    def _deferred_row(
        self, copy: Copy, total: Score, train_loss: float, train_ns: int, cost: int, took: int
    ) -> dict[str, Any]:
        evaluated = sum(row["eval_s"] for row in self.accounting.account.evaluations) + took / 1e9
        return {
            **self._row(copy.place, total, train_loss, copy.rate),
            "mode": "deferred",
            "train_s": (train_ns + cost) / 1e9,
            # As if each evaluation had been waited for: they overlapped nothing, so they are added.
            "wall_s": (train_ns + cost) / 1e9 + evaluated,
            "eval_s": took / 1e9,
            "make_model_s": cost / 1e9,
            "samples_per_s": self.accounting.rate_since_evaluation(copy.place["samples"], train_ns),
        }

    def _row(self, place: dict[str, Any], total: Score, train_loss: float, rate: float) -> dict[str, Any]:
        config = self.context.config.train
        numbers = total.numbers()
        reached = None if config.target is None else meets(numbers, config.target, config.target_metric)
        return {
            "kind": "evaluation",
            **place,
            "index": len(self.accounting.account.evaluations),
            "split": config.eval_split,
            **numbers,
            "train_loss": train_loss,
            "learning_rate": rate,
            "reached": reached,
        }

    def _keep(self, row: dict[str, Any], place: dict[str, Any], payload: dict[str, int]) -> dict[str, Any]:
        """Record an evaluation; `place` and `payload` are this rank's own when its part was complete."""
        account, context = self.accounting.account, self.context
        account.evaluations.append(row)
        context.rank_rows.write(
            {"kind": "evaluation", **place, "index": row["index"], "payload_bytes": payload}
        )
        if context.metrics is not None:
            context.metrics.write(row)
        shown = {name: row[name] for name in judged_by(context)}
        context.listener.progress(loss=row["train_loss"], samples_per_s=row["samples_per_s"], **shown)
        if row["reached"] and account.target_step is None:
            account.target_step = row["step"]
        return row

    def _score(self) -> Score:
        context = self.context
        samples = context.data.split(context.config.train.eval_split)
        indices = evaluation_indices(len(samples), context.comm.rank, context.comm.topology.ranks)
        context.backend.spend("eval", len(indices))
        if context.backend.make_batch is not None:
            return Score(context.task, context.task.nothing(), 0, 0.0)
        part = score(
            context.replica.model,
            samples,
            indices,
            context.backend.device,
            context.dtype,
            task=context.task,
            batch_size=context.task.evaluation_batch(*context.data.shape[1:]),
            autocast=context.autocast,
        )
        return add_scores(part, context.comm, len(samples))
