"""Evaluation of models during a run: inline, while all ranks wait, or deferred, from copies.

Each sample is scored exactly once, for any number of ranks; the counts of the task are summed over ranks.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.data import Samples
from ...datasets.sampler import evaluation_indices
from ...strategies.communicator import Communicator
from ...strategies.topology import WORLD
from ..config.tasks import MOST_SAMPLES, Task
from ..records.rows import EvaluationRow, RankEvaluationRow
from ..records.target_crossing import meets
from .context import TrainContext
from .eval_schedule import Copy
from .precision import outputs_of
from .time_accounting import TimeAccounting, judged_by


@dataclass(frozen=True, eq=False)
class Score:
    """Counts of `task` over `samples` samples (int64, on the CPU), and the sum of their losses."""

    task: Task
    counts: Tensor
    samples: int
    loss_sum: float

    def numbers(self) -> dict[str, Any]:
        """The metrics, the counts they are computed from, and the loss; NaN without samples."""
        loss = self.loss_sum / self.samples if self.samples else math.nan
        return self.task.numbers(self.counts, self.samples) | {"loss": loss}


@torch.no_grad()
def score(
    model: nn.Module,
    samples: Samples,
    indices: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    *,
    task: Task,
    batch_size: int = MOST_SAMPLES,
    autocast: torch.dtype | None = None,
) -> Score:
    """Score `model` on `samples[indices]`, `batch_size` of them at a time. The model's mode is restored.

    `autocast`: the 16-bit type inside the model, as in training; None: none.
    """
    training = model.training
    model.eval()
    counts, loss_sum = task.nothing(), 0.0
    for piece in indices.split(batch_size):
        inputs, targets = samples.batch(piece)
        outputs = outputs_of(model, inputs.to(device, dtype), autocast)
        targets = targets.to(device)
        counts += task.count(outputs, targets).cpu()
        loss_sum += float(task.loss_sum(outputs.double(), targets))
    model.train(training)
    return Score(task, counts, len(indices), loss_sum)


def add_scores(part: Score, comm: Communicator, expected: int) -> Score:
    """The sum of all ranks' scores, on every rank; `part` is this rank's.

    Raises RuntimeError: not every one of the `expected` samples was scored exactly once.
    """
    sums = torch.cat([part.counts.flatten(), torch.tensor([part.samples])])
    losses = torch.tensor([part.loss_sum], dtype=torch.float64)
    comm.all_reduce(sums, WORLD, channel="control").wait()
    comm.all_reduce(losses, WORLD, channel="control").wait()
    samples = int(sums[-1])
    if samples != expected:
        raise RuntimeError(f"{samples} samples were evaluated, the split has {expected}")
    return Score(part.task, sums[:-1].view_as(part.counts), samples, losses.item())


class Evaluator:
    """Evaluates this rank's share of the samples; what it returns and records is equal on all ranks."""

    def __init__(self, context: TrainContext, accounting: TimeAccounting) -> None:
        self.context, self.accounting = context, accounting

    def inline(self, rate: float) -> dict[str, Any]:
        """Evaluate the averaged model now; all ranks call it at the same step. Returns the row.

        The clock is in segment `log` afterwards.
        """
        context, clock = self.context, self.context.clock
        # Waiting for operations in flight is training time; none is in flight after that.
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
        return self._record(
            "inline",
            self.accounting.where(),
            self.accounting.payload_bytes(),
            total,
            train_loss=train_loss,
            rate=rate,
            train_ns=account.train_ns,
            made_ns=made,
            wall_s=(account.wall_before_ns + clock.total() - context.state.begun_ns) / 1e9,
            eval_s=(clock.segments["eval"] - before["eval"]) / 1e9,
        )

    def set_aside(self, rate: float) -> None:
        """Copy this rank's part of the present model, without waiting and without a collective."""
        context, losses, schedule = self.context, self.context.state.losses, self.context.state.schedule
        schedule.add(
            Copy(
                place=self.accounting.where(),
                part=context.strategy.snapshot(context.progress) if schedule.has_room else None,
                train_ns=self.accounting.account.train_ns + context.clock.interval_so_far(),
                payload_bytes=self.accounting.payload_bytes(),
                rate=rate,
                loss_sum=losses.since_evaluation.clone(),
                loss_samples=losses.samples_since_evaluation,
            )
        )
        losses.evaluated()

    def copies_and_go_on(self) -> None:
        """Evaluate the copies at a sync point and start a new interval. Ends in segment `eval`."""
        context, clock = self.context, self.context.clock
        context.strategy.wait_pending()
        self.copies()
        clock.record_time("step_other")
        clock.enter("eval")
        self.accounting.close_interval(0)
        context.comm.barrier(WORLD)

    def copies(self) -> None:
        """Evaluate the waiting copies outside of training time; all ranks call it at a sync point."""
        context, clock = self.context, self.context.clock
        schedule = context.state.schedule
        copies = schedule.copies
        if not copies:
            return
        clock.record_time("step_other")
        segment = clock.segment
        clock.enter("eval")
        times = self.context.comm.gather(schedule.copy_times().flatten()).view(-1, len(copies), 3)
        with context.replica.kept():
            cost = 0
            for number, copy in enumerate(copies):
                if copy.part is not None:
                    cost = self._evaluate_copy(copy, times[:, number], cost)
        copies.clear()
        clock.enter(segment)

    def _evaluate_copy(self, copy: Copy, times: torch.Tensor, cost: int) -> int:
        """Evaluate one copy; returns the nanoseconds of making one model.

        `times` [R, 3]: all ranks' training time, loss sum and samples. `cost`: nanoseconds, 0: not known yet.
        """
        context, replica, clock = self.context, self.context.replica, self.context.clock
        started = clock.total()
        assert copy.part is not None
        model = copy.part()
        if not cost and not context.strategy.copies_are_whole:
            averaging_ns = torch.tensor([clock.total() - started], dtype=torch.int64)
            cost = int(self.context.comm.gather(averaging_ns).max())  # added to each stamp
        replica.load(model[: replica.numel])
        replica.buffers.unpack(model[replica.numel :])
        total = self._score()
        stamp, loss_sum, loss_samples = times.unbind(1)
        train_ns, eval_s = int(stamp.max()), (clock.total() - started) / 1e9
        # Evaluations overlap no training, so their times are added.
        evaluated_s = sum(row["eval_s"] for row in self.accounting.account.evaluations) + eval_s
        self._record(
            "deferred",
            copy.place,
            copy.payload_bytes,
            total,
            train_loss=(loss_sum.sum() / loss_samples.sum()).item(),
            rate=copy.rate,
            train_ns=train_ns,
            made_ns=cost,
            wall_s=(train_ns + cost) / 1e9 + evaluated_s,
            eval_s=eval_s,
        )
        copy.part = None
        return cost

    def _record(
        self,
        mode: str,
        place: dict[str, Any],
        payload: dict[str, int],
        total: Score,
        *,
        train_loss: float,
        rate: float,
        train_ns: int,
        made_ns: int,
        wall_s: float,
        eval_s: float,
    ) -> dict[str, Any]:
        """Record an evaluation; returns its row.

        place, payload: this rank's when the model was as evaluated; train_ns: all ranks' training time until
        then; made_ns: of making the model.
        """
        context, account = self.context, self.accounting.account
        config, numbers = context.config.train, total.numbers()
        row = EvaluationRow(
            **place,
            index=len(account.evaluations),
            split=config.eval_split,
            metrics=numbers,
            train_loss=train_loss,
            learning_rate=rate,
            reached=None if config.target is None else meets(numbers, config.target, config.target_metric),
            mode=mode,
            train_s=(train_ns + made_ns) / 1e9,
            wall_s=wall_s,
            eval_s=eval_s,
            make_model_s=made_ns / 1e9,
            samples_per_s=self.accounting.rate_since_evaluation(place["samples"], train_ns),
        ).as_row()
        account.evaluations.append(row)
        of_rank = RankEvaluationRow(**place, index=row["index"], payload_bytes=payload)
        context.rank_rows.write(of_rank.as_row())
        if context.metrics is not None:
            context.metrics.write(row)
        shown = {name: row[name] for name in judged_by(context)}
        context.report(loss=train_loss, samples_per_s=row["samples_per_s"], **shown)
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
