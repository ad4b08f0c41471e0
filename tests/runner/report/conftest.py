"""Run directories made by hand, as the launcher and the ranks would leave them: their records agree."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sharing import write_config

from daso_bench.runner.records.json_lines import RecordWriter, encode
from daso_bench.runner.records.trees import id_of_tree
from daso_bench.runner.report import build

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """`_make_run` for every test."""
    return _make_run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn, which takes most of the time of a report."""
    monkeypatch.setattr(build, "picture", lambda plot, output: plot)


def _config(strategy: str, seed: int, target: float | None, arm: str, **more: Any) -> dict[str, Any]:
    """A resolved configuration as config.yaml holds it."""
    specific = {"ddp": {}, "daso": {"sync_every": 4, "warmup_epochs": 2}}.get(strategy, {"period": 8})
    return {
        "strategy": {"_target_": f"daso_bench.strategies.{strategy}.Some"}
        | specific
        | more.get("settings", {}),
        "model": {"_target_": "daso_bench.models.small.SmallCNN", "channels": [8, 16, 32], "norm": "none"},
        "dataset": {"_target_": "daso_bench.datasets.digits.Digits"},
        "reader": {"_target_": f"daso_bench.runner.config.reader_config.{more.get('reader', 'NoReader')}"},
        "optimizer": {"_target_": "daso_bench.runner.config.optimizers.SGD", "lr": 0.1, "momentum": 0.9},
        "schedule": {
            "_target_": "daso_bench.runner.config.schedules.Cosine",
            "warmup_epochs": 1.0,
            "final": 0.0,
        },
        "cluster": {"nodes": 2, "ranks_per_node": [2, 2]} | more.get("cluster", {}),
        "launcher": {"name": more.get("world", "local"), "threads_per_rank": "auto", "port": None}
        | {"pin": False, "timing_only": False}
        | more.get("launcher", {}),
        "train": {"epochs": 12, "global_batch_size": 64, "target": target, "target_metric": "accuracy"}
        | {"eval_every_samples": 1000, "eval_phase": 0.0}
        | more.get("train", {}),
        "seed": seed,
        "run": {"name": "", "tag": "", "arm": arm, "repeat": 0},
        "study": {"name": more.get("study", "quick")} | more.get("place", {}),
        "results_dir": "/somewhere/else/results",
    }


def _evaluations(accuracies: Sequence[float], train_s: float, seed: int) -> list[dict[str, Any]]:
    """One evaluation every 1,000 samples and `train_s` seconds of training; clocks add up.

    No two seeds have equal losses.
    """
    return [
        {
            "kind": "evaluation",
            "attempt": 1,
            "index": number - 1,
            "step": 10 * number,
            "epoch": number - 1,
            "samples": 1000 * number,
            "split": "test",
            "accuracy": accuracy,
            "correct": None if math.isnan(accuracy) else round(accuracy * 360),
            "count": 360,
            "loss": math.nan if math.isnan(accuracy) else 2.3 * (1 - accuracy) + 1e-6 * seed,
            "train_loss": 2.0,
            "train_s": train_s * number,
            "wall_s": (train_s + 10.0) * number,
            "eval_s": 10.0,
        }
        for number, accuracy in enumerate(accuracies, 1)
    ]


