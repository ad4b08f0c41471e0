"""train.precision: 16 bits inside the model alone, one scale of the loss for all ranks, refusals in words."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from exploding import Exploding, Marked
from real_runs import assert_close, final_model, finished
from runs import PERIODS, SmallCNN, config, evaluations, simulated, whole_and_resumed
from torch import nn

from daso_bench.runner.communication import gpus
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.simulation.simulated_world import SimulatedRun
from daso_bench.runner.training.precision import LossScaler, outputs_of
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.errors import ConfigError

EXPLODES: dict[str, Any] = {"model": Exploding(), "dataset": Marked(), "precision": "fp16"}
CPU = torch.device("cpu")


def real(cfg: RunConfig) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    directory, summary = finished(cfg)
    return summary, final_model(directory)


def flat(done: SimulatedRun) -> torch.Tensor:
    return done.contexts[0].replica.flat()


# ------------------------------------------------------------------ inside the model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inside_the_model_are_16_bits_and_outside_are_32(dtype: torch.dtype):
    seen = []
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    outputs = outputs_of(model, torch.randn(5, 4), dtype)
    assert seen == [dtype]
    assert outputs.dtype == torch.float32, "a loss in 16 bits would be another loss"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    outputs.sum().backward()
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("strategy", ["ddp", "daso", "hsgd", "lasgd"])
def test_bf16_stays_near_fp32_for_an_epoch_and_is_not_it(strategy: str):
    keys = PERIODS.get(strategy)
    runs = [
        simulated(
            config(strategy, keys=keys, model=SmallCNN(channels=[4, 4]), max_steps=6, precision=word),
            step_time=lambda rank, samples: 10**6,
        )
        for word in ("fp32", "bf16")
    ]
    # bfloat16 has 8 bits: a number is off by 0.4 % at most, a product of two layers by about twice that.
    distance = torch.linalg.vector_norm(flat(runs[1]) - flat(runs[0])) / torch.linalg.vector_norm(
        flat(runs[0])
    )
    assert 1e-6 < distance < 0.02
    losses = [evaluations(done)[-1]["loss"] for done in runs]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_evaluations_have_the_same_16_bits():
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    class Seen(Trainer):
        def begin(self, resumed_from: str | None) -> None:
            last = list(self.context.replica.model.modules())[-1]
            last.register_forward_hook(
                lambda module, inputs, outputs: seen[module.training].add(outputs.dtype)
            )
            super().begin(resumed_from)

    simulated(config(epochs=1, precision="bf16"), loop=Seen)
    assert seen == {True: {torch.bfloat16}, False: {torch.bfloat16}}


# ------------------------------------------------------------------ the scale of the loss


def test_an_overflow_of_one_rank_leaves_out_the_step_and_halves_the_scale_on_all(tmp_path: Path):
    moved: dict[int, list[bool]] = {0: [], 1: [], 2: []}

    class Watched(Trainer):
        def step(self) -> None:
            before = self.context.replica.flat()
            super().step()
            moved[self.context.comm.rank].append(not torch.equal(before, self.context.replica.flat()))

    cfg = config(ranks=[2, 1], epochs=2, results=tmp_path, **EXPLODES)
    done = simulated(cfg, loop=Watched)
    assert moved[0].count(False) == 2, "the marked sample comes once an epoch"
    assert moved[0] == moved[1] == moved[2], "on one rank, and all leave the step out"
    for context in done.contexts:
        assert isinstance(context.replica.scaler, LossScaler)
        assert context.replica.scaler.summary() == {"scale": 2.0**14, "skipped_steps": 2}
        assert torch.equal(context.replica.flat(), flat(done))
        assert context.replica.flat().isfinite().all()
    summary = done.results[0].summary
    assert summary["status"] == "finished", "an overflow is no divergence"
    assert summary["loss_scaling"] == {"scale": 2.0**14, "skipped_steps": 2}
    of_processes, model = real(cfg)
    assert of_processes["loss_scaling"] == summary["loss_scaling"]
    assert_close(model, done.contexts[0].replica.model.state_dict(), 1e-3)


def test_a_resume_has_the_scale_bit_for_bit(tmp_path: Path):
    cfg = config(epochs=4, checkpoint_every_samples=5 * 16, **EXPLODES)
    whole, resumed = whole_and_resumed(partial(simulated, cfg), tmp_path, 17)
    assert resumed.metrics.rows[0]["step"] == 15, "by then it has been halved"
    assert torch.equal(flat(resumed), flat(whole))
    ours, theirs = (done.contexts[0].replica.scaler for done in (resumed, whole))
    assert ours is not None
    assert theirs is not None
    assert ours.state_dict() == theirs.state_dict()
    assert resumed.results[0].summary["loss_scaling"] == {"scale": 2.0**12, "skipped_steps": 4}


def test_a_run_whose_gradients_overflow_without_a_scale_ends_as_diverged():
    cfg = config(
        ranks=[1, 1],
        model=Exploding(),
        dataset=Marked(all_of_them=True),
        epochs=5,
        precision="fp16",
    )
    result = simulated(cfg).results[0]
    assert result.status == "diverged", result
    assert "gradients overflow in float16 with the loss as it is (found at step 18)" in (result.reason or "")
    summary = result.summary or {}
    assert summary["loss_scaling"] == {"scale": 0.25, "skipped_steps": 18}
    assert "fp16: 18 of 18 steps left out" in summary["labels"]


def stepped(*gradients: float) -> torch.Tensor:
    """A weight of 1 after SGD steps whose gradients are these."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=True, fused=True)
    scaler = LossScaler("cpu")
    for gradient in gradients:
        weight.grad = None
        scaler.scale(weight * gradient).sum().backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return weight.detach()


