"""Local and post-local SGD, SlowMo and DiLoCo: hand values, rounds, types, stop requests, records, labels."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Linear, Mean, averaged_after, classifier, constant, drive, scenario, sgd
from real_runs import entry  # pyright: ignore[reportMissingImports] (another folder of tests)
from runs import config, strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.conformance.driver import drive as walk
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.strategies.diloco import DiLoCo, DiLoCoConfig
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.post_local_sgd import PostLocalSGD, PostLocalSGDConfig
from daso_bench.strategies.progress import Plan, Progress
from daso_bench.strategies.slowmo import SlowMo, SlowMoConfig
from daso_bench.strategies.topology import Topology


def local_sgd(**keys: Any) -> LocalSGD:
    return LocalSGD(LocalSGDConfig(**keys))


# ------------------------------------------------------------------ the update rule


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


LONG_QSR = {"sync_every": 1, "period_rule": "qsr", "qsr_alpha": 0.1}
LOCAL = {"switch_samples": 10, "sync_every": 8}
NODES = {**LOCAL, "unit": "node"}


@pytest.mark.parametrize(
    ("strategy", "keys", "ranks", "samples"),
    [
        ("local_sgd", {"sync_every": 8}, [1, 1], 8 * 8),
        ("local_sgd", {"sync_every": 8}, [1], 0),
        ("local_sgd", LONG_QSR, [1, 1], math.inf),
        ("local_sgd", LONG_QSR, [1], 0),
        ("post_local_sgd", LOCAL, [1, 1], 8 * 8),
        ("post_local_sgd", {**LOCAL, "switch_samples": 1000}, [1, 1], 0),
        ("post_local_sgd", LOCAL, [1], 0),
        ("post_local_sgd", NODES, [2], 0),
        ("post_local_sgd", NODES, [2, 2], 8 * 8),
        # The last batch of an epoch of 10 steps may have one sample.
        ("ednncomm", {}, [1, 1], 9 * 8 + 1),
        ("ednncomm", {"sync_every": 100}, [1, 1], 9 * 8 + 1),
        ("ednncomm", {"sync_every": 100, "sync_at_epoch_end": False}, [1, 1], 100 * 8),
        ("ednncomm", {"sync_every": 3}, [1, 1], 3 * 8),
        ("ednncomm", {"sync_every": 3}, [2], 0),
    ],
)
def test_samples_between_sync_points(strategy: str, keys: dict[str, Any], ranks: list[int], samples: float):
    """With more than an evaluation's distance, evaluations are deferred."""
    kind = strategy_class(strategy)
    trained = drive(lambda: kind(kind.Config(**keys)), ranks, steps_per_epoch=1)[0].strategy
    trained.setup(trained.replica, trained.comm, Progress(10, 10, budget=800, global_batch_size=8))
    assert trained.samples_between_syncs == samples


# ------------------------------------------------------------------ SlowMo


def test_momentum_is_in_units_of_gradients_when_the_rate_changes():
    """Rates 0.1, 0.3 (mean 0.2, moved 0.4, u = 2), then 0.5, 0.5 (moved 1, u = 2·β + 2 = 3)."""
    one = scenario(
        SlowMo(SlowMoConfig(sync_every=2, slow_momentum=0.5)),
        [1, 1],
        steps=4,
        model=lambda: Linear(torch.zeros(1, dtype=torch.float64)),
        data=constant(),
        criterion=Mean,
        rate=[0.1, 0.3, 0.5, 0.5].__getitem__,
        optimizer=sgd(),
    )
    for history in walk(one):
        assert history.parameters[2].item() == pytest.approx(-0.4, abs=1e-12)
        assert history.parameters[4].item() == pytest.approx(-0.4 - 0.5 * 3, abs=1e-12)


def test_rounds_at_a_rate_of_zero_are_plain_averages():
    rates = [0.0, 0.0, 0.1, 0.1, 0.0, 0.0]
    slowmo = SlowMo(SlowMoConfig(sync_every=2))
    for history in walk(scenario(slowmo, [1, 1], steps=6, rate=rates.__getitem__)):
        assert torch.equal(history.parameters[2], history.parameters[0])
        assert not torch.equal(history.parameters[4], history.parameters[2])
        assert (history.parameters[6] - history.parameters[4]).abs().max() < 1e-15
        assert bool(history.final.isfinite().all())


# ------------------------------------------------------------------ DiLoCo


def test_what_diloco_records():
    history = walk(scenario(DiLoCo(DiLoCoConfig(sync_every=2)), [1, 1], steps=5, epochs=2))[1]
    first, second = history.records
    assert (first["averaged_after"], second["averaged_after"]) == ([2, 4], [6, 8, 10])
    assert [len(row["outer_step_norms"]) for row in history.records] == [2, 3]
    moved = torch.linalg.vector_norm(history.parameters[4] - history.parameters[2]).item()
    assert first["outer_step_norms"][1] == pytest.approx(moved, rel=1e-9)
    assert history.labels == []


