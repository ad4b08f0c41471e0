"""Nested keys, dotted keys, and which lie below which."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from daso_bench.runner.records.trees import below, flatten, nested

NAMES = st.text("abc_", min_size=1, max_size=3)
LEAVES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3))


def test_lists_and_mappings_without_keys_are_values():
    tree = {"train": {"epochs": 3, "more": {}}, "seed": 0, "cluster": {"speeds": [1, {"a": 2}]}}
    flat = {"train.epochs": 3, "train.more": {}, "seed": 0, "cluster.speeds": [1, {"a": 2}]}
    assert flatten(tree) == flat
    assert list(flatten(tree)) == list(flat), "in the order of the tree"
    assert nested(flat) == tree


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_nesting_undoes_flattening(tree: dict[str, Any]):
    assert nested(flatten(tree)) == tree


def test_a_key_lies_below_itself_and_below_what_its_dots_say():
    assert below("train", ["train"])
    assert below("train.target", ["model", "train"])
    assert not below("training", ["train"])
    assert not below("train", ["train.target"])
    assert not below("train", [])
