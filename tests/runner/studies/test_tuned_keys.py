"""What strategies declare to be tuned: few keys, each with values that the strategy itself accepts."""

import dataclasses

import pytest
from runs import NAMES, strategy_class


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_declares_at_most_three_keys_of_its_own_with_a_choice_of_values(name: str) -> None:
    kind = strategy_class(name)
    known = {field.name for field in dataclasses.fields(kind.Config)}
    keys = [key for key, _ in kind.tuned]
    assert len(keys) <= 3
    assert set(keys) <= known
    assert len(set(keys)) == len(keys)
    assert all(len(set(values)) == len(values) >= 2 for _, values in kind.tuned)


@pytest.mark.parametrize("name", NAMES)
def test_each_declared_value_is_accepted_beside_the_defaults(name: str) -> None:
    kind = strategy_class(name)
    for key, values in kind.tuned:
        for value in values:
            assert getattr(kind.Config(**{key: value}), key) == value
