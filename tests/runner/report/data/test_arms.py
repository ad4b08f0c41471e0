"""What belongs together, how it is called, and the command that repeats it."""

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from sharing import Make, all_compared, compared

from daso_bench.runner.report.data.load import load_run
from daso_bench.runner.report.plots.style import colour
from daso_bench.runner.report.reproduce import arguments_of

ODD = [None, True, 3, 0.1, 1e-8, "auto", "", "null", "1e3", "a b", "it's", "a,b", "[x]", "$x", [1, "b c"], {}]


def test_seeds_make_no_arms_and_settings_do(make_run: Make, tmp_path: Path) -> None:
    for seed in (10, 9, 0):
        make_run(tmp_path, "daso", seed)
        make_run(tmp_path, "daso", seed, settings={"sync_every": 16})
        make_run(tmp_path, "ddp", seed)
        make_run(tmp_path, "ddp", seed, arm="A'")
    comparison = compared(tmp_path)
    assert [arm.label for arm in comparison.arms] == [
        *("ddp", "ddp [A']", "daso, strategy.sync_every=4", "daso, strategy.sync_every=16")
    ]
    assert [[run.seed for run in arm.runs] for arm in comparison.arms] == [[0, 9, 10]] * 4


@pytest.mark.parametrize("value", ODD)
def test_the_command_gives_the_same_values(make_run: Make, tmp_path: Path, value: Any) -> None:
    run = load_run(make_run(tmp_path, settings={"odd": value, "list": [3, 1]}), "place")
    words = arguments_of(run)
    assert words[:2] == ["strategy=ddp", "model=small_cnn"]
    given = {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(words)}
    assert given["strategy.odd"] == value
    assert isinstance(given["strategy.odd"], bool) == isinstance(value, bool)
    assert given["strategy.list"] == [3, 1]
    assert (given["optimizer"], given["schedule"], given["seed"]) == ("sgd", "cosine", 0)
    assert given["launcher"] == "local"
    assert given["cluster.ranks_per_node"] == [2, 2]
    assert "results_dir" not in given


def test_text_below_run_is_given_as_it_is(make_run: Make, tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, arm="A' $x|"), "place")
    assert "run.arm=A' $x|" in arguments_of(run)


def test_the_names_of_a_study_are_the_labels_unless_shared(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "daso", place={"arm": "fast"})
    make_run(tmp_path, "ddp", place={"arm": "ddp by nodes"}, settings={"algorithm": "ring"})
    make_run(tmp_path, "ddp", place={"arm": "ddp"})
    for period in (8, 16):
        make_run(tmp_path, "local_sgd", place={"arm": "local"}, settings={"period": period})
    comparison = compared(tmp_path)
    assert [arm.label for arm in comparison.arms] == [
        *("ddp", "ddp by nodes", "fast", "local, strategy.period=8", "local, strategy.period=16")
    ]


def test_names_that_some_runs_lack_are_no_labels(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path, "daso", place={"arm": "fast"})
    make_run(tmp_path, "ddp")
    comparison = compared(tmp_path)
    assert [arm.label for arm in comparison.arms] == ["ddp", "daso"]


def test_worlds_sizes_and_assumptions_are_compared_apart(make_run: Make, tmp_path: Path) -> None:
    for world in ("local", "simulated"):
        for size in ("4 nodes", "16 nodes"):
            for assumption in ("", "rings"):
                make_run(tmp_path, world=world, place={"size": size, "assumption": assumption})
    assert [(c.world, c.size, c.assumption, len(c.runs)) for c in all_compared(tmp_path)] == [
        (world, size, assumption, 1)
        for world in ("local", "simulated")
        for size in ("4 nodes", "16 nodes")
        for assumption in ("", "rings")
    ]


def test_an_arm_looks_the_same_everywhere_and_different_beside_others(make_run: Make, tmp_path: Path) -> None:
    for study, strategies in {"a": "tuvwxyz", "b": "zy", "c": ["ddp", "t"], "d": ["ddp", "new"]}.items():
        for strategy in strategies:
            make_run(tmp_path, strategy, study=study)
    comparisons = all_compared(tmp_path)
    looks = {arm.label: arm.index for c in comparisons for arm in c.arms}
    assert len(set(looks.values())) == len(looks) == 9
    assert [arm.index for arm in comparisons[0].arms] == list(range(7))
    for comparison in comparisons:
        assert [arm.index for arm in comparison.arms] == [looks[arm.label] for arm in comparison.arms]
        assert len({colour(arm.index) for arm in comparison.arms}) == len(comparison.arms)


def test_the_world_is_known_without_a_configuration(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path, world="simulated")
    (path / "config.yaml").unlink()
    assert load_run(path, "place").world == "simulated"
