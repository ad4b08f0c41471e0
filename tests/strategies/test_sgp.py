"""SGP by hand: who sends to whom, what mixing does to values and weights, how fast a request gets around."""

import pytest
import torch
from harness import Linear, drive
from torch import Tensor

from daso_bench.strategies.sgp import SGP, SGPConfig


def sgp(**keys: object) -> SGP:
    return SGP(SGPConfig(**keys))  # pyright: ignore[reportArgumentType] (values of several types)


@pytest.mark.parametrize("send", ["auto", "true"])
def test_weights_stay_one_on_regular_graphs(send: str):
    for trace in drive(lambda: sgp(send_weight=send, num_peers=2), [5], steps_per_epoch=7):
        assert trace.strategy.weight == pytest.approx(1.0, abs=1e-12)
        low, high = trace.strategy.summary()["push_sum_weights"]
        assert low == pytest.approx(high, abs=1e-12)


class Uneven(SGP):
    """Loses weight and value on rank 0: what a delayed message would do. The estimate z must not move."""

    def after_step(self, progress):
        if self.steps == 0 and self.comm.rank == 0:
            self.numerator, self.weight = self.replica.flat() / 2, 0.5
            self.replica.load(self.numerator)
        super().after_step(progress)


def test_push_sum_undoes_uneven_weights():
    traces = drive(
        lambda: Uneven(SGPConfig(send_weight="true")),
        [4],
        steps_per_epoch=2,
        model=lambda: Linear(torch.full((1,), 8.0, dtype=torch.float64)),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
    )
    for trace in traces:
        assert trace.parameters[-1].item() == pytest.approx(8.0, abs=1e-12)


@pytest.mark.parametrize(("send", "extra"), [("auto", 1), ("true", 2)])
def test_bytes(send: str, extra: int):
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.ones(1, 99), torch.zeros(1)

    traces = drive(
        lambda: sgp(num_peers=2, send_weight=send),
        [5],
        steps_per_epoch=4,
        data=data,
        model=lambda: Linear(torch.zeros(99)),
    )
    for trace in traces:
        traffic = trace.comm.traffic
        assert trace.verbs["parameters.send"] == 8
        # and one blocking average at the end: parameters and the weight
        assert traffic.payload_bytes["intra"] == 8 * 4 * (99 + extra) + 4 * 100


@pytest.mark.parametrize("graph", ["exponential", "ring", "complete"])
@pytest.mark.parametrize("nodes", [[2], [3], [5], [8], [3, 1]])
@pytest.mark.parametrize("peers", [1, 2])
def test_all_ranks_heed_a_stop_request_in_one_step(graph: str, nodes: list[int], peers: int):
    ranks = sum(nodes)
    if peers >= ranks:
        pytest.skip("fewer ranks than peers")
    wisher = ranks // 2
    traces = drive(
        lambda: sgp(graph=graph, num_peers=peers),
        nodes,
        steps_per_epoch=14,
        stop_request=lambda rank, step: (rank == wisher and step == 3) or (rank == 0 and step == 4),
    )
    agreed = [trace.agreed for trace in traces]
    assert agreed == [agreed[0]] * ranks
    reach = traces[0].strategy.reach
    assert agreed[0].index(True) == 3 + reach - 1
    # A second stop request in the same round is answered with the first, or one round later, never left
    # alone.
    assert sum(agreed[0]) in (1, 2)