def test_fewer_than_two_rounds_are_refused_as_soon_as_the_steps_are_known():
    topology = Topology.of([2, 2])
    wanted = r"strategy.sync_every=20: diloco needs at least two rounds, .* 39 steps"
    with pytest.raises(ConfigError, match=wanted):
        DiLoCo.check(DiLoCoConfig(), Plan(topology, 3, 64, 13, 39))
    DiLoCo.check(DiLoCoConfig(), Plan(topology, 4, 64, 10, 40))
    DiLoCo.check(DiLoCoConfig(), Plan(topology, 3, 64))
    # 6 steps an epoch, which only the loaded data set tells; `max_steps` is known before.
    cfg = config("diloco", epochs=6)
    with pytest.raises(ConfigError, match=r"a run of 36 steps does not have"):
        simulate(cfg, cfg.dataset.load())
    with pytest.raises(ConfigError, match=r"a run of 39 steps does not have"):
        config("diloco", epochs=9, max_steps=39)


# ------------------------------------------------------------------ post-local SGD


def post_local(**keys: Any) -> PostLocalSGD:
    return PostLocalSGD(PostLocalSGDConfig(**keys))


# ------------------------------------------------------------------ the switch


def test_the_first_average_comes_one_period_after_the_switch():
    # 2 ranks of 4 samples: 10 steps are 80 samples.
    histories = walk(scenario(post_local(switch_samples=80, sync_every=4), [1, 1], steps=20))
    for history in histories:
        assert averaged_after(history) == [14, 18]
        assert history.summary["switched_after_steps"] == 10
        assert history.summary["steps_of_phase"] == {"synchronous": 10, "local": 10}
        assert history.summary["steps_of_last_partial_round"] == 2
        assert history.verbs("step") == {"gradients.all_reduce": 10, "parameters.all_reduce": 2}
        assert [step for step, met in history.met.items() if met] == [*range(1, 11), 14, 18, 20]
    for step in range(1, 21):
        equal = torch.equal(histories[0].parameters[step], histories[1].parameters[step])
        assert equal == (step <= 10 or step in (14, 18))


@pytest.mark.parametrize(("switch", "synchronous"), [(79, 10), (80, 10), (81, 11), (0, 0), (1, 1)])
def test_a_step_is_synchronous_if_it_begins_before_the_switch(switch, synchronous):
    history = walk(scenario(post_local(switch_samples=switch, sync_every=4), [1, 1], steps=12))[0]
    assert history.summary["steps_of_phase"].get("synchronous", 0) == synchronous


@pytest.mark.parametrize(
    ("first_decay", "switch"), [(None, 48), (24, 24), (0, 0), (96, 96)], ids=["none", "24", "0", "96"]
)
def test_auto_switches_at_the_first_step_decay_or_else_at_half_of_the_samples(first_decay, switch):
    traces = drive(lambda: post_local(switch_samples=0), [1, 1], steps_per_epoch=1)
    strategy = post_local()
    progress = Progress(2, 6, budget=97 if first_decay is None else 96, first_decay=first_decay)
    strategy.setup(traces[0].replica, traces[0].comm, progress)
    assert strategy.summary()["switch_samples"] == switch


@pytest.mark.parametrize("unit", ["rank", "node"])
def test_a_stop_request_is_known_in_its_step_before_the_switch_and_at_the_next_average_after_it(unit):
    def stop_request(rank: int, step: int) -> bool:
        return rank == 3 and step in (2, 4, 9)

    strategy = post_local(switch_samples=4 * 16, sync_every=4, unit=unit)
    for history in walk(scenario(strategy, [2, 2], steps=16, stop_request=stop_request)):
        assert [step for step, agreed in history.agreed.items() if agreed] == [3, 8, 12]


# ------------------------------------------------------------------ what is said, what is refused


def test_labels_of_post_local_sgd_name_a_phase_that_did_not_occur():
    def labels(target_step: int | None = None, **keys: Any) -> list[str]:
        history = walk(scenario(post_local(**keys), [1, 1], steps=12))[0]
        return history.strategy.labels(target_step)

    assert labels(switch_samples=32, sync_every=4) == []
    assert labels(switch_samples=97) == ["ended before its switch at 97 samples: all steps were synchronous"]
    one_node = scenario(post_local(switch_samples=0, sync_every=4, unit="node"), [3], steps=20)
    assert walk(one_node)[0].labels == ["one node: all steps were synchronous"]
    assert labels(4, switch_samples=32, sync_every=4) == ["no local step before the target"]
    assert labels(7, switch_samples=32, sync_every=4) == ["no average before the target"]
    assert labels(8, switch_samples=32, sync_every=4) == []
    assert labels(switch_samples=32, sync_every=8) == ["fewer than two complete rounds (1)"]


# ------------------------------------------------------------------ over gloo


def test_parameters_equal_those_of_pytorchs_post_local_optimizer_in_every_step(tmp_path: Path):
    outcome = entry("gloo_entries_averaging:post_local", 4, tmp_path)
    assert outcome.status == "finished", outcome.details
    assert outcome.summary["averaged_after"] == {"rank": [14, 18], "node": [14, 18]}
