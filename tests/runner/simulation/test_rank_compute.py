"""Ways to compute ranks: the same numbers, the same bits whoever is computed with whom, and the choice."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import (
    MLP,
    NAMES,
    PERIODS,
    Awkward,
    Blobs,
    SmallCNN,
    assert_same_models,
    config,
    evaluations,
    simulated,
    whole_and_resumed,
)
from torch import Tensor, nn

from daso_bench.models.spec import InputSpec
from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.simulation import gradient_pool
from daso_bench.runner.simulation.gradient_pool import GradientPool
from daso_bench.runner.simulation.graphed_ranks import GraphedRanks
from daso_bench.runner.simulation.rank_compute import OneByOne, Pending
from daso_bench.runner.simulation.stacked_ranks import FEWEST
from daso_bench.strategies.errors import ConfigError

SPEC = InputSpec(1, 4, 4, 4)
CRITERION = nn.CrossEntropyLoss()


def pendings(models: list[nn.Module], batch: int = 3, weight: float = 1.0) -> tuple[list[Pending], list[int]]:
    """A step of each model on data of its own, and who was computed alone."""
    alone: list[int] = []

    def step(number: int, model: nn.Module) -> Pending:
        generator = torch.Generator().manual_seed(number)
        first = next(model.parameters())
        inputs = torch.randn(batch, 1, 4, 4, generator=generator).to(first.device, first.dtype)
        targets = torch.randint(4, (batch,), generator=generator).to(first.device)

        def compute() -> Tensor:
            alone.append(number)
            model.zero_grad()
            loss = CRITERION(model(inputs), targets)
            (weight * loss).backward()
            return loss.detach()

        named = dict(model.named_parameters()), dict(model.named_buffers())
        return Pending(model, CRITERION, *named, inputs, targets, weight, compute)

    return [step(number, model) for number, model in enumerate(models)], alone


def different(build: Any, count: int, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    torch.manual_seed(0)
    return [build.build(SPEC).to(dtype) for _ in range(count)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("build", [SmallCNN(), MLP(hidden=[7])], ids=["cnn", "mlp"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_stack_computes_what_each_would_alone(build: Any, dtype: torch.dtype, tolerance: float):
    waiting, alone = pendings(different(build, 11, dtype), weight=0.3)
    pool = GradientPool(11)
    for step in waiting:
        pool.submit(step)
    losses = [pool.result(step)[0] for step in waiting]
    together = [gradients(step.model) for step in waiting]
    assert alone == [0], "the first one alone, to see whether all its parameters are used"
    for step, loss, stacked in zip(waiting, losses, together, strict=True):
        assert torch.allclose(loss, step.alone(), rtol=tolerance, atol=tolerance)
        for mine, wanted in zip(stacked, gradients(step.model), strict=True):
            assert torch.allclose(mine, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "build", [SmallCNN(), SmallCNN(norm="batch"), MLP(hidden=[7])], ids=["cnn", "norm", "mlp"]
)
@pytest.mark.parametrize("groups", [[1] * 20, [20], [3, 9, 8], [19, 1]])
def test_the_bits_do_not_depend_on_the_company(build: Any, groups: list[int]):
    def computed(sizes: list[int]) -> list[list[Tensor]]:
        waiting, _ = pendings(different(build, 20, torch.float32), batch=8)
        pool, rest = GradientPool(20), list(waiting)
        for size in sizes:
            some, rest = rest[:size], rest[size:]
            for step in some:
                pool.submit(step)
            pool.result(some[-1])
        return [[*gradients(step.model), *step.buffers.values()] for step in waiting]

    for mine, wanted in zip(computed(groups), computed([FEWEST, 20 - FEWEST]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


class Unused(nn.Module):
    """A parameter without a gradient is not one whose gradient is 0: an optimizer leaves it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.nobody = nn.Linear(16, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Noisy(nn.Module):
    """Draws random numbers without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x.flatten(1), 0.5))


class Chooses(Noisy):
    """Looks at its numbers to choose its way."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) if x.sum() > 0 else self.head(-x.flatten(1))


class Remembers(Noisy):
    """Keeps what the last pass computed: once it has run, it cannot be copied."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.head(x.flatten(1))
        return self.last


class Normalised(nn.Module):
    """A convolution with batch normalisation: every pass in training changes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.relu(self.norm(self.conv(x))).flatten(1))


