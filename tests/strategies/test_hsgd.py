"""HSGD against the numbers of its description, in virtual time (real processes: test_torch_world.py)."""

import functools
import itertools
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Blind, Data, Linear, Trace, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import Awkward, config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.strategies import hsgd
from daso_bench.strategies.communicator import Link
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.hsgd import HSGD, HSGDConfig
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology

VARIANTS: list[dict[str, Any]] = [
    {},
    {"shared_weights": False},
    {"partition": "tensor"},
    {"partition": "tensor", "shared_weights": False},
    {"level1": "collective"},
    {"level2_algorithm": "linear"},
]


def named(keys: dict[str, Any]) -> str:
    return "-".join(str(value) for value in keys.values()) or "default"


def make(**keys: Any):
    return lambda: HSGD(HSGDConfig(**keys))


def samples_of(table: list[list[float]], dtype: torch.dtype = torch.float64) -> Data:
    """Rank r sees the values `table[r]` in each step: its gradient is their mean."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        values = torch.tensor(table[rank], dtype=dtype)[:, None]
        return values, torch.zeros(len(values))

    return data


def moved(traces: list[Trace]) -> list[float]:
    """The mean gradient that each rank applied in its only step at rate 1 from 0."""
    return [-trace.parameters[0].item() for trace in traces]


# ------------------------------------------------------------------ the mean


@pytest.mark.parametrize("keys", VARIANTS, ids=named)
def test_h4_two_nodes_of_two_by_hand(keys: dict[str, Any]):
    equal = drive(make(**keys), [2, 2], steps_per_epoch=1, data=samples_of([[1], [2], [3], [6]]))
    assert moved(equal) == [3.0] * 4
    more = samples_of([[1], [2], [3], [30, 0, 0, 0, 0]])  # five samples, of mean 6 exactly
    assert moved(drive(make(**keys), [2, 2], steps_per_epoch=1, data=more)) == [4.5] * 4


@pytest.mark.parametrize("keys", VARIANTS, ids=named)
def test_a_rank_without_samples_does_not_count(keys: dict[str, Any]):
    def blind() -> nn.Module:
        return Blind(torch.zeros(1, dtype=torch.float64))

    data = samples_of([[1, 3], [], [8], []])
    assert moved(drive(make(**keys), [2, 2], steps_per_epoch=1, data=data, model=blind)) == [4.0] * 4
    # Nor does a node without any.
    data = samples_of([[1, 3], [2], [], []])
    assert moved(drive(make(**keys), [2, 2], steps_per_epoch=1, data=data, model=blind)) == [2.0] * 4


# ------------------------------------------------------------------ training


def small(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def noise(dtype: torch.dtype, sizes: list[int]) -> Data:
    """Rank r has `sizes[(r + step) % R]` random samples."""

    @functools.cache
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        size = sizes[(rank + step) % len(sizes)]
        inputs = torch.randn(size, 6, generator=generator, dtype=torch.float64).to(dtype)
        return inputs, torch.randint(3, (size,), generator=generator)

    return data


def momentum(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3, fused=True)


def alone(data: Data, ranks: int, steps: int, dtype: torch.dtype) -> list[Tensor]:
    """One process on the concatenated batches: its parameters after each step."""
    model, history = small(dtype), []
    optimizer = momentum(list(model.parameters()))
    for step in range(steps):
        pieces = [data(rank, step) for rank in range(ranks)]
        optimizer.zero_grad()
        outputs = model(torch.cat([inputs for inputs, _ in pieces]))
        nn.functional.cross_entropy(outputs, torch.cat([targets for _, targets in pieces])).backward()
        optimizer.step()
        history.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return history


def together(keys: dict[str, Any], nodes: list[int], steps: int, data: Data, dtype: torch.dtype, **more: Any):
    return drive(
        more.pop("make", make(**keys)),
        nodes,
        steps_per_epoch=steps,
        data=data,
        model=lambda: small(dtype),
        criterion=nn.CrossEntropyLoss(),
        optimizer=momentum,
        **more,
    )


def trained(strategy: str, **more: Any) -> SimulatedRun:
    cfg = config(strategy, epochs=2, precision="fp64", model=Awkward(), global_batch_size=18, **more)
    return simulate(cfg, cfg.dataset.load())


class Mixed(nn.Module):
    """Three types, two parameters of the first; one of them is channels last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.one = nn.Parameter(torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last))
        self.two = nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.three = nn.Parameter(torch.randn(4, 2).half())
        self.four = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> Tensor:
        parts = [(p.double() ** 2).sum() for p in self.parameters()]
        return x * torch.stack(parts).sum()


