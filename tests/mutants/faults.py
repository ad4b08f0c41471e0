# ruff: noqa: E501 (what is replaced stands here as it stands in the code)
"""The faults that `make mutants` plants: one replacement each.

Faults of strategies must be found by the proofs of the strategy (`tests/conformance/`) or by its contract.
Faults of the train loop, and those that no proof can see, name the `test` that must fail. `timing` faults
change no number that is trained: they show in calls, bytes and virtual time.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in `file` and is replaced by `new`.

    strategy: what is proven and checked; with `test`, what the fault is in. file: a path in the package, or a
    name in strategies/ (default: the strategy's). test: the pytest node that must fail, instead of a proof.
    """

    name: str
    strategy: str
    old: str
    new: str
    file: str = ""
    timing: bool = False
    test: str = ""

    def path(self, package: Path) -> Path:
        """The file in a copy of the package."""
        name = self.file or f"{self.strategy}.py"
        return package / (name if "/" in name else f"strategies/{name}")

    def plant(self, package: Path) -> None:
        """Change the copy of the package.

        Raises:
            ValueError: the code has changed, and the fault must be written anew.
        """
        path = self.path(package)
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {path.name}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


FAULTS = [
    # ------------------------------------------------------------------ gradients and their sums
    Fault(
        "unweighted gradients",
        "ddp",
        "return [n / total for n in samples]",
        "return [1 / len(samples) for n in samples]",
        "gradients.py",
    ),
    Fault(
        "uniform counts idle ranks",
        "ddp",
        "active = sum(n > 0 for n in samples)",
        "active = 1 + sum(n > 0 for n in samples)",
        "gradients.py",
    ),
    Fault(
        "hierarchical skips the leaders",
        "ddp",
        'yield comm.all_reduce(bucket, LEADERS, channel="gradients", async_op=True) if leads else None',
        "yield None",
        "reductions.py",
    ),
    Fault(
        "hierarchical broadcasts from the last rank",
        "ddp",
        'comm.broadcast(bucket, 0, NODE, channel="gradients", async_op=True)',
        'comm.broadcast(bucket, len(comm.members(NODE)) - 1, NODE, channel="gradients", async_op=True)',
        "reductions.py",
    ),
    Fault(
        "powersgd forgets its errors",
        "ddp",
        "self.errors[index] = kept",
        "self.errors[index] = [torch.zeros_like(e) for e in kept]",
        "reductions.py",
    ),
    Fault(
        "powersgd divides its errors wrongly",
        "ddp",
        "torch.sub(matrix, low, alpha=1 / comm.topology.ranks)",
        "torch.sub(matrix, low)",
        "reductions.py",
    ),
    Fault(
        "half precision keeps full precision",
        "ddp",
        "narrow = bucket.to(self.dtype)",
        "narrow = bucket.clone()",
        "reductions.py",
    ),
    Fault("placebo takes ddp's pieces", "placebo", "piece_shift = 1", "piece_shift = 0"),
    Fault(
        "buckets of another size",
        "ddp",
        "            bucket_mib=config.bucket_mib,\n",
        "            bucket_mib=2 * config.bucket_mib,\n",
    ),
    Fault(
        "overlap is off",
        "ddp",
        "            overlap=config.overlap,\n",
        "            overlap=False,\n",
        timing=True,
    ),
    Fault(
        "deferred copies keep their buffers",
        "ddp",
        '            self.comm.all_reduce(total, WORLD, channel="parameters").wait()\n            return total / self.comm.topology.ranks\n',
        '            mean = total[: self.replica.numel].clone()\n            self.comm.all_reduce(mean, WORLD, channel="parameters").wait()\n            total[: self.replica.numel] = mean / self.comm.topology.ranks\n            return total\n',
        "base.py",
    ),
    # ------------------------------------------------------------------ daso
    Fault(
        "staleness weight without the batches waited",
        "daso",
        "weight = self.config.staleness_weight * waited",
        "weight = self.config.staleness_weight",
    ),
    Fault(
        "merge divides by ranks",
        "daso",
        "merged = (weight * model + total) / (weight + self.nodes)",
        "merged = (weight * model + total) / (weight + self.comm.topology.ranks)",
    ),
    Fault(
        "merge before start",
        "daso",
        "if batch % period == 0 and batch + wait < last:",
        "if batch % period == 0 and batch + wait < last and not self.pending:",
    ),
    Fault(
        "period off by one",
        "daso",
        "if batch % period == 0 and batch + wait < last:",
        "if (batch + 1) % period == 0 and batch + wait < last:",
    ),
    Fault("groups do not rotate", "daso", "(self.active + 1) % self.ranks_per_node", "self.active"),
    Fault(
        "sends the live parameters",
        "daso",
        "            transfer.buffer = self._filled(self.replica.flat)\n",
        "            transfer.buffer = self._filled(self.replica.flat) * 0.5 + 0.5 * self._filled(lambda out: self.replica.flat(out).add_(1e-3))\n",
    ),
    Fault(
        "a pending transfer is not saved",
        "daso",
        'for start, due, q, buffer in state["pending"]]',
        'for start, due, q, buffer in state["pending"][:0]]',
    ),
    Fault(
        "buffers are not averaged",
        "daso",
        '        if batch == last and self.config.buffers != "none":\n',
        "        if False:\n",
    ),
    Fault(
        "stop request forgotten when a sum passes",
        "daso",
        "        flat[-1].fill_(float(self.stop_requested or self.replica.stop_requested))",
        "        flat[-1].fill_(float(self.replica.stop_requested))",
    ),
    Fault(
        "a plateau overwrites the best loss",
        "daso",
        "        self.bad_epochs = 0\n        if self.sync_every == 1:\n",
        "        self.best, self.bad_epochs = loss, 0\n        if self.sync_every == 1:\n",
    ),
    Fault(
        "a bad epoch overwrites the best loss",
        "daso",
        "        self.bad_epochs += 1\n",
        "        self.best = loss\n        self.bad_epochs += 1\n",
    ),
    Fault(
        "bad epochs are forgotten in a resume",
        "daso",
        'self.rule = PlateauRule(self.config, *state["rule"])',
        'self.rule = PlateauRule(self.config, *state["rule"][:3])',
    ),
    Fault(
        "the best loss is forgotten in a resume",
        "daso",
        'self.rule = PlateauRule(self.config, *state["rule"])',
        'self.rule = PlateauRule(self.config, *state["rule"][:2], bad_epochs=state["rule"][3])',
    ),
    Fault(
        "merge waits where it starts",
        "daso",
        "            transfer.work = self.comm.all_reduce(transfer.buffer, peers(q), async_op=True)",
        "            transfer.work = self.comm.all_reduce(transfer.buffer, peers(q), async_op=True)\n            transfer.work.wait()",
        timing=True,
    ),
    Fault(
        "evaluated in the middle of an epoch",
        "daso",
        "        return self.equal\n",
        "        return True\n",
        timing=True,
    ),
    Fault(
        "a barrier in every step",
        "daso",
        "        self.steps_of_phase[phase] += 1\n",
        "        self.steps_of_phase[phase] += 1\n        self.comm.barrier(WORLD)\n",
        timing=True,
    ),
    # ------------------------------------------------------------------ hsgd
    Fault(
        "node sum without weights",
        "hsgd",
        "weights = [samples[rank] / total for rank in self.comm.members(NODE)]",
        "weights = [1 / len(samples) for rank in self.comm.members(NODE)]",
    ),
    Fault(
        "last column left out",
        "hsgd",
        "return [(min(k * block, width), min((k + 1) * block, width)) for k in range(workers)]",
        "return [(min(k * block, width), min((k + 1) * block, width - 1)) for k in range(workers)]",
    ),
    Fault(
        "clips each rank's own gradient",
        "hsgd",
        "        if self._bound_clip is not None:\n",
        "        if self._bound_clip is None and self._bound_gradients is not None:\n",
        "replica.py",
    ),
    Fault(
        "clipping by the own part alone",
        "hsgd",
        "norm = math.sqrt(sum(self.squares.tolist()))",
        "norm = math.sqrt(self.squares[self.local].item())",
    ),
    Fault(
        "no barrier before the weights are read",
        "hsgd",
        '        self._meet("4", self._behind_sums)\n',
        "",
        timing=True,
    ),
    Fault(
        "one barrier more",
        "hsgd",
        '        self._meet("2")  # the node\'s sum is complete\n',
        '        self._meet("2")  # the node\'s sum is complete\n        self._meet("2")\n',
        timing=True,
    ),
    # ------------------------------------------------------------------ lasgd
    Fault("plain overwrite", "lasgd", "        if steps == 0:\n", "        if True:\n"),
    Fault(
        "half of the correction",
        "lasgd",
        "            model += mean - self.copy\n",
        "            model += 0.5 * (mean - self.copy)\n",
    ),
    Fault(
        "mean over one worker too many",
        "lasgd",
        "self.mean = flight.sent.div_(self.workers)\n",
        "self.mean = flight.sent.div_(self.workers + 1)\n",
    ),
    Fault(
        "samples counted half",
        "lasgd",
        "self.total, self.total_steps, _, stop_flags = self.control.tolist()\n",
        "self.total, self.total_steps, _, stop_flags = self.control.tolist()\n        self.total //= 2\n",
    ),
    Fault(
        "last model is not averaged",
        "lasgd",
        "        self._average()\n        self.equal = True\n",
        "        self.equal = True\n",
    ),
    Fault(
        "deferred copies without buffers",
        "lasgd",
        "        if self.copies_are_whole:\n            self.rides = True\n",
        "        if self.copies_are_whole:\n",
    ),
    Fault(
        "applied one step late",
        "lasgd",
        "if self.flight is not None and self.flight.arrived():",
        "if self.flight is not None and self.flight.steps > 1 and self.flight.arrived():",
    ),
    Fault(
        "waits for its round",
        "lasgd",
        "if self.flight is not None and self.flight.arrived():",
        "if self.flight is not None:",
        timing=True,
    ),
    Fault(
        "a barrier behind each launch",
        "lasgd",
        "        self.launched += 1\n        self.since, self.due = 0, False\n",
        "        self.launched += 1\n        self.comm.barrier(WORLD)\n        self.since, self.due = 0, False\n",
        timing=True,
    ),
    Fault(
        "control is sent twice",
        "lasgd",
        "for t in (sent, self.control)]",
        "for t in (sent, self.control, self.control.clone())]",
        timing=True,
    ),
    # ------------------------------------------------------------------ periodic averages
    Fault(
        "period off by one (early)",
        "local_sgd",
        "        return self.since >= self.period\n",
        "        return self.since >= self.period - 1\n",
        "averaging.py",
    ),
    Fault(
        "period off by one (late)",
        "local_sgd",
        "        return self.since >= self.period\n",
        "        return self.since > self.period\n",
        "averaging.py",
    ),
    Fault(
        "mean over one rank too many",
        "local_sgd",
        "        flat /= comm.topology.ranks\n",
        "        flat /= comm.topology.ranks + 1\n",
        "averaging.py",
    ),
    Fault(
        "last round is not averaged",
        "local_sgd",
        "            self.partial_round = self.since\n            self._average(None)\n",
        "            self.partial_round = self.since\n",
        "averaging.py",
    ),
    Fault(
        "momenta are reset",
        "local_sgd",
        '    if policy == "reset":',
        '    if policy == "keep":',
        "averaging.py",
    ),
    Fault(
        "steps since the average are not saved",
        "local_sgd",
        '*("since", "period",',
        '*("period",',
        "averaging.py",
    ),
    Fault(
        "stop requests are not sent",
        "local_sgd",
        "        flat[-1].fill_(float(self.stop_requested or self.replica.stop_requested))",
        "        flat[-1].fill_(0.0)",
        "averaging.py",
    ),
    Fault(
        "buffers stay at home",
        "local_sgd",
        'self.buffers_ride = mean is None and self.config.buffers == "average"',
        "self.buffers_ride = False",
        "averaging.py",
    ),
    Fault(
        "qsr without the square",
        "local_sgd",
        "math.floor((alpha / rate) ** 2 * (1 + 1e-12))",
        "math.floor((alpha / rate) * (1 + 1e-12))",
    ),
    Fault(
        "qsr forgets its rate in a resume",
        "local_sgd",
        '(*PeriodicStrategy.remembers, "rate")',
        "PeriodicStrategy.remembers",
    ),
    Fault(
        "momenta are mixed before the average in finish",
        "local_sgd",
        "        if self.since:\n            self.partial_round = self.since\n",
        "        if self.since:\n            mix_optimizer_state(self.replica, self.config.optimizer_state, self.everybody)\n            self.partial_round = self.since\n",
        "averaging.py",
    ),
    Fault(
        "averages twice",
        "local_sgd",
        "        self.mean(flat)\n        mean = flat[:m]\n",
        "        self.mean(flat)\n        self.mean(flat)\n        mean = flat[:m]\n",
        "averaging.py",
        timing=True,
    ),
    Fault(
        "a barrier before each average",
        "slowmo",
        "        self.mean(flat)\n        mean = flat[:m]\n",
        "        self.comm.barrier(WORLD)\n        self.mean(flat)\n        mean = flat[:m]\n",
        "averaging.py",
        timing=True,
    ),
    Fault(
        "switches a step late",
        "post_local_sgd",
        "progress.samples >= self.switch_samples:",
        "progress.samples > self.switch_samples:",
    ),
    Fault(
        "stays synchronous after a restart",
        "post_local_sgd",
        "        self._average_over(WORLD if self.switched_after is None else self.local_group)\n",
        "        self._average_over(WORLD)\n",
    ),
    Fault(
        "leaders are not weighted",
        "ednncomm",
        "        flat *= len(comm.members(NODE)) / comm.topology.ranks if weight is None else weight\n",
        "        flat /= comm.topology.nodes\n",
        "averaging.py",
    ),
    Fault(
        "no exchange at the end of an epoch",
        "ednncomm",
        "return self.since >= self.period or epoch_ends",
        "return self.since >= self.period",
    ),
    Fault(
        "gradients over the world",
        "ednncomm",
        "replica.average_gradients_over(NODE, ",
        "replica.average_gradients_over(WORLD, ",
    ),
    Fault(
        "slices without weight",
        "ednncomm",
        "piece = flat[q * size : (q + 1) * size] * weight",
        "piece = flat[q * size : (q + 1) * size] * 1.0",
    ),
    Fault("outer step the wrong way", "diloco", "        theta -= step\n", "        theta += step\n"),
    Fault(
        "outer momentum without Nesterov",
        "diloco",
        "step = config.outer_lr * (delta + config.outer_momentum * momentum)",
        "step = config.outer_lr * momentum",
    ),
    Fault("outer momentum is not saved", "diloco", '"momentum", "outer_norms")', '"outer_norms")'),
    Fault(
        "slow momentum without the learning rate",
        "slowmo",
        ".add_((start - mean) / rate)",
        ".add_(start - mean)",
    ),
    Fault("slow step from the mean", "slowmo", "        start.copy_(mean)\n", ""),
    Fault(
        "slow step with the last step's rate",
        "slowmo",
        "rate, self.rates = self.rates / self.since, 0.0",
        'rate, self.rates = float(self.replica.optimizer.param_groups[0]["lr"]), 0.0',
    ),
    # ------------------------------------------------------------------ gossip
    Fault(
        "keeps too much",
        "sgp",
        "        kept = share * (1 + counts[0])\n",
        "        kept = 2 * share * (1 + counts[0])\n",
    ),
    Fault("always the same peers", "sgp", "self.cycle[self.steps % len(self.cycle)]", "self.cycle[0]"),
    Fault(
        "last model is one rank's",
        "sgp",
        "            self._load(self._assemble(self._parts()))\n            self.weight, self.numerator = 1.0, None\n",
        "            self.weight, self.numerator = 1.0, None\n",
    ),
    Fault(
        "heeds a stop request too early",
        "sgp",
        "self.steps < self.first_stop_request + self.reach",
        "self.steps < self.first_stop_request + self.reach - 1",
    ),
    Fault(
        "an average in every step",
        "sgp",
        "        if self.ranks > 1:\n            self._gossip()\n",
        "        if self.ranks > 1:\n            self._gossip()\n            self.comm.all_reduce(torch.zeros(1), WORLD).wait()\n",
        timing=True,
    ),
    # ------------------------------------------------------------------ heterogeneous
    Fault(
        "weights divided by the ranks again",
        "heterogeneous",
        "            return by_samples(samples)\n",
        "            return [w / len(samples) for w in by_samples(samples)]\n",
    ),
    Fault(
        "uniform instead of samples",
        "heterogeneous",
        "            return by_samples(samples)\n",
        "            return uniform(samples)\n",
    ),
    Fault(
        "speed without idle ranks",
        "heterogeneous",
        "active = sum(part for part, n in zip(self.parts, samples, strict=True) if n)",
        "active = sum(self.parts) * 2",
    ),
    Fault(
        "shares are not saved",
        "heterogeneous",
        '*("batches", "parts",',
        '*("parts",',
    ),
    Fault(
        "buffers with equal weights",
        "heterogeneous",
        "return self.trained[self.comm.rank] / sum(self.trained) if self.trained else 1 / self.ranks",
        "return 1 / self.ranks",
    ),
    Fault(
        "the calibration counts its warm-up",
        "heterogeneous",
        "seconds += self.replica.time_steps(size, WARMUP_STEPS + steps)[WARMUP_STEPS:]",
        "seconds += self.replica.time_steps(size, WARMUP_STEPS + steps)[:steps]",
        test="tests/strategies/test_heterogeneous.py::test_calibration_leaves_out_its_warmup_steps",
    ),
    # ------------------------------------------------------------------ the train loop
    Fault(
        "the learning rate is one step late",
        "loop",
        '        context.state.learning_rate = context.config.optimizer.lr * factor\n        for group in context.replica.optimizer.param_groups:\n            group["lr"] = context.state.learning_rate\n',
        '        late, context.state.learning_rate = context.state.learning_rate, context.config.optimizer.lr * factor\n        for group in context.replica.optimizer.param_groups:\n            group["lr"] = late\n',
        "runner/training/trainer.py",
        test="tests/runner/training/test_trainer.py::test_each_step_has_its_own_learning_rate",
    ),
    Fault(
        "the schedule counts twice",
        "loop",
        "state.learning_rate = context.config.optimizer.lr * factor\n",
        "state.learning_rate = context.config.optimizer.lr * factor**2\n",
        "runner/training/trainer.py",
        test="tests/runner/training/test_trainer.py::test_each_step_has_its_own_learning_rate",
    ),
    Fault(
        "clips before gradients are final",
        "loop",
        "        context.strategy.before_step(progress)\n        if context.config.train.clip_norm is not None:\n            replica.clip(context.config.train.clip_norm)\n",
        "        if context.config.train.clip_norm is not None:\n            replica.clip(context.config.train.clip_norm)\n        context.strategy.before_step(progress)\n",
        "runner/training/trainer.py",
        test="tests/runner/training/test_trainer.py::test_gradients_are_clipped_after_the_strategy_has_changed_them",
    ),
    Fault(
        "finish is no training time",
        "loop",
        '        if status == "finished":\n            context.strategy.finalize()\n',
        '        clock.enter("other")\n        if status == "finished":\n            context.strategy.finalize()\n',
        "runner/training/trainer.py",
        timing=True,
        test="tests/runner/training/test_trainer.py::test_the_last_average_is_training_time",
    ),
]
