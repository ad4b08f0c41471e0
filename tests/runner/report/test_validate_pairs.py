"""The errors of virtual time against emulated runs, with hand values, and from run directories."""

from typing import Any

import pytest

from daso_bench.runner.report.data.load import Run
from daso_bench.runner.report.simulation_errors import Pair, pairs_of, validate
from daso_bench.runner.report.statistics.model_error import reference_pairs, size


def pair(arm: str, emulated: float, simulated: float, configuration: str = "one", **more: Any) -> Pair:
    known = {"study": "validation", "configuration": configuration, "arm": arm, "seed": "0"}
    seconds = {"emulated_step_s": emulated, "simulated_step_s": simulated}
    return known | seconds | {"emulated_target_s": None, "simulated_target_s": None} | more


def test_errors_are_relative_to_the_emulated_run() -> None:
    errors = validate([pair("ddp", 0.2, 0.19), pair("daso", 0.1, 0.1)]).errors
    step = errors["step time"]
    assert (step["median"], step["p95"]) == pytest.approx((0.025, 0.05))
    assert errors["speed-up"]["median"] == pytest.approx(0.05)  # ddp/daso: emulated 2, simulated 1.9
    assert "time to target" not in errors
    common = validate([pair("ddp", 0.2, 0.22), pair("daso", 0.1, 0.11)]).errors
    assert common["step time"]["median"] == pytest.approx(0.1)
    assert common["speed-up"]["median"] == pytest.approx(0, abs=1e-12), (
        "a common error leaves the ratio right"
    )


def test_an_order_counts_where_strategies_differ_by_more_than_five_per_cent() -> None:
    close = validate([pair("ddp", 0.104, 0.1), pair("daso", 0.1, 0.104)])
    assert (close.orders, close.orders_right) == (0, 0)
    wrong = validate([pair("ddp", 0.106, 0.1), pair("daso", 0.1, 0.104)])
    assert (wrong.orders, wrong.orders_right) == (1, 0)
    assert wrong.short[-1].startswith("order: 0 of 1 right")
    right = validate([pair("ddp", 0.2, 0.19), pair("daso", 0.1, 0.1), pair("lasgd", 0.15, 0.15)])
    assert (right.orders, right.orders_right) == (3, 3)


def test_strategies_of_one_configuration_are_held_against_the_limits() -> None:
    found = validate([pair("ddp", 0.2, 0.2), pair("daso", 0.1, 0.3, configuration="other")])
    assert (found.configurations, found.orders) == (2, 0)
    assert "speed-up" not in found.errors
    (line,) = validate([pair("ddp", 0.2, 0.2), pair("daso", 0.1, 0.104)]).short
    assert line == "speed-up: median 3.8% (limit 3%), 95th percentile 3.8% (limit 8%)"


def test_the_95th_percentile_is_an_error_that_was_seen() -> None:
    errors = [0.01] * 19 + [0.5]
    assert size(errors, 0.95) == 0.01
    assert size([*errors[:-1], 0.4, 0.5], 0.95) == 0.4  # of 21, one may be larger


def test_the_time_to_target_counts_where_both_reached_it() -> None:
    reached = pair("ddp", 0.2, 0.2, emulated_target_s=10.0, simulated_target_s=11.0)
    assert validate([reached]).errors["time to target"]["median"] == pytest.approx(0.1)
    assert "time to target" not in validate([{**reached, "simulated_target_s": None}]).errors


def run(launcher: str, train_s: float, arm: str = "ddp", size: str = "base", **more: Any) -> Run:
    validity = {"validity": {"network": "kernel"}} if launcher == "emulated" else {}
    timing = {"valid": not more.pop("reasons", []), "reasons": ["busy"]}
    return Run(
        place=f"{launcher}-{arm}-{size}",
        config={
            "launcher": {"name": launcher},
            "study": {"arm": arm, "size": size},
            "train": {"global_batch_size": 64},
            "seed": 0,
        },
        status={"status": more.pop("status", "finished"), "timing": timing},
        summary={"train_s": train_s, "steps": 30, "samples": 1920, **validity},
        rank_rows=[],
    )


def test_a_pair_is_the_same_arm_and_configuration_by_both() -> None:
    runs = [run("emulated", 6.0), run("simulated", 5.7), run("simulated", 3.0, arm="daso")]
    (only,), invalid = pairs_of(runs)
    assert (only["arm"], only["configuration"], invalid) == ("ddp", "base", 0)
    assert (only["emulated_step_s"], only["simulated_step_s"]) == (pytest.approx(0.2), pytest.approx(0.19))


def test_an_emulated_run_whose_checks_failed_counts_for_nothing_and_is_counted() -> None:
    runs = [run("emulated", 6.0, reasons=["busy"]), run("simulated", 5.7)]
    assert pairs_of(runs) == ([], 1)
    refused_at_its_start = run("emulated", 6.0, status="failed")
    assert pairs_of([refused_at_its_start, run("simulated", 5.7)]) == ([], 1)
    going_on = [run("simulated", 6.0, status="failed"), run("emulated", 6.0, status="running")]
    assert pairs_of(going_on) == ([], 0)


def test_the_stored_pairs_are_in_the_right_order() -> None:
    kept = validate(reference_pairs())
    assert (kept.configurations, kept.pairs, kept.orders, kept.orders_right) == (20, 87, 115, 115)
