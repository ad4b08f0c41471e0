"""Computing efficiency: what cores do together over what one does alone, with intervals and headroom."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from daso_bench.runner import claims
from daso_bench.runner.claims import Claim
from daso_bench.runner.report.answer import answers
from daso_bench.runner.report.arms import compare
from daso_bench.runner.report.build import report
from daso_bench.runner.report.efficiency import PARTS, efficiency_rows, efficiency_words, matrices, matrix
from daso_bench.runner.report.judge import judge
from daso_bench.runner.report.load import load_runs

Make = Callable[..., Path]
SPREAD = (0.98, 1.0, 1.02, 0.99, 1.01)


def make(
    make_run: Make,
    root: Path,
    rates: dict[str, float],
    *,
    cores: Sequence[int] = (0, 1, 2, 3),
    roles: Sequence[str] = ("", "clock", "fresh"),
) -> None:
    """Five runs an arm with these samples a second, on hosts of these cores; second baselines of `native`."""
    for arm, rate in rates.items():
        role = "one_core" if arm == "one core" else ""
        _runs(make_run, root, arm, role, rate, cores)
        if arm == "native":
            for second in roles[1:]:
                _runs(make_run, root, f"native, {second}", second, rate, cores)


def _runs(make_run: Make, root: Path, arm: str, role: str, rate: float, cores: Sequence[int]) -> None:
    place = {"arm": arm, "role": role, "baseline": "native"}
    strategy = "hsgd" if arm == "hsgd" else "ddp"
    for seed, factor in enumerate(SPREAD):
        path = make_run(root, strategy, seed, arm=arm, place=place, target=None)
        environment = json.loads((path / "environment.json").read_text())
        environment |= {"cores": len(cores)}
        for row in environment["ranks"]:
            row |= {"host": "a", "cores": list(cores)}
        (path / "environment.json").write_text(json.dumps(environment))
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        total = sum(rows[-1]["parts_s"].values())
        rows[-1] |= {
            "samples_per_s": rate * factor,
            "blocked_s": {"intra": 0.2 * total, "inter": 0.1 * total},
        }
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


RATES = {"native": 120.0, "hsgd": 360.0, "one core": 100.0}


def test_efficiency_is_the_rate_over_cores_times_that_of_one_alone(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path, RATES)
    (found,) = matrices(compare(load_runs(tmp_path, "report")))
    assert (found.cores, found.alone) == (4, pytest.approx(100.0, rel=1e-3))
    by_arm = {line.arm.label: line for line in found.lines}
    assert set(by_arm) == {"native", "hsgd"}, "second baselines, and the core that is alone, are no arms"
    assert by_arm["native"].value == pytest.approx(0.3)
    assert by_arm["hsgd"].value == pytest.approx(0.9)
    assert found.baseline.headroom == pytest.approx(1 / 0.3)
    # ln rates scatter by 1.58 %: Welch with 8 degrees of freedom, t = 2.306, half-width t s sqrt(2/5).
    logs = [math.log(value) for value in SPREAD]
    mean = sum(logs) / 5
    half = 2.306 * math.sqrt(2 / 5 * sum((value - mean) ** 2 for value in logs) / 4)
    ends = by_arm["hsgd"].interval
    assert ends is not None
    assert (ends.low, ends.high) == pytest.approx((0.9 * math.exp(-half), 0.9 * math.exp(half)), rel=1e-4)
    assert efficiency_words(by_arm["hsgd"]) == f"90.0 % [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"
    base = found.baseline.interval
    assert base is not None
    assert found.baseline.headroom_limit == pytest.approx(1 / base.low)
    assert "native gets 30.0% of what 4 cores could do" in found.sentence
    assert "more than 3.33 times as fast (at most 3.4" in found.sentence


def test_shares_say_where_training_time_went(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path, RATES)
    (found,) = matrices(compare(load_runs(tmp_path, "report")))
    shares = found.lines[0].shares
    assert shares is not None
    assert list(shares) == list(PARTS)
    assert shares["blocked on intra"] == pytest.approx(0.2)
    assert shares["blocked on inter"] == pytest.approx(0.1)
    assert sum(shares.values()) == pytest.approx(1.0)
    (row, *_) = efficiency_rows([found])
    assert row["share_blocked_on_inter"] == pytest.approx(0.1)
    assert row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]


@pytest.mark.parametrize("missing", ["native", "one core"])
def test_without_a_baseline_or_a_core_alone_there_is_none(make_run: Make, tmp_path: Path, missing: str):
    make(make_run, tmp_path, {name: rate for name, rate in RATES.items() if name != missing})
    assert matrices(compare(load_runs(tmp_path, "report"))) == []


def test_one_host_after_another_has_its_cores_counted_once(make_run: Make, tmp_path: Path):
    """Ranks bound to a core each say one core; together they are the host's."""
    make(make_run, tmp_path, RATES, cores=(2, 3))
    (comparison,) = compare(load_runs(tmp_path, "report"))
    found = matrix(comparison)
    assert found is not None
    assert found.cores == 2
    assert found.baseline.headroom == pytest.approx(1 / 0.6), "120 of 2 x 100"


def times_as_efficient(value: float) -> Claim:
    """HSGD's claim, with another number."""
    (known,) = [claim for claim in claims.load() if claim.id == "hsgd_efficiency"]
    return dataclasses.replace(known, value=value)


@pytest.mark.parametrize(
    ("value", "word"),
    [(20.0, "not testable here"), (3.0, "reproduced")],
)
def test_a_claim_of_efficiency_is_held_against_the_headroom_and_not_against_communication(
    make_run: Make, tmp_path: Path, value: float, word: str
):
    make(make_run, tmp_path, RATES)
    (given,) = answers(compare(load_runs(tmp_path, "report")))
    assert given.bound.value is not None
    assert given.bound.value < 2, "communication alone would leave less than was gained"
    judged = [one for one in judge([times_as_efficient(value)], [given]) if one.comparison is not None]
    (found,) = [one for one in judged if one.comparator == "native"]
    assert found.verdict.word == word, found.verdict.reasons
    if word == "not testable here":
        assert any(
            "not even all cores at work, each as fast as one alone, can exceed 3.33 here" in reason
            for reason in found.verdict.reasons
        )


def test_the_page_has_the_matrix_and_its_table(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path, RATES)
    page = report(tmp_path, tmp_path / "out").read_text()
    assert "Computing efficiency" in page
    assert "native gets 30.0% of what 4 cores could do" in page
    assert "Blocked between nodes" in page
    table = (tmp_path / "out" / "efficiency.csv").read_text().splitlines()
    assert len(table) == 3
    assert "one core" not in (tmp_path / "out" / "headline.csv").read_text(), "it is no arm of the comparison"
    assert "one core" in (tmp_path / "out" / "runs.csv").read_text()
