"""A rank that is slow now and then: when, by how much, and what a run without one never says."""

import math
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.config.cluster import (
    ClusterConfig,
    DeviceConfig,
    StragglerConfig,
)
from daso_bench.runner.training.device_model import ClusterDevice, Profile
from daso_bench.strategies.errors import ConfigError

MS = 1_000_000
SLOW = StragglerConfig(rank=1, times=3.0, every=5, steps=2)


def times(rank: int, steps: int, drawn: int = 0, **given: Any) -> list[int]:
    """Nanoseconds of the steps of one sample from step `drawn` on."""
    device = ClusterDevice(DeviceConfig(**given), rank, Profile.by_size([1]), 0)
    device.drawn = drawn
    return [sum(device.step_ns(1)) for _ in range(steps)]


def test_a_straggler_is_slow_in_the_first_steps_of_every_period():
    slow, usual = 30 * MS, 10 * MS
    period = [slow, slow, usual, usual, usual]
    assert times(1, 12, samples_per_second=100, straggler=SLOW) == [*period, *period, slow, slow]
    assert times(1, 4, drawn=6, samples_per_second=100, straggler=SLOW) == [slow, usual, usual, usual]


@pytest.mark.parametrize("given", [{}, {"straggler": StragglerConfig()}, {"straggler": SLOW}])
def test_others_are_never_slow(given: dict[str, Any]):
    for rank in (0, 2):
        assert set(times(rank, 12, samples_per_second=100, **given)) == {10 * MS}


def test_a_traced_step_of_a_straggler_is_slow_too(tmp_path: Path):
    path = tmp_path / "steps.csv"
    path.write_text("rank,step_s\n1,0.01\n1,0.02\n")
    took = times(1, 4, trace=str(path), straggler=SLOW)
    assert took == [30 * MS, 60 * MS, 10 * MS, 20 * MS]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 4}, "rank=4: must be between 0 and 3"),
        ({"rank": -1}, "rank=-1: must be between 0 and 3"),
        ({"times": 0.5}, "times=0.5: must be between 1 and 1000000000.0"),
        ({"times": math.inf}, "times=inf: must be between 1 and 1000000000.0"),
        ({"times": math.nan}, "times=nan: must be between 1 and 1000000000.0"),
        ({"every": 0}, "every=0: must be >= 1"),
        ({"every": 10}, "steps=20: must be between 1 and 10"),
        ({"steps": 0}, "steps=0: must be between 1 and 100"),
    ],
)
def test_a_straggler_that_cannot_be(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as error:
        ClusterConfig(device=DeviceConfig(straggler=StragglerConfig(**given)))
    assert str(error.value) == f"cluster.device.straggler.{says}"
