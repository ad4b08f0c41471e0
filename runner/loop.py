"""The train loop. It names no strategy, and reads like the papers: gradients, step, mix, record."""

from dataclasses import dataclass
from typing import Any

import torch

from ..datasets.sampler import evaluation_indices
from ..strategies.topology import WORLD
from . import checkpoint
from .evaluation import Score, add_scores, score
from .ledger import Ledger
from .session import Session
from .state import restore, snapshot


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
        self.ended: tuple[str, str | None] | None = None
        self.rate = 0.0

    def run(self) -> Result:
        """Train to the end of the schedule, the target, a limit or a wish.

        All ranks leave at the same step.
        """
        session, progress = self.s, self.s.progress
        session.prepare()
        resumed = restore(session, self.ledger.account)
        self.begin(resumed)
        while progress.epoch < progress.epochs and self.ended is None:
            self.step()
            self.after_step()
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

    def after_step(self) -> None:
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
            step=progress.step,
            steps=progress.steps,
            epoch=progress.epoch,
            epochs=progress.epochs,
            samples=progress.samples,
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
            sums = torch.stack(
                [session.epoch_losses, session.epoch_losses.new_tensor(session.epoch_samples)]
            ).cpu()
            session.comm.all_reduce(sums, WORLD, channel="control").wait()
            progress.epoch_loss = (sums[0] / sums[1]).item()
        session.strategy.after_epoch(progress)
        session.clock.lap("step_other")
        with session.clock.within("log"):
            row = {
                "kind": "epoch",
                **self.ledger.where(),
                "learning_rate": self.rate,
                "train_loss": progress.epoch_loss,
            }
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
        return (self.ledger.account.train_ns + here) / 1e9 > limit

    def _wishes_something(self) -> bool:
        return self.s.listener.interrupted() is not None or self._out_of_time()

    def _heed_wishes(self) -> bool:
        """All ranks know that some rank wishes something; ask everybody what. True if the run ends here."""
        own = [not bool(self.s.finite), self.s.listener.interrupted() is not None, self._out_of_time()]
        wishes = torch.tensor(own, dtype=torch.int64)
        self.s.comm.all_reduce(wishes, WORLD, channel="control").wait()
        not_finite, interrupted, out_of_time = (bool(count) for count in wishes.tolist())
        if not_finite:
            self.ended = (
                "diverged",
                f"the training loss is not finite (found at step {self.s.progress.step})",
            )
        elif interrupted or out_of_time:
            self._save()
            limit = self.s.config.train.max_seconds
            self.ended = (
                ("cancelled", "interrupted") if interrupted else ("timed_out", f"train.max_seconds={limit}")
            )
        return self.ended is not None

    # ------------------------------------------------------------------ evaluation and checkpoints

    def _evaluate(self) -> None:
        session, clock = self.s, self.s.clock
        session.strategy.settle()  # waiting for what is in flight is training
        clock.lap("step_other")
        before = dict(clock.segments)
        clock.enter("make_model")
        with session.strategy.consensus():
            clock.enter("eval")
            made = clock.segments["make_model"] - before["make_model"]
            total = self._score()
        made = self.ledger.close_stretch(made)
        train_loss = self.ledger.train_loss()
        session.comm.barrier(WORLD)
        clock.enter("log")
        row = self._evaluation_row(total, train_loss, made, clock.segments["eval"] - before["eval"])
        self.ledger.account.evaluations.append(row)
        if session.metrics is not None:
            session.metrics.write(row)
        session.listener.progress(
            loss=train_loss, accuracy=total.accuracy, samples_per_s=row["samples_per_s"]
        )
        self._judge(row["reached"])
        clock.enter("train")
        self._stretch_started = clock.total()

    def _evaluation_row(self, total: Score, train_loss: float, made: int, took: int) -> dict[str, Any]:
        account, config = self.ledger.account, self.s.config.train
        reached = None
        if config.target is not None:
            reached = total.reaches(config.target, config.target_metric)
        return {
            "kind": "evaluation",
            **self.ledger.where(),
            "index": len(account.evaluations),
            "split": config.eval_split,
            "accuracy": total.accuracy,
            "correct": total.correct,
            "count": total.count,
            "loss": total.loss,
            "train_loss": train_loss,
            "train_s": (account.train_ns + made) / 1e9,
            "wall_s": (account.wall_before_ns + self.s.clock.total() - self._begun) / 1e9,
            "eval_s": took / 1e9,
            "make_model_s": made / 1e9,
            "learning_rate": self.rate,
            "samples_per_s": self.ledger.rate_since_evaluation(),
            "reached": reached,
        }

    def _score(self) -> Score:
        session = self.s
        samples = session.data.split(session.config.train.eval_split)
        indices = evaluation_indices(len(samples), session.comm.rank, session.comm.topology.ranks)
        own = score(session.replica.model, samples, indices, session.world.device, session.dtype)
        return add_scores(own, session.comm, len(samples))

    def _judge(self, reached: bool | None) -> None:
        """Stop at the target if asked to: decided from global numbers, so by all ranks alike."""
        account, stop = self.ledger.account, self.s.config.train.stop
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
        self.ledger.close_stretch(0)
        with session.strategy.consensus():
            model = self._model_state() if session.comm.rank == 0 else None
        checkpoint.save(
            session.checkpoints,
            session.progress.step,
            session.comm.rank,
            snapshot(session, self.ledger.account, self._begun),
            model,
            lambda: session.comm.barrier(WORLD),
            session.comm.topology.ranks,
        )
        clock.enter("train")
        self._stretch_started = clock.total()

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
        self._begun = self._stretch_started = session.clock.total()

    def _end(self) -> Result:
        session, clock = self.s, self.s.clock
        status, reason = self.ended or ("finished", None)
        if status == "finished":
            session.strategy.finish()
        else:
            session.strategy.settle()
        clock.lap("step_other")
        clock.enter("other")
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
