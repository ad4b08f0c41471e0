"""Virtual ranks on a GPU, or on one that is not there: the CPU's run, and no tensor in the wrong place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from pretend_device import pretend_device
from runs import NAMES, PERIODS, Blobs, config, evaluations, simulated, whole_and_resumed

from daso_bench.models.small import SmallCNN
from daso_bench.runner.training import checkpoint

GPU = pytest.param(
    "cuda:0",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@contextmanager
def meta() -> Iterator[None]:
    """The pretend device, of which PyTorch stores no numbers and thinks that it has no fused kernels."""
    write = checkpoint.write_file
    with pytest.MonkeyPatch.context() as patch, pretend_device():
        patch.setattr(checkpoint, "write_file", lambda path, content: write(path, on_cpu(content)))
        optimizers = sys.modules["torch.optim.optimizer"]
        patch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
        yield


@pytest.mark.parametrize("device", ["meta", GPU])
@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("strategy", NAMES)
def test_a_run_and_its_resume_are_those_of_the_cpu(
    tmp_path: Path, strategy: str, norm: str, mode: str, device: str
):
    cfg = config(
        strategy,
        keys=PERIODS.get(strategy),
        model=SmallCNN(channels=[4], norm=norm),
        dataset=Blobs(samples=48, test_samples=16),
        epochs=3,
        eval_mode=mode,
        eval_every_samples=40,
        checkpoint_every_samples=64,  # inside of a round, with sums under way
        clip_norm=1.0,
        # Data that lie on the device, or come from the host batch by batch.
        launcher={"device_data_mib": 0 if mode == "deferred" else 1},
    )
    run = partial(simulated, cfg, step_time=lambda rank, samples: (rank + 2) * 1000)
    wanted = run(checkpoints=tmp_path / "cpu")
    with meta() if device == "meta" else nullcontext():
        made = whole_and_resumed(partial(run, computes_on=torch.device(device)), tmp_path, 7)
        models = [[on_cpu(context.replica.model.state_dict()) for context in one.contexts] for one in made]
    exact = {"rtol": 0, "atol": 0} if device == "meta" else {"rtol": 1e-3, "atol": 1e-4}
    for of_ranks in models:
        for state, context in zip(of_ranks, wanted.contexts, strict=True):
            torch.testing.assert_close(state, dict(context.replica.model.state_dict()), **exact)
    assert [row["train_s"] for row in evaluations(made[0])] == [row["train_s"] for row in evaluations(wanted)]
    assert made[0].contexts[0].comm.traffic.verbs == wanted.contexts[0].comm.traffic.verbs
