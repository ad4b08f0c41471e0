"""A run on GPUs that goes on from a checkpoint, on fake tensors: state is where it counts."""

from typing import Any

import pytest
from fake_cuda import Walk, fake_cuda
from runs import NAMES, strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)

# Periods short enough for 16 steps, and keys that keep a state of their own.
KEYS: dict[str, list[dict[str, Any]]] = {
    "daso": [{}, {"transport_dtype": "bfloat16"}, {"blocking": "gradients"}],
    "ddp": [
        {},
        {"hook": "powersgd", "powersgd_start_steps": 1},
        {"hook": "bf16"},
        {"algorithm": "sliced"},
        {"algorithm": "hierarchical"},
    ],
    "diloco": [{"sync_every": 2}, {"sync_every": 2, "outer_device": "device"}],
    "ednncomm": [{"sync_every": 2}, {"sync_every": 2, "exchange": "sliced"}],
    "hsgd": [{}, {"level2_algorithm": "linear"}],
    "lasgd": [{}, {"sync_every": 2}],
    "local_sgd": [{"sync_every": 2}],
    "post_local_sgd": [{"sync_every": 2}],
    "sgp": [{}, {"send_weight": "true"}],
    "slowmo": [{"sync_every": 2}],
}
WALKS = [(name, keys) for name in NAMES for keys in KEYS.get(name, [{}])]


IDS = ["-".join([name, *map(str, keys.values())]) for name, keys in WALKS]


@pytest.mark.parametrize(("name", "keys"), WALKS, ids=IDS)
@pytest.mark.parametrize(("rank", "steps"), [(0, 5), (1, 6)])
def test_a_run_goes_on_where_its_replica_is(name: str, keys: dict[str, Any], rank: int, steps: int):
    kind = strategy_class(name)
    with fake_cuda():
        first, second = (Walk(kind, kind.Config(**keys), [2, 2], rank) for _ in range(2))
        for _ in range(steps):
            first.step()
        second.resume(first.saved())
        second.end()
