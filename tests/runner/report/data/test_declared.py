"""What classes say of themselves: read from source as the class has it, in words the ledger knows."""

import importlib
import sys
from pathlib import Path

import pytest
from sharing import target_of

from daso_bench.runner.config.groups import entries
from daso_bench.runner.report.claims import recorded
from daso_bench.runner.report.data.declared import (
    DEFAULT,
    MAY_DIFFER,
    is_shipped,
    may_differ,
    task_of,
    too_much,
)

NAMES = list(entries("strategy"))


def module(folder: Path, text: str, name: str = "own_strategy") -> str:
    (folder / f"{name}.py").write_text(text)
    return name


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_what_the_class_says(name: str) -> None:
    place, _, cls = target_of(name).rpartition(".")
    assert may_differ(target_of(name)) == getattr(importlib.import_module(place), cls).may_differ


@pytest.mark.parametrize("name", list(entries("dataset")))
def test_the_task_that_is_read_is_the_data_sets(name: str) -> None:
    target = target_of(name, "dataset")
    place, _, cls = target.rpartition(".")
    said = getattr(getattr(importlib.import_module(place), cls), "task", "classification")
    assert task_of(target) == said


@pytest.mark.parametrize("target", ["", "nowhere.Data", "daso_bench.datasets.nothing.Data"])
def test_a_data_set_that_cannot_be_read_is_for_classification(target: str) -> None:
    assert task_of(target) == "classification"


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_may_differ_in_what_the_ledger_knows(name: str) -> None:
    known = {"strategy", *(one.key for one in recorded.QUANTITIES)}
    assert set(may_differ(target_of(name))) <= known
    assert "strategy" in may_differ(target_of(name))


def test_the_list_of_what_may_differ_is_what_our_strategies_declare() -> None:
    assert {key for name in NAMES for key in may_differ(target_of(name))} == set(MAY_DIFFER)
    assert all(MAY_DIFFER.values()), "each with its reason"
    assert not any(too_much(target_of(name)) for name in NAMES)


def test_a_name_of_a_built_in_strategy_is_that_strategys_alone() -> None:
    assert all(is_shipped(target_of(name), name) for name in NAMES)
    assert not is_shipped(target_of("ddp"), "daso")
    assert not is_shipped("mine.daso.DASO", "daso")
    assert is_shipped("mine.Mine", "mine"), "a name that nobody has"


def test_only_those_may_draw_other_samples_that_draw_by_themselves() -> None:
    assert [name for name in NAMES if "data.order" in may_differ(target_of(name))] == ["lasgd"]
    assert [name for name in NAMES if "data.local_batch" in may_differ(target_of(name))] == ["heterogeneous"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class Own:\n    may_differ = ('strategy', 'data.order')\n", ("strategy", "data.order")),
        ("class Own:\n    may_differ: tuple = ('strategy', 'a')\n", ("strategy", "a")),
        ("class Base:\n    may_differ = ('b',)\n\nclass Own(Base):\n    x = 1\n", ("b",)),
        (
            "from daso_bench.strategies.lasgd import LASGD\n\nclass Own(LASGD):\n    pass\n",
            ("strategy", "data.order", "data.samples", "evaluation.mode", "evaluation.count"),
        ),
        (
            "from daso_bench.strategies.heterogeneous import Heterogeneous as Own\n",
            ("strategy", "data.local_batch"),
        ),
        ("class Own:\n    may_differ = tuple(['data.order'])\n", DEFAULT),
        ("class Own:\n    may_differ = (1, 2)\n", DEFAULT),
        ("class Own(Own):\n    pass\n", DEFAULT),
        ("class Other:\n    may_differ = ('a',)\n", DEFAULT),
        ("class Own(\n", DEFAULT),
    ],
)
def test_a_strategy_of_ones_own_is_read_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, f"raise RuntimeError('imported')\n{text}" if "(\n" not in text else text)
    importlib.invalidate_caches()
    assert may_differ(f"{name}.Own") == expected
    assert name not in sys.modules


@pytest.mark.parametrize("target", ["", "nosuch", "nosuch.module.Own", "daso_bench.strategies.nosuch.Own"])
def test_a_class_that_cannot_be_found_is_allowed_its_own_keys_alone(target: str) -> None:
    assert may_differ(target) == DEFAULT
