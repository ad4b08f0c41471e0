"""Troubles that users of distributed training reported, tried on every strategy (letters: the case)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Linear, drive  # pyright: ignore[reportMissingImports] (on the path by conftest.py)
from runs import NAMES, PERIODS, Awkward, Blobs, Dies, config, dies_after, strategy_class
from torch import Tensor

from daso_bench.models.spec import InputSpec
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.evaluation import score
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.errors import ConfigError

# Replicas are equal after each step: there is nothing to average, and unequal values cannot occur.
SYNCHRONOUS = {"ddp", "heterogeneous", "hsgd", "placebo"}
# Each rank takes steps of its own number.
INDEPENDENT = {"lasgd"}


def run(name: str, *, more: dict[str, Any] | None = None, **keys: Any) -> SimulatedRun:
    """A short run in virtual time on ranks of uneven speed; skipped where it is refused."""
    loop, folder = keys.pop("loop", Trainer), keys.pop("checkpoints", None)
    try:
        cfg = config(name, keys={**PERIODS.get(name, {}), **(more or {})}, **keys)
    except ConfigError as error:
        pytest.skip(f"refused: {error}")
    return simulate(
        cfg, cfg.dataset.load(), step_time=lambda r, n: (r + 2) * 1000, loop=loop, checkpoints=folder
    )


def equal_on_all_ranks(done: SimulatedRun) -> bool:
    first, *others = [torch.cat([s.replica.flat(), s.replica.buffers.pack()]).clone() for s in done.contexts]
    return all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_a17_a_last_batch_of_one_and_batch_norm(name: str):
    """33 images, 2 ranks, batch 16: batches of 16 and 17, nobody gets one sample, nothing is left out."""
    done = run(name, ranks=[1, 1], model=Awkward(), dataset=Blobs(samples=33), epochs=4)
    summary = done.results[0].summary
    assert (summary["status"], summary["left_out_samples"]) == ("finished", 0)
    if name not in INDEPENDENT:
        assert {context.progress.samples for context in done.contexts} == {132}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [[1, 1], [2, 2], [2, 1]])
def test_a22_all_ranks_call_the_same_collectives(name: str, nodes: list[int]):
    """100 samples do not divide by anything here. Virtual time reports a mismatch as a deadlock."""
    done = run(name, ranks=nodes, dataset=Blobs(samples=100), global_batch_size=23)
    if name not in INDEPENDENT:
        assert {context.progress.step for context in done.contexts} == {4 * 5}
    for verb in ("parameters.all_reduce", "gradients.all_reduce", "parameters.send", "control.all_reduce"):
        # Leaders of nodes speak for their node: within a node's place the numbers agree.
        places: dict[int, set[int]] = {}
        for context in done.contexts:
            count = context.comm.traffic.verbs[verb]
            places.setdefault(context.comm.local_rank, set()).add(count)
        for place, counts in places.items():
            assert len(counts) == 1 or nodes == [2, 1], (verb, place, counts)


@dataclass(frozen=True, kw_only=True)
class TwoGroups(SGD):
    """The same optimizer, with the parameters in two groups."""

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Weights in one group, the rest in the other."""
        first, second = [], []
        for parameter in parameters:
            (first if parameter.dim() > 1 else second).append(parameter)
        groups = [{"params": group} for group in (first, second) if group]
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, kw_only=True)
class OneGroup(SGD):
    """The same kernels as `TwoGroups`."""

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """All parameters in one group."""
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


@pytest.mark.parametrize("name", NAMES)
def test_a23_a_step_is_a_step_however_many_parameter_groups_there_are(name: str):
    first, second = (run(name, optimizer=kind(), epochs=5) for kind in (OneGroup, TwoGroups))
    for mine, theirs in zip(first.contexts, second.contexts, strict=True):
        assert mine.comm.traffic.verbs == theirs.comm.traffic.verbs
        assert torch.equal(mine.replica.flat(), theirs.replica.flat())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INDEPENDENT])