@pytest.mark.parametrize("keys", VARIANTS, ids=named)
def test_parameters_of_several_types_have_an_array_each(keys: dict[str, Any]):
    data = samples_of([[1.0], [2.0], [3.0], [2.0]])
    traces = drive(make(**keys), [2, 2], steps_per_epoch=1, data=data, model=Mixed)
    start = list(Mixed().parameters())
    for trace in traces:
        for before, after in zip(start, trace.replica.model.parameters(), strict=True):
            # f = 2·Σ p², lr 1: p - 4p, in the precision of p
            assert torch.allclose(after, -3 * before, atol=2e-2 if before.dtype == torch.half else 1e-5)
        assert [arena.dtype for arena in trace.strategy.arenas] == [
            torch.float32,
            torch.float64,
            torch.float16,
        ]
    if keys.get("level1") != "collective":
        assert traces[0].replica.model.one.is_contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------ who sums and who owns what


def test_h6_column_blocks():
    assert hsgd.column_blocks(10, 4) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert hsgd.column_blocks(5, 4) == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_tensors_are_cut_at_the_nearest_boundary():
    # Boundaries 0, 4, 9, 10, 16; thirds of 16 are 5.33 and 10.67.
    assert hsgd.cut([4, 5, 1, 6], 3) == [0, 1, 1, 2]
    assert hsgd.cut([16], 2) == [1]  # halves of 16: 0 and 16 are as near, the first counts
    assert hsgd.cut([0, 8, 0, 8, 0], 2) == [0, 0, 1, 1, 1]


