"""A number to the base 60 in a user's YAML is refused where it stands."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from daso_bench.runner.config.overrides import refuse_sexagesimal
from daso_bench.strategies.errors import ConfigError


def test_the_loader_in_use_does_count_to_the_base_60() -> None:
    """If this fails, the check has nothing left to refuse and can go."""
    assert OmegaConf.create("a: 30:00\nb: 12:30:00\nc: 1:30.5") == {"a": 1800, "b": 45000, "c": 90.5}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("timeout_min: 30:00\n", 'line 1: timeout_min: 30:00 without .* write timeout_min: "30:00"'),
        ("a: 1\nlauncher:\n  timeout_min: 12:30:00 # h\n", "line 3: timeout_min: 12:30:00 .*"),
        ("- {x: -1:30}\n", "line 1: x: -1:30 "),
    ],
)
def test_the_file_the_line_the_key_and_the_remedy_are_told(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "launcher" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"mine.yaml, {where}"):
        refuse_sexagesimal(tmp_path)


def test_quoted_text_and_all_else_is_let_through(tmp_path: Path) -> None:
    texts = (
        'a: "30:00"\nb: 1-00:00:00\nc: 1800\nd: host:22\ne: 08:00\nf: 2026-11-28 13:15:31\ng: !!str 30:00\n',
        "base: &base {a: 1}\nother: *base\ncircle: &c [*c]\n",
        "",
        "not: [yaml\n",
        "a: ${b}\n",
    )
    for number, text in enumerate(texts):
        (tmp_path / f"mine{number}.yaml").write_text(text)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00a: 30:00")
    (tmp_path / "notes.txt").write_text("a: 30:00")
    refuse_sexagesimal(tmp_path)
    refuse_sexagesimal(tmp_path / "absent")
    refuse_sexagesimal(Path(__file__).parents[4] / "conf")  # what ships
