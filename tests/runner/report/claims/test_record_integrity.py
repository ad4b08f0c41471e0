"""An arm with distrusted runs, or faster than anything can be, gets no verdict and its reason is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from sharing import Make
from test_speedups import reasons

from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.claims.study_checks import records_intact
from daso_bench.runner.report.results import Results, results_of


def study(make_run: Make, root: Path, daso_s: float = 80.0) -> Results:
    """Five runs of ddp, 90 s an evaluation, of which a fifth is exposed and a tenth waiting; and of daso."""
    for seed in range(5):
        make_run(root, "ddp", seed, train_s=90.0 + seed / 100, world="simulated")
        make_run(root, "daso", seed, train_s=daso_s + seed / 100, world="simulated")
    return results_of(root, "test", None)


def only(results: Results) -> Speedups:
    (speedups,) = results.speedups
    return speedups


def test_an_arm_with_a_distrusted_run_is_forbidden_and_gets_no_verdict(
    make_run: Make, tmp_path: Path
) -> None:
    study(make_run, tmp_path)
    path = next((tmp_path / "quick").glob("daso-*-s2-*"))
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["optimizer"]["momentum"] = 0.5
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    results = results_of(tmp_path, "test", None)
    assert [run.run_id for run in results.trouble] == [path.name]
    found = next(check for s in results.speedups for check in s.checks if check.name == "records intact")
    # With other settings it is an arm of its own, which is shown with its reason.
    ((label, reason),) = reasons(found).items()
    assert "momentum=0.5" in label
    assert reason == "1 of 1 distrusted"
    assert path.name in found.details[0]


def test_one_changed_time_forbids_its_arm(make_run: Make, tmp_path: Path) -> None:
    study(make_run, tmp_path)
    path = next((tmp_path / "quick").glob("daso-*-s2-*"))
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["train_s"] *= 0.6
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = results_of(tmp_path, "test", None)
    speedups = only(results)
    found = records_intact(speedups)
    assert (found.level, reasons(found)) == ("red", {"daso": "1 of 5 distrusted"})
    assert found.sentence == "daso: the records of 1 of 5 runs contradict each other"
    assert speedups.not_comparable(speedups.lines[0].arm) == "1 of 5 distrusted"
    verdicts = [each.verdict for each in results.judged if each.arm == "daso"]
    assert {verdict.word for verdict in verdicts} == {"no verdict"}
    assert all(found.sentence in verdict.reasons for verdict in verdicts)


def test_a_lost_line_is_damage_and_no_contradiction(make_run: Make, tmp_path: Path) -> None:
    for seed in range(5):
        make_run(tmp_path, "ddp", seed)
        make_run(tmp_path, "daso", seed, tail='{"kind": "evalua' if seed == 0 else "")
    found = records_intact(only(results_of(tmp_path, "test", None)))
    assert (found.level, found.forbids) == ("amber", ())
    assert found.sentence == "1 of 10 runs have damaged records"


@pytest.mark.parametrize(("daso_s", "forbidden"), [(64.0, False), (62.0, True)])
def test_no_arm_is_faster_than_the_baseline_without_communication(
    make_run: Make, tmp_path: Path, daso_s: float, forbidden: bool
) -> None:
    """Of 90 s 27 are exposed or waiting: 63 s are left, and the bound is 1.4286; 1 % is rounding."""
    found = records_intact(only(study(make_run, tmp_path, daso_s)))
    if not forbidden:
        assert (found.level, found.forbids, found.details) == ("green", (), ())
    else:
        assert reasons(found) == {"daso": "faster than possible"}
        assert found.sentence.startswith("daso is 1.45")


def test_other_ranks_or_uneven_devices_have_no_such_bound(make_run: Make, tmp_path: Path) -> None:
    speedups = only(study(make_run, tmp_path, 30.0))
    assert records_intact(speedups).forbids
    balanced = replace(speedups.bound, of="balance and communication")
    assert not records_intact(replace(speedups, bound=balanced)).forbids
