"""A machine that others used too: no verdict on an arm that had no cores, nor on one beside it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_studies import Core, Make, made
from test_efficiency import STEADY, answered, times_as_efficient, verdicts

from daso_bench.runner.report.claims.fairness import by_design, in_words


def queueing(core: Core, shares: Sequence[float | str | None]) -> Core:
    """Its runs of seeds 0 to 4, with these shares of training time in the run queue."""

    def edit(seed: int, config: Any, environment: Any, summary: dict[str, Any]) -> None:
        summary["run_queue_share"] = shares[seed]

    return replace(core, edit=edit)


@pytest.mark.parametrize("name", ["native", "hsgd"])
@pytest.mark.parametrize(
    ("shares", "median"),
    [
        ((0.009, 0.011, 0.012, 0.0, 0.5), "0.011 s"),
        ((0.009, 0.008, 0.01, 0.4, 0.5), ""),
        ((None, None, None, 0.02, 0.04), "0.03 s"),
        ((1.153, 1.153, 1.153, 0.0, 0.0), "1.15 s"),  # of several threads at once: no share of anything
        ((None, "x", None, None, None), ""),
    ],
)
def test_an_arm_without_cores_in_half_of_its_runs_gets_no_verdict(
    make_run: Make, tmp_path: Path, name: str, shares: Sequence[float | str | None], median: str
):
    idle = (0.0 if any(isinstance(share, float) for share in shares) else None,) * 5  # of the other arms
    arms = {label: queueing(core, shares if label == name else idle) for label, core in STEADY.items()}
    given = answered(made(make_run, tmp_path, arms))
    (judged,) = verdicts(given, times_as_efficient(3))
    said = f"ready without a core (busy machine): {median} in each second of training, at most 0.01 s in each"
    assert any(said in reason for reason in judged.verdict.reasons) is bool(median)
    assert judged.verdict.word == ("no verdict" if median else "reproduced"), judged.verdict.reasons
    told = in_words(by_design(given.ledgers["hsgd"], "efficiency"))
    assert (said in told) is bool(median), "whichever of the two it was"


def test_a_core_that_was_not_alone_gives_no_headroom(make_run: Make, tmp_path: Path):
    arms = STEADY | {"one core": queueing(STEADY["one core"], (0.02,) * 5)}
    (judged,) = verdicts(answered(made(make_run, tmp_path, arms)), times_as_efficient(3))
    assert judged.verdict.word == "reproduced", judged.verdict.reasons
    said = "headroom not known: one core is no core of native's: not equal: time that the threads"
    (reason,) = [reason for reason in judged.verdict.reasons if reason.startswith(said)]
    assert "(busy machine): 0.02 s in each second" in reason
