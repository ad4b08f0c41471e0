"""The keys of a launcher: what is refused, which make another run, and every spelling of a time limit."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from slurm_cases import composed, config

from daso_bench.runner.config.launchers import (
    OWN_OPTIONS,
    SlurmConfig,
    limit_in_words,
    minutes,
    seconds_left,
)
from daso_bench.strategies.errors import ConfigError

DAY_MIN = 24 * 60


@pytest.mark.parametrize(("launcher", "key"), [("slurm", "hint"), ("local", "partition")])
def test_a_key_that_the_launcher_does_not_have_is_unknown(launcher: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"launcher\.{key}: unknown key") as caught:
        composed(f"launcher={launcher}", f"+launcher.{key}=x")
    assert "launcher.stall_s" in str(caught.value)
    assert f"launcher.{key}" not in str(caught.value).partition("known: ")[2].split(", ")


@pytest.mark.parametrize(("option", "key"), sorted(OWN_OPTIONS.items()))
def test_an_option_of_sbatch_that_a_key_sets_is_refused_by_the_name_of_the_key(option: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SlurmConfig(sbatch={option: "1"})
    assert str(caught.value) == f"launcher.sbatch.{option}: is set by {key}"


def test_extra_options_come_from_the_command_line() -> None:
    launcher = composed(
        "launcher=slurm",
        '+launcher.sbatch.distribution="block:block"',
        "+launcher.sbatch.nice=100",
        '+launcher.sbatch.contiguous=""',
        "+launcher.srun.mpi=none",
    ).launcher
    assert isinstance(launcher, SlurmConfig)
    assert launcher.sbatch == {"distribution": "block:block", "nice": "100", "contiguous": ""}
    assert launcher.srun == {"mpi": "none"}


@pytest.mark.parametrize("word", ["30:00", "'00:30:00'"])
def test_every_spelling_of_a_time_limit_is_read_from_the_command_line(word: str) -> None:
    launcher = composed("launcher=slurm", f"launcher.timeout_min={word}").launcher
    assert isinstance(launcher, SlurmConfig)
    assert launcher.limit_min == 30


@pytest.mark.parametrize(
    ("limit", "notice_s"),
    [(1, 15), (5, 75), (8, 120), (10, 120), (60, 120), ("2-00", 120), (3 * DAY_MIN, 120)],
)
def test_the_warning_comes_two_minutes_before_the_limit_and_sooner_in_a_short_job(
    limit: int | str, notice_s: int
) -> None:
    launcher = SlurmConfig(timeout_min=limit)
    assert launcher.notice_s == notice_s
    assert launcher.notice_s <= 60 * launcher.limit_min / 4
    assert SlurmConfig(timeout_min=limit, grace_s=7).notice_s == 7


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grace_s": 0}, "launcher.grace_s=0: must be >= 1"),
        ({"grace_s": 60, "timeout_min": 1}, "launcher.grace_s=60: must be below the time limit .*: 60 s"),
        ({"grace_s": 600, "timeout_min": "10:00"}, "launcher.grace_s=600: must be below .*: 600 s"),
        ({"grace_s": "soon"}, "launcher.grace_s=soon: must be auto or a whole number >= 1"),
        ({"cpus_per_rank": 0}, "launcher.cpus_per_rank=0: must be >= 1"),
        ({"cpus_per_rank": "all"}, "launcher.cpus_per_rank=all: must be auto or a whole number >= 1"),
        ({"gpus_per_rank": -1}, "launcher.gpus_per_rank=-1: must be >= 0"),
        ({"array_parallelism": 0}, "launcher.array_parallelism=0: must be >= 1"),
        ({"max_requeues": -1}, "launcher.max_requeues=-1: must be >= 0"),
        ({"device_data_mib": -1}, "launcher.device_data_mib=-1: must be >= 0"),
        ({"start_s": 0}, "launcher.start_s=0: must be > 0"),
        ({"interface": "^eth0"}, r"launcher.interface=\^eth0: must be the name of an interface"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SlurmConfig(**keys)


def test_how_a_run_is_queued_does_not_make_it_another_run(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "wait": True, "timeout_min": "2-00", "partition": "gpu", "account": "me", "qos": "long",
        "submit": False, "cpus_per_rank": 4, "gpus_per_rank": 1, "mem": "4G", "exclusive": True,
        "array_parallelism": 1, "max_requeues": 0, "grace_s": 30, "snapshot": True,
        "python": "/bin/python", "setup": ("module load x",), "sbatch": {"nice": "1"},
        "srun": {"mpi": "none"}, "threads_per_rank": 2, "stall_s": 9.0, "start_s": 9.0, "port": 9,
        "interface": "ib0",
    }  # fmt: skip
    assert config(results=tmp_path, **keys).run_id == config(results=tmp_path).run_id


# ------------------------------------------------------------------ time limits

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
