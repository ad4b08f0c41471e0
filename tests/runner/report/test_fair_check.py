"""The check "fair": every arm is compared with the baseline, whether a claim is about it or not."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, agree, edited, table
from test_speedups import ARM, BASE, reasons, study

from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.speedups import Check, Speedups
from daso_bench.runner.report.results import Results, results_of

Edit = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes the configuration and environment.json of a run."""


def results(root: Path) -> Results:
    return results_of(root, "test", None)


def studied(root: Path) -> Speedups:
    (found,) = results(root).speedups
    return found


def fair(study: Speedups) -> Check:
    (found,) = [check for check in study.checks if check.name == "fair"]
    return found


def arm_of(
    make_run: Make, root: Path, strategy: str, times: Sequence[float], edit: Edit | None = None
) -> None:
    """An arm in each of five repetitions, its records changed by `edit`."""
    for seed, whole_s in enumerate(times):
        path = make_run(root, strategy, seed, train_s=whole_s / 4, place={"arm": strategy, "role": ""})
        if edit is None:
            continue
        environment = json.loads((path / "environment.json").read_text())
        with edited(path) as config:
            edit(config, environment)
        (path / "environment.json").write_text(json.dumps(environment))
        agree(path)


def in_config(group: str, **values: Any) -> Edit:
    return lambda config, environment: config[group].update(values)


def in_environment(**values: Any) -> Edit:
    return lambda config, environment: environment.update(values)


UNFAIR: dict[str, tuple[Edit, str]] = {
    "learning rate": (in_config("optimizer", lr=0.4), "other optimizer.lr: 0.4 instead of 0.1"),
    "link": (
        in_config("cluster", links={"inter": {"rate_gbit": 25}}),
        "other cluster.links.inter.rate_gbit: 25 instead of not set",
    ),
    "commit": (in_environment(commit="ffff"), "other commit: ffff instead of 1a2b3c4"),
}


@pytest.mark.parametrize("strategy", ["daso", "sgp"])  # a paper's claim is about daso alone here
@pytest.mark.parametrize("name", UNFAIR)
def test_an_arm_that_differs_in_more_than_its_strategy_is_forbidden(
    make_run: Make, tmp_path: Path, name: str, strategy: str
) -> None:
    edit, sentence = UNFAIR[name]
    study(make_run, tmp_path, arm=(), clock=None, fresh=None)
    arm_of(make_run, tmp_path, strategy, ARM, edit)
    arm_of(make_run, tmp_path, "hsgd", ARM)
    found = fair(studied(tmp_path))
    assert found.level == "red"
    assert list(reasons(found)) == [strategy]
    assert found.sentence.startswith(f"{strategy} differs from ddp in ")
    assert sentence in found.details[0]
    given = studied(tmp_path)
    shown = {line.arm.label: given.not_comparable(line.arm) for line in given.lines}
    assert shown == {strategy: reasons(found)[strategy], "hsgd": ""}


def test_the_reason_is_the_number_of_unequal_things_and_the_verdict_gives_the_worst_two(
    make_run: Make, tmp_path: Path
) -> None:
    def edit(config: dict[str, Any], environment: dict[str, Any]) -> None:
        in_config("optimizer", lr=0.4)(config, environment)
        in_config("cluster", links={"inter": {"rate_gbit": 25}})(config, environment)
        in_environment(commit="ffff")(config, environment)

    study(make_run, tmp_path, arm=(), fresh=1.0)
    arm_of(make_run, tmp_path, "daso", ARM, edit)
    given = results(tmp_path)
    (found,) = given.speedups
    assert found.not_comparable(found.lines[0].arm) == "3 unequal things"
    (judged,) = [one for one in given.judged if one.claim.id == "daso_time"]
    assert judged.verdict.word == "no verdict"
    assert judged.verdict.reasons[0] == (
        "daso differs from ddp in 3 unequal things: other cluster.links.inter.rate_gbit: 25 instead of "
        "not set; other optimizer.lr: 0.4 instead of 0.1; and 1 more"
    )


@pytest.mark.usefixtures("undrawn")
def test_a_fair_study_is_green_and_every_arm_is_in_the_table(make_run: Make, tmp_path: Path) -> None:
    study(make_run, tmp_path / "in", fresh=1.0, placebo=1.0)
    arm_of(make_run, tmp_path / "in", "sgp", ARM)
    found = fair(studied(tmp_path / "in"))
    assert (found.level, found.forbids, found.details) == ("green", (), ())
    assert found.sentence == "no arm differs from ddp in more than its strategy"
    report(tmp_path / "in", tmp_path / "out")
    arms = {row["arm"] for row in table(tmp_path / "out" / "fairness.csv")}
    assert arms == {"daso", "sgp", "ddp same_seeds", "ddp fresh_seeds", "placebo placebo"}


def test_a_baseline_of_two_commits_is_amber_where_the_arms_have_the_same(
    make_run: Make, tmp_path: Path
) -> None:
    study(make_run, tmp_path, base=(), arm=(), clock=None, fresh=None)
    for strategy, times in (("ddp", BASE), ("hsgd", ARM)):
        seeds = iter(range(5))
        arm_of(
            make_run,
            tmp_path,
            strategy,
            times,
            lambda _, own, seeds=seeds: own.update(commit=str(next(seeds) // 3)),
        )
    found = fair(studied(tmp_path))
    assert (found.level, found.forbids) == ("amber", ())
    assert found.sentence == "the runs of ddp differ: commit: 0 (3 runs), 1 (2 runs)"


def test_a_second_baseline_that_is_unequal_gives_no_noise_and_no_verdict(
    make_run: Make, tmp_path: Path
) -> None:
    study(make_run, tmp_path, fresh=1.0, exposed=0.5)
    for path in tmp_path.glob("*/ddp-*-s1000*"):
        with edited(path) as config:
            config["optimizer"]["lr"] = 0.2
        agree(path)
    given = results(tmp_path)
    assert reasons(fair(given.speedups[0])) == {"ddp fresh_seeds": "1 unequal thing"}
    (judged,) = [one for one in given.judged if one.claim.id == "daso_time"]
    assert (judged.verdict.word, judged.verdict.reasons[0]) == (
        "no verdict",
        "ddp fresh_seeds differs from ddp in 1 unequal thing: other optimizer.lr: 0.2 instead of 0.1",
    )


def test_what_only_an_efficiency_may_differ_in_is_named_so(make_run: Make, tmp_path: Path) -> None:
    study(make_run, tmp_path, arm=(), clock=None, fresh=None)
    arm_of(make_run, tmp_path, "hsgd", ARM, in_config("cluster", ranks_per_node=[4, 4]))
    assert reasons(fair(studied(tmp_path))) == {"hsgd": "only efficiency comparable"}
