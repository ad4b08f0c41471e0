"""Further keys of built-in strategies with which the contract is tried, briefly, beside those asked for."""

from typing import Any

Keys = dict[str, Any]

VARIANTS: dict[str, tuple[Keys, ...]] = {
    "ddp": (
        {"algorithm": "hierarchical"},
        {"algorithm": "sliced"},
        {"algorithm": "best"},
        {"algorithm": "hierarchical", "hook": "bf16"},
        {"hook": "powersgd", "powersgd_start_steps": 2, "powersgd_min_compression": 1.0, "bucket_mib": 1e-4},
    ),
    "daso": (
        {"sync_every": 2, "wait_batches": 2, "buffers": "none"},
        {"wait_batches": 0, "sync_every": 3},
        {"blocking": "gradients"},
        {"transport_dtype": "bfloat16", "buffers": "broadcast"},
    ),
    "local_sgd": (
        {"buffers": "broadcast", "optimizer_state": "average"},
        {"buffers": "none", "optimizer_state": "reset"},
        {"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.034},
    ),
    "post_local_sgd": (
        {"unit": "node", "sync_every": 3, "switch_samples": 100},
        {"switch_samples": 0, "optimizer_state": "average"},
    ),
    "ednncomm": (
        {"sync_every": "auto"},
        {"sync_every": 4, "sync_at_epoch_end": False, "exchange": "world"},
        {"exchange": "sliced", "buffers": "broadcast", "optimizer_state": "average"},
    ),
    "diloco": ({"outer_momentum": 0.0, "buffers": "none", "optimizer_state": "average"},),
    "slowmo": ({"slow_lr": 0.5, "buffers": "broadcast", "optimizer_state": "reset"},),
    "sgp": (
        {"num_peers": 2},
        {"graph": "ring", "send_weight": "true"},
        {"graph": "complete", "direction": "push_pull"},
    ),
    "heterogeneous": (
        {"balancing": "dynamic", "weighting": "speed"},
        {"balancing": "manual", "shares": (4.0, 3.0, 2.0, 2.0)},
    ),
    "hsgd": (
        {"partition": "tensor"},
        {"shared_weights": False},
        {"level1": "collective"},
        {"level2_algorithm": "linear"},
    ),
    "lasgd": (
        {"sync_every": 3},
        {"sync_every": 2, "optimizer_state": "average"},
    ),
}
"""By name of the strategy; all on two nodes of two ranks."""

OF_SCHEDULES = frozenset({"period_rule"})
"""Keys whose variants are resumed after every step: what they remember shows in some of them alone."""
