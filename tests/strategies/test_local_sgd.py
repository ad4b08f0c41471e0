"""Local SGD: hand values, rounds, types of parameters, late stop requests, and the rule for the period."""

from typing import Any

import pytest
import torch
from harness import drive
from periodic import (
    Quadratic,
    averaged_after,
    classifier,
    scenario,
    sgd,
    two_quadratics,
    walk,
)
from torch import Tensor, nn

from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.progress import Progress


def local_sgd(**keys: Any) -> LocalSGD:
    return LocalSGD(LocalSGDConfig(**keys))


# ------------------------------------------------------------------ the update rule


def test_two_steps_on_two_quadratics_by_hand():
    traces = drive(
        lambda: local_sgd(sync_every=2),
        [1, 1],
        steps_per_epoch=2,
        model=Quadratic,
        data=two_quadratics,
        optimizer=sgd(0.5),
    )
    assert [trace.parameters[0].item() for trace in traces] == [0.0, 4.0]
    assert [trace.parameters[1].item() for trace in traces] == [2.0, 2.0]
    # Both stood 2 off a mean of 2.
    assert [trace.records[0]["spread"] for trace in traces] == [1.0, 1.0]


def test_twenty_steps_have_five_rounds_of_four():
    histories = walk(scenario(local_sgd(sync_every=4), [1, 1], steps=20))
    m = sum(p.numel() for p in classifier().parameters())
    for history in histories:
        assert averaged_after(history) == [4, 8, 12, 16, 20]
        assert history.verbs() == {"parameters.all_reduce": 5}
        assert history.traffic.totals()["payload_bytes"] == {"intra": 0, "inter": 5 * 8 * (m + 1)}
        assert history.summary["rounds"] == 5
        assert history.summary["steps_of_rounds"] == 20
        assert history.summary["rounds_of_length"] == {"4": 5}
        assert history.summary["steps_of_phase"] == {"local": 20}
        assert history.labels == []
    for step in range(1, 21):
        apart = not torch.equal(histories[0].parameters[step], histories[1].parameters[step])
        assert apart == (step % 4 != 0)
        assert histories[0].met[step] == (step % 4 == 0)


def test_a_last_partial_round_ends_with_an_average_and_is_no_round():
    histories = walk(scenario(local_sgd(sync_every=4), [1, 1], steps=11, consensus_after=[3, 4]))
    # After step 4 models are equal: they are not averaged once more to be evaluated.
    assert {call.step for call in histories[0].calls if call.during == "averaged_model"} == {2}
    expected = torch.stack([history.parameters[11] for history in histories]).mean(0)
    for history in histories:
        assert averaged_after(history) == [4, 8]
        assert torch.equal(history.final, expected)
        assert history.verbs("finalize") == {"parameters.all_reduce": 1}
        assert history.summary["rounds"] == 2
        assert history.summary["steps_of_last_partial_round"] == 3
        assert history.met == {step: step in (4, 8, 11) for step in range(1, 12)}


# ------------------------------------------------------------------ buffers and optimizer state


