"""The bench for GPUs, tried on the CPU: what it can be told, what becomes of trouble, its script small."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import gpu_runs
import loop_overhead
import pytest
import torch
from figures import Figure
from gpu_options import Options, Time, parse

from daso_bench.strategies.errors import ConfigError

SMALL = ["device=cpu", "model=small_cnn", "image=8", "batch=8", "blocks=5", "steps=4"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_what_is_measured_by_default_is_what_was_promised():
    assert parse([]) == Options(device="cuda", model="resnet50", batch=256, image=224, precision="bf16")
    assert (parse([]).minutes, list(gpu.MEASURES)) == (10, ["loop", "function", "nccl", "mixed"])
    assert loop_overhead.RATE_LIMIT == 0.95
    config = loop_overhead.gpu_run(parse([]))
    assert (config.train.precision, config.train.channels_last, config.cluster.ranks) == ("bf16", True, 1)
    assert config.train.global_batch_size == 256
    assert config.cluster.device.kind_of(0) == "cuda"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("bach=3", "bench-gpu=bach: unknown .*'batch'"),
        ("batch=many", "batch=many: must be a whole number"),
        ("batch=²", "batch=²: must be a whole number"),
        ("batch=0", "batch=0: must be >= 1"),
        ("image=0", "image=0: must be >= 1"),
        ("steps=0", "steps=0: must be >= 4"),
        ("minutes=0", "minutes=0: must be >= 1"),
        ("blocks=4", "blocks=4: must be >= 5"),
        ("device=tpu", "device=tpu: unknown"),
        ("only=loops", "only=loops: unknown"),
        ("precision=fp17", "precision=fp17: unknown"),
        ("model=resnet51", "model=resnet51: unknown .*'resnet50'"),
    ],
)
def test_wrong_options_are_told(argument: str, words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match=words):
        parse([argument])
    assert gpu.main([argument]) == 2
    assert "bench-gpu: " in capsys.readouterr().err


def test_what_no_run_could_do_is_told_before_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert gpu.main(["device=cpu", "precision=tf32"]) == 2
    assert "with device=cpu take fp32" in capsys.readouterr().err
    assert gpu.main([*SMALL, f"json={tmp_path / 'nowhere' / 'gpu.json'}"]) == 2
    assert "must be a file in a folder that exists" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_how_to_try_it(capsys: pytest.CaptureFixture[str]):
    assert gpu.main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "torch sees no GPU here" in told.err
    assert "device=cpu" in told.err


# ------------------------------------------------------------------ trouble


def parts(monkeypatch: pytest.MonkeyPatch, **measures: Callable[[Options, Time], Iterator[Figure]]) -> None:
    monkeypatch.setattr(gpu, "MEASURES", measures)


def figure(name: str) -> Figure:
    return Figure(name, 1, 1, "as it is to be")


def test_a_part_that_fails_is_a_figure_that_is_short_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "gpu.json"

    def out_of_memory(options: Options, time_left: Time) -> Iterator[Figure]:
        yield figure("gpu_first")
        raise torch.OutOfMemoryError("tried to allocate 30 GiB\nand more words")

    def fine(options: Options, time_left: Time) -> Iterator[Figure]:
        yield figure("gpu_last")

    parts(monkeypatch, loop=out_of_memory, mixed=fine)
    assert gpu.main([*SMALL, f"json={file}"]) == 1
    told = json.loads(file.read_text())
    assert [(row["name"], row["ok"]) for row in told["figures"]] == [
        ("gpu_first", True),
        ("gpu_part_loop", False),
        ("gpu_last", True),
    ]
    assert told["figures"][1]["detail"] == "did not end: OutOfMemoryError: tried to allocate 30 GiB"
    assert told["complete"] is True
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3, "a line per figure"
    assert "and more words" in captured.err, "nothing of the trouble is lost"


def test_what_was_measured_is_on_disk_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "gpu.json"
    seen: list[dict[str, Any]] = []

    def taken_away(options: Options, time_left: Time) -> Iterator[Figure]:
        for name in ("gpu_a", "gpu_b"):
            yield figure(name)
            seen.append(json.loads(file.read_text()))
        raise KeyboardInterrupt

    parts(monkeypatch, loop=taken_away)
    with pytest.raises(KeyboardInterrupt):
        gpu.main([*SMALL, f"json={file}"])
    assert [[row["name"] for row in told["figures"]] for told in seen] == [["gpu_a"], ["gpu_a", "gpu_b"]]
    told = json.loads(file.read_text())
    assert told["complete"] is False
    assert told["options"]["model"] == "small_cnn"
    assert {"date", "device", "torch", "cuda", "nccl", "commit"} <= set(told)
    assert told["torch"] == torch.__version__


def test_after_its_minutes_no_part_begins_and_those_left_out_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    now = 0.0
    monkeypatch.setattr(gpu, "Time", lambda minutes: Time(minutes, lambda: now))

    def slow(options: Options, time_left: Time) -> Iterator[Figure]:
        nonlocal now
        now += 60.0
        yield figure("gpu_slow")

    parts(monkeypatch, loop=slow, function=slow, mixed=slow)
    assert gpu.main([*SMALL, "minutes=2"]) == 1
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert names == ["gpu_slow", "gpu_slow", "gpu_part_mixed"]


# ------------------------------------------------------------------ parts, small


def measured(part: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The rows of a part, by name."""
    file = folder / f"{part}.json"
    assert gpu.main([*SMALL, f"only={part}", f"json={file}"]) == 0
    rows = {row["name"]: row for row in json.loads(file.read_text())["figures"]}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["bench", name] for name in rows]
    return rows