def _make_run(
    root: Path,
    strategy: str = "ddp",
    seed: int = 0,
    accuracies: Sequence[float] = (0.60, 0.76, 0.74, 0.78),
    *,
    target: float | None = 0.75,
    train_s: float = 90.0,
    status: str = "finished",
    reason: str | None = None,
    arm: str = "",
    labels: Sequence[str] = (),
    untimed: Sequence[str] = (),
    payload: tuple[float, float] = (3.0e6, 6.0e6),
    exposed: float = 0.2,
    rows: Sequence[dict[str, Any]] | None = None,
    attempts: Sequence[dict[str, Any]] = (),
    tail: str = "",
    metric: str = "accuracy",
    **more: Any,
) -> Path:
    """One run directory below `root`; `rows` replaces the evaluations, `tail` ends metrics.jsonl.

    `accuracies` are of `metric`: a segmentation run has mIoU and no accuracy at all, one for top-5 has both.

    `more`: `settings` of the strategy, `train`, `study`, its `place` in the study's sets, `world`.
    """
    more = more | {"train": {"target_metric": metric} | more.get("train", {})}
    settings = _config(strategy, seed, target, arm, **more)
    # Sizes and assumptions change settings, which these configurations do not: here they count repeats.
    while True:
        run_id = id_of_tree(settings, (strategy, "small_cnn", "digits"))
        path = root / settings["study"]["name"] / run_id
        if not path.exists():
            break
        settings["run"]["repeat"] += 1
    settings["run"]["id"] = run_id
    (path / "ranks").mkdir(parents=True)
    write_config(path, settings)
    environment = {
        "python": "3.11.2",
        "torch": "2.14.1",
        "daso_bench": "0.1.0",
        "commit": "1a2b3c4",
        "cores": 2,
    }
    ranks = [{"rank": r, "node": r // 2, "device": "cpu", "threads": 1} for r in range(4)]
    environment |= {"world": more.get("world", "local"), "ranks": ranks}
    (path / "environment.json").write_text(json.dumps(environment))
    done = list(_evaluations(accuracies, train_s, seed) if rows is None else rows)
    done = done if metric == "accuracy" else [_judged(row, metric) for row in done]
    timing = {"valid": not untimed, "reasons": list(untimed)}
    closes = status in ("finished", "diverged") and done
    closing = _summary(done, payload, exposed, settings["train"]["epochs"]) if closes else {}
    written = ("kind", "attempt", "step", "samples")
    state = {
        "schema_version": 1,
        "run_id": run_id,
        "study": settings["study"]["name"],
        "status": status,
        "timing": timing,
        "reason": reason,
        "labels": list(labels),
        "attempts": list(attempts) or [{"number": 1, "started_unix": 1000, "ended_unix": 1400}],
        "summary": {key: value for key, value in closing.items() if key not in written} or None,
    }
    # `write_json` waits for the disk, which takes longer than all else here.
    (path / "status.json").write_text(json.dumps(encode(state)))
    with RecordWriter(path / "metrics.jsonl") as writer:
        for row in done:
            writer.write(row)
        if closing:
            writer.write(closing)
    with open(path / "metrics.jsonl", "a") as file:
        file.write(tail)
    parts = {name: share * train_s for name, share in _shares(exposed).items()}
    for rank in range(4):
        with RecordWriter(path / "ranks" / f"{rank}.jsonl") as writer:
            for index, row in enumerate(done):
                place = {"attempt": row["attempt"], "index": index}
                writer.write({"kind": "train_interval", **place, "train_s": train_s, "parts_s": parts})
    with RecordWriter(path.parent / "plan.jsonl") as plan:
        study = settings["study"]
        declared = {key: study.get(key) for key in ("baseline", "level")}
        plan.write({"kind": "stage", "unix": 0, **declared, "targets": [target], "runs": [run_id]})
    return path


def _shares(exposed: float) -> dict[str, float]:
    """Of training time: its parts."""
    return {"compute": 0.8 - exposed, "exposed": exposed, "waiting": 0.1, "data": 0.04, "step_other": 0.06}


def _judged(row: dict[str, Any], metric: str) -> dict[str, Any]:
    """An evaluation's row of a run that is judged by `metric`."""
    value, rest = row["accuracy"], {k: v for k, v in row.items() if k not in ("accuracy", "correct")}
    other = (
        {"pixel_accuracy": 0.9}
        if metric == "miou"
        else {"accuracy": value / 2, "correct": round(180 * value)}
    )
    return rest | {metric: value} | other


def _summary(
    rows: Sequence[dict[str, Any]], payload: tuple[float, float], exposed: float, epochs: int
) -> dict[str, Any]:
    """The closing row of a run with the evaluations `rows`, which did all its epochs."""
    last = rows[-1]
    spent, judged_by = last["train_s"], [name for name in ("accuracy", "miou") if name in last]
    return {
        "kind": "summary",
        "attempt": last["attempt"],
        "step": last["step"],
        "samples": last["samples"],
        "train_s": spent,
        "process_s": 1.2 * spent,
        **{f"{which}_{name}": last[name] for name in judged_by for which in ("final", "best")},
        "samples_per_s": last["samples"] / spent,
        "payload_bytes": {"intra": payload[0], "inter": payload[1]},
        "ring_bytes": {"intra": payload[0] * 1.5, "inter": payload[1] * 1.5},
        "parts_s": {name: share * spent for name, share in _shares(exposed).items()},
        "evaluations": len({row["step"] for row in rows}),
        "epochs": epochs,
        "labels": [],
    }