@pytest.mark.parametrize("every", [3, 7])
def test_a24_a_restart_changes_nothing(name: str, every: int, tmp_path: Path):
    """Periods, phases, momenta, and what was in flight: the run goes on as if it had never died."""
    keys: dict[str, Any] = dict(model=Awkward(), epochs=5, checkpoint_every_samples=16 * every)
    whole = run(name, **keys, checkpoints=tmp_path / "whole")
    with pytest.raises(Dies):
        run(name, **keys, checkpoints=tmp_path / "cut", loop=dies_after(15))
    resumed = run(name, **keys, checkpoints=tmp_path / "cut")
    assert resumed.metrics.rows[0]["step"] == 15 - 15 % every
    for mine, theirs in zip(resumed.contexts, whole.contexts, strict=True):
        assert torch.equal(mine.replica.flat(), theirs.replica.flat())
        assert torch.equal(mine.replica.buffers.pack(), theirs.replica.buffers.pack())
        for verb, count in theirs.comm.traffic.verbs.items():
            if not verb.startswith("control"):
                assert mine.comm.traffic.verbs[verb] == count, verb
    ends = [done.metrics.rows[-1]["strategy"] for done in (resumed, whole)]
    assert ends[0].get("rounds") == ends[1].get("rounds")


class Apart(Trainer):
    """Ranks start from 0, 0, 0 and 4 instead of equal models."""

    def begin(self, resumed_from: str | None) -> None:
        super().begin(resumed_from)
        replica = self.context.replica
        replica.load(torch.full((replica.numel,), [0.0, 0.0, 0.0, 4.0][self.context.comm.rank]))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SYNCHRONOUS])
def test_a25_a_ragged_cluster_has_one_mean(name: str):
    """Nodes of 3 and 1 ranks with 0, 0, 0 and 4: 1.0; a mean of node means would be 2.0."""
    more = {"switch_samples": 0} if name == "post_local_sgd" else {}
    if name == "diloco":
        more = {"outer_lr": 1.0, "outer_momentum": 0.0}
    if name == "slowmo":
        more = {"slow_momentum": 0.0}
    done = run(name, more=more, ranks=[3, 1], optimizer=SGD(lr=1e-30), loop=Apart)
    for context in done.contexts:
        assert context.replica.flat().tolist() == pytest.approx([1.0] * context.replica.numel, abs=1e-6)


# y = w·x, w = 1, loss = mean y; x = 1, 2, 3 on one rank and 10 on the other; one step with learning rate 1.
# Gradients averaged with equal weight would give 1 - 6; models that move apart have the mean of 1 - 2 and
# 1 - 10, however many samples they saw.
AVERAGE_GRADIENTS = ["ddp", "placebo", "hsgd", "heterogeneous", "daso", "ednncomm", "post_local_sgd"]


@pytest.mark.parametrize("name", NAMES)
def test_a26_a_sample_counts_the_same_wherever_it_is(name: str):
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        x = torch.tensor([[1.0], [2.0], [3.0]] if rank == 0 else [[10.0]], dtype=torch.float64)
        return x, torch.zeros(len(x))

    kind = strategy_class(name)
    keys = {"daso": {"allow_no_cycling": True}, "post_local_sgd": {"switch_samples": 100}}.get(name, {})
    traces = drive(
        lambda: kind(kind.Config(**keys)),
        [2],
        steps_per_epoch=1,
        data=data,
        model=lambda: Linear(torch.ones(1, dtype=torch.float64)),
    )
    for trace in traces:
        assert trace.replica.flat().item() == pytest.approx(
            (-3.0 if name in AVERAGE_GRADIENTS else -5.0), abs=1e-12
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [[2, 2], [2, 1]])
def test_a27_the_saved_model_scores_what_was_logged(name: str, nodes: list[int], tmp_path: Path):
    """Awkward has batch normalisation, and statistics of its own on every rank between averages."""
    done = run(name, ranks=nodes, model=Awkward(), epochs=4, checkpoints=tmp_path)
    logged = [row for row in done.metrics.rows if row["kind"] == "evaluation"][-1]
    data = done.contexts[0].data
    model = Awkward().build(InputSpec(*data.shape, data.classes))
    model.load_state_dict(checkpoint.read(tmp_path / "final" / "model.pt")["model"])
    indices, task = torch.arange(len(data.test)), done.contexts[0].task
    alone = score(model, data.test, indices, torch.device("cpu"), torch.float32, task=task).numbers()
    assert (alone["correct"], alone["count"]) == (logged["correct"], logged["count"])
    assert alone["loss"] == pytest.approx(logged["loss"], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("samples", [80, 16, 32])
def test_a29_nothing_is_in_flight_when_the_run_ends(name: str, samples: int):
    """5, 1 and 2 batches an epoch, periods of 4: what is pending is completed, all ranks hold one model."""
    done = run(name, dataset=Blobs(samples=samples), epochs=9)
    assert equal_on_all_ranks(done)
    for context in done.contexts:
        state = context.strategy.state_dict()
        assert not state.get("pending")
