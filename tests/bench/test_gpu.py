"""The bench for GPUs, tried on the CPU: its options, what becomes of trouble, its parts made small."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import gpu_nccl
import gpu_runs
import gpu_virtual
import loop_overhead
import pytest
import torch
from figures import Figure
from gpu_options import Options, parse

from daso_bench.models.small import SmallCNN
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.strategies.ddp import DDP

SMALL = ["device=cpu", "model=small_cnn", "image=8", "batch=8", "blocks=5", "steps=4"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("bach=3", "bench-gpu=bach: unknown .*'batch'"),
        ("batch=many", "batch=many: must be a whole number"),
        ("blocks=4", "blocks=4: must be >= 5"),
        ("only=loops", "only=loops: unknown"),
    ],
)
def test_a_wrong_option_is_refused(argument: str, message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match=message):
        parse([argument])
    assert gpu.main([argument]) == 2
    assert "bench-gpu: " in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_how_to_try_it(capsys: pytest.CaptureFixture[str]):
    assert gpu.main([]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err


def test_a_part_that_fails_is_short_and_what_was_measured_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "gpu.json"
    seen: list[bool] = []

    def out_of_memory(options: Options) -> Iterator[Figure]:
        yield Figure("gpu_first", 1, 1, "")
        seen.append(json.loads(file.read_text())["complete"])
        raise torch.OutOfMemoryError("tried to allocate 30 GiB\nand more words")

    def fine(options: Options) -> Iterator[Figure]:
        yield Figure("gpu_last", 1, 1, "")

    monkeypatch.setattr(gpu, "MEASURES", {"loop": out_of_memory, "nccl": fine})
    assert gpu.main([*SMALL, f"json={file}"]) == 1
    report = json.loads(file.read_text())
    assert [(row["name"], row["ok"]) for row in report["figures"]] == [
        ("gpu_first", True),
        ("gpu_part_loop", False),
        ("gpu_last", True),
    ]
    assert report["figures"][1]["detail"] == "did not end: OutOfMemoryError: tried to allocate 30 GiB"
    assert (seen, report["complete"]) == ([False], True)
    assert {"date", "device", "torch", "gpu", "commit"} <= set(report)
    assert "and more words" in capsys.readouterr().err, "nothing of the trouble is lost"


# ------------------------------------------------------------------ loop


def test_the_loop_is_measured_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "loop.json"
    assert gpu.main([*SMALL, "only=loop", f"json={file}"]) == 0
    rows = {row["name"]: row for row in json.loads(file.read_text())["figures"]}
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == list(rows)
    assert list(rows) == ["gpu_loop_over_bare", "gpu_bare_images_per_s"]
    assert 0 < rows["gpu_loop_over_bare"]["value"] < 10
    assert "5 pairs of 4 steps" in rows["gpu_loop_over_bare"]["detail"]


@pytest.mark.parametrize(("bare", "ok"), [(1.9, True), (1.8, False)])
def test_a_loop_that_is_slower_than_was_promised_is_short(bare: float, ok: bool):
    took = {"ours": [2.0] * 5, "bare": [bare] * 5}
    figure = loop_overhead.rate_ratio("gpu_loop", parse([]), took, loop_overhead.RATE_LIMIT, "a model")
    assert figure.value == pytest.approx(bare / 2)
    assert figure.ok is ok


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_the_bare_loop_computes_as_ours_and_scales_its_loss_where_ours_does(
    precision: str, monkeypatch: pytest.MonkeyPatch
):
    scaled: list[bool] = []

    class Scaler(torch.amp.GradScaler):
        def scale(self, outputs: Any) -> Any:
            scaled.append(self.is_enabled())
            return super().scale(outputs)

    monkeypatch.setattr(torch.amp, "GradScaler", Scaler)
    config = loop_overhead.gpu_run(parse([*SMALL, f"precision={precision}"]))
    context: Any = SimpleNamespace(
        data=SimpleNamespace(shape=(3, 8, 8), classes=10), backend=SimpleNamespace(device=torch.device("cpu"))
    )
    inputs = torch.rand(4, 3, 8, 8, dtype=torch.float64 if precision == "fp64" else torch.float32)
    loop_overhead.bare_block(config, context, lambda step: (inputs, torch.arange(4)), 3)()
    assert scaled == [precision == "fp16"] * 3


# ------------------------------------------------------------------ function


def test_steps_and_a_resume_of_two_nodes_on_one_device(monkeypatch: pytest.MonkeyPatch):
    daso = next(arm for arm in gpu_runs.arms() if arm.name == "daso")
    monkeypatch.setattr(gpu_runs, "arms", lambda: [daso])
    figures = list(gpu_runs.function(parse([*SMALL, "steps=8"])))
    assert [figure.detail for figure in figures if not figure.ok] == []
    assert [figure.name for figure in figures] == ["gpu_runs_daso", "gpu_runs_bf16", "gpu_runs_fp16"]


DONE = Outcome(status="finished", reason=None, exit_code=0, summary={"final_accuracy": 0.9})
FAILED = Outcome(status="failed", reason="rank 1: it does not run", exit_code=1)


@pytest.mark.parametrize(
    ("run", "ok", "why"),
    [
        (lambda: DONE, True, "accuracy 0.900"),
        (lambda: FAILED, False, "failed, rank 1: it does not run"),
        (lambda: [].pop(), False, "a run: IndexError: pop from empty list"),
    ],
    ids=["finished", "failed", "raised"],
)
def test_a_run_that_does_not_finish_is_short(run: Callable[[], Outcome], ok: bool, why: str):
    figure = gpu_runs.judged("runs_x", "a run", run)
    assert figure.ok is ok
    assert why in figure.detail


def test_all_strategies_are_tried_and_every_way_to_sum():
    arms = gpu_runs.arms()
    assert {path.stem for path in (gpu_runs.CONF / "strategy").glob("*.yaml")} < {arm.name for arm in arms}
    for arm in arms:
        config = gpu_runs.run_of(arm, gpu_runs.cluster_of("cuda", ranks=gpu_runs.NODES), 20)
        assert config.launcher.share_gpus, "else four ranks on one GPU are refused"
        assert getattr(config.strategy, "sync_every", 1) <= 10, f"{arm.name}: twice in the run"


# ------------------------------------------------------------------ nccl


def test_each_strategy_runs_as_one_rank_of_four(monkeypatch: pytest.MonkeyPatch):
    chosen = [arm for arm in gpu_runs.arms() if arm.name in ("hsgd", "sgp", "ddp_sliced")]
    monkeypatch.setattr(gpu_nccl, "arms", lambda: chosen)
    figures = {figure.name: figure for figure in gpu_nccl.nccl(parse(SMALL))}
    assert [figure.detail for figure in figures.values() if not figure.ok] == []
    assert list(figures)[-4:] == ["gpu_ddp_over_torch", *(f"gpu_nccl_{arm.name}" for arm in chosen)]
    assert "geometric mean of 30 pairs" in figures["gpu_ddp_over_torch"].detail
    assert figures["gpu_nccl_hook"].value == 0
    assert figures["gpu_nccl_buckets"].value >= 2


# ------------------------------------------------------------------ virtual


def test_virtual_ranks_are_timed_through_the_whole_product_and_against_a_bare_loop(tmp_path: Path):
    file = tmp_path / "virtual.json"
    assert gpu.main([*SMALL, "batch=2", "only=virtual", f"json={file}"]) == 0
    rows = {row["name"]: row for row in json.loads(file.read_text())["figures"]}
    assert list(rows) == [f"gpu_virtual_tiny_{name}_over_bare" for name in ("ddp", "daso")]
    assert all(0 < row["value"] < 100 for row in rows.values())


@pytest.mark.parametrize("way", [gpu_virtual.copied_in, gpu_virtual.stacked])
def test_the_bare_loops_train_every_rank(way: Any):
    model = SmallCNN(norm="batch")
    tiny = gpu_virtual.Load(name="tiny", model=model, ranks=4, batch=8, side=8, classes=10, precision="fp32")
    step = way(tiny.run(DDP), torch.device("cpu"))
    losses = [float(step().mean()) for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("gpu_name", "value", "limits"),
    [("NVIDIA H200", 3000, [2900, 3600, 35_000]), ("A100", 0.75, [0.85] * 3)],
)
def test_limits_are_of_one_gpu_and_elsewhere_of_the_bare_loop(
    gpu_name: str, value: float, limits: list[float], monkeypatch: pytest.MonkeyPatch
):
    rates = {"timed_run": 3000.0, "bare_loop": 4000.0}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu_name)
    monkeypatch.setattr(gpu_virtual, "images_per_s", lambda each, kind, entry: rates[entry])
    figures = list(gpu_virtual.virtual(parse([])))
    assert [figure.limit for figure in figures[::2]] == limits
    assert {figure.value for figure in figures} == {value}


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_every_part_runs(tmp_path: Path):
    small = ["model=resnet18", "image=64", "batch=32", "blocks=5", "steps=8", f"json={tmp_path / 'gpu.json'}"]
    gpu.main(small)
    rows = json.loads((tmp_path / "gpu.json").read_text())["figures"]
    assert [row["name"] for row in rows if not row["ok"] and row["name"] != "gpu_loop_over_bare"] == []
