"""Rankings under step times that scatter otherwise: which comparisons belong together, and what turns."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from daso_bench.runner.report.arms import compare
from daso_bench.runner.report.build import report
from daso_bench.runner.report.jitter import DEPENDS, Jittered, Order, jitter_rows, jittered
from daso_bench.runner.report.load import find_runs, load_run

Make = Callable[..., Path]
SHAPES = {"none": "none", "Gaussian": "gaussian", "heavy-tailed": "student_t3"}
# Seconds between evaluations; all runs cross between the first and the second of two.
DDP, DASO = (10.0, 10.0, 10.0), (9.0, 9.5, 12.0)


def ran(
    make_run: Make, root: Path, size: str, seconds: dict[str, float], *, cv: float = 0.1, **more: Any
) -> None:
    """Two seeds of each arm under the jitter that `size` says."""
    for strategy, train_s in seconds.items():
        for seed in more.get("seeds", (0, 1)):
            path = make_run(
                root, strategy, seed, (0.5, 0.8), train_s=train_s, place={"size": size, "arm": strategy},
                train=more.get("train", {}), target=more.get("target", 0.75),
            )  # fmt: skip
            with_device(path, {"jitter": SHAPES.get(size, "none"), "jitter_cv": cv})


def with_device(path: Path, device: dict[str, Any]) -> None:
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["cluster"]["device"] = device
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def study(make_run: Make, root: Path, ddp: Sequence[float] = DDP, daso: Sequence[float] = DASO) -> None:
    for place, size in enumerate(SHAPES):
        ran(make_run, root, size, {"ddp": ddp[place], "daso": daso[place]})


def found(root: Path) -> list[Jittered]:
    return jittered(compare(load_run(path, path.name) for path in find_runs(root)))


def orders(root: Path) -> dict[str, Order]:
    (one,) = found(root)
    return {order.measure: order for order in one.orders}


def test_an_order_that_turns_depends_on_jitter_and_is_told_with_both_rankings(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    by_measure = orders(tmp_path)
    for order in by_measure.values():
        assert order.turns == (("daso", "ddp", ("none", "gaussian"), ("student_t3",)),)
    assert by_measure["time of all work"].sentence == (
        f"Time of all work: the ranking {DEPENDS}: daso is faster than ddp without jitter and with Gaussian "
        "jitter, slower with heavy-tailed jitter."
    )
    ranked = by_measure["time of all work"].ranked
    assert [arm for arm, _ in ranked("none")] == ["daso", "ddp"]
    assert ranked("student_t3") == [("ddp", pytest.approx(20)), ("daso", pytest.approx(24))]
    assert by_measure["time to target"].ranked("none")[0][1] == pytest.approx(9 * 2**0.5)


@pytest.mark.parametrize("daso", [(9.0, 9.5, 9.8), (11.0, 11.0, 12.0)])
def test_an_order_that_stays_does_not(make_run: Make, tmp_path: Path, daso: tuple[float, ...]):
    study(make_run, tmp_path, daso=daso)
    for order in orders(tmp_path).values():
        assert order.turns == ()
        assert order.sentence.endswith("no two arms change places.")


@pytest.mark.parametrize("daso", [(9.0, 9.5, 10.05), (11.0, 11.0, 9.95)])
def test_less_than_a_percent_is_no_order(make_run: Make, tmp_path: Path, daso: tuple[float, ...]):
    study(make_run, tmp_path, daso=daso)
    assert orders(tmp_path)["time of all work"].turns == ()


def test_jitter_of_another_deviation_is_another_question(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    ran(make_run, tmp_path, "Gaussian, more", {"ddp": 10.0, "daso": 9.0}, cv=0.3)
    for path in find_runs(tmp_path):
        run = load_run(path, path.name)
        if run.size == "Gaussian, more":
            with_device(path, {"jitter": "gaussian", "jitter_cv": 0.3})
    one, other = found(tmp_path)
    assert (one.cv, list(one.members)) == (0.1, ["none", "gaussian", "student_t3"])
    assert (other.cv, list(other.members)) == (0.3, ["none", "gaussian"])
    assert other.missing == ["with heavy-tailed jitter"]


def test_what_differs_in_more_than_jitter_is_not_set_side_by_side(make_run: Make, tmp_path: Path):
    ran(make_run, tmp_path, "none", {"ddp": 10.0, "daso": 9.0})
    ran(make_run, tmp_path, "Gaussian", {"ddp": 10.0, "daso": 11.0}, train={"global_batch_size": 128})
    assert found(tmp_path) == []


def test_one_jitter_alone_is_no_question(make_run: Make, tmp_path: Path):
    ran(make_run, tmp_path, "Gaussian", {"ddp": 10.0, "daso": 9.0})
    assert found(tmp_path) == []


def test_an_arm_with_other_seeds_or_without_a_time_is_left_out_and_said(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    for size in SHAPES:
        seeds = (0, 1) if size == "none" else (2, 3)
        ran(make_run, tmp_path, size, {"hsgd": 8.0}, seeds=seeds)
    ran(make_run, tmp_path, "none", {"sgp": 8.0})
    order = orders(tmp_path)["time to target"]
    assert dict(order.without) == {
        "hsgd": "other settings or seeds under another jitter",
        "sgp": "no time under every jitter",
    }
    assert set(order.times) == {"ddp", "daso"}


def test_second_baselines_have_no_place_in_a_ranking(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path)
    for size in SHAPES:
        for seed in (0, 1):
            place = {"size": size, "arm": "again", "role": "clock"}
            path = make_run(tmp_path, "ddp", seed, (0.5, 0.8), place=place, arm="clock")
            with_device(path, {"jitter": SHAPES[size], "jitter_cv": 0.1})
    assert set(orders(tmp_path)["time of all work"].times) == {"ddp", "daso"}


def test_without_a_target_the_time_of_all_work_alone_is_ranked(make_run: Make, tmp_path: Path):
    for place, size in enumerate(SHAPES):
        ran(make_run, tmp_path, size, {"ddp": DDP[place], "daso": DASO[place]}, target=None)
    assert set(orders(tmp_path)) == {"time of all work"}


def test_runs_that_stopped_at_the_target_have_no_time_of_all_work(make_run: Make, tmp_path: Path):
    for place, size in enumerate(SHAPES):
        ran(make_run, tmp_path, size, {"ddp": DDP[place], "daso": DASO[place]}, train={"stop": "first"})
    by_measure = orders(tmp_path)
    assert by_measure["time of all work"].times == {}
    assert "nothing can be said" in by_measure["time of all work"].sentence
    assert by_measure["time to target"].turns != ()


def test_the_page_and_the_table_say_it(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path / "runs")
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "Does the ranking depend on jitter?" in page
    assert f"the ranking {DEPENDS}: daso is faster than ddp without jitter" in page
    assert "with a deviation of 10 % of a step" in page
    with open(tmp_path / "out" / "jitter.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 2
    first = [row for row in rows if (row["measure"], row["jitter"]) == ("time of all work", "student_t3")]
    assert [(row["arm"], row["place"], row["depends_on_jitter"]) for row in first] == [
        ("ddp", "1", "True"),
        ("daso", "2", "True"),
    ]
    assert jitter_rows(found(tmp_path / "runs"))[0]["jitter_cv"] == 0.0


def test_a_study_without_jitter_says_nothing_of_it(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "runs")
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "depend on jitter" not in page
    assert not (tmp_path / "out" / "jitter.csv").exists()
