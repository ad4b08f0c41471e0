"""The bench for GPUs, tried on the CPU: the same script with a small model."""

import json
from pathlib import Path

import pytest
import torch

from daso_bench.runner.bench import gpu, gpu_loop, gpu_runs
from daso_bench.runner.bench.gpu_options import Options, parse
from daso_bench.runner.schema import RunConfig
from daso_bench.runner.verdict import Outcome
from daso_bench.strategies.errors import ConfigError

SMALL = ["device=cpu", "model=small_cnn", "image=8", "batch=8", "blocks=5", "steps=3"]
FAILED = Outcome(status="failed", reason="rank 1: it does not run", exit_code=1, summary=None)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_what_is_measured_by_default_is_what_was_promised():
    assert parse([]) == Options(device="cuda", model="resnet50", batch=256, image=224, precision="bf16")
    assert gpu_loop.LIMIT == 0.95
    config = gpu_loop._of_loop(parse([]))
    assert (config.train.precision, config.train.channels_last, config.cluster.ranks) == ("bf16", True, 1)
    assert config.train.global_batch_size == 256
    assert config.cluster.device.kind_of(0) == "cuda"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("bach=3", "bench-gpu=bach: unknown .*'batch'"),
        ("batch=many", "batch=many: must be a whole number"),
        ("blocks=4", "blocks=4: must be >= 5"),
        ("device=tpu", "device=tpu: unknown"),
        ("only=loops", "only=loops: unknown"),
    ],
)
def test_wrong_options_are_told(argument: str, words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match=words):
        parse([argument])
    assert gpu.main([argument]) == 2
    assert "bench-gpu: " in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_how_to_try_it(capsys: pytest.CaptureFixture[str]):
    assert gpu.main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "torch sees no GPU here" in told.err
    assert "device=cpu" in told.err


def test_the_loop_and_the_shares_are_measured_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for only in ("loop", "mixed"):
        file = tmp_path / f"{only}.json"
        assert gpu.main([*SMALL, f"only={only}", f"json={file}"]) == 0
        rows = {row["name"]: row for row in json.loads(file.read_text())}
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines] == [["bench", name] for name in rows]
        if only == "loop":
            ratio = rows["gpu_loop_over_bare"]
            assert 0 < ratio["value"] < 10
            assert ratio["at_least"]
            assert "5 pairs of 3 steps" in ratio["detail"]
        else:
            share = rows["gpu_share_beside_a_cpu"]
            assert 0 < share["value"] < 1
            assert "ranks on cpu and cpu" in share["detail"]


def test_a_strategy_that_does_not_run_is_a_figure_that_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "strategy").mkdir()
    for name in ("daso", "sgp"):
        text = (gpu_runs.CONF / "strategy" / f"{name}.yaml").read_text()
        (tmp_path / "strategy" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(gpu_runs, "CONF", tmp_path)
    real = gpu_runs.outcome_of
    ran = []

    def outcome_of(config: RunConfig) -> Outcome:
        ran.append(config)
        return real(config) if len(ran) != 2 else FAILED

    monkeypatch.setattr(gpu_runs, "outcome_of", outcome_of)
    figures = {figure.name: figure for figure in gpu_runs.function(parse([*SMALL[:-1], "steps=8"]))}
    assert [figure.ok for figure in figures.values()] == [True, False, True]
    assert "it does not run" in figures["gpu_runs_sgp"].detail
    assert list(figures) == ["gpu_runs_daso", "gpu_runs_sgp", "gpu_runs_fp16"]
    assert ran[0].strategy.warmup_epochs == 0, "asynchronous within a few steps"
    assert {config.train.max_steps for config in ran} == {8}


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_every_part_runs(tmp_path: Path):
    small = ["model=resnet18", "image=64", "batch=32", "blocks=5", "steps=5", f"json={tmp_path / 'gpu.json'}"]
    gpu.main(small)
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["name"] for row in rows if not row["ok"] and row["name"] != "gpu_loop_over_bare"] == []
