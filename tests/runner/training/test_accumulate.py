"""train.accumulate: a batch in parts is the same step, summed once; time pays for each part.

Real ranks: launch/test_torch_world.py.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from real_runs import assert_close
from runs import NAMES, Blobs, config, simulated

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.runner.training.device_model import StepTime
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.replica import Replica

UNEVEN: dict[str, Any] = {"dataset": Blobs(samples=50), "epochs": 4, "precision": "fp64"}


@pytest.mark.parametrize(
    ("accumulate", "samples", "sizes"),
    [(1, 8, [8]), (3, 8, [2, 3, 3]), (4, 8, [2, 2, 2, 2]), (3, 2, [1, 1]), (3, 1, [1]), (3, 0, [0])],
)
def test_parts_cover_a_batch_and_their_shares_sum_to_one(accumulate: int, samples: int, sizes: list[int]):
    parts = Replica.parts(SimpleNamespace(accumulate=accumulate), samples)  # pyright: ignore[reportArgumentType]
    assert [part.stop - part.start for part, _ in parts] == sizes
    assert [part.start for part, _ in parts] == [sum(sizes[:place]) for place in range(len(sizes))]
    assert [share for _, share in parts] == ([size / samples for size in sizes] if samples else [1.0])


def trained(name: str, *, step_time: StepTime, **keys: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The summary and rank 0's model."""
    done = simulated(config(name, **keys), step_time=step_time)
    return done.results[0].summary, done.contexts[0].replica.model.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_takes_the_same_steps_in_parts(name: str):
    keys: dict[str, Any] = {"keys": {"sync_every": 4} if name == "diloco" else {}, **UNEVEN}
    # Time in proportion to samples: parts take as long as the whole, and ranks at their own pace meet alike.
    (summary, model), (summary_of_parts, model_of_parts) = (
        trained(name, accumulate=parts, step_time=lambda rank, n: 10_000 * n, **keys) for parts in (1, 3)
    )
    assert_close(model_of_parts, model, 1e-10)
    for counted in ("collectives", "payload_bytes"):
        assert summary_of_parts[counted] == summary[counted], "sums are made once a step"


def test_virtual_time_pays_what_each_part_costs_beside_its_samples():
    """6 steps of 16 samples, on one rank: nothing but computing."""
    once, four_times = (
        trained("ddp", ranks=[1], epochs=1, accumulate=parts, step_time=lambda rank, n: 900_000 + 30_000 * n)
        for parts in (1, 4)
    )
    assert once[0]["train_s"] == pytest.approx(6 * (0.9 + 0.03 * 16) / 1000)
    assert four_times[0]["train_s"] == pytest.approx(6 * (4 * 0.9 + 0.03 * 16) / 1000)


BATCH_NORM = {"model": SmallCNN(norm="batch", channels=[4, 4, 4]), "dataset": Synthetic(samples=80)}


@pytest.mark.parametrize(
    ("batch", "train", "said"),
    [
        (32, {"accumulate": 8}, r"=32: gives a rank one sample at a time.* x 4 ranks x 8 parts"),
        (4, {}, r"=4: gives a rank one sample at a time.* at least 2 x 4 ranks$"),
        (32, {"accumulate": 4, "short_batch": "keep"}, r"the last batch of an epoch has 16 samples.*=drop"),
    ],
)
def test_parts_of_one_sample_are_refused_before_any_rank_starts(batch: int, train: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        config(global_batch_size=batch, **train, **BATCH_NORM)
    config(global_batch_size=batch, dataset=BATCH_NORM["dataset"], **train)  # without such layers


def test_more_parts_than_a_rank_has_samples_are_refused():
    text = r"^train\.accumulate=5: must be <= 4, the samples of a rank in a batch \(16 over 4 "
    with pytest.raises(ConfigError, match=text):
        config(accumulate=5, dataset=Blobs())
    config(accumulate=4, dataset=Blobs())