def test_the_loop_is_measured_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = measured("loop", tmp_path, capsys)
    assert list(rows) == ["gpu_loop_over_bare", "gpu_bare_images_per_s", "gpu_searching_images_per_s"]
    ratio = rows["gpu_loop_over_bare"]
    assert 0 < ratio["value"] < 10
    assert ratio["at_least"]
    assert "5 pairs of 4 steps" in ratio["detail"]


@pytest.mark.parametrize(("bare", "ok"), [(1.9, True), (1.8, False)])
def test_a_loop_that_is_slower_than_was_promised_is_short(bare: float, ok: bool):
    took = {"ours": [2.0] * 5, "bare": [bare] * 5}
    found = loop_overhead.rate_ratio("gpu_loop", parse([]), took, loop_overhead.RATE_LIMIT, "a model")
    assert found.value == pytest.approx(bare / 2)
    assert found.ok is ok


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


def test_kernels_are_searched_for_in_one_arm_alone():
    seen: list[bool] = []

    def block() -> None:
        seen.append(torch.backends.cudnn.benchmark)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        loop_overhead.searching(block)()
    assert (seen, torch.backends.cudnn.benchmark) == ([True], False)


def test_three_ranks_are_balanced_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = measured("mixed", tmp_path, capsys)
    assert list(rows) == ["gpu_share_beside_cpus", "gpu_steps_apart"]
    assert 0 < rows["gpu_share_beside_cpus"]["value"] < 1
    assert "ranks on cpu, cpu and cpu" in rows["gpu_share_beside_cpus"]["detail"]
    assert 1 <= rows["gpu_steps_apart"]["value"] < 3


def test_a_gpu_rank_among_two_of_cpus():
    config = gpu_runs.of_ranks("cuda", "cpu", "cpu")
    assert config.cluster.ranks_of_nodes == (1, 2)
    assert [config.cluster.device.kind_of(rank) for rank in range(3)] == ["cuda", "cpu", "cpu"]


@pytest.mark.parametrize(
    ("share", "last", "ok"),
    [
        (0.9, [1.4, 1.1, 1.1], [True, True]),
        (0.9, [1.1, 1.3, 1.3], [True, False]),
        (0.4, [1.1, 1.1, 1.1], [False, True]),
    ],
)
def test_steps_that_do_not_become_equal_are_short_on_a_gpu_alone(
    share: float, last: list[float], ok: list[bool]
):
    told = {"shares": [share, (1 - share) / 2, (1 - share) / 2], "batches": [1, 2, 3]}
    looks = [{"times_s": [0.001, 0.01, 0.01], "ratio": ratio} for ratio in (1.43, *last)]
    assert [figure.ok for figure in gpu_runs.balanced(parse([]), told, looks)] == ok
    assert all(figure.ok for figure in gpu_runs.balanced(replace(parse([]), device="cpu"), told, looks))
    with pytest.raises(RuntimeError, match=r"3 look\(s\) at the ranks' times"):
        list(gpu_runs.balanced(parse([]), told, looks[:3]))


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_every_part_runs(tmp_path: Path):
    small = ["model=resnet18", "image=64", "batch=32", "blocks=5", "steps=8", f"json={tmp_path / 'gpu.json'}"]
    gpu.main(small)
    rows = json.loads((tmp_path / "gpu.json").read_text())["figures"]
    assert [row["name"] for row in rows if not row["ok"] and row["name"] != "gpu_loop_over_bare"] == []
