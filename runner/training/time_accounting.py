"""Time accounting of one run: training time over all ranks, its parts, traffic, and the summary.

All ranks' times are gathered only where all ranks meet outside of training anyway, never in a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..communication.traffic import LINKS
from ..config.reader_config import NoReader
from ..machine import gpu_facts, page_cache
from ..records.rows import SummaryRow, TrainIntervalRow
from ..records.target_crossing import best, crossing
from .clock import by_device
from .context import TrainContext
from .precision import LossScaler

MUCH_LEFT_OUT = 0.01  # of steps
MUCH_DATA = 0.1  # of training time
ORDER_ALONE = "its order alone: samples come from memory, and cluster.device says what data cost"
INPUT_BOUND = f"input-bound: more than {MUCH_DATA:.0%} of training time for data"


class TimeAccounting:
    """Adds up one rank's times, samples and traffic. Methods return the same on all ranks unless stated."""

    def __init__(self, context: TrainContext) -> None:
        self.context = context
        self.account = context.state.account

    def close_interval(self, made_ns: int) -> int:
        """Add the interval that has ended to the account, from all ranks' times; call it outside of `train`.

        `made_ns`: this rank's time in `make_model`. Returns the part of it that counts as training time: the
        rest is waiting for the last rank, which was still training.
        """
        context, account, traffic = self.context, self.account, self.context.comm.traffic
        interval = context.clock.end_interval()
        of_device = context.replica.take_device_ns()
        if of_device is not None:
            interval = by_device(interval, *of_device)
        if context.backend.common_clock:
            traffic.split_waiting(context.comm.gather_values([*traffic.launches.items()]))
        waiting = traffic.waited_ns
        if of_device is not None:  # `by_device` may have cut some of it off
            waiting = min(waiting, interval.blocked)
        parts = {
            "compute": interval.compute,
            "exposed": interval.blocked - waiting,
            "waiting": waiting,
            "data": interval.data,
            "step_other": interval.step_other,
        }
        times = self._of_all([interval.train, made_ns, *parts.values()])
        train_ns = int(times[:, 0].max())
        account.train_ns += train_ns
        for part, total in zip(parts, times[:, 2:].sum(0).tolist(), strict=True):
            account.parts_ns[part] += total // len(times)
        row = TrainIntervalRow(
            **self.where(),
            index=account.intervals,
            train_s=interval.train / 1e9,
            parts_s=self._seconds(parts),
            make_model_s=made_ns / 1e9,
            payload_bytes=self.payload_bytes(),
            segments_s=self._seconds(context.clock.segments),
        )
        context.rank_rows.write(row.as_row())
        account.intervals += 1
        traffic.clear_stamps()
        return int((times[:, 0] + times[:, 1]).max()) - train_ns

    def payload_bytes(self) -> dict[str, int]:
        """Bytes that this rank has sent in training so far, by class of link; communicates nothing."""
        return self.context.comm.traffic.totals()["payload_bytes"]

    def count_samples(self) -> None:
        """Set `progress.samples` to the samples of all ranks, once they have stopped.

        With independent sampling a rank knows the others' samples only as of the last round.
        """
        context = self.context
        if context.independent:
            context.progress.samples = int(self._of_all([context.state.losses.samples_of_run]).sum())

    def train_loss(self) -> float:
        losses = self.context.state.losses
        count = torch.tensor(losses.samples_since_evaluation, dtype=torch.float64)
        sums = torch.stack([losses.since_evaluation.cpu(), count])
        loss_sum, samples = self.context.comm.gather(sums).sum(0).tolist()
        losses.evaluated()
        return loss_sum / samples if samples else math.nan

    def rate_since_evaluation(self, samples: int, train_ns: int) -> float | None:
        """Global samples per second of training time since the last call; None if no time has passed."""
        account = self.account
        done, took = samples - account.samples_evaluated, train_ns - account.train_evaluated_ns
        account.samples_evaluated, account.train_evaluated_ns = samples, train_ns
        return done / took * 1e9 if took > 0 else None

    def summary(self, status: str) -> SummaryRow:
        """The run as it ended. All ranks call it, since times and traffic are gathered."""
        context, account, progress = self.context, self.account, self.context.progress
        target, metric = context.config.train.target, context.config.train.target_metric
        met = None if target is None else crossing(account.evaluations, target, metric=metric)
        finals = account.evaluations
        last = finals[-1] if finals and status != "diverged" else {}
        highest = {name: (best(finals, name) or {}).get(name) for name in judged_by(context)}
        cut, reader, scaler = context.cut_short(), self._reader(), context.replica.scaler
        scaling = scaler.summary() if isinstance(scaler, LossScaler) else None
        return SummaryRow(
            **self.where(),
            status=status,
            target=target,
            reached=None if target is None else met is not None,
            to_target_train_s=met.stamp_s if met else None,
            to_target_wall_s=met.wall_s if met else None,
            to_target_samples=met.stamp_samples if met else None,
            crossing_s=met.scored_s if met else None,
            final_and_best={
                **{f"final_{name}": last.get(name) for name in highest},
                **{f"best_{name}": value for name, value in highest.items()},
            },
            train_s=account.train_ns / 1e9,
            samples_per_s=progress.samples / account.train_ns * 1e9 if account.train_ns else None,
            parts_s=self._seconds(account.parts_ns),
            **self._traffic(),
            steps=progress.step,
            communication_share=self._communication_share(progress.step),
            communication_share_to_target=self._communication_share(account.target_step),
            classes=context.data.classes,
            epochs=progress.epoch,
            evaluations=len(finals),
            checkpoints=account.checkpoints,
            copies_dropped=context.state.schedule.copies_dropped,
            parameters=context.backend.parameters or context.replica.numel,
            left_out_samples=context.batch_order.left_out,
            labels=[
                *context.backend.remarks,
                *context.backend.untimed,
                *context.strategy.labels(account.target_step),
                *([cut] if cut else []),
                *context.pauses(sum(row["mode"] == "inline" for row in finals)),
                *self._left_out(scaling),
                *self._reader_labels(),
                *self._input_bound(reader),
            ],
            strategy=context.strategy.summary(),
            collectives=dict(context.comm.traffic.verbs),
            digests=context.digests or None,
            reader=reader,
            loss_scaling=scaling or None,
            gpu_memory=self._gpu_memory(),
            untimed=list(context.backend.untimed) or None,
            of_callbacks=self._of_callbacks(finished=status == "finished"),
            **self.times(),
        )

    def _communication_share(self, steps: int | None) -> float | None:
        """`Strategy.communication_share` of so many steps; None for none."""
        strategy = self.context.strategy
        return strategy.communication_share(strategy.config, self.context.plan, steps) if steps else None

    def _gpu_memory(self) -> dict[str, Any] | None:
        """Peak GPU memory of each rank, None for a rank on a CPU; None if all are."""
        context = self.context
        if not context.comm.some_on_gpus:
            return None
        columns = self._of_all(gpu_facts.peak_memory(context.backend.device)).T.tolist()
        names = ("allocated_bytes", "reserved_bytes")
        return {n: [None if b < 0 else b for b in column] for n, column in zip(names, columns, strict=True)}

    def _left_out(self, scaling: dict[str, Any] | None) -> list[str]:
        """A label on steps that fp16 has skipped, if they are more than the search for a scale needs."""
        steps, skipped = self.context.progress.step, (scaling or {}).get("skipped_steps", 0)
        return [f"fp16: {skipped} of {steps} steps left out"] if skipped > MUCH_LEFT_OUT * steps else []

    def _reader_labels(self) -> list[str]:
        """Labels on the reader: its order, why no file was read, a page cache not as configured."""
        reader = self.context.config.reader
        if isinstance(reader, NoReader):
            return []
        if self.context.loader.counters() is None:
            return [reader.words(), f"reader {reader.name}: {ORDER_ALONE}"]
        lacking = float(self._of_all([self.context.loader.lacking], torch.float64).max())
        remark = page_cache.remark(cold=reader.cold, warm=reader.warm, lacking=lacking)
        return [reader.words(), *([] if remark is None else [remark])]

    def _reader(self) -> dict[str, Any] | None:
        """Sums of the reader's counters over all ranks; None where no file was read in training."""
        counters = self.context.loader.counters()
        if counters is None:
            return None
        values = asdict(counters)
        sums = self._of_all(list(values.values()), torch.float64).sum(0).tolist()
        return {name: type(values[name])(value) for name, value in zip(values, sums, strict=True)}

    def _input_bound(self, reader: Mapping[str, Any] | None) -> list[str]:
        """A label where much of the training time was spent on data. reader: from `_reader`."""
        parts = self.account.parts_ns
        if parts["data"] <= MUCH_DATA * sum(parts.values()):
            return []
        if reader:
            waited_s = reader["waited_s"] / self.context.comm.topology.ranks
            waited = min(1.0, waited_s / (parts["data"] / 1e9))
            return [f"{INPUT_BOUND} ({waited:.0%} of it waiting for the reader, the rest work of the rank)"]
        cause = "launcher.loader_workers" if self.context.config.launcher.real_time else "cluster.device"
        return [f"{INPUT_BOUND} ({cause})"]

    def _of_callbacks(self, *, finished: bool) -> dict[str, Any]:
        """The fields of the callbacks; they come last because callbacks may communicate."""
        train_ns, fields = self.context.clock.segments["train"], {}
        for callback in self.context.callbacks:
            fields |= callback.on_end(train_ns, finished=finished)
        return fields

    def _traffic(self) -> dict[str, Any]:
        """calls, payload_bytes, ring_bytes per link class, summed over ranks; `blocked_s`, mean over ranks.

        `blocked_s` is None where GPUs wait instead of hosts: their events are not separate by link.
        """
        traffic = self.context.comm.traffic
        books: dict[str, Any] = {**traffic.totals(), "blocked_s": traffic.blocked_on}
        by_rank = self._of_all([book[link] for book in books.values() for link in LINKS])
        sums = by_rank.sum(0).tolist()
        totals: dict[str, dict[str, Any]] = {
            name: dict(zip(LINKS, sums[2 * place :], strict=False)) for place, name in enumerate(books)
        }
        blocked = {link: blocked_ns / 1e9 / len(by_rank) for link, blocked_ns in totals["blocked_s"].items()}
        return {**totals, "blocked_s": blocked if self.context.comm.host_waits else None}

    def times(self) -> dict[str, Any]:
        segments = self.context.clock.closed()
        total = sum(segments.values()) + self.account.process_before_ns
        return {
            "segments_s": self._seconds(segments),
            "wall_s": self.context.clock.total() / 1e9,
            "process_s": total / 1e9,
            "startup_s": segments["startup"] / 1e9,
        }

    def where(self) -> dict[str, Any]:
        """The fields that every row has: its place in the run, on this rank."""
        progress = self.context.progress
        return {
            "attempt": self.context.attempt,
            "step": progress.step,
            "epoch": progress.epoch,
            "samples": progress.samples,
        }

    def _of_all(self, numbers: Sequence[float], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """The numbers [k] of all ranks, [R, k]."""
        return self.context.comm.gather(torch.tensor(numbers, dtype=dtype))

    @staticmethod
    def _seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
        return {name: value / 1e9 for name, value in nanoseconds.items()}


def judged_by(context: TrainContext) -> list[str]:
    """The metrics shown of a run: the task's headline, and the target's metric if it is another share."""
    metric, task = context.config.train.target_metric, context.task
    further = [metric] if metric in task.metrics and metric not in (task.headline, "loss") else []
    return [task.headline, *further]