class Cumulative(Normalised):
    """Its running statistics are means over all batches, whose number decides the weight of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(5, momentum=None)


class Crowded(Normalised):
    """Also a module under two names, tied and frozen parameters, and buffers that are no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fixed = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight
        self.fixed.requires_grad_(False)
        self.twice = self.again = nn.BatchNorm1d(20)
        self.kept, self.dropped = (
            nn.Buffer(torch.arange(20) % 3 > 0),
            nn.Buffer(torch.full((20,), -torch.inf)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.first(self.norm(self.conv(x)).flatten(1)))
        x = self.fixed(torch.tanh(self.again(self.second(x))))
        return self.head(torch.where(self.kept, x, self.dropped).relu())


class Replaces(Normalised):
    """Its pass puts a new buffer in the old one's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return super().forward(x)


@pytest.mark.parametrize("kind", [Unused, Noisy, Chooses, Replaces])
def test_what_cannot_be_stacked_is_computed_one_by_one(kind: type[nn.Module]):
    waiting, alone = pendings([kind() for _ in range(9)])
    pool = GradientPool(9)
    for step in waiting:
        pool.submit(step)
    pool.result(waiting[4])
    assert set(alone) == set(range(9))


def pool_of(way: str, ranks: int, **more: Any) -> GradientPool:
    """A pool that computes in one way; its graph is of a CPU: a capture that runs the step again."""
    pool = GradientPool(ranks, asked=way, **more)
    graph = GraphedRanks(capture=lambda run: run, device="cpu")
    pool.ways = [graph if each.name == "graph" else each for each in pool.ways]
    return pool


@pytest.mark.parametrize(
    ("way", "ranks"), [("stacked", 8), ("stacked", 16), ("stacked", 64), ("graph", 8), ("one_by_one", 8)]
)
@pytest.mark.parametrize("sizes", [(6,), (6, 5)], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", [Normalised, Crowded, Cumulative])
def test_batch_norm_in_each_way_equals_each_alone(
    kind: type[nn.Module], way: str, ranks: int, sizes: tuple[int, ...]
):
    if kind is Cumulative and way == "stacked":
        pytest.skip("refused: the number of batches decides")

    def models() -> list[nn.Module]:
        torch.manual_seed(0)
        return [kind().double() for _ in range(ranks)]

    together, alone = models(), models()
    pool = pool_of(way, ranks)
    for step in range(3):  # running statistics are carried from one step to the next
        batch = sizes[step % len(sizes)]
        (waiting, computed), (single, _) = pendings(together, batch, 0.3), pendings(alone, batch, 0.3)
        for pending in waiting:
            pool.submit(pending)
        for pending, other in zip(waiting, single, strict=True):
            loss, finite = pool.result(pending)
            assert finite
            assert_close([loss], [other.alone()])
        assert way == "one_by_one" or len(computed) <= 1, "together, but for the trial of a new shape"
        for mine, wanted in zip(together, alone, strict=True):
            assert_close(gradients(mine), gradients(wanted))
            assert_close(list(mine.buffers()), list(wanted.buffers()))


@pytest.mark.parametrize("nodes", [[4, 4], [8, 8], [8] * 8], ids=sum)
@pytest.mark.parametrize("more", [0, 5], ids=["even", "uneven"])
def test_stacked_runs_with_batch_norm_are_those_of_one_by_one_also_resumed(
    nodes: list[int], more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ranks, batch = sum(nodes), 2 * sum(nodes) + more
    cfg = config(
        ranks=nodes,
        model=SmallCNN(channels=[4], norm="batch"),
        dataset=Blobs(samples=3 * batch),
        global_batch_size=batch,
        checkpoint_every_samples=batch,
        epochs=2,
        precision="fp64",
    )
    wanted = simulated(cfg, pool=pool_of("one_by_one", ranks))
    monkeypatch.delattr(OneByOne, "compute")
    for run in whole_and_resumed(
        lambda **how: simulated(cfg, pool=pool_of("stacked", ranks), **how), tmp_path, 4
    ):
        for mine, theirs in zip(run.contexts, wanted.contexts, strict=True):
            assert_close(
                list(mine.replica.model.state_dict().values()),
                list(theirs.replica.model.state_dict().values()),
            )
        for row, other in zip(evaluations(run), evaluations(wanted)[-len(evaluations(run)) :], strict=True):
            assert [row["loss"], row["train_loss"]] == pytest.approx(
                [other["loss"], other["train_loss"]], abs=1e-12
            )


@pytest.mark.parametrize("way", ["stacked", "graph"])
def test_ranks_without_samples_are_computed_alone(way: str):
    waiting, alone = pendings(different(MLP(hidden=[7]), 8), batch=0)
    pool = pool_of(way, 8)
    for step in waiting:
        pool.submit(step)
    assert not pool.result(waiting[0])[1], "a mean of no losses is not finite"
    assert alone == list(range(8))


def assert_close(mine: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["ddp", "daso", "heterogeneous", "local_sgd"])
def test_a_run_by_graph_has_the_bits_of_one_by_one(strategy: str, precision: str):
    """Pieces are uneven, and in the short last batch of an epoch some have no sample."""
    keys = {"daso": {"warmup_epochs": 1, "cooldown_epochs": 1}}.get(strategy)
    more = {"ranks": [3, 3, 3], "global_batch_size": 11, "epochs": 3, "precision": precision}
    cfg = config(strategy, keys=keys, model=SmallCNN(channels=[4]), dataset=Blobs(samples=96), **more)
    runs = [
        simulated(cfg, pool=pool_of(way, 9), step_time=lambda rank, n: 10**6)
        for way in ("graph", "one_by_one")
    ]
    assert_same_models(*runs)


@dataclass(frozen=True, kw_only=True)
class AwkwardAlike(Awkward):
    """Awkward, but without dropout, which nobody shares."""

    def build(self, spec: InputSpec) -> nn.Module:
        module = super().build(spec)
        module.dropout = nn.Identity()
        return module


@pytest.mark.parametrize("strategy", NAMES)
def test_runs_of_every_strategy_are_those_of_one_by_one(strategy: str):
    """Gradients are clipped, pieces uneven, and a step takes each rank another time."""
    more = {"ranks": [4, 4], "global_batch_size": 27, "epochs": 3, "precision": "fp64", "clip_norm": 1.0}
    cfg = config(
        strategy, keys=PERIODS.get(strategy), model=AwkwardAlike(), dataset=Blobs(samples=81), **more
    )
    alone, stacked = (
        simulated(cfg, pool=pool_of(way, 8), step_time=lambda rank, n: 1000 * (rank + 1))
        for way in ("one_by_one", "stacked")
    )
    for ranks in zip(stacked.contexts, alone.contexts, strict=True):
        assert_close(*(list(context.replica.model.state_dict().values()) for context in ranks))


@pytest.mark.parametrize(
    ("ranks", "seconds", "chosen"),
    [
        (8, (3.0, 2.0, 1.0), "one_by_one"),
        (8, (2.0, 1.0, 3.0), "graph"),
        (8, (1.05, 1.0, 1.09), "stacked"),
        (8, (1.2, 1.05, 1.0), "graph"),
        (7, (), "one_by_one"),
    ],
)
def test_auto_takes_the_fastest_and_the_first_of_equals(
    monkeypatch: pytest.MonkeyPatch, ranks: int, seconds: tuple[float, ...], chosen: str
):
    choices: list[dict[str, Any]] = []
    step_s = dict(zip(("stacked", "graph", "one_by_one"), seconds, strict=False))
    monkeypatch.setattr(gradient_pool, "step_seconds", lambda way, steps: step_s[way.name])
    pool = pool_of("auto", ranks, on_choice=choices.append)
    waiting, alone = pendings([Normalised() for _ in range(ranks)])
    for step in waiting:
        pool.submit(step)
    pool.result(waiting[-1])
    assert choices == [{"way": chosen, "step_s": step_s, "refused": {}}]
    assert (set(alone) == set(range(ranks))) == (chosen == "one_by_one")


@pytest.mark.parametrize(("kind", "refused"), [(Remembers, "graph"), (Cumulative, "stacked")])
def test_auto_goes_on_with_the_ways_that_a_model_allows(kind: type[nn.Module], refused: str):
    choices: list[dict[str, Any]] = []
    pool = pool_of("auto", 8, on_choice=choices.append)
    waiting, _ = pendings([kind() for _ in range(8)])
    for step in waiting:
        pool.submit(step)
    assert pool.result(waiting[0])[1]
    assert choices[0]["refused"].keys() == {refused}
    assert choices[0]["way"] in choices[0]["step_s"].keys() == {"stacked", "graph", "one_by_one"} - {refused}


def test_steps_are_as_before_when_they_have_been_timed():
    waiting, _ = pendings([Normalised() for _ in range(8)])
    before = [[buffer.clone() for buffer in step.buffers.values()] for step in waiting]
    assert 0 < gradient_pool.step_seconds(OneByOne(), waiting) < 60
    for step, buffers in zip(waiting, before, strict=True):
        assert all(map(torch.equal, step.buffers.values(), buffers))


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("stacked", Unused, "does not use all parameters"),
        ("stacked", Noisy, "random"),
        ("stacked", Chooses, "vmap cannot compute the model"),
        ("stacked", Replaces, "replaces its buffers"),
        ("graph", Noisy, "draws random numbers"),
        ("graph", Replaces, "replaces its buffers"),
    ],
)
def test_what_a_model_does_not_allow_is_refused_by_name(way: str, kind: type[nn.Module], words: str):
    waiting, _ = pendings([kind() for _ in range(8)])
    pool = pool_of(way, 8)
    for step in waiting:
        pool.submit(step)
    with pytest.raises(
        ConfigError, match=f"launcher.rank_compute={way}: .*{words}.*; take auto or one_by_one"
    ):
        pool.result(waiting[0])


@pytest.mark.parametrize(
    ("way", "keys", "words"),
    [
        ("stacked", {"precision": "bf16"}, "autocast"),
        ("stacked", {"precision": "fp16"}, "train.precision=fp16"),
        ("graph", {"precision": "fp16"}, "train.precision=fp16"),
        ("graph", {"accumulate": 2}, "train.accumulate=2"),
        ("graph", {"model": Awkward()}, "dropout"),
        ("graph", {}, "steps are captured on cuda alone"),
    ],
)
def test_what_a_run_does_not_allow_is_refused_by_name(way: str, keys: dict[str, Any], words: str):
    cfg = config(ranks=[4, 4], **keys)
    with pytest.raises(ConfigError, match=f"launcher.rank_compute={way}: .*{words}"):
        simulated(cfg, pool=GradientPool(8, asked=way))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("way", "autocast"), [("stacked", None), ("graph", None), ("graph", torch.bfloat16), ("one_by_one", None)]
)
def test_on_a_gpu_each_way_computes_what_a_cpu_does(way: str, autocast: torch.dtype | None):
    torch.manual_seed(0)
    models: list[nn.Module] = [Normalised() for _ in range(8)]
    (wanted, _), (waiting, computed) = pendings(models), pendings([deepcopy(m).cuda() for m in models])
    pool, tolerance = GradientPool(8, asked=way), 1e-3 if autocast is None else 5e-2
    for step in waiting:
        step.autocast = autocast
        pool.submit(step)
    for step, other in zip(waiting, wanted, strict=True):
        assert torch.allclose(pool.result(step)[0].cpu(), other.alone(), rtol=tolerance)
        for mine, theirs in zip(gradients(step.model), gradients(other.model), strict=True):
            assert torch.allclose(mine.cpu(), theirs, rtol=tolerance, atol=tolerance)
    assert way == "one_by_one" or len(computed) <= 1


@pytest.mark.parametrize("strategy", ["ddp", "daso", "hsgd", "heterogeneous", "local_sgd"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_runs_of_many_ranks_resume_bit_for_bit(tmp_path: Path, strategy: str, norm: str):
    """Ranks of different speeds are computed in other company before the break than after the resume."""
    keys = {"daso": {"warmup_epochs": 1, "cooldown_epochs": 1, "wait_batches": 2}}.get(strategy, {})
    cfg = config(
        strategy,
        keys=keys,
        model=SmallCNN(channels=[4, 6], norm=norm),
        ranks=[4, 4],
        global_batch_size=32,
        checkpoint_every_samples=160,
        eval_every_samples=64,
    )
    run = partial(
        simulated,
        cfg,
        network=AlphaBeta(inter_latency_s=0.002),
        step_time=lambda rank, n: 1_000_000 * (rank + 1) + 10_000 * n,
    )
    whole, resumed = whole_and_resumed(run, tmp_path, 7)
    assert resumed.metrics.rows[0]["resumed_from"] == "step_0000000005"
    assert_same_models(whole, resumed)
