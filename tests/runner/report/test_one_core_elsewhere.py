"""One core started by another launcher than the arms that it is held against."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from core_studies import Core, made, usual

from daso_bench.runner.report.claims.core_efficiency import matrix
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import load_runs

Make = Callable[..., Path]


def started_by(launcher: str, arms: dict[str, Core]) -> dict[str, Core]:
    keys = {"partition": "all"} if launcher == "slurm" else {"network": "none"}
    return {name: replace(core, more={"world": launcher, "launcher": keys}) for name, core in arms.items()}


@pytest.mark.parametrize("world", ["slurm", "torchrun"])
def test_a_core_alone_joins_the_only_arms_of_its_study(make_run: Make, tmp_path: Path, world: str):
    arms = usual()
    alone = {"one core": arms.pop("one core")}
    comparison = made(make_run, tmp_path, started_by(world, arms) | started_by("local", alone))
    found = matrix(comparison)
    assert comparison.world == world
    assert found is not None
    assert [line.arm.label for line in found.lines] == ["native", "hsgd"]
    assert found.alone == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("world", "own"), [("simulated", "local"), ("emulated", "local"), ("local", "emulated")]
)
def test_a_core_and_arms_do_not_join_where_one_is_made_slower(
    make_run: Make, tmp_path: Path, world: str, own: str
):
    arms = usual()
    alone = {"one core": arms.pop("one core")}
    with pytest.raises(ValueError, match="too many values"):
        made(make_run, tmp_path, started_by(world, arms) | started_by(own, alone))
    assert {found.world for found in compare(load_runs(tmp_path, "report"))} == {world, own}
