"""A study whose clock is heavy gets no verdict; one whose clock is light says so."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cadence import held, verdict, whole

Make = Callable[..., Path]


def measured(make_run: Make, root: Path, mean: float, pairs: int = 30) -> None:
    """A run of the baseline whose pairs have this mean and a standard deviation of 0.02."""
    path = make_run(
        root,
        "ddp",
        7,
        (0.60, 0.70, 0.74, 0.78),
        place={"arm": "clock's cost", "role": "overhead"},
        world="local",
        exposed=0.5,
    )
    spread = 0.02 * math.sqrt((pairs - 1) / pairs)
    ratios = [math.log(mean) + (spread if number % 2 else -spread) for number in range(pairs)]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["clock_pairs"] = {"steps": 20, "log_ratios": ratios}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_light_clock_is_told_and_forbids_nothing(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    before = verdict(held(tmp_path))
    measured(make_run, tmp_path, 1.010)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert found.clock_cost.cost is not None
    assert found.clock_cost.cost.limit == pytest.approx(1.0163, abs=5e-5)
    assert found.clock_cost.sentence.startswith("The clock is light: steps take 1.0100 times as long")
    assert verdict(found) == before
    assert [line.arm.label for line in found.lines] == ["daso"], "it is no arm to be compared"


@pytest.mark.parametrize(
    ("mean", "told", "limit"),
    [
        (1.015, "not shown to be light: steps take 1.0150 times as long", "1.0213"),
        (1.024, "not shown to be light: steps take 1.0240 times as long", "1.0304"),
        (1.030, "too heavy: steps take 1.0300 times as long", "1.0364"),
    ],
)
def test_a_clock_that_may_be_heavy_leaves_the_study_without_a_verdict(
    make_run: Make, tmp_path: Path, mean: float, told: str, limit: str
):
    whole(make_run, tmp_path)
    measured(make_run, tmp_path, mean)
    word, reasons = verdict(held(tmp_path))
    assert word == "no verdict"
    assert any(told in reason and limit in reason for reason in reasons), reasons


def test_too_few_pairs_say_so_and_forbid_nothing(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    before = verdict(held(tmp_path))
    measured(make_run, tmp_path, 1.5, pairs=29)
    found = held(tmp_path)
    assert found.clock_cost is not None
    assert found.clock_cost.sentence == "What the clock costs is not known: 29 pairs of blocks of 30."
    assert verdict(found) == before
