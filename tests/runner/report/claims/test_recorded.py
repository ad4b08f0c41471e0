"""A machine that others used too: told beside the comparison, and no verdict on an arm that had no cores."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_studies import Core, Make, made
from test_efficiency import STEADY, answered, times_as_efficient, verdicts

from daso_bench.runner.report.claims.claim_tables import sentences, speedup_remarks
from daso_bench.runner.report.sections.details import warnings_of


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
    given = answered(made(make_run, tmp_path, STEADY | {name: queueing(STEADY[name], shares)}))
    (judged,) = verdicts(given, times_as_efficient(3))
    said = f"the machine was busy: the threads of a rank of {name} stood ready without a core for {median} "
    said += "in each second of training, all together; at most 0.01 s"
    assert (said in judged.verdict.reasons) is bool(median)
    assert judged.verdict.word == ("no verdict" if median else "reproduced"), judged.verdict.reasons
    told = speedup_remarks(given, given.lines[0]) if name == "hsgd" else sentences(given)
    assert any(said in one for one in told) is bool(median)


def test_a_core_that_was_not_alone_gives_no_headroom(make_run: Make, tmp_path: Path):
    arms = STEADY | {"one core": queueing(STEADY["one core"], (0.02,) * 5)}
    (judged,) = verdicts(answered(made(make_run, tmp_path, arms)), times_as_efficient(3))
    assert judged.verdict.word == "reproduced", judged.verdict.reasons
    said = "headroom not known: the machine was busy"
    assert any(reason.startswith(said) for reason in judged.verdict.reasons)


def test_a_busy_machine_is_told_beside_the_comparison(make_run: Make, tmp_path: Path):
    arms = STEADY | {
        "native": queueing(STEADY["native"], (0.009, 0.02, None, 0.0, 0.0)),
        "one core": queueing(STEADY["one core"], (0.03, 0.0, 0.0, 0.0, 0.0)),
    }
    (said,) = [one for one in warnings_of(made(make_run, tmp_path, arms)) if "busy" in one]
    assert said.startswith(
        "The machine was busy in 2 of 9 runs: the threads of a rank stood ready without a core for up to "
        "0.03 s in each second of training, all together"
    )
    assert "%" not in said