def test_a_first_step_that_is_left_out_leaves_no_momentum():
    for _ in range(20):  # memory that nobody filled is 0 by chance
        torch.full((64,), 1e9)
        assert torch.equal(stepped(float("inf"), 0.5, 0.25), stepped(0.5, 0.25))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("strategy", "keys", "more", "words"),
    [
        ("daso", {}, {"precision": "fp16"}, r"strategy=daso not all would see it; take bf16"),
        ("hsgd", {}, {"precision": "fp16"}, r"strategy=hsgd not all would see it; take bf16"),
        ("lasgd", {}, {"precision": "fp16"}, r"fp16: .*take bf16"),
        ("ddp", {"hook": "powersgd"}, {"precision": "fp16"}, r"fp16: strategy.hook=powersgd remembers"),
        ("ddp", {}, {"precision": "tf32", "launcher": {"name": "simulated"}}, r"tf32: .*device=cuda"),
        ("ddp", {}, {"precision": "bf17"}, r"train.precision=bf17: unknown"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(
    strategy: str, keys: dict[str, Any], more: dict[str, Any], words: str
):
    with pytest.raises(ConfigError, match=words):
        config(strategy, keys=keys, **more)


def test_tf32_is_refused_by_a_rank_on_a_cpu_and_nothing_else_is():
    with pytest.raises(ConfigError, match=r"tf32: .* this rank computes on a CPU; take fp32"):
        gpus.choose_precision("tf32", CPU)
    before = gpus.numeric_flags()
    gpus.choose_precision("fp32", CPU)
    assert gpus.numeric_flags() == before, "CPU runs are what they were"


def test_on_a_gpu_float32_is_float32_unless_tf32_is_asked_for():
    before = gpus.numeric_flags()
    conv: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    older = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for precision, word in (("tf32", "tf32"), ("bf16", "ieee"), ("tf32", "tf32"), ("fp32", "ieee")):
            gpus.choose_precision(precision, torch.device("cuda", 0))  # sets words: no GPU is asked
            assert {gpus.numeric_flags()[key] for key in ("fp32_cuda_matmul", "fp32_cudnn_conv")} == {word}
            # The older words can be read, and say the same; PyTorch raises where they do not.
            taken = word == "tf32"
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == taken
            assert torch.get_float32_matmul_precision() == ("high" if taken else "highest")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = older
        conv.fp32_precision = before["fp32_cudnn_conv"]
        torch.backends.cuda.matmul.fp32_precision = before["fp32_cuda_matmul"]
