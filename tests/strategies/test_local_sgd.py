"""Local SGD: hand values, rounds, buffers, momenta, stop requests, and the rule for the period."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Mean, constant, drive
from periodic import (
    Quadratic,
    assert_gloo_and_virtual_time_agree,
    assert_resumes,
    averaged_after,
    classifier,
    course,
    entry,
    labelled,
    sgd,
    two_quadratics,
    walk,
)
from runs import SmallCNN, config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.config.schedules import Step
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig, qsr_period
from daso_bench.strategies.progress import Progress


def local_sgd(**keys: Any) -> LocalSGD:
    return LocalSGD(LocalSGDConfig(**keys))


def largest_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


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


def in_two_groups(parameters: list[Tensor]) -> torch.optim.Optimizer:
    decayed = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    return torch.optim.SGD([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.05)


@pytest.mark.parametrize("optimizer", [sgd(), in_two_groups])
def test_twenty_steps_have_five_rounds_of_four_with_one_and_with_two_parameter_groups(optimizer):
    histories = walk(course(local_sgd(sync_every=4), [1, 1], steps=20, optimizer=optimizer))
    m = sum(p.numel() for p in classifier()().parameters())
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


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
    ],
)
def test_rounds_of_one_step_equal_ddp_for_linear_optimizers(more):
    def final(strategy) -> Tensor:
        return walk(course(strategy, [2, 1], steps=20, optimizer=sgd(**more)))[0].final

    assert largest_difference(final(local_sgd(sync_every=1)), final(DDP(DDP.Config()))) < 1e-12


def test_rounds_of_one_step_do_not_equal_ddp_for_adam():
    def final(strategy) -> Tensor:
        adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
        return walk(course(strategy, [2, 1], steps=20, optimizer=adam))[0].final

    assert largest_difference(final(local_sgd(sync_every=1)), final(DDP(DDP.Config()))) > 1e-3


@pytest.mark.parametrize("ranks_of_nodes", [[2], [2, 2], [4, 4], [3, 1]])
def test_fifty_steps_equal_the_equations_written_out(ranks_of_nodes):
    ranks, data = sum(ranks_of_nodes), labelled()
    nets = [classifier()() for _ in range(ranks)]
    optimizers = [sgd(momentum=0.9)(list(net.parameters())) for net in nets]
    for step in range(50):
        for rank, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            inputs, targets = data(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        if (step + 1) % 8 == 0:
            with torch.no_grad():
                for same in zip(*(net.parameters() for net in nets), strict=True):
                    mean = torch.stack(list(same)).mean(0)
                    for parameter in same:
                        parameter.copy_(mean)
    histories = walk(course(local_sgd(), ranks_of_nodes, steps=50))
    for history, net in zip(histories, nets, strict=True):
        expected = nn.utils.parameters_to_vector(net.parameters()).detach()
        assert largest_difference(history.parameters[50], expected) < 1e-12


def test_one_rank_trains_as_if_alone():
    def only(strategy) -> Any:
        return walk(course(strategy, [1], steps=20, model=classifier(norm=True, dropout=0.2)))[0]

    one, plain = only(local_sgd(sync_every=4)), only(DDP(DDP.Config()))
    assert all(torch.equal(one.parameters[step], plain.parameters[step]) for step in plain.parameters)
    assert not one.verbs()
    assert all(one.met.values())
    assert one.labels == ["one rank: nothing to average"]


# ------------------------------------------------------------------ what an average keeps


@pytest.mark.parametrize("ranks_of_nodes", [[1, 1], [3, 2], [2, 2, 1]])
def test_with_a_rate_of_zero_an_equal_start_stays_and_an_unequal_one_keeps_its_mean(ranks_of_nodes):
    ranks = sum(ranks_of_nodes)
    still: dict[str, Any] = dict(steps=6, optimizer=sgd(0.0))
    for history in walk(course(local_sgd(sync_every=3), ranks_of_nodes, **still)):
        assert largest_difference(history.final, history.parameters[0]) < 1e-15
    m = sum(p.numel() for p in classifier()().parameters())
    starts = [torch.randn(m, dtype=torch.float64) for _ in range(ranks)]
    for history in walk(course(local_sgd(sync_every=3), ranks_of_nodes, start=starts.__getitem__, **still)):
        assert largest_difference(history.final, torch.stack(starts).mean(0)) < 1e-14


def test_each_rank_counts_once_on_ragged_nodes():
    values = torch.tensor([[0.0], [0.0], [0.0], [4.0]], dtype=torch.float64)
    one = course(
        local_sgd(sync_every=2),
        [3, 1],
        steps=2,
        model=Quadratic,
        data=lambda rank, step: two_quadratics(0, step),
        optimizer=sgd(0.0),
        criterion=Mean,
        start=values.__getitem__,
    )
    assert [history.final.item() for history in walk(one)] == [1.0] * 4


def test_a_last_partial_round_ends_with_an_average_and_is_no_round():
    histories = walk(course(local_sgd(sync_every=4), [1, 1], steps=11))
    expected = torch.stack([history.parameters[11] for history in histories]).mean(0)
    for history in histories:
        assert averaged_after(history) == [4, 8]
        assert torch.equal(history.final, expected)
        assert history.verbs("finalize") == {"parameters.all_reduce": 1}
        assert history.summary["rounds"] == 2
        assert history.summary["steps_of_last_partial_round"] == 3
        assert history.met == {step: step in (4, 8, 11) for step in range(1, 12)}


def test_looking_saving_and_copying_leave_no_trace():
    def make(**more: Any):
        net = classifier(norm=True, dropout=0.3)
        return course(local_sgd(sync_every=4), [2, 1], steps=10, model=net, **more)

    untouched = walk(make())
    looked_at = walk(make(consensus_after=range(11), copies_after=[3, 4], save_after=[2, 8]))
    for one, other in zip(untouched, looked_at, strict=True):
        assert all(not names for names in other.disturbed.values())
        assert all(torch.equal(one.parameters[step], other.parameters[step]) for step in one.parameters)
        assert all(torch.equal(one.buffers[step], other.buffers[step]) for step in one.buffers)
        assert averaged_after(one) == averaged_after(other)
    for step in range(1, 11):
        own = [torch.cat([h.parameters[step], h.buffers[step]]) for h in untouched]
        for history in looked_at:
            assert largest_difference(history.averaged_model[step], torch.stack(own).mean(0)) < 1e-14
            if step in history.copies:
                assert largest_difference(history.copies[step], history.averaged_model[step]) < 1e-14
    # Equal models are not averaged once more.
    at_a_meeting = [call for call in looked_at[0].calls if call.during == "averaged_model" and call.step == 3]
    assert not at_a_meeting


# ------------------------------------------------------------------ buffers and optimizer state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("policy", ["average", "broadcast", "none"])
def test_batch_norm_statistics_follow_the_policy_and_counters_are_left_alone(policy, dtype):
    histories = walk(
        course(
            local_sgd(sync_every=4, buffers=policy),
            [1, 1, 1],
            steps=4,
            model=classifier(dtype, norm=True),
            data=labelled(dtype=dtype),
            consensus_after=[2, 4],
            copies_after=[2, 4],
        )
    )
    alone = walk(
        course(
            local_sgd(sync_every=5, buffers=policy),
            [1, 1, 1],
            steps=4,
            model=classifier(dtype, norm=True),
            data=labelled(dtype=dtype),
        )
    )
    before = torch.stack([history.buffers[4] for history in alone])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert largest_difference(before[0], before[1]) > 0.1
    wanted = {"average": before.mean(0).expand(3, -1), "broadcast": before[0].expand(3, -1), "none": before}
    for history, buffers in zip(histories, wanted[policy], strict=True):
        assert largest_difference(history.buffers[4], buffers) <= tolerance
        assert history.replica.model[1].num_batches_tracked.item() == 4
    # A model that is judged has one set of statistics whatever the policy.
    for step in (2, 4):
        assert all(torch.equal(h.averaged_model[step], histories[0].averaged_model[step]) for h in histories)
        assert all(largest_difference(h.copies[step], h.averaged_model[step]) <= tolerance for h in histories)
    m = histories[0].replica.numel
    judged = histories[0].averaged_model[2][m:]
    mean = torch.stack([history.buffers[2] for history in histories]).mean(0)
    assert largest_difference(judged, histories[0].buffers[2] if policy == "broadcast" else mean) <= tolerance


def test_statistics_travel_with_the_parameters():
    histories = walk(course(local_sgd(sync_every=4), [1, 1], steps=8, model=classifier(norm=True)))
    m, buffers = histories[0].replica.numel, histories[0].replica.buffers.numel
    assert buffers == 14
    for history in histories:
        assert history.verbs() == {"parameters.all_reduce": 2}
        assert history.traffic.totals()["payload_bytes"]["inter"] == 2 * 8 * (m + buffers + 1)


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


class Widened(nn.Module):
    """One float32 parameter beside a float64 buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("third", torch.tensor([1 / 3], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def test_a_wide_buffer_beside_narrow_parameters_survives_an_average():
    traces = drive(
        lambda: local_sgd(sync_every=1),
        [1, 1],
        steps_per_epoch=1,
        model=Widened,
        data=constant(1.0, 1, torch.float32),
    )
    assert [trace.replica.model.third.item() for trace in traces] == [1 / 3, 1 / 3]
    assert [trace.replica.model.w.item() for trace in traces] == [0.0, 0.0]


@pytest.mark.parametrize("policy", ["keep", "average", "reset"])
def test_momenta_are_kept_averaged_or_forgotten(policy):
    histories = walk(
        course(local_sgd(sync_every=4, optimizer_state=policy), [1, 1], steps=4, optimizer=sgd(momentum=0.9))
    )
    alone = walk(course(local_sgd(sync_every=5), [1, 1], steps=4, optimizer=sgd(momentum=0.9)))
    before = [history.replica.optimizer_state().pack() for history in alone]
    after = [history.replica.optimizer_state().pack() for history in histories]
    if policy == "reset":
        assert [len(momenta) for momenta in after] == [0, 0]
    else:
        mean = (before[0] + before[1]) / 2
        for own, momenta in zip(before, after, strict=True):
            assert torch.equal(momenta, mean if policy == "average" else own)


# ------------------------------------------------------------------ agreement, state


def test_all_ranks_know_of_a_wish_at_the_next_average_and_only_then():
    def stop_request(rank: int, step: int) -> bool:
        return rank == 2 and step in (0, 7)

    histories = walk(course(local_sgd(sync_every=4), [2, 1], steps=12, stop_request=stop_request))
    for history in histories:
        # Made in step 1, known after step 4; made in the step of an average, known after it.
        assert [step for step, agreed in history.agreed.items() if agreed] == [4, 8]


def test_a_wish_made_after_the_payload_was_packed_travels_with_the_next_one():
    class Late(LocalSGD):
        """Rank 1's stop request of step 4 comes when step 4's payload is gone."""

        def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
            return super().stop_agreed(
                progress, stop_requested or (self.comm.rank == 1 and progress.step == 3)
            )

    traces = drive(lambda: Late(LocalSGDConfig(sync_every=4)), [1, 1], steps_per_epoch=12)
    for trace in traces:
        assert [step for step, agreed in enumerate(trace.agreed, start=1) if agreed] == [8]


@pytest.mark.parametrize("keys", [{}, {"buffers": "none", "optimizer_state": "average"}])
def test_a_resumed_run_is_the_unbroken_run(keys):
    def make(**more: Any):
        # A stop request is under way from step 5 to the average after step 8.
        more |= {"stop_request": lambda rank, step: (rank, step) == (2, 4)}
        net = classifier(norm=True, dropout=0.2)
        return course(local_sgd(sync_every=4, **keys), [2, 1], steps=7, epochs=2, model=net, **more)

    whole = assert_resumes(make, after=[1, 3, 4, 6, 7, 8, 13])
    assert [step for step, agreed in whole[0].agreed.items() if agreed] == [8]
    assert averaged_after(whole[0]) == [4, 8, 12]


# ------------------------------------------------------------------ the quadratic synchronisation rule


@pytest.mark.parametrize(("rate", "period"), [(0.8, 2), (0.4, 2), (0.2, 4), (0.1, 16), (0.05, 64)])
def test_periods_of_the_rule(rate, period):
    steps = 2 * period
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(course(qsr, [1, 1], steps=steps, rate=lambda step: rate))
    assert averaged_after(histories[0]) == [period, 2 * period]


def test_what_is_whole_but_for_rounding_is_whole():
    assert qsr_period(0.3, 0.1) == 9
    assert qsr_period(0.29, 0.1) == 8


def test_a_period_holds_for_its_round_and_follows_the_rate_of_the_next():
    rates = [0.4] * 3 + [0.2] * 5 + [0.1] * 20
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(course(qsr, [1, 1], steps=24, rate=rates.__getitem__))
    # Rounds begin after 0, 2, 4, 8 steps, at rates 0.4, 0.4 (falls within), 0.2, 0.1.
    assert averaged_after(histories[0]) == [2, 4, 8, 24]
    assert histories[0].summary["rounds_of_length"] == {"2": 2, "4": 1, "16": 1}
    assert histories[0].records[0]["period"] == 16


def test_while_the_rate_rises_rounds_are_short():
    rates = [0.01, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2]
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(course(qsr, [1, 1], steps=12, rate=rates.__getitem__))
    # 0.01 alone would ask for a first round of 1,600 steps.
    assert averaged_after(histories[0]) == [2, 4, 6, 8, 12]


def test_a_rate_of_zero_makes_the_rest_one_round():
    rates = [0.4, 0.4, 0.0, 0.0, 0.0, 0.0]
    qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
    histories = walk(course(qsr, [1, 1], steps=6, rate=rates.__getitem__))
    assert averaged_after(histories[0]) == [2]
    assert torch.equal(histories[0].final, histories[1].final)


def test_a_run_under_the_rule_resumes_within_a_long_round():
    rates = [0.2, 0.4, 0.4] + [0.2] * 5 + [0.1] * 20

    def make(**more: Any):
        qsr = local_sgd(sync_every=2, period_rule="qsr", qsr_alpha=0.4)
        return course(qsr, [1, 1], steps=24, rate=rates.__getitem__, **more)

    whole = assert_resumes(make, after=[1, 5, 15])
    assert averaged_after(whole[0]) == [2, 4, 8, 24]


# ------------------------------------------------------------------ what is said, what is refused


def test_labels_name_what_did_not_happen():
    def labels(target_step: int | None = None, steps: int = 8, **keys: Any) -> list[str]:
        history = walk(course(local_sgd(**keys), [1, 1], steps=steps, rate=lambda step: 0.2))[0]
        return history.strategy.labels(target_step)

    assert labels(sync_every=4) == []
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
    traces = drive(lambda: local_sgd(**keys), ranks, steps_per_epoch=1)
    progress = type("Standing", (), {"global_batch_size": 8})()
    assert traces[0].strategy.deferred(progress, every) is deferred


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sync_every": 0}, r"strategy\.sync_every=0: must be >= 1"),
        ({"period_rule": "cubic"}, r"strategy\.period_rule=cubic: unknown; known: constant, qsr"),
        ({"period_rule": "qsr"}, r"strategy\.qsr_alpha=None: must be a number > 0 with"),
        ({"qsr_alpha": 0.1}, r"strategy\.qsr_alpha=0\.1: must be .* null with constant"),
        ({"period_rule": "qsr", "qsr_alpha": 0.0}, r"strategy\.qsr_alpha=0\.0: must be > 0"),
        ({"buffers": "sum"}, r"strategy\.buffers=sum: unknown.*; known: average, broadcast, none"),
        (
            {"optimizer_state": "drop"},
            r"strategy\.optimizer_state=drop: unknown.*; known: keep, average, reset",
        ),
    ],
)
def test_wrong_keys_are_refused_with_what_is_allowed(keys, message):
    with pytest.raises(ConfigError, match=message):
        LocalSGDConfig(**keys)


# ------------------------------------------------------------------ over gloo


def test_parameters_equal_those_of_pytorchs_periodic_averager_in_every_step(tmp_path: Path):
    summary = entry(tmp_path, "periodic")
    assert summary["averaged_after"] == [4, 8, 12, 16, 20]
    assert summary["verbs"]["parameters.all_reduce"] == 5
    assert not summary["verbs"].get("gradients.all_reduce")


def test_pytorchs_periodic_averager_counts_from_zero(tmp_path: Path):
    assert entry(tmp_path, "unconverted")["averaged_after"] == [1, 5, 9]


def test_a_run_over_gloo_equals_the_run_in_virtual_time(tmp_path: Path):
    cfg = config(
        "local_sgd",
        keys={"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.1},
        ranks=[2, 1],
        model=SmallCNN(channels=[4], norm="batch"),
        schedule=Step(milestones=(0.5,), decay=0.5),
        precision="fp64",
        global_batch_size=20,
        checkpoint_every_samples=None,
        results=tmp_path,
    )
    summary = assert_gloo_and_virtual_time_agree(cfg)
    # 10 steps at rate 0.05, then 10 at 0.025.
    assert summary["strategy"]["rounds_of_length"] == {"4": 3}
