"""Records that contradict each other: each contradiction is found, and the run gives no numbers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sharing import Make, agree

from daso_bench.runner.records.json_lines import write_json
from daso_bench.runner.report.data.examination import examined
from daso_bench.runner.report.data.load import Run, load_runs


def only(root: Path) -> Run:
    (run,) = examined(load_runs(root, "test"))
    return run


def reasons(root: Path) -> list[tuple[str, ...]]:
    """Of each run why its records cannot be believed."""
    return [run.distrusted for run in examined(load_runs(root, "test"))]


def change(path: Path, edit: Callable[[Any], None], *, kind: str = "") -> None:
    """Apply `edit` to the JSON or YAML file at `path`; `kind`: to each such row of JSON Lines."""
    text = path.read_text()
    if kind:
        rows = [json.loads(line) for line in text.splitlines()]
        for row in rows:
            if row["kind"] == kind:
                edit(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".yaml":
        edit(tree := yaml.safe_load(text))
        path.write_text(yaml.safe_dump(tree))
    else:
        edit(tree := json.loads(text))
        path.write_text(json.dumps(tree))


def test_a_run_whose_records_agree_is_believed(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, "daso", seed, place={"arm": "daso"})
    make_run(tmp_path, status="failed", reason="killed")
    assert reasons(tmp_path) == [()] * 4


def scaled(row: Any) -> None:
    """All times of a row at 60 %."""
    for key, value in row.items():
        if key.endswith("_s") and isinstance(value, float):
            row[key] = 0.6 * value


CONFIG, STATUS, SUMMARY, EVALUATION = "config.yaml", "status.json", "summary", "evaluation"
METRICS = "metrics.jsonl"


@pytest.mark.parametrize(
    ("file", "kind", "edit", "words"),
    [
        (CONFIG, "", lambda tree: tree["optimizer"].update(lr=0.2), "that of run daso-small_cnn-digits-s0-"),
        (
            CONFIG,
            "",
            lambda tree: tree["strategy"].update(_target_="daso_bench.strategies.lasgd.Some"),
            "config.yaml is that of run lasgd-",
        ),
        (CONFIG, "", lambda tree: tree.pop("cluster"), "config.yaml is not complete"),
        (STATUS, "", lambda tree: tree.update(run_id="a"), "not of status.json a"),
        (
            "environment.json",
            "",
            lambda tree: tree.update(world="simulated"),
            "launcher=local, environment.json was written by simulated",
        ),
        (
            CONFIG,
            "",
            lambda tree: tree["study"].update(arm="hsgd, tuned"),
            "study.arm=hsgd, tuned is the name of another strategy, daso ran",
        ),
        (METRICS, SUMMARY, scaled, "differ in train_s"),
        (
            METRICS,
            EVALUATION,
            lambda row: row.update(accuracy=row["accuracy"] + 0.015),
            "accuracy is not correct / count in 4 of 4 evaluations",
        ),
        (METRICS, EVALUATION, lambda row: row.update(index=row["index"] * 2), "are missing or doubled"),
        (METRICS, EVALUATION, lambda row: row.update(step=100 - row["step"]), "step goes back"),
        (METRICS, SUMMARY, lambda row: row.update(epochs=6), "after 6 of 12 epochs"),
        (STATUS, "", lambda tree: tree.update(summary=None), "status.json has no summary"),
        (
            "ranks/0.jsonl",
            "train_interval",
            lambda row: row.update(train_s=120.0),
            "training time is 360 s in metrics.jsonl, 480 s by the ranks' records",
        ),
        (
            "ranks/3.jsonl",
            "train_interval",
            lambda row: row["parts_s"].update(exposed=90.0),
            "part exposed is 72 s in metrics.jsonl, 144 s by the ranks' records",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_record_is_a_contradiction(
    make_run: Make, tmp_path: Path, file: str, kind: str, edit: Callable[[Any], None], words: str
) -> None:
    change(make_run(tmp_path, "daso") / file, edit, kind=kind)
    run = only(tmp_path)
    assert words in run.reason
    assert not run.counted


def test_times_shortened_in_both_summaries_contradict_the_ranks(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path)
    for kind in ("summary", "evaluation"):
        change(path / "metrics.jsonl", scaled, kind=kind)
    change(path / "status.json", lambda tree: scaled(tree["summary"]))
    words = "training time is 216 s in metrics.jsonl, 360 s by the ranks' records"
    assert only(tmp_path).distrusted == (words,)


def test_records_of_ranks_must_be_there(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (path / "ranks" / "2.jsonl").unlink()
    assert only(tmp_path).distrusted == ("records of 3 of 4 ranks are there",)
    shutil.rmtree(path / "ranks")
    assert only(tmp_path).distrusted == ("records of 0 of 4 ranks are there",)


def test_a_finished_run_cut_at_half_is_not_whole(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path)
    rows = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(rows[:2]))
    assert "the run is finished, and metrics.jsonl has no summary" in only(tmp_path).distrusted
    (path / "metrics.jsonl").write_text("".join([*rows[:2], rows[-1]]))
    assert "the summary counts 4 evaluations, 2 are recorded" in only(tmp_path).distrusted


def test_the_work_that_survived_is_summed_where_a_run_was_resumed(make_run: Make, tmp_path: Path) -> None:
    """The first attempt did two intervals after the checkpoint, which the second did again, in less time."""
    path = make_run(tmp_path)
    lines = [json.loads(line) for line in (path / "ranks" / "0.jsonl").read_text().splitlines()]
    lost = [row | {"train_s": 200.0} for row in lines[2:]]
    again = [row | {"attempt": 2} for row in lines[2:]]
    for file in (path / "ranks").iterdir():
        file.write_text("".join(json.dumps(row) + "\n" for row in [*lines[:2], *lost, *again]))
    assert only(tmp_path).distrusted == ()


def with_digests(path: Path, **digests: str) -> None:
    change(path / "metrics.jsonl", lambda row: row.update(digests=digests), kind="summary")
    agree(path)


def test_a_run_under_other_seeds_is_not_believed(make_run: Make, tmp_path: Path) -> None:
    """Copied with a configuration, an id and a status of another seed; only what was computed is equal."""
    first, other = make_run(tmp_path, "daso", 0), make_run(tmp_path, "daso", 1)
    shutil.copy(first / "metrics.jsonl", other / "metrics.jsonl")
    make_run(tmp_path, "daso", 2)
    assert reasons(tmp_path) == [("equal losses under seeds 0, 1",)] * 2 + [()]


@pytest.mark.parametrize(
    ("digest", "more", "equal"),
    [
        ("initial_weights", {}, True),
        ("first_batches", {}, True),
        # Where only clocks ran weights are no result, and most readers keep to the order of a packed file.
        ("initial_weights", {"world": "simulated", "launcher": {"timing_only": True}}, False),
        ("first_batches", {"reader": "Strided"}, False),
    ],
    ids=["weights", "batches", "only clocks", "packed file"],
)
def test_equal_digests_under_other_seeds_are_not_believed(
    make_run: Make, tmp_path: Path, digest: str, more: dict[str, Any], equal: bool
) -> None:
    for seed in (0, 1):
        with_digests(make_run(tmp_path, "daso", seed, **more), **{digest: "abc"})
    words = (f"equal {digest.replace('_', ' ')} under seeds 0, 1",) if equal else ()
    assert reasons(tmp_path) == [words] * 2


def test_a_twin_with_the_same_seeds_may_be_equal(make_run: Make, tmp_path: Path) -> None:
    for role in ("", "same_seeds"):
        for seed in (0, 1):
            path = make_run(tmp_path, "ddp", seed, place={"role": role}, arm=role)
            with_digests(path, initial_weights=f"w{seed}", first_batches=f"b{seed}")
    assert reasons(tmp_path) == [()] * 4


def test_nothing_learnt_is_no_copy(make_run: Make, tmp_path: Path) -> None:
    """A loss that never changes can be equal under all seeds."""
    for seed in (0, 1):
        path = make_run(tmp_path, "daso", seed)
        change(path / "metrics.jsonl", lambda row: row.update(loss=2.302585), kind="evaluation")
    assert reasons(tmp_path) == [()] * 2


@pytest.mark.parametrize(
    ("won", "trials", "words"),
    [
        (None, 0, "no tune.json next to the study has it"),
        ({"optimizer.lr": 0.1}, 0, "trials of tune.json are not on disk"),
        ({"optimizer.lr": 0.2}, 1, "its settings are not those that won in tune.json"),
        ({"optimizer.lr": 0.1}, 1, ""),
    ],
)
def test_a_label_alone_is_no_tuning(
    make_run: Make, tmp_path: Path, won: dict[str, float] | None, trials: int, words: str
) -> None:
    make_run(tmp_path / "results", "daso", place={"arm": "daso tuned", "tuned": "daso"})
    folder = tmp_path / "results" / "quick_tune"
    folder.mkdir()
    for number in range(trials):
        (folder / f"run{number}").mkdir()
        (folder / f"run{number}" / "metrics.jsonl").touch()
    if won is not None:
        arm = {"settings": won, "trials": [{"run": "run0", "train_s": 1.0}]}
        write_json(folder / "tune.json", {"arms": {"daso": arm}})
    expected = (f"study.tuned=daso: {words}",) if words else ()
    assert reasons(tmp_path / "results" / "quick") == [expected]


def test_an_id_is_asked_of_the_trace_only_where_it_lies_here(make_run: Make, tmp_path: Path) -> None:
    """A run id holds what a trace of step times held; elsewhere that file may be missing."""
    path, trace = make_run(tmp_path / "runs"), tmp_path / "trace.json"
    trace.write_text("[1.0]")
    change(path / "config.yaml", lambda tree: tree["cluster"].update(device={"trace": str(trace)}))
    path = agree(path)
    assert only(tmp_path).distrusted == ()
    trace.write_text("[2.0]")
    assert "config.yaml is that of run" in only(tmp_path).reason
    trace.unlink()
    assert only(tmp_path).distrusted == ()
