"""Event files: what TensorBoard reads back is what the records hold."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.cli import main
from daso_bench.runner.records.json_lines import RecordWriter, write_json
from daso_bench.runner.report.tensorboard import tensorboard
from daso_bench.strategies.errors import ConfigError, MachineError

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")


def evaluation(index: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "attempt": 1,
        "index": index,
        "step": 10 * (index + 1),
        "samples": 100 * (index + 1),
        "train_s": 0.5 * (index + 1),
        "accuracy": 0.25 * (index + 1),
        "loss": None,
    } | more


def write(run: Path, *rows: dict[str, Any]) -> Path:
    """Append `rows` to a run directory that began in second 1000."""
    run.mkdir(parents=True, exist_ok=True)
    with RecordWriter(run / "metrics.jsonl") as writer:
        for row in rows:
            writer.write(row)
    attempts = [{"number": 1, "started_unix": 1000.0}]
    write_json(run / "status.json", {"status": "finished", "attempts": attempts})
    return run


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Tag -> (step, seconds since 1970, value), from the one event file in `folder`."""
    (file,) = folder.glob("events.out.tfevents.*")
    found: dict[str, list[tuple[int, float, float]]] = {}
    for event in loader.EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.setdefault(value.tag, []).append((event.step, event.wall_time, number))
    return found


def converted(directory: Path) -> Path:
    tensorboard(directory, directory / "out")
    return directory / "out"


def test_each_number_stands_over_samples_and_over_training_time(tmp_path: Path):
    write(tmp_path / "study" / "run", evaluation(0), evaluation(1))
    numbers = read(converted(tmp_path) / "study" / "run")
    assert numbers["accuracy/over samples"] == [(100, 1000.5, 0.25), (200, 1001.0, 0.5)]
    assert numbers["accuracy/over training ms"] == [(500, 1000.5, 0.25), (1000, 1001.0, 0.5)]
    assert set(numbers) == {"accuracy/over samples", "accuracy/over training ms"}, "null is no value"


def test_nan_is_a_value_and_rows_without_a_place_are_left_out(tmp_path: Path):
    rows = [{"kind": "start", "attempt": 1, "step": 0}, evaluation(0, train_s=None)]
    write(tmp_path / "run", *rows, evaluation(1, accuracy=math.nan, loss=math.inf))
    numbers = read(converted(tmp_path) / "run")
    ((step, _, accuracy),) = numbers["accuracy/over samples"]
    assert step == 200
    assert math.isnan(accuracy)
    assert numbers["loss/over samples"][0][2] == math.inf


def test_written_again_it_has_what_is_new_without_what_a_later_attempt_replaced(tmp_path: Path):
    start = {"kind": "start", "attempt": 1, "step": 0}
    run = write(tmp_path / "run", start, evaluation(0), evaluation(1))
    converted(tmp_path)
    write(run, start | {"attempt": 2, "step": 15}, evaluation(1, attempt=2, accuracy=0.9))
    write(tmp_path / "second", evaluation(0))
    found = read(converted(tmp_path) / "run")
    assert [value for _, _, value in found["accuracy/over samples"]] == pytest.approx([0.25, 0.9])
    assert len(read(tmp_path / "out" / "second")["accuracy/over samples"]) == 1


def test_a_missing_package_is_said_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "run", evaluation(0))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MachineError, match=r"pip install 'daso-bench\[tensorboard\]'"):
        converted(tmp_path)


def test_the_command_writes_below_the_folder_unless_told_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write(tmp_path / "run", evaluation(0))
    assert main.run(["tensorboard", str(tmp_path)]) == 0
    assert f"1 run, 1 row: tensorboard --logdir {tmp_path / 'tensorboard'}" in capsys.readouterr().out
    assert main.run(["tensorboard", str(tmp_path), "--output", str(tmp_path / "mine")]) == 0
    assert read(tmp_path / "mine" / "run") == read(tmp_path / "tensorboard" / "run")
    itself = main.run(["tensorboard", str(tmp_path / "run"), "--output", str(tmp_path / "of_one")])
    assert (itself, read(tmp_path / "of_one" / "run")) == (0, read(tmp_path / "mine" / "run"))
    (tmp_path / "empty").mkdir()
    for folder, message in (("nothing", "no such folder"), ("empty", "no run directory in it")):
        with pytest.raises(ConfigError, match=message):
            main.run(["tensorboard", str(tmp_path / folder)])
