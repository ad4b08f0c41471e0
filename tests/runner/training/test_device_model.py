"""How long a modelled device computes: operations, buckets, step times and their jitter, by hand."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit
from torch import nn

from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, StragglerConfig
from daso_bench.runner.training.device_model import SHORTEST, ClusterDevice, Profile
from daso_bench.strategies.errors import ConfigError

MS = 1_000_000
SECOND = 1_000_000_000
IMAGENET = InputSpec(3, 224, 224, 1000)
NOTHING = Profile(0.0, (1,), (1.0,))


def conv_and_linear() -> nn.Module:
    """On 1x8x8: 4 channels of 3x3, all 256 of their numbers to 10 classes."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


# A multiplication and an addition for each weight and place: 4 channels on 64 pixels, 9 weights each.
CONV, LINEAR = 2 * 4 * 64 * 9, 2 * 256 * 10


def test_backward_goes_from_the_last_layer_to_the_first():
    weight, bias, last_weight, last_bias = Profile.of(conv_and_linear, InputSpec(1, 8, 8, 10)).ready
    assert last_weight == LINEAR / (CONV + LINEAR)
    assert weight == 1.0
    assert 0 <= last_bias <= last_weight <= bias <= weight


@pytest.mark.parametrize(
    ("name", "parameters", "giga"), [("resnet18", 11_689_512, 1.814), ("resnet50", 25_557_032, 4.089)]
)
def test_published_operations_and_sizes(name: str, parameters: int, giga: float):
    """As torchvision's table of weights has them; it counts a multiplication and an addition as one."""
    profile = Profile.of(lambda: Torchvision(name=name).build(IMAGENET), IMAGENET)
    assert sum(profile.numels) == parameters
    assert profile.flops / 2e9 == pytest.approx(giga, rel=1e-3)
    assert list(profile.ready) == sorted(profile.ready, reverse=True)
    assert profile.ready[0] == 1.0


def test_frozen_parameters_take_time_and_have_no_gradient():
    def build() -> nn.Module:
        model = conv_and_linear()
        model[0].requires_grad_(False)  # pyright: ignore[reportIndexIssue] (a Sequential)
        return model

    profile = Profile.of(build, InputSpec(1, 8, 8, 10))
    assert profile.flops == CONV + LINEAR
    assert profile.numels == (2560, 10)
    assert profile.ready[0] == 1.0


class Scaled(nn.Module):
    """A layer of 8 to 8 with a number of its own, as layers of transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def test_a_parameter_beside_layers_does_not_take_their_time_again():
    """Two layers of the same size: the last one's gradient is there after half of backward."""
    spec = InputSpec(1, 2, 4, 8)
    profile = Profile.of(lambda: nn.Sequential(nn.Flatten(), Scaled(), nn.Linear(8, 8)), spec)
    assert profile.numels == (1, 64, 8, 64, 8)
    assert profile.ready[3] == 0.5


def test_without_operations_time_goes_with_sizes():
    profile = Profile.by_size([10, 20, 70])
    assert profile.ready == (1.0, 0.9, 0.7)
    assert (profile.flops, profile.numels) == (0.0, (10, 20, 70))
    assert Profile.by_size([]).ready == ()


