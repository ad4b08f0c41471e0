"""Stored samples to target against the runs that lie there: weak baselines, and arms that are too good."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from test_speedups import BASE, study

from daso_bench.runner.report.claims.claim_tables import cells, sentences, show_verdicts, speedup_rows
from daso_bench.runner.report.claims.convergence_points import Reference, workload_of
from daso_bench.runner.report.claims.judge import judge
from daso_bench.runner.report.claims.paper_claims import load
from daso_bench.runner.report.claims.speedups import Speedups, all_speedups
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import Run, load_runs

Make = Callable[..., Path]
# Runs of `study` cross the target between 3,000 and 4,000 samples, scored at their geometric mean.
CROSSED = (3000 * 4000) ** 0.5
AS_STORED = tuple(CROSSED * (1 + 0.01 * number) for number in range(-5, 6))


def reference(run: Run, samples: Sequence[float] = AS_STORED) -> Reference:
    return Reference(
        name="mine",
        workload=workload_of(run.config),
        samples=tuple(samples),
        missed=0,
        command="daso-bench pilot +study=mine --reference",
        date="2026-01-01",
    )


def held(root: Path, *references: Reference) -> Speedups:
    (found,) = all_speedups(compare(load_runs(root, "test")), references)
    return found


def stored(root: Path, times: float = 1.0) -> Reference:
    """The reference of the runs below `root`, which needed `times` the samples of the stored ones."""
    return reference(load_runs(root, "test")[0], [value / times for value in AS_STORED])


def test_a_baseline_that_needs_more_samples_than_stored_is_weak(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path, 1.1))
    (reason,) = found.forbidden
    assert reason.startswith("weak baseline: ddp needs 1.10")
    assert "stored runs of mine (p = " in reason
    (claim,) = [claim for claim in load() if claim.id == "daso_time"]
    (one,) = judge([claim], [found])
    assert one.verdict.word == "no verdict"
    assert reason in one.verdict.reasons


def test_a_baseline_like_the_stored_one_is_not_weak_and_it_is_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    found = held(tmp_path, stored(tmp_path))
    assert found.forbidden == ()
    assert "Samples to target were held against 11 stored runs of mine (2026-01-01)." in sentences(found)
    assert speedup_rows([found])[0]["reference"] == "mine"


def test_an_arm_that_needs_fewer_samples_gets_no_verdict_and_the_others_do(make_run: Make, tmp_path: Path):
    """sgp crosses one evaluation earlier, between 2,000 and 3,000 samples."""
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    for seed, whole_s in enumerate(BASE):
        place = {"arm": "sgp", "role": ""}
        make_run(tmp_path, "sgp", seed, (0.6, 0.7, 0.76, 0.78), train_s=whole_s / 4, place=place, exposed=0.5)
    found = held(tmp_path, stored(tmp_path))
    assert found.forbidden == ()
    assert found.guard is not None
    assert list(found.guard.flagged) == ["sgp"]
    by_arm = {cell.label: cell.notes for cell in cells(found)}
    (flag,) = [note for note in by_arm["sgp"] if "fewer samples than it should, flagged until" in note]
    assert flag.endswith(" after correction for 3 arms)")
    assert "(p = " in flag
    assert not any("fewer samples" in note for note in by_arm["daso"])
    claims = [claim for claim in load() if claim.id == "daso_time"]
    assert judge(claims, [found])[0].verdict.word != "no verdict"
    (judged,) = judge([replace(claims[0], arm="sgp")], [found])
    assert judged.verdict.word == "no verdict"


def test_an_arm_that_is_significant_alone_and_not_among_all_gets_its_verdict_and_a_note(
    make_run: Make, tmp_path: Path
):
    """sgp crosses between 3,000 and 3,770 samples, 3 % earlier: p = 0.04 alone, of three arms 0.12."""
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    crossing = ((1500, 0.6), (3000, 0.7), (3770, 0.76), (4000, 0.78))
    for seed, whole_s in enumerate(BASE):
        rows = [
            {
                "kind": "evaluation",
                "attempt": 1,
                "index": place,
                "step": place,
                "epoch": 0,
                "samples": samples,
            }
            | {"split": "test", "accuracy": accuracy, "correct": None, "count": 360, "loss": 1.0}
            | {"train_s": whole_s * samples / 4000, "wall_s": whole_s}
            for place, (samples, accuracy) in enumerate(crossing)
        ]
        make_run(tmp_path, "sgp", seed, rows=rows, place={"arm": "sgp", "role": ""}, exposed=0.5)
    found = held(tmp_path, stored(tmp_path))
    assert found.guard is not None
    shift = found.guard.shifts["sgp"]
    assert shift.p < 0.05 < shift.adjusted
    assert found.guard.flagged == {}
    notes = {cell.label: cell.notes for cell in cells(found)}["sgp"]
    assert any(note.startswith("not flagged: sgp needs 0.97") for note in notes)
    row = next(row for row in speedup_rows([found]) if row["arm"] == "sgp")
    assert (row["fewer_samples_p"], row["fewer_samples_holm_p"]) == (shift.p, shift.adjusted)
    claims = [claim for claim in load() if claim.id == "daso_time"]
    (judged,) = judge([replace(claims[0], arm="sgp")], [found])
    assert judged.verdict.word != "no verdict"


def test_a_baseline_that_is_too_good_gives_no_verdict_against_it(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    found = held(tmp_path, stored(tmp_path, 0.9))
    assert found.guard is not None
    assert set(found.guard.flagged) == {"ddp", "daso"}
    assert any(sentence.startswith("ddp needs fewer samples") for sentence in sentences(found))


def test_runs_that_missed_count_with_all_they_used(make_run: Make, tmp_path: Path):
    """None of the baseline's runs got there in 4,000 samples: 15 % more than stored, at least."""
    study(make_run, tmp_path, fresh=1.0, accuracies=(0.1, 0.2, 0.3, 0.4))
    (reason,) = held(tmp_path, stored(tmp_path)).forbidden
    assert reason.startswith("weak baseline: ddp needs 1.155")


@pytest.mark.parametrize("key", ["train", "optimizer", "model"])
def test_another_workload_has_no_reference_and_that_is_said(make_run: Make, tmp_path: Path, key: str):
    study(make_run, tmp_path, fresh=1.0)
    other = stored(tmp_path, 1.5)
    changed = {name: value for name, value in other.workload.items() if not name.startswith(key)}
    found = held(tmp_path, replace(other, workload=changed))
    assert found.forbidden == ()
    assert any(sentence.startswith("No stored reference for this workload") for sentence in sentences(found))


def test_without_a_target_nothing_is_held_against_anything(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0, target=None)
    found = held(tmp_path)
    assert found.guard is None
    assert not any("reference" in sentence for sentence in sentences(found))


def test_claims_finds_references_in_the_users_own_folder(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study(make_run, tmp_path / "in", fresh=1.0)
    found = stored(tmp_path / "in", 1.1)
    folder = tmp_path / "own" / "convergence"
    folder.mkdir(parents=True)
    tree = {name: getattr(found, name) for name in ("missed", "command", "date")}
    tree |= {"workload": dict(found.workload), "samples": list(found.samples)}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    assert show_verdicts(tmp_path / "in", tmp_path / "own") == 0
    assert "weak baseline" in " ".join(capsys.readouterr().out.split())
    assert show_verdicts(tmp_path / "in", None) == 0
    assert "weak baseline" not in " ".join(capsys.readouterr().out.split())
