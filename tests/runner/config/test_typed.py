"""`typed()`: unknown keys, wrong types and bad ranges are refused by name; text stays what it is."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from daso_bench.runner.config.overrides import escape
from daso_bench.runner.config.typed import locate_target, typed
from daso_bench.strategies.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Example:
    steps: int = 1
    share: float = 0.5
    on: bool = False
    label: str = ""
    sizes: tuple[int, ...] = (2,)
    every: int | str | None = "auto"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"group.steps={self.steps}: must be >= 0")


def test_all_kinds_of_fields_arrive_typed() -> None:
    node = OmegaConf.create(
        {"steps": 3, "share": 1, "on": True, "label": "x", "sizes": [3, 1], "every": 10, "limit": None}
    )
    assert typed(Example, node, "group") == Example(
        steps=3, share=1.0, on=True, label="x", sizes=(3, 1), every=10, limit=None
    )


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"stpes": 3}, "group.stpes: unknown key (did you mean group.steps?); known: group.steps, group."),
        ({"steps": "abc"}, "group.steps=abc: must be a whole number"),
        ({"steps": None}, "group.steps=null: must be a whole number"),
        ({"limit": "x"}, "group.limit=x: must be a whole number or null"),
        ({"share": "much"}, "group.share=much: must be a number"),
        ({"on": 3}, "group.on=3: must be true or false"),
        ({"sizes": [1, "x"]}, "group.sizes=[1, 'x']: must be a whole number or a list of such"),
        ({"every": 1.5}, "group.every=1.5: must be a whole number or text or null"),
        ({"steps": -1}, "group.steps=-1: must be >= 0"),
        ({"steps": "${nowhere}"}, "Interpolation key 'nowhere' not found"),
    ],
)
def test_a_bad_value_is_named(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(Example, OmegaConf.create(node), "group")
    assert message in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text(alphabet="\\${}ab:'\""))
def test_any_text_survives(text: str) -> None:
    assert typed(Example, {"label": text}, "group").label == text
    assert OmegaConf.to_container(OmegaConf.create({"label": escape(text)}), resolve=True) == {"label": text}


def test_a_target_is_located_or_refused_by_name() -> None:
    assert locate_target({"_target_": "collections.OrderedDict"}, "model").__name__ == "OrderedDict"
    for target, message in [
        ("nosuch_module.Thing", r"model\._target_=nosuch_module\.Thing: cannot be imported: No module named"),
        ("collections.Nosuch", "cannot be imported"),
        ("collections.abc", "must be a class, not module"),
        (None, "must be the dotted path of a class"),
    ]:
        with pytest.raises(ConfigError, match=message):
            locate_target({"_target_": target}, "model")
