"""DiLoCo: hand values, the equations written out, what it becomes without an outer optimizer, resume."""

from typing import Any

import pytest
import torch
from harness import Linear, drive
from periodic import assert_resumes, averaged_after, classifier, course, labelled, sgd, walk
from runs import config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.diloco import DiLoCo, DiLoCoConfig
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology

PLAIN: dict[str, Any] = dict(outer_lr=1.0, outer_momentum=0.0)


def diloco(**keys: Any) -> DiLoCo:
    return DiLoCo(DiLoCoConfig(**keys))


def largest_difference(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def moves(table: list[tuple[float, float]]) -> Any:
    """With SGD of rate 1: how far each of two ranks moves down in each step."""
    return lambda rank, step: (torch.tensor([[table[step][rank]]], dtype=torch.float64), torch.zeros(1))


def on_a_line(table: list[tuple[float, float]], **keys: Any) -> list[list[float]]:
    """θ of both ranks after each step, from 1."""
    start = torch.ones(1, dtype=torch.float64)
    traces = drive(
        lambda: diloco(**keys),
        [1, 1],
        steps_per_epoch=len(table),
        model=lambda: Linear(start),
        data=moves(table),
    )
    return [[p.item() for p in trace.parameters] for trace in traces]


# ------------------------------------------------------------------ the update rule


def test_two_rounds_by_hand():
    """θ_i = 0.8 and 0.6: Δ = u = 0.3, θ = 1 - 0.7·0.57; then Δ = 0.1, u = 0.37, θ = 0.601 - 0.7·0.433."""
    for values in on_a_line([(0.2, 0.4), (0.0, 0.2)], sync_every=1):
        assert values == pytest.approx([0.601, 0.2979], abs=1e-12)


def test_the_outer_step_moves_toward_the_workers():
    for values in on_a_line([(0.0, 0.0), (0.2, 0.4), (0.0, 0.0), (0.0, 0.0)], sync_every=2, **PLAIN):
        assert values[1] == pytest.approx(0.7, abs=1e-12), "the mean of 0.8 and 0.6"
        assert values[3] == pytest.approx(0.7, abs=1e-12)


def test_without_momentum_the_outer_step_is_a_part_of_the_way():
    for values in on_a_line([(0.2, 0.4), (0.0, 0.0)], sync_every=1, outer_lr=0.5, outer_momentum=0.0):
        assert values == pytest.approx([0.85, 0.85], abs=1e-12)


@pytest.mark.parametrize("device", ["cpu", "device"])
@pytest.mark.parametrize("ranks_of_nodes", [[1], [2], [2, 2], [4, 4], [3, 1]])
def test_fifty_steps_equal_the_equations_written_out(ranks_of_nodes, device):
    ranks, data = sum(ranks_of_nodes), labelled()
    nets = [classifier()() for _ in range(ranks)]
    optimizers = [sgd(momentum=0.9)(list(net.parameters())) for net in nets]
    theta = nn.utils.parameters_to_vector(nets[0].parameters()).detach().clone()
    outer = nn.Parameter(theta)
    # PyTorch's Nesterov momentum is the outer step's: u = μ·u + Δ, θ = θ - ν·(Δ + μ·u).
    outer_optimizer = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    wanted = []
    for step in range(50):
        for rank, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            inputs, targets = data(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        flats = [nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets]
        if (step + 1) % 8 == 0:
            outer.grad = torch.stack([outer.detach() - flat for flat in flats]).mean(0)
            outer_optimizer.step()
            for net in nets:
                nn.utils.vector_to_parameters(outer.detach().clone(), net.parameters())
            flats = [outer.detach().clone()] * ranks
        wanted.append(flats)
    histories = walk(course(diloco(sync_every=8, outer_device=device), ranks_of_nodes, steps=50))
    for rank, history in enumerate(histories):
        for step in (7, 8, 16, 48, 50):
            assert largest_difference(history.parameters[step], wanted[step - 1][rank]) < 1e-12
        # Two steps of a seventh round: averaged, not outer-stepped.
        assert largest_difference(history.final, torch.stack(wanted[-1]).mean(0)) < 1e-12
        assert averaged_after(history) == [8, 16, 24, 32, 40, 48]
        assert history.summary["steps_of_last_partial_round"] == 2


# ------------------------------------------------------------------ what it becomes


@pytest.mark.parametrize("ranks_of_nodes", [[2, 2], [3, 1]])
def test_with_an_outer_rate_of_one_and_no_momentum_it_is_local_sgd(ranks_of_nodes):
    def final(strategy: Strategy) -> Tensor:
        return walk(course(strategy, ranks_of_nodes, steps=22))[0].final

    other = LocalSGD(LocalSGDConfig(sync_every=4))
    assert largest_difference(final(diloco(sync_every=4, **PLAIN)), final(other)) < 1e-12


def test_and_with_rounds_of_one_step_of_sgd_it_is_ddp():
    def final(strategy: Strategy) -> Tensor:
        return walk(course(strategy, [2, 1], steps=20, optimizer=sgd()))[0].final

    assert largest_difference(final(diloco(sync_every=1, **PLAIN)), final(DDP(DDP.Config()))) < 1e-12


def test_with_a_rate_of_zero_nothing_changes():
    for history in walk(course(diloco(sync_every=3), [2, 1], steps=8, optimizer=sgd(0.0))):
        assert largest_difference(history.final, history.parameters[0]) < 1e-14


# ------------------------------------------------------------------ state, judging, resume


def test_the_inner_optimizer_keeps_its_state_unless_asked_otherwise():
    def momenta(policy: str) -> list[Tensor]:
        made = course(diloco(sync_every=4, optimizer_state=policy), [1, 1], steps=8)
        return [history.replica.optimizer_state().pack() for history in walk(made)]

    kept, averaged, reset = momenta("keep"), momenta("average"), momenta("reset")
    assert not torch.equal(*kept)
    assert torch.equal(*averaged)
    assert [state.numel() for state in reset] == [0, 0]


def test_all_ranks_are_equal_right_after_a_round_and_only_then():
    histories = walk(course(diloco(sync_every=4), [2, 1], steps=12, model=classifier(norm=True)))
    for step in range(1, 13):
        for other in histories[1:]:
            assert torch.equal(histories[0].parameters[step], other.parameters[step]) == (step % 4 == 0)
            assert torch.equal(histories[0].buffers[step], other.buffers[step]) == (step % 4 == 0)
            assert other.met[step] == (step % 4 == 0)


def test_a_model_judged_within_a_round_is_the_average_and_judging_leaves_no_trace():
    def make(**more: Any) -> Any:
        net = classifier(norm=True, dropout=0.3)
        return course(diloco(sync_every=4), [2, 1], steps=10, model=net, **more)

    untouched = walk(make())
    looked_at = walk(make(consensus_after=range(11), copies_after=[3, 4], save_after=[2, 8]))
    for one, other in zip(untouched, looked_at, strict=True):
        assert all(not names for names in other.disturbed.values())
        assert all(torch.equal(one.parameters[step], other.parameters[step]) for step in one.parameters)
        assert all(torch.equal(one.buffers[step], other.buffers[step]) for step in one.buffers)
    for step in range(1, 11):
        own = [torch.cat([history.parameters[step], history.buffers[step]]) for history in untouched]
        for history in looked_at:
            assert largest_difference(history.averaged_model[step], torch.stack(own).mean(0)) < 1e-14


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01)])
def test_a_resumed_run_goes_on_bit_for_bit(optimizer):
    def make(**more: Any) -> Any:
        net = classifier(torch.float32, norm=True, dropout=0.3)
        data = labelled(dtype=torch.float32)
        return course(
            diloco(sync_every=4), [2, 1], steps=5, epochs=3, model=net, data=data, optimizer=optimizer, **more
        )

    assert_resumes(make, after=[3, 4, 5, 6, 11])


