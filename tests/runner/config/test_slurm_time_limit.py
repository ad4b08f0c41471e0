"""One meaning for every spelling of a time limit."""

import math
import re

import pytest

from daso_bench.runner.config.launchers import limit_in_words, minutes, seconds_left
from daso_bench.strategies.errors import ConfigError

KEY = "launcher.timeout_min"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30),
        ("30:00", 30),
        ("30:01", 31),
        ("0:30", 1),
        ("90:00", 90),
        ("12:30:00", 750),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("1-02:30:15", 1591),
    ],
)
def test_all_six_spellings_mean_what_they_mean_to_slurm(value: int | str, expected: int) -> None:
    assert minutes(value, KEY) == expected


@pytest.mark.parametrize(
    "value",
    [0, "0:00", "", "UNLIMITED", "30m", "-1:30", "1:2:3:4", "5:75", "1-36", ":30", True, None, 1.5, "٣٠"],
)
def test_anything_else_is_refused_with_the_key_the_value_and_the_spellings(value: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{KEY}={value}: ") + ".*minutes:seconds.*days-hours"):
        minutes(value, KEY)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("value", "people"), [(30, "30 min"), (1440, "1 d"), (1590, "1 d 2 h 30 min")])
def test_a_limit_is_written_limit_in_words(value: int, people: str) -> None:
    assert limit_in_words(value) == people


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:00", 0),
        ("1:23", 83),
        ("2-03:04:05", 183845),
        ("UNLIMITED", math.inf),
        ("INVALID", None),
        ("NOT_SET", None),
        ("83", None),
    ],
)
def test_the_time_left_is_seconds_infinity_or_unknown(text: str, expected: float | None) -> None:
    assert seconds_left(text) == expected
