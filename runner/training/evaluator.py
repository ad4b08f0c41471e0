"""Judges models during a run: at once, with all ranks standing still, or later, from copies set aside."""

from typing import Any

import torch

from ...datasets.sampler import evaluation_indices
from ...strategies.topology import WORLD
from ..records.json_lines import meets
from .context import TrainContext
from .deferred_evaluation import Copy
from .evaluation import Score, add_scores, score
from .time_accounting import Ledger, judged_by


class Evaluator:
    """Evaluates one rank's share of each model; what it returns and records is equal on all ranks."""

    def __init__(self, context: TrainContext, ledger: Ledger) -> None:
        self.context, self.ledger = context, ledger
        self.begun_ns = 0

    def inline(self, rate: float) -> dict[str, Any]:
        """Evaluate the strategy's model now; all ranks call it at the same step. Returns the row.

        Ends in segment `log`.
        """
        context, clock = self.context, self.context.clock
        # Waiting for what is in flight is training; nothing of it goes on later.
        context.strategy.wait_pending()
        self.copies()
        clock.lap("step_other")
        before = dict(clock.segments)
        clock.enter("make_model")
        with context.strategy.averaged_model():
            clock.enter("eval")
            made = clock.segments["make_model"] - before["make_model"]
            total = self._score()
        self.ledger.count_samples()
        made = self.ledger.close_stretch(made)
        train_loss = self.ledger.train_loss()
        context.comm.barrier(WORLD)
        clock.enter("log")
        account = self.ledger.account
        row = {
            **self._row(self.ledger.where(), total, train_loss, rate),
            "mode": "inline",
            "train_s": (account.train_ns + made) / 1e9,
            "wall_s": (account.wall_before_ns + clock.total() - self.begun_ns) / 1e9,
            "eval_s": (clock.segments["eval"] - before["eval"]) / 1e9,
            "make_model_s": made / 1e9,
            "samples_per_s": self.ledger.rate_since_evaluation(context.progress.samples, account.train_ns),
        }
        return self._keep(row, self.ledger.where(), self.ledger.payload_bytes())

    def set_aside(self, rate: float) -> None:
        """Put this rank's part of the present model aside: no wait, no collective, no synchronise."""
        context = self.context
        kept = context.copies.free
        context.copies.add(
            Copy(
                place=self.ledger.where(),
                part=context.strategy.snapshot(context.progress) if kept else None,
                kept=kept,
                train_ns=self.ledger.account.train_ns + context.clock.stretch_so_far(),
                payload_bytes=self.ledger.payload_bytes(),
                rate=rate,
                loss_sum=context.losses.clone(),
                loss_samples=context.loss_samples,
            )
        )
        context.losses.zero_()
        context.loss_samples = 0

    def copies_and_go_on(self) -> None:
        """Evaluate what was set aside where training brought all ranks together. Ends in segment `eval`."""
        context, clock = self.context, self.context.clock
        context.strategy.wait_pending()
        self.copies()
        clock.lap("step_other")
        clock.enter("eval")
        self.ledger.close_stretch(0)
        context.comm.barrier(WORLD)

    def copies(self) -> None:
        """Evaluate what was set aside, off the training clock; all ranks call it where they have met."""
        context, clock = self.context, self.context.clock
        copies = context.copies.waiting
        if not copies:
            return
        clock.lap("step_other")
        segment = clock.segment
        clock.enter("eval")
        times = self.ledger.gather(context.copies.times().flatten()).view(-1, len(copies), 3)
        with context.replica.kept():
            cost = 0
            for number, copy in enumerate(copies):
                if copy.kept:
                    cost = self._judge_copy(copy, times[:, number], cost)
        copies.clear()
        clock.enter(segment)

    def _judge_copy(self, copy: Copy, times: torch.Tensor, cost: int) -> int:
        """Evaluate one copy; `times` [R, 3] are all ranks' stamps and losses. Returns an average's cost."""
        context, replica, clock = self.context, self.context.replica, self.context.clock
        started = clock.total()
        assert copy.part is not None
        model = copy.part()
        if not cost and not context.strategy.copies_are_whole:
            own = torch.tensor([clock.total() - started], dtype=torch.int64)
            cost = int(self.ledger.gather(own).max())  # of one average, added to each stamp
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
        evaluated = sum(row["eval_s"] for row in self.ledger.account.evaluations) + took / 1e9
        return {
            **self._row(copy.place, total, train_loss, copy.rate),
            "mode": "deferred",
            "train_s": (train_ns + cost) / 1e9,
            # As if each evaluation had been waited for: they overlapped nothing, so they are added.
            "wall_s": (train_ns + cost) / 1e9 + evaluated,
            "eval_s": took / 1e9,
            "make_model_s": cost / 1e9,
            "samples_per_s": self.ledger.rate_since_evaluation(copy.place["samples"], train_ns),
        }

    def _row(self, place: dict[str, Any], total: Score, train_loss: float, rate: float) -> dict[str, Any]:
        config = self.context.config.train
        numbers = total.numbers()
        reached = None if config.target is None else meets(numbers, config.target, config.target_metric)
        return {
            "kind": "evaluation",
            **place,
            "index": len(self.ledger.account.evaluations),
            "split": config.eval_split,
            **numbers,
            "train_loss": train_loss,
            "learning_rate": rate,
            "reached": reached,
        }

    def _keep(self, row: dict[str, Any], place: dict[str, Any], payload: dict[str, int]) -> dict[str, Any]:
        """Record an evaluation; `place` and `payload` are this rank's own when its part was complete."""
        account, context = self.ledger.account, self.context
        account.evaluations.append(row)
        context.own.write({"kind": "evaluation", **place, "index": row["index"], "payload_bytes": payload})
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
        if context.backend.batch is not None:
            return Score(context.task, context.task.nothing(), 0, 0.0)
        own = score(
            context.replica.model,
            samples,
            indices,
            context.backend.device,
            context.dtype,
            task=context.task,
            batch_size=context.task.evaluation_batch(*context.data.shape[1:]),
            autocast=context.autocast,
        )
        return add_scores(own, context.comm, len(samples))