def test_a_wish_reaches_all_ranks_with_the_next_round():
    quiet = walk(course(diloco(sync_every=4), [2, 1], steps=12))
    stop_request = lambda rank, step: (rank, step) == (2, 5)  # noqa: E731
    asking = walk(course(diloco(sync_every=4), [2, 1], steps=12, stop_request=stop_request))
    for one, other in zip(quiet, asking, strict=True):
        assert [step for step, heard in other.agreed.items() if heard] == [8]
        assert one.verbs() == other.verbs() == {"parameters.all_reduce": 3}


def test_what_is_recorded():
    history = walk(course(diloco(sync_every=2), [1, 1], steps=5, epochs=2))[1]
    first, second = history.records
    assert (first["averaged_after"], second["averaged_after"]) == ([2, 4], [6, 8, 10])
    assert [len(row["outer_step_norms"]) for row in history.records] == [2, 3]
    moved = torch.linalg.vector_norm(history.parameters[4] - history.parameters[2]).item()
    assert first["outer_step_norms"][1] == pytest.approx(moved, rel=1e-9)
    assert history.labels == []


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(sync_every=0), ["strategy.sync_every=0", ">= 1"]),
        (dict(outer_lr=0.0), ["strategy.outer_lr=0.0", "> 0"]),
        (dict(outer_momentum=1.5), ["strategy.outer_momentum=1.5", "between 0 and 1"]),
        (dict(outer_momentum=-0.1), ["strategy.outer_momentum=-0.1", "between 0 and 1"]),
        (dict(outer_device="gpu"), ["strategy.outer_device=gpu", "cpu", "device"]),
        (dict(buffers="mean"), ["strategy.buffers=mean", "average"]),
        (dict(optimizer_state="drop"), ["strategy.optimizer_state=drop", "keep"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        DiLoCoConfig(**keys)
    assert all(word in str(error.value) for word in words)


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
