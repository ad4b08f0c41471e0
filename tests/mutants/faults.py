# ruff: noqa: E501 (what is replaced stands here as it stands in the code)
"""The faults that `make mutants` plants: one replacement each.

Faults of strategies must be found by the proofs of the strategy (`tests/conformance/`) or by its contract.
Faults of the train loop, and those that no proof can see, name the `test` that must fail.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in `file` and is replaced by `new`.

    strategy: what is proven and checked; with `test`, what the fault is in. file: a path in the package, or a
    name in strategies/. timing: it changes no number that is trained, but calls, bytes or virtual time. test:
    the pytest node that must fail, instead of a proof.
    """

    name: str
    strategy: str
    file: str
    old: str
    new: str
    timing: bool
    test: str

    def path(self, package: Path) -> Path:
        """The file in a copy of the package."""
        return package / (self.file if "/" in self.file else f"strategies/{self.file}")

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


REPLACEMENTS: dict[str, dict[str, dict[str, tuple[str, str]]]] = {
    "ddp": {
        "gradients.py": {
            "unweighted gradients": (
                "return [n / total for n in samples]",
                "return [1 / len(samples) for n in samples]",
            ),
            "uniform counts idle ranks": (
                "active = sum(n > 0 for n in samples)",
                "active = 1 + sum(n > 0 for n in samples)",
            ),
        },
        "reductions.py": {
            "hierarchical skips the leaders": (
                'yield comm.all_reduce(bucket, LEADERS, channel="gradients", async_op=True) if leads else None',
                "yield None",
            ),
            "hierarchical broadcasts from the last rank": (
                'comm.broadcast(bucket, 0, NODE, channel="gradients", async_op=True)',
                'comm.broadcast(bucket, len(comm.members(NODE)) - 1, NODE, channel="gradients", async_op=True)',
            ),
            "powersgd forgets its errors": (
                "self.errors[index] = kept",
                "self.errors[index] = [torch.zeros_like(e) for e in kept]",
            ),
            "powersgd divides its errors wrongly": (
                "torch.sub(matrix, low, alpha=1 / comm.topology.ranks)",
                "torch.sub(matrix, low)",
            ),
            "half precision keeps full precision": (
                "narrow = bucket.to(self.dtype)",
                "narrow = bucket.clone()",
            ),
        },
        "ddp.py": {
            "buckets of another size": (
                "            bucket_mib=config.bucket_mib,\n",
                "            bucket_mib=2 * config.bucket_mib,\n",
            ),
            "overlap is off": ("            overlap=config.overlap,\n", "            overlap=False,\n"),
        },
        "base.py": {
            "deferred copies keep their buffers": (
                '            self.comm.all_reduce(total, WORLD, channel="parameters").wait()\n            return total / self.comm.topology.ranks\n',
                '            mean = total[: self.replica.numel].clone()\n            self.comm.all_reduce(mean, WORLD, channel="parameters").wait()\n            total[: self.replica.numel] = mean / self.comm.topology.ranks\n            return total\n',
            ),
        },
    },
    "placebo": {
        "placebo.py": {
            "placebo takes ddp's pieces": ("piece_shift = 1", "piece_shift = 0"),
        },
    },
    "daso": {
        "daso.py": {
            "staleness weight without the batches waited": (
                "weight = self.config.staleness_weight * waited",
                "weight = self.config.staleness_weight",
            ),
            "merge divides by ranks": (
                "merged = (weight * model + total) / (weight + self.nodes)",
                "merged = (weight * model + total) / (weight + self.comm.topology.ranks)",
            ),
            "merge before start": (
                "if batch % period == 0 and batch + wait < last:",
                "if batch % period == 0 and batch + wait < last and not self.pending:",
            ),
            "period off by one": (
                "if batch % period == 0 and batch + wait < last:",
                "if (batch + 1) % period == 0 and batch + wait < last:",
            ),
            "groups do not rotate": ("(self.active + 1) % self.ranks_per_node", "self.active"),
            "sends the live parameters": (
                "            transfer.buffer = self._filled(self.replica.flat)\n",
                "            transfer.buffer = self._filled(self.replica.flat) * 0.5 + 0.5 * self._filled(lambda out: self.replica.flat(out).add_(1e-3))\n",
            ),
            "a pending transfer is not saved": (
                'for start, due, q, buffer in state["pending"]]',
                'for start, due, q, buffer in state["pending"][:0]]',
            ),
            "buffers are not averaged": (
                '        if batch == last and self.config.buffers != "none":\n',
                "        if False:\n",
            ),
            "stop request forgotten when a sum passes": (
                "        self.comm.write_stop_flag(flat[-1], self.stop_requested or self.replica.stop_requested)",
                "        self.comm.write_stop_flag(flat[-1], self.replica.stop_requested)",
            ),
            "a plateau overwrites the best loss": (
                "        self.bad_epochs = 0\n        if self.sync_every == 1:\n",
                "        self.best, self.bad_epochs = loss, 0\n        if self.sync_every == 1:\n",
            ),
            "a bad epoch overwrites the best loss": (
                "        self.bad_epochs += 1\n",
                "        self.best = loss\n        self.bad_epochs += 1\n",
            ),
            "bad epochs are forgotten in a resume": (
                'self.rule = PlateauRule(self.config, *state["rule"])',
                'self.rule = PlateauRule(self.config, *state["rule"][:3])',
            ),
            "the best loss is forgotten in a resume": (
                'self.rule = PlateauRule(self.config, *state["rule"])',
                'self.rule = PlateauRule(self.config, *state["rule"][:2], bad_epochs=state["rule"][3])',
            ),
            "merge waits where it starts": (
                "            transfer.work = self.comm.all_reduce(transfer.buffer, peers(q), async_op=True)",
                "            transfer.work = self.comm.all_reduce(transfer.buffer, peers(q), async_op=True)\n            transfer.work.wait()",
            ),
            "evaluated in the middle of an epoch": ("        return self.equal\n", "        return True\n"),
            "a barrier in every step": (
                "        self.steps_of_phase[phase] += 1\n",
                "        self.steps_of_phase[phase] += 1\n        self.comm.barrier(WORLD)\n",
            ),
        },
    },
    "hsgd": {
        "hsgd.py": {
            "node sum without weights": (
                "weights = [samples[rank] / total for rank in self.comm.members(NODE)]",
                "weights = [1 / len(samples) for rank in self.comm.members(NODE)]",
            ),
            "last column left out": (
                "return [(min(k * block, width), min((k + 1) * block, width)) for k in range(workers)]",
                "return [(min(k * block, width), min((k + 1) * block, width - 1)) for k in range(workers)]",
            ),
            "clipping by the own part alone": (
                "norm = math.sqrt(sum(self.squares.tolist()))",
                "norm = math.sqrt(self.squares[self.local].item())",
            ),
            "no barrier before the weights are read": ('        self._meet("4", self._behind_sums)\n', ""),
            "one barrier more": (
                '        self._meet("2")  # the node\'s sum is complete\n',
                '        self._meet("2")  # the node\'s sum is complete\n        self._meet("2")\n',
            ),
        },
        "replica.py": {
            "clips each rank's own gradient": (
                "        if self._bound_clip is not None:\n",
                "        if self._bound_clip is None and self._bound_gradients is not None:\n",
            ),
        },
    },
    "lasgd": {
        "lasgd.py": {
            "plain overwrite": ("        if steps == 0:\n", "        if True:\n"),
            "half of the correction": (
                "            model += mean - self.copy\n",
                "            model += 0.5 * (mean - self.copy)\n",
            ),
            "mean over one worker too many": (
                "self.mean = flight.sent.div_(self.workers)\n",
                "self.mean = flight.sent.div_(self.workers + 1)\n",
            ),
            "samples counted half": (
                "self.total, self.total_steps, _, stop_flags = self.control.tolist()\n",
                "self.total, self.total_steps, _, stop_flags = self.control.tolist()\n        self.total //= 2\n",
            ),
            "last model is not averaged": (
                "        self._average()\n        self.equal = True\n",
                "        self.equal = True\n",
            ),
            "deferred copies without buffers": (
                "        if self.copies_are_whole:\n            self.rides = True\n",
                "        if self.copies_are_whole:\n",
            ),
            "applied one step late": (
                "if self.flight is not None and self.flight.arrived():",
                "if self.flight is not None and self.flight.steps > 1 and self.flight.arrived():",
            ),
            "waits for its round": (
                "if self.flight is not None and self.flight.arrived():",
                "if self.flight is not None:",
            ),
            "a barrier behind each launch": (
                "        self.launched += 1\n        self.since, self.due = 0, False\n",
                "        self.launched += 1\n        self.comm.barrier(WORLD)\n        self.since, self.due = 0, False\n",
            ),
            "control is sent twice": (
                "for t in (sent, self.control)]",
                "for t in (sent, self.control, self.control.clone())]",
            ),
        },
    },
    "local_sgd": {
        "averaging.py": {
            "period off by one (early)": (
                "        return self.since >= self.period\n",
                "        return self.since >= self.period - 1\n",
            ),
            "period off by one (late)": (
                "        return self.since >= self.period\n",
                "        return self.since > self.period\n",
            ),
            "mean over one rank too many": (
                "        flat /= comm.topology.ranks\n",
                "        flat /= comm.topology.ranks + 1\n",
            ),
            "last round is not averaged": (
                "            self.partial_round = self.since\n            self._average(None)\n",
                "            self.partial_round = self.since\n",
            ),
            "momenta are reset": ('    if policy == "reset":', '    if policy == "keep":'),
            "steps since the average are not saved": ('*("since", "period",', '*("period",'),
            "stop requests are not sent": (
                "        self.comm.write_stop_flag(flat[-1], self.stop_requested or self.replica.stop_requested)",
                "        flat[-1].fill_(0.0)",
            ),
            "buffers stay at home": (
                'self.buffers_ride = mean is None and self.config.buffers == "average"',
                "self.buffers_ride = False",
            ),
            "momenta are mixed before the average in finish": (
                "        if self.since:\n            self.partial_round = self.since\n",
                "        if self.since:\n            mix_optimizer_state(self.replica, self.config.optimizer_state, self.everybody)\n            self.partial_round = self.since\n",
            ),
            "averages twice": (
                "        self.mean(flat)\n        mean = flat[:m]\n",
                "        self.mean(flat)\n        self.mean(flat)\n        mean = flat[:m]\n",
            ),
        },
        "local_sgd.py": {
            "qsr without the square": (
                "math.floor((alpha / rate) ** 2 * (1 + 1e-12))",
                "math.floor((alpha / rate) * (1 + 1e-12))",
            ),
            "qsr forgets its rate in a resume": (
                '(*PeriodicStrategy.remembers, "rate")',
                "PeriodicStrategy.remembers",
            ),
        },
    },
    "slowmo": {
        "averaging.py": {
            "a barrier before each average": (
                "        self.mean(flat)\n        mean = flat[:m]\n",
                "        self.comm.barrier(WORLD)\n        self.mean(flat)\n        mean = flat[:m]\n",
            ),
        },
        "slowmo.py": {
            "slow momentum without the learning rate": (
                ".add_((start - mean) / rate)",
                ".add_(start - mean)",
            ),
            "slow step from the mean": ("        start.copy_(mean)\n", ""),
            "slow step with the last step's rate": (
                "rate, self.rates = self.rates / self.since, 0.0",
                'rate, self.rates = float(self.replica.optimizer.param_groups[0]["lr"]), 0.0',
            ),
        },
    },
    "post_local_sgd": {
        "post_local_sgd.py": {
            "switches a step late": (
                "progress.samples >= self.switch_samples:",
                "progress.samples > self.switch_samples:",
            ),
            "stays synchronous after a restart": (
                "        self._average_over(WORLD if self.switched_after is None else self.local_group)\n",
                "        self._average_over(WORLD)\n",
            ),
        },
    },
    "ednncomm": {
        "averaging.py": {
            "leaders are not weighted": (
                "        flat *= len(comm.members(NODE)) / comm.topology.ranks if weight is None else weight\n",
                "        flat /= comm.topology.nodes\n",
            ),
        },
        "ednncomm.py": {
            "no exchange at the end of an epoch": (
                "return self.since >= self.period or epoch_ends",
                "return self.since >= self.period",
            ),
            "gradients over the world": (
                "replica.average_gradients_over(NODE, ",
                "replica.average_gradients_over(WORLD, ",
            ),
            "slices without weight": (
                "piece = flat[q * size : (q + 1) * size] * weight",
                "piece = flat[q * size : (q + 1) * size] * 1.0",
            ),
        },
    },
    "diloco": {
        "diloco.py": {
            "outer step the wrong way": ("        theta -= step\n", "        theta += step\n"),
            "outer momentum without Nesterov": (
                "step = config.outer_lr * (delta + config.outer_momentum * momentum)",
                "step = config.outer_lr * momentum",
            ),
            "outer momentum is not saved": ('"momentum", "outer_norms")', '"outer_norms")'),
        },
    },
    "sgp": {
        "sgp.py": {
            "keeps too much": (
                "        kept = share * (1 + counts[0])\n",
                "        kept = 2 * share * (1 + counts[0])\n",
            ),
            "always the same peers": ("self.cycle[self.steps % len(self.cycle)]", "self.cycle[0]"),
            "last model is one rank's": (
                "            self._load(self._assemble(self._parts()))\n            self.weight, self.numerator = 1.0, None\n",
                "            self.weight, self.numerator = 1.0, None\n",
            ),
            "heeds a stop request too early": (
                "self.steps < self.first_stop_request + self.reach",
                "self.steps < self.first_stop_request + self.reach - 1",
            ),
            "an average in every step": (
                "        if self.ranks > 1:\n            self._gossip()\n",
                "        if self.ranks > 1:\n            self._gossip()\n            self.comm.all_reduce(torch.zeros(1), WORLD).wait()\n",
            ),
        },
    },
    "heterogeneous": {
        "heterogeneous.py": {
            "weights divided by the ranks again": (
                "            return by_samples(samples)\n",
                "            return [w / len(samples) for w in by_samples(samples)]\n",
            ),
            "uniform instead of samples": (
                "            return by_samples(samples)\n",
                "            return uniform(samples)\n",
            ),
            "speed without idle ranks": (
                "active = sum(part for part, n in zip(self.parts, samples, strict=True) if n)",
                "active = sum(self.parts) * 2",
            ),
            "shares are not saved": ('*("batches", "parts",', '*("parts",'),
            "buffers with equal weights": (
                "return self.trained[self.comm.rank] / sum(self.trained) if self.trained else 1 / self.ranks",
                "return 1 / self.ranks",
            ),
            "the calibration counts its warm-up": (
                "seconds += self.replica.time_steps(size, WARMUP_STEPS + steps)[WARMUP_STEPS:]",
                "seconds += self.replica.time_steps(size, WARMUP_STEPS + steps)[:steps]",
            ),
        },
    },
    "loop": {
        "runner/training/trainer.py": {
            "the learning rate is one step late": (
                '        context.state.learning_rate = context.config.optimizer.lr * factor\n        for group in context.replica.optimizer.param_groups:\n            group["lr"] = context.state.learning_rate\n',
                '        late, context.state.learning_rate = context.state.learning_rate, context.config.optimizer.lr * factor\n        for group in context.replica.optimizer.param_groups:\n            group["lr"] = late\n',
            ),
            "the schedule counts twice": (
                "state.learning_rate = context.config.optimizer.lr * factor\n",
                "state.learning_rate = context.config.optimizer.lr * factor**2\n",
            ),
            "clips before gradients are final": (
                "        context.strategy.before_step(progress)\n        if context.config.train.clip_norm is not None:\n            replica.clip(context.config.train.clip_norm)\n",
                "        if context.config.train.clip_norm is not None:\n            replica.clip(context.config.train.clip_norm)\n        context.strategy.before_step(progress)\n",
            ),
            "finish is no training time": (
                '        if status == "finished":\n            context.strategy.finalize()\n',
                '        clock.enter("other")\n        if status == "finished":\n            context.strategy.finalize()\n',
            ),
        },
    },
}
"""By strategy (`loop`: the train loop), file and name of the fault: the old text and the new one."""
TIMING = {
    "overlap is off",
    "merge waits where it starts",
    "evaluated in the middle of an epoch",
    "a barrier in every step",
    "no barrier before the weights are read",
    "one barrier more",
    "waits for its round",
    "a barrier behind each launch",
    "control is sent twice",
    "averages twice",
    "a barrier before each average",
    "an average in every step",
    "finish is no training time",
}
TESTS = {
    "the calibration counts its warm-up": "tests/strategies/test_heterogeneous.py::test_calibration_leaves_out_its_warmup_steps",
    "the learning rate is one step late": "tests/runner/training/test_trainer.py::test_each_step_has_its_own_learning_rate",
    "the schedule counts twice": "tests/runner/training/test_trainer.py::test_each_step_has_its_own_learning_rate",
    "clips before gradients are final": "tests/runner/training/test_trainer.py::test_gradients_are_clipped_after_the_strategy_has_changed_them",
    "finish is no training time": "tests/runner/training/test_trainer.py::test_the_last_average_is_training_time",
}
FAULTS = [
    Fault(name, strategy, file, old, new, name in TIMING, TESTS.get(name, ""))
    for strategy, files in REPLACEMENTS.items()
    for file, faults in files.items()
    for name, (old, new) in faults.items()
]