def test_the_largest_tensor_goes_to_the_worker_with_the_least():
    assert hsgd.largest_first([4, 5, 1, 6], 2) == [1, 1, 0, 0]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    workers=st.integers(1, 6),
    by_tensor=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_element_is_summed_sent_and_owned_once(
    sizes: list[int], workers: int, by_tensor: bool, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    kinds = [torch.float32, torch.float64, torch.bfloat16]
    dtypes = [kinds[i] for i in torch.randint(3, (len(sizes),), generator=generator).tolist()]
    owners = hsgd.cut(sizes, workers) if by_tensor else hsgd.largest_first(sizes, workers)
    if by_tensor:
        assert owners == sorted(owners)
    arenas = hsgd.arenas_of(dtypes, sizes, owners, workers, by_tensor)
    assert sorted(place for arena in arenas for place in arena.places) == list(range(len(sizes)))
    for arena in arenas:
        columns = [
            list(range(offset, offset + sizes[place]))
            for place, offset in zip(arena.places, arena.offsets, strict=True)
        ]
        every = sorted(itertools.chain(*columns))
        assert sorted(c for a, b in arena.sums for c in range(a, b)) == every
        stop_request = [] if arena.stop_flag is None else [arena.stop_flag]
        assert sorted(c for a, b in arena.messages for c in range(a, b)) == sorted(every + stop_request)
        assert arena.width >= arena.used
        assert arena.width * arena.dtype.itemsize % hsgd.LINE == 0
        if by_tensor:
            for place, mine in zip(arena.places, columns, strict=True):
                start, stop = arena.sums[owners[place]]
                assert all(start <= c < stop for c in mine)
        assert (arena.stop_flag is not None) == (arena is arenas[0])
    start, stop = arenas[0].messages[0]
    assert start <= (arenas[0].stop_flag or 0) < stop, "the leader's message carries the stop request"


@settings(max_examples=100, deadline=None)
@given(
    workers=st.integers(1, 6),
    bounds=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    seed=st.integers(0, 999),
    equal=st.booleans(),
    tile=st.sampled_from([1, 7, 32, 1000]),
)
def test_sum_columns_adds_rows_in_ascending_order(
    workers: int, bounds: tuple[int, int], seed: int, equal: bool, tile: int
):
    start, stop = min(bounds), max(bounds)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(workers, 90, generator=generator)
    weights = torch.rand(workers, generator=generator)
    weights[torch.rand(workers, generator=generator) < 0.3] = 0.0
    weights = [0.3] * workers if equal else weights.tolist()
    rows[[j for j, weight in enumerate(weights) if not weight]] = math.nan
    before, whole = rows.clone(), hsgd.TILE
    hsgd.TILE = tile
    try:
        hsgd.sum_columns(rows, weights, start, stop)
    finally:
        hsgd.TILE = whole
    if len(set(weights)) == 1 and weights[0]:
        wanted = before[0].clone()
        for row in before[1:]:
            wanted += row
        wanted *= weights[0]
    else:
        wanted = before[0] * weights[0] if weights[0] else torch.zeros(90)
        for row, weight in zip(before[1:], weights[1:], strict=True):
            if weight:
                wanted = torch.add(wanted, row, alpha=weight)
    assert torch.equal(rows[0, start:stop], wanted[start:stop])
    untouched = torch.ones_like(rows, dtype=torch.bool)
    untouched[0, start:stop] = False
    assert torch.equal(rows[untouched].nan_to_num(7), before[untouched].nan_to_num(7))


# ------------------------------------------------------------------ memory


def test_weights_and_momenta_are_there_once_per_node_and_buffers_per_rank():
    run = trained("hsgd")
    pointers = [
        [parameter.data_ptr() for parameter in context.replica.parameters.tensors if parameter.numel()]
        for context in run.contexts
    ]
    assert pointers[0] == pointers[1] != pointers[2] == pointers[3]
    buffers = [context.replica.buffers.tensors[0].data_ptr() for context in run.contexts]
    assert len(set(buffers)) == 4
    for first, second in (run.contexts[:2], run.contexts[2:]):
        owned = [{id(p) for p in context.replica.stepped} for context in (first, second)]
        states = [len(context.replica.optimizer.state) for context in (first, second)]
        assert [len(own) for own in owned] == states
        assert sum(states) == len(first.replica.parameters.tensors)


def test_h12_memory_of_a_node():
    assert hsgd.node_bytes(4_000_000, ranks=4, shared_weights=True) == 24_000_000
    assert hsgd.node_bytes(4_000_000, ranks=4, shared_weights=False) == 48_000_000
    for shared, copies in ((True, 1), (False, 2)):
        run = trained("hsgd", keys={"shared_weights": shared})
        summary = run.results[0].summary["strategy"]
        elements = run.contexts[0].replica.numel
        assert summary["node_bytes"] == 8 * elements * (copies * 2 + 2)


# ------------------------------------------------------------------ barriers


class Jittery(HSGD):
    """Sleeps at random around each barrier and before each step, and leaves out the barrier `without`."""

    without: str | None = None
    seed = 0

    def setup(self, replica: Any, comm: Any, progress: Any) -> None:
        super().setup(replica, comm, progress)
        self.generator = torch.Generator().manual_seed(1000 * self.seed + self.comm.rank)

    def before_batch(self, progress: Any) -> None:
        self.sleep()

    def sleep(self) -> None:
        if hasattr(self, "generator"):
            awake, time = torch.randint(5_000_000, (2,), generator=self.generator).tolist()
            if awake % 2:  # half of the time not at all, so that some are fast for long
                self.comm.simulator.advance(self.comm.rank, time)  # pyright: ignore[reportAttributeAccessIssue]

    def _meet(self, name: str, waits_for: Link = "intra") -> None:
        self.sleep()
        if name != self.without:
            super()._meet(name, waits_for)
        self.sleep()


DELETED = [
    ({}, "1"),
    ({}, "2"),
    ({}, "3"),
    ({}, "4"),
    ({"shared_weights": False}, "1"),
    ({"shared_weights": False}, "3"),
    ({"shared_weights": False}, "4"),
    ({"partition": "tensor"}, "1"),
    ({"partition": "tensor"}, "4"),
    ({"partition": "tensor", "shared_weights": False}, "3"),
    ({"partition": "tensor", "shared_weights": False}, "4"),
]


def jittered(keys: dict[str, Any], without: str | None, seed: int) -> list[Trace]:
    kind = type("Seeded", (Jittery,), {"without": without, "seed": seed})
    data = noise(torch.float64, [4, 4, 2, 6])
    network = AlphaBeta(inter_latency_s=1e-3)
    return together(
        {}, [2, 2], 4, data, torch.float64, make=lambda: kind(HSGDConfig(**keys)), network=network
    )


WANTED = alone(noise(torch.float64, [4, 4, 2, 6]), 4, 4, torch.float64)


def right(traces: list[Trace]) -> bool:
    return all(
        torch.allclose(trace.parameters[-1], WANTED[-1], rtol=0, atol=1e-12)
        and torch.equal(trace.parameters[-1], traces[0].parameters[-1])
        for trace in traces
    )


@pytest.mark.parametrize("keys", [{}, *(v for v in VARIANTS[1:4])], ids=named)
def test_h9_all_barriers_suffice_whatever_the_speeds(keys: dict[str, Any]):
    assert all(right(jittered(keys, None, seed)) for seed in range(10))


@pytest.mark.parametrize(("keys", "without"), DELETED, ids=lambda value: str(value))
def test_h9_no_barrier_can_be_left_out(keys: dict[str, Any], without: str):
    assert not all(right(jittered(keys, without, seed)) for seed in range(20))


@pytest.mark.parametrize(
    ("keys", "nodes", "barriers", "sums"),
    [
        ({}, [2, 2], 4, [1, 0, 1, 0]),
        ({}, [4], 3, [0] * 4),  # nothing happens between the second and the third
        ({}, [1, 1], 0, [1, 1]),
        ({"partition": "tensor"}, [2, 2], 2, [1] * 4),
        ({"partition": "tensor"}, [4], 2, [0] * 4),
        ({"partition": "tensor", "shared_weights": False}, [2, 2], 3, [1] * 4),
        ({"shared_weights": False}, [2, 2], 4, [1, 0, 1, 0]),
        ({"level1": "collective"}, [2, 2], 0, [1, 0, 1, 0]),
    ],
    ids=str,
)
def test_h7_barriers_and_sums_over_nodes_of_a_step(
    keys: dict[str, Any], nodes: list[int], barriers: int, sums: list[int]
):
    steps = 5
    traces = together(keys, nodes, steps, noise(torch.float64, [4]), torch.float64)
    assert [trace.verbs["parameters.all_reduce"] for trace in traces] == [steps * count for count in sums]
    for trace in traces:
        assert trace.verbs["shared.barrier"] == steps * barriers
        in_node = 2 * steps if keys.get("level1") == "collective" else 0
        assert trace.comm.traffic.calls["intra"] == in_node


def test_a_barrier_in_memory_is_no_payload_and_is_blocked_time():
    step_ns = [10_000_000, 30_000_000, 10_000_000, 10_000_000]
    network = AlphaBeta(inter_latency_s=2e-3)
    traces = together(
        {}, [2, 2], 1, noise(torch.float64, [4]), torch.float64, epochs=2,
        step_ns=lambda rank, n: step_ns[rank], network=network,
    )  # fmt: skip
    first, last = traces[0], traces[1]
    assert [record["seconds"]["barrier_1"] for record in first.records] == [0.02, 0.02]
    assert first.strategy.total_ns["barrier_1"] == 40_000_000
    assert last.strategy.total_ns["barrier_1"] == 0
    # In each epoch's one step two messages of 2 ms; the leader of node 1 waits for that of node 0 as well.
    assert first.strategy.total_ns["level2"] == 2 * 4_000_000
    assert traces[2].strategy.total_ns["level2"] == 2 * 24_000_000
    assert last.strategy.total_ns["barrier_3"] == 2 * 4_000_000
    assert first.comm.traffic.blocked_ns == 2 * 24_000_000
    assert last.comm.traffic.payload_bytes.total() == 0


# ------------------------------------------------------------------ messages


def book(keys: dict[str, Any], nodes: list[int], elements: int, strategy: Any = None) -> list[Counter[str]]:
    """All that one step sends, per rank: verbs and modelled bytes between nodes. float32."""
    data: Data = lambda rank, step: (torch.ones(1, elements), torch.zeros(1))  # noqa: E731
    traces = drive(
        strategy or make(**keys),
        nodes,
        steps_per_epoch=1,
        data=data,
        model=lambda: Linear(torch.zeros(elements)),
    )
    return [trace.verbs + trace.comm.traffic.ring_bytes for trace in traces]


def test_h10_bytes_between_nodes():
    # 9,999 parameters and the stop request: ten thousand elements, 40 kB.
    ring = book({}, [2] * 4, 9_999)
    assert [rank["inter"] for rank in ring] == [60_000, 0] * 4
    linear = book({"level2_algorithm": "linear"}, [2] * 4, 9_999)
    assert [rank["inter"] for rank in linear] == [120_000, 0] + [40_000, 0] * 3
    assert [rank["parameters.send"] for rank in linear] == [3, 0] + [1, 0] * 3
    collective = book({"level1": "collective"}, [2] * 4, 9_999)
    assert [rank["inter"] for rank in collective] == [60_000, 0] * 4


@pytest.mark.parametrize("keys", VARIANTS, ids=named)
@pytest.mark.parametrize("nodes", [[2, 2], [4]], ids=str)
def test_a_stop_request_is_known_to_all_in_its_step_and_to_nobody_before_or_after(
    keys: dict[str, Any], nodes: list[int]
):
    for wisher in range(4):
        traces = together(
            keys, nodes, 5, noise(torch.float64, [4, 1]), torch.float64,
            stop_request=lambda rank, step, who=wisher: (rank, step) == (who, 2),
            step_ns=lambda rank, n: 1_000 * (rank + 1),
        )  # fmt: skip
        for trace in traces:
            assert trace.agreed == [False, False, True, False, False]


# ------------------------------------------------------------------ clipping


def test_a_small_gradient_is_not_clipped_and_one_that_is_no_number_stays_none():
    finals = []
    for clip in (None, 1e9):
        cfg = config("hsgd", epochs=1, clip_norm=clip)
        finals.append(simulate(cfg, cfg.dataset.load()).contexts[3].replica.flat())
    assert torch.equal(*finals)
    data: Data = lambda rank, step: (torch.ones(1, 6), torch.zeros(1, dtype=torch.int64))  # noqa: E731
    strategy = together({}, [1], 1, data, torch.float32)[0].strategy
    strategy.summed[0][0, 0] = math.nan
    strategy._clip(1.0)
    # As PyTorch's: a norm that is no number leaves none anywhere.
    assert all(gradient.isnan().all() for gradient in strategy.summed.values())


# ------------------------------------------------------------------ resume, refusals, remarks


def test_ragged_nodes_are_refused_by_tensors_alone():
    plan = Plan(Topology.of([3, 1]), epochs=1, global_batch_size=8)
    HSGD.check(HSGDConfig(), plan)
    with pytest.raises(ConfigError, match=r"same number of ranks on every node, got \[3, 1\]"):
        HSGD.check(HSGDConfig(partition="tensor"), plan)


def test_level_1_follows_the_device():
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")

    def level1(device: torch.device, *, others_on_gpus: bool = False, **keys: str) -> str:
        strategy: Any = HSGD(HSGDConfig(**keys))  # pyright: ignore[reportArgumentType] (no bools here)
        strategy.comm = SimpleNamespace(some_on_gpus=others_on_gpus, one_process=False)
        return strategy._level1(device)

    assert [level1(device) for device in (cpu, gpu)] == ["shm", "collective"]
    assert level1(cpu, others_on_gpus=True) == "collective", "beside a rank on a GPU, which shares no memory"
    with pytest.raises(ConfigError, match="level1=shm: needs the model on the CPU, it is on cuda:0"):
        level1(gpu, level1="shm")
    for device in (gpu, cpu):
        with pytest.raises(ConfigError, match="partition=tensor: needs all models on CPUs"):
            level1(device, others_on_gpus=True, partition="tensor")


@pytest.mark.parametrize(
    ("keys", "nodes", "remark"),
    [
        ({}, [4], "one node: no sum over nodes"),
        ({}, [1, 1], "one rank per node: no sum in a node"),
        ({"level1": "collective"}, [2, 2], "level1: collective keeps one copy of the weights per rank"),
        ({}, [4], "the largest share of the update is 2.3 times the mean"),
        ({}, [2, 2], None),
    ],
    ids=str,
)
def test_remarks(keys: dict[str, Any], nodes: list[int], remark: str | None):
    # On one node 63, 7, 35 and 5 elements: the first matrix is more than half of all.
    width = 9 if len(nodes) == 1 else 6
    trace = drive(
        make(**keys),
        nodes,
        steps_per_epoch=1,
        data=lambda rank, step: (torch.ones(1, width), torch.zeros(1, dtype=torch.int64)),
        model=lambda: nn.Sequential(nn.Linear(9, 7), nn.Linear(7, 5)) if width == 9 else small(torch.float32),
        criterion=nn.CrossEntropyLoss(),
    )[0]
    labels = trace.strategy.labels(None)
    assert labels == [] if remark is None else remark in labels, labels


def test_a_barrier_that_fails_names_its_place(monkeypatch: pytest.MonkeyPatch):
    strategy = drive(make(), [1], steps_per_epoch=3)[0].strategy

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("without ranks [2]")

    monkeypatch.setattr(strategy.comm, "barrier", fails)
    with pytest.raises(RuntimeError, match=r"barrier 3 of step 2, node 0, worker 0: without ranks \[2\]"):
        strategy._meet("3")
