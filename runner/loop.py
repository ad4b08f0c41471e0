"""The train loop. It names no strategy, and reads like the papers: gradients, step, mix, record."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..strategies.topology import WORLD
from . import checkpoint
from .clock import PARTS, waiting_of
from .evaluation import Score, add_scores, score
from .records import crossing
from .session import Session
from .state import restore, snapshot

log = logging.getLogger(__name__)

WISHES = ("not_finite", "interrupted", "out_of_time")


@dataclass
class Account:
    """What is summed over the run on every rank alike: training time, its parts, evaluations. Seconds unless named."""

    train_ns: int = 0
    wall_before_ns: int = 0
    process_before_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    samples_evaluated: int = 0
    train_evaluated_ns: int = 0
    stretches: int = 0
    target_step: int | None = None


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
        self.account = Account()
        self.ended: tuple[str, str | None] | None = None
        self.rate = 0.0

    def run(self) -> Result:
        """Train to the end of the schedule, the target, a limit or a wish; all ranks leave at the same step."""
        session, progress = self.s, self.s.progress
        session.prepare()
        resumed = restore(session, self.account)
        self._begin(resumed)
        while progress.epoch < progress.epochs and self.ended is None:
            self.step()
            self._after_step()
        return self._end()

    # ------------------------------------------------------------------ one step

    def step(self) -> None:
        """One optimizer step on all ranks."""
        session, progress, clock, replica = self.s, self.s.progress, self.s.clock, self.s.replica
        progress.samples_of_rank = session.sampler.samples_of_rank(progress.batch)
        batch = session.next_batch()
        clock.lap("data")
        self.rate = session.set_learning_rate(sum(progress.samples_of_rank))
        replica.wish = self._wishes_something()
        loss = replica.compute_gradients(batch)
        clock.lap("compute")
        session.strategy.before_step(progress)
        if session.config.train.clip_norm is not None:
            replica.clip(session.config.train.clip_norm)
        replica.optimizer.step()
        session.strategy.after_step(progress)
        progress.samples += sum(progress.samples_of_rank)
        self._add_loss(loss, len(batch.targets))
        clock.lap("step_other")

    def _after_step(self) -> None:
        """Bookkeeping between two steps: epochs, agreement, evaluation, checkpoint, limits."""
        session, progress = self.s, self.s.progress
        before = progress.samples - sum(progress.samples_of_rank)
        agreed = session.strategy.agree(progress, session.replica.wished)
        progress.step += 1
        if progress.last_batch:
            self._end_epoch()
        else:
            progress.batch += 1
        session.listener.progress(
            step=progress.step, steps=progress.steps, epoch=progress.epoch, epochs=progress.epochs, samples=progress.samples
        )
        if agreed and self._heed_wishes():
            return
        limit = session.config.train.max_steps
        last = progress.epoch == progress.epochs or (limit is not None and progress.step >= limit)
        if last or session.evaluation_marks.passed(before, progress.samples):
            self._evaluate()
        if last and self.ended is None:
            cut = progress.epoch < progress.epochs
            self.ended = ("finished", f"stopped by train.max_steps={limit}" if cut else None)
        if self.ended is None and session.checkpoint_marks.passed(before, progress.samples):
            self._save()
        session.clock.lap("step_other")

    def _end_epoch(self) -> None:
        session, progress = self.s, self.s.progress
        if session.strategy.reads_epoch_loss:
            sums = torch.stack([session.epoch_losses, session.epoch_losses.new_tensor(session.epoch_samples)]).cpu()
            session.comm.all_reduce(sums, WORLD, channel="control").wait()
            progress.epoch_loss = (sums[0] / sums[1]).item()
        session.strategy.after_epoch(progress)
        session.clock.lap("step_other")
        with session.clock.within("log"):
            row = {"kind": "epoch", **self._where(), "learning_rate": self.rate, "train_loss": progress.epoch_loss}
            row["strategy"] = session.strategy.record(progress)
            session.own.write(row)
            if session.metrics is not None:
                session.metrics.write(row)
        session.epoch_losses.zero_()
        session.epoch_samples = 0
        progress.epoch += 1
        progress.batch = 0

    def _add_loss(self, loss: torch.Tensor, samples: int) -> None:
        session = self.s
        weighted = loss.double() * samples
        session.losses += weighted
        session.epoch_losses += weighted
        session.finite &= torch.isfinite(loss)
        session.loss_samples += samples
        session.epoch_samples += samples

    # ------------------------------------------------------------------ agreement

    def _out_of_time(self) -> bool:
        limit = self.s.config.train.max_seconds
        if limit is None:
            return False
        clock = self.s.clock
        here = clock.total() - self._stretch_started
        return (self.account.train_ns + here) / 1e9 > limit

    def _wishes_something(self) -> bool:
        return self.s.listener.interrupted() is not None or self._out_of_time()

    def _heed_wishes(self) -> bool:
        """All ranks know that some rank wishes something; ask everybody what. True if the run ends here."""
        own = [not bool(self.s.finite), self.s.listener.interrupted() is not None, self._out_of_time()]
        wishes = torch.tensor(own, dtype=torch.int64)
        self.s.comm.all_reduce(wishes, WORLD, channel="control").wait()
        not_finite, interrupted, out_of_time = (bool(count) for count in wishes.tolist())
        if not_finite:
            self.ended = ("diverged", f"the training loss is not finite (found at step {self.s.progress.step})")
        elif interrupted or out_of_time:
            self._save()
            limit = self.s.config.train.max_seconds
            self.ended = ("cancelled", "interrupted") if interrupted else ("timed_out", f"train.max_seconds={limit}")
        return self.ended is not None

    # ------------------------------------------------------------------ evaluation and checkpoints

    def _evaluate(self) -> None:
        session, account, clock, config = self.s, self.account, self.s.clock, self.s.config
        session.strategy.settle()  # waiting for what is in flight is training
        clock.lap("step_other")
        before = dict(clock.segments)
        clock.enter("make_model")
        with session.strategy.consensus():
            clock.enter("eval")
            made = clock.segments["make_model"] - before["make_model"]
            total = self._score()
        made = self._close_stretch(made)
        train_loss = self._train_loss()
        session.comm.barrier(WORLD)
        clock.enter("log")
        reached = None
        if config.train.target is not None:
            reached = total.reaches(config.train.target, config.train.target_metric)
        row = {
            "kind": "evaluation", **self._where(), "index": len(account.evaluations), "split": config.train.eval_split,
            "accuracy": total.accuracy, "correct": total.correct, "count": total.count, "loss": total.loss,
            "train_loss": train_loss, "train_s": (account.train_ns + made) / 1e9,
            "wall_s": (account.wall_before_ns + clock.total() - self._begun) / 1e9,
            "eval_s": (clock.segments["eval"] - before["eval"]) / 1e9, "make_model_s": made / 1e9,
            "learning_rate": self.rate, "samples_per_s": self._rate_since_evaluation(), "reached": reached,
        }
        account.evaluations.append(row)
        if session.metrics is not None:
            session.metrics.write(row)
        session.listener.progress(loss=train_loss, accuracy=total.accuracy, samples_per_s=row["samples_per_s"])
        self._judge(reached)
        clock.enter("train")
        self._stretch_started = clock.total()

    def _score(self) -> Score:
        session = self.s
        samples = session.data.split(session.config.train.eval_split)
        ranks, rank = session.comm.topology.ranks, session.comm.rank
        indices = torch.arange(len(samples) * rank // ranks, len(samples) * (rank + 1) // ranks)
        own = score(session.replica.model, samples, indices, session.world.device, session.dtype)
        return add_scores(own, session.comm, len(samples))

    def _judge(self, reached: bool | None) -> None:
        """Stop at the target if asked to: decided from global numbers, so by all ranks alike."""
        account, stop = self.account, self.s.config.train.stop
        if not reached:
            return
        if account.target_step is None:
            account.target_step = self.s.progress.step
        confirmed = len(account.evaluations) > 1 and bool(account.evaluations[-2]["reached"])
        if stop == "first" or (stop == "confirmed" and confirmed):
            self.ended = ("finished", f"target reached (train.stop={stop})")

    def _save(self) -> None:
        session, clock = self.s, self.s.clock
        if session.checkpoints is None:
            return
        session.strategy.settle()
        clock.lap("step_other")
        clock.enter("checkpoint")
        self._close_stretch(0)
        with session.strategy.consensus():
            model = self._model_state() if session.comm.rank == 0 else None
        checkpoint.save(
            session.checkpoints, session.progress.step, session.comm.rank, snapshot(session, self.account, self._begun),
            model, lambda: session.comm.barrier(WORLD), session.comm.topology.ranks,
        )
        clock.enter("train")
        self._stretch_started = clock.total()

    def _model_state(self) -> dict[str, Any]:
        return {"model": {name: value.detach().cpu().clone() for name, value in self.s.replica.model.state_dict().items()}}

    def _close_stretch(self, made_ns: int) -> int:
        """Add the stretch that ended to the account, from all ranks' numbers; outside of `train`.

        Args:
            made_ns: this rank's `make_model`. Returns the slowest rank's.
        """
        session, account, traffic = self.s, self.account, self.s.comm.traffic
        stretch = session.clock.end_stretch()
        waiting = waiting_of(traffic, self._launches_of_ranks()) if session.world.common_clock else 0
        exposed = stretch.blocked - waiting
        own = [stretch.train, made_ns, stretch.compute, exposed, waiting, stretch.data, stretch.step_other]
        times = self._gather(torch.tensor(own, dtype=torch.int64))
        account.train_ns += int(times[:, 0].max())
        for place, part in enumerate(PARTS, start=2):
            account.parts_ns[part] += int(times[:, place].sum()) // len(times)
        session.own.write(
            {
                "kind": "stretch", **self._where(), "stretch": account.stretches, "train_s": stretch.train / 1e9,
                "parts_s": {part: own[place] / 1e9 for place, part in enumerate(PARTS, start=2)},
                "make_model_s": made_ns / 1e9, "segments_s": self._seconds(session.clock.segments),
            }
        )
        account.stretches += 1
        traffic.clear_stamps()
        return int(times[:, 1].max())

    def _train_loss(self) -> float:
        """Mean training loss over all samples and ranks since the last evaluation."""
        session = self.s
        own = torch.stack([session.losses.cpu(), torch.tensor(session.loss_samples, dtype=torch.float64)])
        loss_sum, samples = self._gather(own).sum(0).tolist()
        session.losses.zero_()
        session.loss_samples = 0
        return loss_sum / samples if samples else math.nan

    def _gather(self, own: torch.Tensor) -> torch.Tensor:
        """All ranks' vectors [k] as [R, k], on every rank, over the control channel."""
        ranks = self.s.comm.topology.ranks
        everybody = torch.empty(ranks * own.numel(), dtype=own.dtype)
        self.s.comm.all_gather(everybody, own, WORLD, channel="control").wait()
        return everybody.view(ranks, own.numel())

    def _launches_of_ranks(self) -> list[dict[int, int]]:
        own = self.s.comm.traffic.launches
        flat = torch.tensor([list(own.keys()), list(own.values())], dtype=torch.int64)
        most = int(self._gather(torch.tensor([flat.shape[1]])).max())
        padded = torch.full((2, most), -1, dtype=torch.int64)
        padded[:, : flat.shape[1]] = flat
        everybody = self._gather(padded.flatten()).view(self.s.comm.topology.ranks, 2, most)
        return [{k: t for k, t in zip(*rank.tolist(), strict=True) if k >= 0} for rank in everybody]

    # ------------------------------------------------------------------ start and end

    def _begin(self, resumed_from: str | None) -> None:
        session = self.s
        row = {
            "kind": "start", **self._where(), "resumed_from": resumed_from, "world": session.world.name,
            "ranks_of_nodes": list(session.comm.topology.ranks_of_nodes), "parameters": session.replica.numel,
        }
        session.own.write(row)
        if session.metrics is not None:
            session.metrics.write(row)
        session.listener.progress(
            step=session.progress.step, steps=session.progress.steps, epoch=session.progress.epoch,
            epochs=session.progress.epochs, samples=session.progress.samples,
        )
        session.comm.barrier(WORLD)
        session.comm.traffic.clear_stamps()
        session.clock.enter("train")
        self._begun = self._stretch_started = session.clock.total()

    def _end(self) -> Result:
        session, account, clock = self.s, self.account, self.s.clock
        status, reason = self.ended or ("finished", None)
        if status == "finished":
            session.strategy.finish()
        else:
            session.strategy.settle()
        clock.lap("step_other")
        clock.enter("other")
        self._close_stretch(0)
        if status == "finished" and session.checkpoints is not None:
            with clock.within("checkpoint"), session.strategy.consensus():
                if session.comm.rank == 0:
                    checkpoint.save_final(session.checkpoints, self._model_state())
                session.comm.barrier(WORLD)
        summary = self._summary(status)
        with clock.within("log"):
            session.own.write({"kind": "segments", **self._where(), **self._times()})
            if session.metrics is not None:
                session.metrics.write({"kind": "summary", **self._where(), **summary, **self._times()})
        return Result(status, reason, {**summary, **self._times()})

    def _summary(self, status: str) -> dict[str, Any]:
        session, account, config, progress = self.s, self.account, self.s.config, self.s.progress
        totals = session.comm.traffic.totals()
        own = torch.tensor([totals[name][link] for name in totals for link in ("intra", "inter")])
        sums = self._gather(own).sum(0).tolist()
        traffic = {name: dict(zip(("intra", "inter"), sums[2 * i :], strict=False)) for i, name in enumerate(totals)}
        target, metric = config.train.target, config.train.target_metric
        met = None if target is None else crossing(account.evaluations, target, metric=metric)
        finals = [row["accuracy"] for row in account.evaluations]
        return {
            "status": status, "target": target, "reached": None if target is None else met is not None,
            "to_target_train_s": met.stamp_s if met else None, "to_target_wall_s": met.wall_s if met else None,
            "to_target_samples": met.stamp_samples if met else None, "crossing_s": met.scored_s if met else None,
            "final_accuracy": finals[-1] if finals and status != "diverged" else None,
            "best_accuracy": max(finals, default=None),
            "train_s": account.train_ns / 1e9,
            "samples_per_s": progress.samples / account.train_ns * 1e9 if account.train_ns else None,
            "parts_s": self._seconds(account.parts_ns), **traffic,
            "steps": progress.step, "epochs": progress.epoch, "evaluations": len(finals),
            "parameters": session.replica.numel, "left_out_samples": session.sampler.left_out,
            "labels": session.strategy.labels(account.target_step) + self._limits(),
            "strategy": session.strategy.summary(), "collectives": dict(session.comm.traffic.verbs),
        }

    def _limits(self) -> list[str]:
        limit = self.s.config.train.max_steps
        cut = limit is not None and self.s.progress.step >= limit and self.s.progress.epoch < self.s.progress.epochs
        return [f"stopped by train.max_steps={limit}"] if cut else []

    def _times(self) -> dict[str, Any]:
        segments = self.s.clock.closed()
        total = sum(segments.values()) + self.account.process_before_ns
        return {
            "segments_s": self._seconds(segments), "wall_s": self.s.clock.total() / 1e9, "process_s": total / 1e9,
            "startup_s": segments["startup"] / 1e9,
        }

    def _where(self) -> dict[str, Any]:
        progress = self.s.progress
        return {"attempt": self.s.attempt, "step": progress.step, "epoch": progress.epoch, "samples": progress.samples}

    def _rate_since_evaluation(self) -> float | None:
        account, samples = self.account, self.s.progress.samples
        done, took = samples - account.samples_evaluated, account.train_ns - account.train_evaluated_ns
        account.samples_evaluated, account.train_evaluated_ns = samples, account.train_ns
        return done / took * 1e9 if took else None

    @staticmethod
    def _seconds(nanoseconds: dict[str, int]) -> dict[str, float]:
        return {name: value / 1e9 for name, value in nanoseconds.items()}
