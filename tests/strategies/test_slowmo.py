"""SlowMo: hand values, the equations written out, what it becomes without momentum, rates, resume."""

from typing import Any

import pytest
import torch
from harness import Mean, drive
from periodic import (
    Quadratic,
    assert_resumes,
    averaged_after,
    classifier,
    course,
    labelled,
    sgd,
    two_quadratics,
    walk,
)
from torch import Tensor, nn

from daso_bench.strategies.base import Strategy
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.slowmo import SlowMo, SlowMoConfig


def slowmo(**keys: Any) -> SlowMo:
    return SlowMo(SlowMoConfig(**keys))


def largest_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


# ------------------------------------------------------------------ the update rule


def test_three_rounds_on_two_quadratics_by_hand():
    traces = drive(
        lambda: slowmo(sync_every=1, slow_momentum=0.5),
        [1, 1],
        steps_per_epoch=3,
        model=Quadratic,
        data=two_quadratics,
        optimizer=sgd(0.5),
    )
    # m = 2, 2.5, 2.875; u = -4, -3, -0.25.
    for trace in traces:
        assert [p.item() for p in trace.parameters] == [2.0, 3.5, 3.625]


@pytest.mark.parametrize("ranks_of_nodes", [[2], [2, 2], [3, 1]])
def test_without_momentum_and_with_a_slow_rate_of_one_it_is_local_sgd(ranks_of_nodes):
    def final(strategy: Strategy) -> Tensor:
        rate = lambda step: 0.1 / (1 + step)  # noqa: E731
        return walk(course(strategy, ranks_of_nodes, steps=22, rate=rate))[0].final

    other = LocalSGD(LocalSGDConfig(sync_every=4))
    assert largest_difference(final(slowmo(sync_every=4, slow_momentum=0.0)), final(other)) < 1e-12