class Mixed(nn.Module):
    """A float32 and a float64 parameter, and a float64 buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(torch.tensor([1.0]))
        self.wide = nn.Parameter(torch.tensor([1 / 3], dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen += x.double().mean() / 3
        return x.double() * self.narrow.double() * self.wide


def test_narrow_and_wide_parameters_and_buffers_keep_their_types_and_bits():
    traces = drive(
        lambda: local_sgd(sync_every=1),
        [1, 1],
        steps_per_epoch=1,
        model=Mixed,
        data=lambda rank, step: (torch.tensor([1.0 + rank]), torch.zeros(1)),
        optimizer=sgd(0.5),
    )
    for trace in traces:
        model = trace.replica.model
        assert (model.narrow.dtype, model.wide.dtype, model.seen.dtype) == (
            torch.float32,
            torch.float64,
            torch.float64,
        )
        each = [1 / 3 - 0.5 * 1.0, 1 / 3 - 0.5 * 2.0]
        assert model.wide.item() == sum(each) / 2, "no bit of a float64 parameter is lost"
        assert model.seen.item() == (1 / 3 + 2 / 3) / 2
        assert model.narrow.item() == pytest.approx(1 - 0.5 * 1.5 / 3, rel=1e-6)


# ------------------------------------------------------------------ agreement, state


def test_a_stop_request_made_after_the_payload_was_packed_travels_with_the_next_one():
    class Late(LocalSGD):
        """Rank 1's stop request of step 4 comes when step 4's payload is gone."""

        def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
            return super().stop_agreed(
                progress, stop_requested or (self.comm.rank == 1 and progress.step == 3)
            )

    traces = drive(lambda: Late(LocalSGDConfig(sync_every=4)), [1, 1], steps_per_epoch=12)
    for trace in traces:
        assert [step for step, agreed in enumerate(trace.agreed, start=1) if agreed] == [8]


# ------------------------------------------------------------------ the quadratic synchronisation rule


def test_a_period_holds_for_its_round_and_follows_the_rate_of_the_next():
    rates = [0.4] * 3 + [0.2] * 5 + [0.1] * 20
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(scenario(qsr, [1, 1], steps=24, rate=rates.__getitem__))
    # Rounds begin after 0, 2, 4, 8 steps, at rates 0.4, 0.4 (falls within), 0.2, 0.1.
    assert averaged_after(histories[0]) == [2, 4, 8, 24]
    assert histories[0].summary["rounds_of_length"] == {"2": 2, "4": 1, "16": 1}
    assert histories[0].records[0]["period"] == 16


def test_while_the_rate_rises_rounds_are_short():
    rates = [0.01, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2]
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(scenario(qsr, [1, 1], steps=12, rate=rates.__getitem__))
    # 0.01 alone would ask for a first round of 1,600 steps.
    assert averaged_after(histories[0]) == [2, 4, 6, 8, 12]


# ------------------------------------------------------------------ what is said, what is refused


def test_a_rate_of_zero_makes_the_rest_one_round():
    rates = [0.4, 0.4, 0.0, 0.0, 0.0, 0.0]
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(scenario(qsr, [1, 1], steps=6, rate=rates.__getitem__))
    assert averaged_after(histories[0]) == [2]
    assert torch.equal(histories[0].final, histories[1].final)


def test_labels_name_what_did_not_happen():
    def labels(target_step: int | None = None, steps: int = 8, **keys: Any) -> list[str]:
        history = walk(scenario(local_sgd(**keys), [1, 1], steps=steps, rate=lambda step: 0.2))[0]
        return history.strategy.labels(target_step)

    assert labels(sync_every=4) == []
    assert walk(scenario(local_sgd(), [1], steps=20))[0].labels == ["one rank: nothing to average"]
    assert labels(sync_every=8) == ["fewer than two complete rounds (1)"]
    assert labels(sync_every=9) == ["fewer than two complete rounds (0)"]
    assert labels(3, sync_every=4) == ["no average before the target"]
    assert labels(4, sync_every=4) == []
    assert labels(sync_every=4, period_rule="qsr", qsr_alpha=0.1) == [
        "qsr never made a round longer than strategy.sync_every=4"
    ]
    assert labels(sync_every=2, period_rule="qsr", qsr_alpha=0.4) == []


@pytest.mark.parametrize(
    ("keys", "ranks", "every", "deferred"),
    [
        ({"sync_every": 8}, [1, 1], 64, False),
        ({"sync_every": 8}, [1, 1], 63, True),
        ({"sync_every": 8}, [1], 1, False),
        ({"sync_every": 1, "period_rule": "qsr", "qsr_alpha": 0.1}, [1, 1], 10**9, True),
        ({"sync_every": 1, "period_rule": "qsr", "qsr_alpha": 0.1}, [1], 1, False),
    ],
)
def test_evaluation_is_deferred_where_rounds_are_longer_than_its_cadence(keys, ranks, every, deferred):
    strategy = drive(lambda: local_sgd(**keys), ranks, steps_per_epoch=1)[0].strategy
    strategy.setup(strategy.replica, strategy.comm, Progress(10, 10, global_batch_size=8))
    assert (strategy.samples_between_syncs > every) is deferred
