"""Text keys are text whatever they look like: through Hydra and OmegaConf back to what was typed."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from daso_bench.runner.config.overrides import quote_text, spelling

PARSER = OverridesParser.create()


def read(word: str) -> object:
    """What the run gets for the override `word`."""
    node = OmegaConf.create({"value": PARSER.parse_override(word).value()})
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=False)["value"]  # pyright: ignore


def values(word: str) -> list[object]:
    override = PARSER.parse_override(word)
    return [read(f"x={value}") for value in override.sweep_string_iterator()]


# What a user can type and a shell can pass: no NUL, no lone surrogates.
typed = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text("\\'\"${}a,= #~")


@given(
    typed.filter(
        lambda text: len(text.strip()) < 2 or text.strip()[0] not in "'\"" or text.strip()[-1] not in "'\""
    )
)
def test_any_text_arrives_as_it_was_typed(text: str) -> None:
    (word,) = quote_text([f"run.tag={text}"], sweep=False)
    assert read(word) == text


@pytest.mark.parametrize(
    "key", ["run.name", "+run.tag", "++run.arm", "results_dir", "dataset.root", "study.name"]
)
@pytest.mark.parametrize("text", ["1e3", "it's", ""])
def test_every_text_key_takes_every_text(key: str, text: str) -> None:
    (word,) = quote_text([f"{key}={text}"], sweep=False)
    assert word.startswith(f"{key}=")
    assert read(word) == text


def test_a_quoted_value_is_left_alone() -> None:
    for word in ['run.name="Zürich #1"', "run.name='Zürich #1'"]:
        assert quote_text([word], sweep=False) == [word]
        assert read(word) == "Zürich #1"


def test_other_keys_are_left_alone() -> None:
    words = ["train.epochs=3", "~run.tag", "strategy=ddp,daso", "hydra.run.dir=a#b", "run.tagged=1e3"]
    assert quote_text(words, sweep=True) == words


def test_in_a_sweep_an_unquoted_comma_separates() -> None:
    (word,) = quote_text(["run.tag=1e3,lr=0.1,\"a,b\",'c,d',Zürich"], sweep=True)
    assert values(word) == ["1e3", "lr=0.1", "a,b", "c,d", "Zürich"]
    (word,) = quote_text(["run.tag=it's,fine"], sweep=True)
    assert values(word) == ["it's", "fine"]


@given(typed)
def test_the_spelling_that_works_does_work(text: str) -> None:
    """Through the shell's quoting, then Hydra's, then OmegaConf's."""
    (word,) = shlex.split(spelling(f"train.target={text}"))
    assert read(word) == text
