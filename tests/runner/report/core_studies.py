"""Studies of computing efficiency, made by hand: rates, cores and threads of every arm as a test asks."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharing import Make, agree, compared, write_config

from daso_bench.runner.records.trees import load_yaml
from daso_bench.runner.report.data.arms import Comparison

# Skewed, and unlike each other: no mean and no pairing but the right one gives the right number.
SPREADS = {"native": (0.90, 1.00, 1.30, 0.97, 1.02), "hsgd": (0.95, 1.01, 1.20, 0.99, 1.00)}
ALONE = (0.98, 1.00, 1.10, 0.99, 1.01)


@dataclass(frozen=True, kw_only=True)
class Core:
    """What an arm's runs have; `cores`: of its host, `spread`: of the rate, by seed.

    `edit`: changes config, environment and summary of the run of a seed.
    """

    rate: float
    strategy: str = "ddp"
    role: str = ""
    cores: Sequence[int] = (0, 1, 2, 3)
    ranks: int = 1
    threads: int = 4
    batch: int = 64
    spread: Sequence[float] = ALONE
    place: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[int, dict[str, Any], dict[str, Any], dict[str, Any]], None] = lambda *_: None


def usual(native: float = 120.0, hsgd: float = 360.0, alone: float = 100.0) -> dict[str, Core]:
    """A native baseline with its second ones, hsgd with a rank on each of four cores, and one core."""
    return {
        "native": Core(rate=native, spread=SPREADS["native"]),
        "native, clock": Core(rate=native, role="same_seeds", spread=SPREADS["native"]),
        "native, fresh": Core(rate=native, role="fresh_seeds", spread=SPREADS["native"]),
        "hsgd": Core(rate=hsgd, strategy="hsgd", ranks=4, threads=1, spread=SPREADS["hsgd"]),
        "one core": Core(rate=alone, role="one_core", threads=1, batch=16),
    }


def made(make_run: Make, root: Path, arms: Mapping[str, Core]) -> Comparison:
    """Their runs below `root`, and the one comparison that they are."""
    for name, core in arms.items():
        for seed in range(len(core.spread)):
            _run(make_run, root, name, core, seed)
    return compared(root)


def _run(make_run: Make, root: Path, name: str, core: Core, seed: int) -> None:
    place = {"arm": name, "role": core.role, "baseline": "native", **core.place}
    more = {"train": {"global_batch_size": core.batch}, **core.more}
    path = make_run(root, core.strategy, seed, arm=name, place=place, target=None, **more)
    config = load_yaml((path / "config.yaml").read_text())
    config["cluster"] = {"nodes": 1, "ranks_per_node": [core.ranks]}
    environment = json.loads((path / "environment.json").read_text()) | {"cores": len(core.cores)}
    environment["ranks"] = [
        {"rank": rank, "node": 0, "host": "a", "device": "cpu", "device_model": "fast"}
        | {"threads": core.threads, "cores": list(core.cores)}
        for rank in range(core.ranks)
    ]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    total = sum(rows[-1]["parts_s"].values()) if "parts_s" in rows[-1] else 0.0
    rows[-1] |= {
        "samples_per_s": core.rate * core.spread[seed],
        "blocked_s": {"intra": 0.2 * total, "inter": 0.1 * total},
    }
    core.edit(seed, config, environment, rows[-1])
    write_config(path, config)
    (path / "environment.json").write_text(json.dumps(environment))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    agree(path)