@pytest.mark.parametrize("ranks_of_nodes", [[1], [2], [2, 2], [4, 4], [3, 1]])
def test_fifty_steps_equal_the_equations_written_out(ranks_of_nodes):
    ranks, data, lr = sum(ranks_of_nodes), labelled(), 0.05
    nets = [classifier()() for _ in range(ranks)]
    optimizers = [sgd(lr, momentum=0.9)(list(net.parameters())) for net in nets]
    theta = nn.utils.parameters_to_vector(nets[0].parameters()).detach().clone()
    u = torch.zeros_like(theta)
    wanted = []
    for step in range(50):
        for rank, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            inputs, targets = data(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        flats = [nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets]
        if (step + 1) % 8 == 0:
            u = 0.6 * u + (theta - sum(flats) / ranks) / lr
            theta = theta - 0.9 * lr * u
            for net in nets:
                nn.utils.vector_to_parameters(theta.clone(), net.parameters())
            flats = [theta] * ranks
        wanted.append(flats)
    make = slowmo(sync_every=8, slow_momentum=0.6, slow_lr=0.9)
    for rank, history in enumerate(walk(course(make, ranks_of_nodes, steps=50))):
        for step in (7, 8, 16, 48, 50):
            assert largest_difference(history.parameters[step], wanted[step - 1][rank]) < 1e-12
        # Two steps of a seventh round: averaged, without a momentum step.
        assert largest_difference(history.final, torch.stack(wanted[-1]).mean(0)) < 1e-12
        assert averaged_after(history) == [8, 16, 24, 32, 40, 48]


class Slope(nn.Module):
    """θ itself, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))


def test_momentum_is_in_units_of_gradients_when_the_rate_changes():
    """Rates 0.1, 0.3 (mean 0.2, moved 0.4, u = 2), then 0.5, 0.5 (moved 1, u = 2·β + 2 = 3)."""
    rates = [0.1, 0.3, 0.5, 0.5]
    data = lambda rank, step: (torch.ones(1, 1), torch.zeros(1))  # noqa: E731
    one = course(
        slowmo(sync_every=2, slow_momentum=0.5),
        [1, 1],
        steps=4,
        model=Slope,
        data=data,
        criterion=Mean,
        rate=rates.__getitem__,
        optimizer=sgd(),
    )
    for history in walk(one):
        assert history.parameters[2].item() == pytest.approx(-0.4, abs=1e-12)
        assert history.parameters[4].item() == pytest.approx(-0.4 - 0.5 * 3, abs=1e-12)


def test_rounds_at_a_rate_of_zero_are_plain_averages():
    rates = [0.0, 0.0, 0.1, 0.1, 0.0, 0.0]
    walked = walk(course(slowmo(sync_every=2), [1, 1], steps=6, rate=rates.__getitem__))
    for history in walked:
        assert torch.equal(history.parameters[2], history.parameters[0])
        assert not torch.equal(history.parameters[4], history.parameters[2])
        assert largest_difference(history.parameters[6], history.parameters[4]) < 1e-15
        assert bool(history.final.isfinite().all())


def test_with_a_rate_of_zero_nothing_changes():
    for history in walk(course(slowmo(sync_every=3), [2, 1], steps=8, optimizer=sgd(0.0))):
        assert largest_difference(history.final, history.parameters[0]) < 1e-14


# ------------------------------------------------------------------ state, judging, resume


def test_the_optimizer_keeps_its_state_or_forgets_it_at_a_round():
    def momenta(policy: str) -> list[Tensor]:
        made = course(slowmo(sync_every=4, optimizer_state=policy), [1, 1], steps=8)
        return [history.replica.optimizer_state().pack() for history in walk(made)]

    kept, reset = momenta("keep"), momenta("reset")
    assert not torch.equal(*kept)
    assert [state.numel() for state in reset] == [0, 0]


def test_all_ranks_are_equal_right_after_a_round_and_only_then():
    histories = walk(course(slowmo(sync_every=4), [2, 1], steps=12, model=classifier(norm=True)))
    for step in range(1, 13):
        for other in histories[1:]:
            assert torch.equal(histories[0].parameters[step], other.parameters[step]) == (step % 4 == 0)
            assert torch.equal(histories[0].buffers[step], other.buffers[step]) == (step % 4 == 0)
            assert other.met[step] == (step % 4 == 0)


def test_a_model_judged_within_a_round_is_the_average_and_judging_leaves_no_trace():
    def make(**more: Any) -> Any:
        net = classifier(norm=True, dropout=0.3)
        return course(slowmo(sync_every=4), [2, 1], steps=10, model=net, **more)

    untouched = walk(make())
    looked_at = walk(make(consensus_after=range(11), copies_after=[3, 4], save_after=[2, 8]))
    for one, other in zip(untouched, looked_at, strict=True):
        assert all(not names for names in other.disturbed.values())
        assert all(torch.equal(one.parameters[step], other.parameters[step]) for step in one.parameters)
    for step in range(1, 11):
        own = [torch.cat([history.parameters[step], history.buffers[step]]) for history in untouched]
        for history in looked_at:
            assert largest_difference(history.averaged_model[step], torch.stack(own).mean(0)) < 1e-14


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)])
def test_a_resumed_run_goes_on_bit_for_bit(optimizer):
    def make(**more: Any) -> Any:
        return course(
            slowmo(sync_every=4),
            [2, 1],
            steps=5,
            epochs=3,
            model=classifier(torch.float32, norm=True, dropout=0.3),
            data=labelled(dtype=torch.float32),
            optimizer=optimizer,
            rate=lambda step: 0.1 / (1 + step),
            **more,
        )

    assert_resumes(make, after=[3, 4, 5, 6, 11])


def test_a_wish_reaches_all_ranks_with_the_next_round():
    quiet = walk(course(slowmo(sync_every=4), [2, 1], steps=12))
    stop_request = lambda rank, step: (rank, step) == (2, 5)  # noqa: E731
    asking = walk(course(slowmo(sync_every=4), [2, 1], steps=12, stop_request=stop_request))
    for one, other in zip(quiet, asking, strict=True):
        assert [step for step, heard in other.agreed.items() if heard] == [8]
        assert one.verbs() == other.verbs() == {"parameters.all_reduce": 3}


def test_what_is_recorded():
    history = walk(course(slowmo(sync_every=2), [1, 1], steps=5, epochs=2))[1]
    first, second = history.records
    assert (first["averaged_after"], second["averaged_after"]) == ([2, 4], [6, 8, 10])
    assert [len(row["slow_step_norms"]) for row in history.records] == [2, 3]
    moved = torch.linalg.vector_norm(history.parameters[4] - history.parameters[2]).item()
    assert first["slow_step_norms"][1] == pytest.approx(moved, rel=1e-9)
    assert history.labels == []
    assert walk(course(slowmo(sync_every=20), [1, 1], steps=30))[0].labels == [
        "fewer than two complete rounds (1)"
    ]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(sync_every=0), ["strategy.sync_every=0", ">= 1"]),
        (dict(slow_momentum=1.5), ["strategy.slow_momentum=1.5", "between 0 and 1"]),
        (dict(slow_lr=0.0), ["strategy.slow_lr=0.0", "> 0"]),
        (dict(buffers="mean"), ["strategy.buffers=mean", "average"]),
        (dict(optimizer_state="drop"), ["strategy.optimizer_state=drop", "keep"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        SlowMoConfig(**keys)
    assert all(word in str(error.value) for word in words)
