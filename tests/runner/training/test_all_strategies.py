"""Troubles that users of distributed training reported, tried on every strategy (letters: the case).

That ranks call the same collectives, that nothing is in flight at the end, and what uneven nodes average:
see tests/conformance, which holds every strategy to the contract and to its NumPy reference.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Linear, drive  # pyright: ignore[reportMissingImports] (on the path by conftest.py)
from runs import (
    NAMES,
    PERIODS,
    Awkward,
    Blobs,
    assert_same_models,
    config,
    evaluations,
    simulated,
    strategy_class,
    whole_and_resumed,
)
from torch import Tensor

from daso_bench.models.spec import InputSpec
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.simulation.simulated_world import SimulatedRun
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.evaluation import score
from daso_bench.strategies.errors import ConfigError

# Each rank takes steps of its own number.
INDEPENDENT = {"lasgd"}


def run(name: str, *, more: dict[str, Any] | None = None, **keys: Any) -> SimulatedRun:
    """A short run in virtual time on ranks of uneven speed; skipped where it is refused."""
    given = {key: keys.pop(key) for key in ("loop", "checkpoints", "attempt") if key in keys}
    try:
        cfg = config(name, keys={**PERIODS.get(name, {}), **(more or {})}, **keys)
    except ConfigError as error:
        pytest.skip(f"refused: {error}")
    return simulated(cfg, step_time=lambda r, n: (r + 2) * 1000, **given)


@pytest.mark.parametrize("name", NAMES)
def test_a17_a_last_batch_of_one_and_batch_norm(name: str):
    """33 images, 2 ranks, batch 16: batches of 16 and 17, nobody gets one sample, nothing is left out."""
    done = run(name, ranks=[1, 1], model=Awkward(), dataset=Blobs(samples=33), epochs=4)
    summary = done.results[0].summary
    assert (summary["status"], summary["left_out_samples"]) == ("finished", 0)
    if name not in INDEPENDENT:
        assert {context.progress.samples for context in done.contexts} == {132}


@dataclass(frozen=True, kw_only=True)
class Grouped(SGD):
    """The same optimizer, with weights and other parameters in a group each, or all in one."""

    separate: bool

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """PyTorch's SGD."""
        whole = [*parameters]
        halves = [[p for p in whole if p.dim() > 1], [p for p in whole if p.dim() <= 1]]
        groups = [{"params": group} for group in (halves if self.separate else [whole]) if group]
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )


@pytest.mark.parametrize("name", NAMES)
def test_a23_a_step_is_a_step_however_many_parameter_groups_there_are(name: str):
    first, second = (run(name, optimizer=Grouped(separate=separate), epochs=5) for separate in (False, True))
    for mine, theirs in zip(first.contexts, second.contexts, strict=True):
        assert mine.comm.traffic.verbs == theirs.comm.traffic.verbs
        assert torch.equal(mine.replica.flat(), theirs.replica.flat())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INDEPENDENT])
def test_a24_a_restart_changes_nothing(name: str, tmp_path: Path):
    """Periods, phases, momenta, and what was in flight: the run goes on as if it had never died."""
    keys: dict[str, Any] = dict(model=Awkward(), epochs=5, checkpoint_every_samples=16 * 7)
    keys["eval_every_samples"] = 40
    whole, resumed = whole_and_resumed(partial(run, name, **keys), tmp_path, 15)
    first = 14
    start = resumed.metrics.rows[0]
    assert (start["step"], start["resumed_from"]) == (first, "step_0000000014")
    judged, judged_of_whole = (
        [
            [row[key] for key in ("step", "accuracy", "loss", "train_loss")]
            for row in evaluations(done)
            if row["step"] > first
        ]
        for done in (resumed, whole)
    )
    assert judged == judged_of_whole
    assert_same_models(resumed, whole)
    for mine, theirs in zip(resumed.contexts, whole.contexts, strict=True):
        for verb, count in theirs.comm.traffic.verbs.items():
            if not verb.startswith("control"):
                assert mine.comm.traffic.verbs[verb] == count, verb
    ends = [done.metrics.rows[-1]["strategy"] for done in (resumed, whole)]
    assert ends[0].get("rounds") == ends[1].get("rounds")


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
def test_a27_the_saved_model_scores_what_was_logged(name: str, tmp_path: Path):
    """Awkward has batch normalisation, and statistics of its own on every rank between averages."""
    done = run(name, ranks=[2, 2], model=Awkward(), epochs=4, checkpoints=tmp_path)
    logged = evaluations(done)[-1]
    data = done.contexts[0].data
    model = Awkward().build(InputSpec(*data.shape, data.classes))
    model.load_state_dict(checkpoint.read(tmp_path / "final" / "model.pt")["model"])
    indices, task = torch.arange(len(data.test)), done.contexts[0].task
    alone = score(model, data.test, indices, torch.device("cpu"), torch.float32, task=task).numbers()
    assert (alone["correct"], alone["count"]) == (logged["correct"], logged["count"])
    assert alone["loss"] == pytest.approx(logged["loss"], rel=1e-6)