def test_buckets_by_hand():
    """In MiB of four bytes a number, from the last parameter on: 1 closes the small first one, then 25."""
    mib = 2**18
    profile = Profile.by_size([4 * mib, 30 * mib, 20 * mib, 5 * mib, mib // 2, mib // 2])
    assert profile.buckets(4, 25) == [(4, 6), (2, 4), (1, 2), (0, 1)]
    assert profile.buckets(4, 5) == [(3, 6), (2, 3), (1, 2), (0, 1)]
    assert profile.buckets(2, 5) == [(2, 6), (1, 2), (0, 1)]
    assert profile.buckets(4, 1000) == [(0, 6)]
    assert Profile.by_size([]).buckets(4, 25) == []


def torchs_buckets(numels: Sequence[int], dtype: torch.dtype, limits: list[int]) -> list[tuple[int, int]]:
    """PyTorch's own, rebuilt as DDP does after its first step: in the order in which gradients come."""
    distributed = pytest.importorskip("torch.distributed")
    if not hasattr(distributed, "_compute_bucket_assignment_by_size"):
        pytest.skip("this PyTorch does not show how it assigns buckets")
    tensors = [torch.empty(numel, dtype=dtype, device="meta") for numel in reversed(numels)]
    buckets, _ = distributed._compute_bucket_assignment_by_size(tensors, limits)
    count = len(numels)
    for bucket in buckets:
        assert bucket == list(range(bucket[0], bucket[-1] + 1))
    return [(count - 1 - bucket[-1], count - bucket[0]) for bucket in buckets]


@given(
    numels=st.lists(st.one_of(st.integers(0, 2000), st.integers(0, 2**23)), min_size=1, max_size=40),
    eighths=st.one_of(st.just(200), st.integers(1, 240)),
)
def test_buckets_of_any_sizes_are_pytorchs(numels: list[int], eighths: int):
    limits = [2**20, 25 * 2**20] if eighths == 200 else [eighths * 2**17]  # 25 MiB is the default
    got = Profile.by_size(numels).buckets(4, eighths / 8)
    assert got == torchs_buckets(numels, torch.float32, limits)
    places = [place for first, last in reversed(got) for place in range(first, last)]
    assert places == list(range(len(numels)))


def device(rank: int = 0, profile: Profile = NOTHING, seed: int = 0, **given: Any) -> ClusterDevice:
    return ClusterDevice(DeviceConfig(**given), rank, profile, seed)


def test_a_steps_time_from_samples_per_second():
    """5 ms, and 8 samples of 10 ms: 85 ms, a quarter of it forward."""
    modelled = device(samples_per_second=100, fixed_ms=5, forward_share=0.25)
    assert modelled.step_ns(8) == (21_250_000, 63_750_000)
    assert modelled.step_ns(0) == (1_250_000, 3_750_000)
    assert modelled.drawn == 2


def test_a_steps_time_from_operations():
    """2 billion of them forward, three times as many in all: 6 ms a sample at a million million a second."""
    profile = Profile(2e9, (1,), (1.0,))
    assert sum(device(profile=profile, tflops=1).step_ns(10)) == 60 * MS
    assert sum(device(profile=profile, tflops=4, fixed_ms=1).step_ns(10)) == 16 * MS


def test_a_slow_rank_takes_longer_for_all_of_it():
    speeds = (1.0, 0.5, 4.0)
    took = [
        sum(device(rank, samples_per_second=100, fixed_ms=5, speeds=speeds).step_ns(8)) for rank in range(3)
    ]
    assert took == [85 * MS, 170 * MS, 21_250_000]


def test_what_time_passes_beside_steps():
    modelled = device(1, samples_per_second=100, fixed_ms=5, forward_share=0.25, speeds=(1.0, 0.5))
    assert modelled.spend_ns("eval", 8) == 40 * MS  # a quarter of 80 ms, at half speed
    assert modelled.spend_ns("data") == modelled.spend_ns("checkpoint") == 0
    other = device(tflops=1, input_stall_ms=2.5, checkpoint_s=1.5, jitter="gaussian")
    assert other.spend_ns("data") == 2_500_000
    assert other.spend_ns("checkpoint") == 1_500_000_000
    assert other.drawn == 0  # none of this is a step
    assert device(profile=Profile(2e9, (1,), (1.0,)), tflops=1).spend_ns("eval", 10) == 20 * MS


def drawn(kind: str, cv: float, count: int = 20_000, rank: int = 0, seed: int = 0) -> np.ndarray:
    """The times of `count` steps of one second."""
    modelled = device(rank, seed=seed, samples_per_second=1, jitter=kind, jitter_cv=cv)
    return np.array([sum(modelled.step_ns(1)) for _ in range(count)]) / SECOND


@pytest.mark.parametrize("kind", ["gaussian", "lognormal"])
@pytest.mark.parametrize("cv", [0.05, 0.2])
def test_jitter_has_its_mean_and_deviation(kind: str, cv: float):
    times = drawn(kind, cv)
    assert times.mean() == pytest.approx(1, abs=5 * cv / math.sqrt(len(times)))
    assert times.std() / times.mean() == pytest.approx(cv, rel=0.03)


@pytest.mark.parametrize("kind", ["gaussian", "lognormal", "student_t3"])
def test_a_steps_jitter_does_not_depend_on_what_was_asked_before(kind: str):
    """A resumed run sets `drawn` to where it stood."""
    straight = drawn(kind, 0.1, 800)
    again = device(samples_per_second=1, jitter=kind, jitter_cv=0.1)
    for step in (799, 0, 256, 255, 700, 1, 255, 512, 511):
        again.drawn = step
        assert sum(again.step_ns(1)) / SECOND == straight[step]
        assert again.drawn == step + 1
    assert len(set(straight)) == 800  # blocks do not repeat


def test_no_step_is_shorter_than_the_shortest():
    assert drawn("student_t3", 1.0).min() >= SHORTEST - 1e-9


def test_ranks_and_seeds_draw_jitter_of_their_own():
    first, other_rank, other_seed, again = (
        drawn("gaussian", 0.1, 2000, rank, seed) for rank, seed in ((0, 0), (1, 0), (0, 1), (0, 0))
    )
    assert (first == again).all()
    for other in (other_rank, other_seed):
        assert not (first == other).any()
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def trace(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "steps.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


GOOD = "rank,step_s\n0,0.5\n1,7\n0,0.25\n0,1.5\n1,8e-3\n"


def test_measured_step_times_are_taken_in_turn_and_repeated(tmp_path: Path):
    path = str(trace(tmp_path, GOOD))
    modelled = device(0, trace=path, forward_share=0.5, fixed_ms=99)
    took = [modelled.step_ns(samples) for samples in (1, 2, 3, 4, 5)]
    assert took == [(half * MS, half * MS) for half in (250, 125, 750, 250, 125)]
    other = device(1, trace=path)
    other.drawn = 3
    assert sum(other.step_ns(1)) == 8 * MS
    assert sum(other.step_ns(1)) == 7 * SECOND


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have step times of rank 0, seconds >= 0"),
        ("rank,step_s\n0,-0.5\n", "must have step times of rank 0, seconds >= 0"),
        ("rank,seconds\n0,0.5\n", "must have the columns rank and step_s, numbers in both"),
        ("rank,step_s\n0,fast\n", "must have the columns rank and step_s, numbers in both"),
        (b"\xff\xfe\x00rank", "must have the columns rank and step_s, numbers in both"),
    ],
    ids=["empty", "negative", "no column", "no number", "no text"],
)
def test_a_broken_trace_is_refused(tmp_path: Path, text: str | bytes, says: str):
    path = trace(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        device(0, trace=str(path))
    assert str(error.value) == f"cluster.device.trace={path}: {says}"


def test_a_student_step_has_the_quantiles_of_its_t_scaled_to_the_deviation_of_a_gaussian_one():
    """Its sample deviation says little, single steps decide on it; t of 3 degrees has the variance 3."""
    cv = 0.05
    shares = np.array([0.05, 0.1, 0.25, 0.75, 0.9, 0.95])
    expected = 1 + cv * stdtrit(3, shares) / math.sqrt(3)
    assert np.quantile(drawn("student_t3", cv), shares) == pytest.approx(expected, abs=0.004)


# ------------------------------------------------------------------ a straggler

SLOW = StragglerConfig(rank=1, times=3.0, every=5, steps=2)


def step_times(rank: int, steps: int, drawn: int = 0, **given: Any) -> list[int]:
    """Nanoseconds of the steps of one sample from step `drawn` on."""
    modelled = device(rank, **given)
    modelled.drawn = drawn
    return [sum(modelled.step_ns(1)) for _ in range(steps)]


def test_a_straggler_is_slow_in_the_first_steps_of_every_period():
    slow, usual = 30 * MS, 10 * MS
    period = [slow, slow, usual, usual, usual]
    assert step_times(1, 12, samples_per_second=100, straggler=SLOW) == [*period, *period, slow, slow]
    assert step_times(1, 4, drawn=6, samples_per_second=100, straggler=SLOW) == [slow, usual, usual, usual]


@pytest.mark.parametrize("given", [{}, {"straggler": StragglerConfig()}, {"straggler": SLOW}])
def test_others_are_never_slow(given: dict[str, Any]):
    for rank in (0, 2):
        assert set(step_times(rank, 12, samples_per_second=100, **given)) == {10 * MS}


def test_a_traced_step_of_a_straggler_is_slow_too(tmp_path: Path):
    path = trace(tmp_path, "rank,step_s\n1,0.01\n1,0.02\n")
    took = step_times(1, 4, trace=str(path), straggler=SLOW)
    assert took == [30 * MS, 60 * MS, 10 * MS, 20 * MS]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 4}, "rank=4: must be between 0 and 3"),
        ({"times": 0.5}, "times=0.5: must be between 1 and 1000000000.0"),
        ({"times": math.nan}, "times=nan: must be between 1 and 1000000000.0"),
        ({"every": 0}, "every=0: must be >= 1"),
        ({"every": 10}, "steps=20: must be between 1 and 10"),
    ],
)
def test_a_straggler_that_cannot_be(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as error:
        ClusterConfig(device=DeviceConfig(straggler=StragglerConfig(**given)))
    assert str(error.value) == f"cluster.device.straggler.{says}"
