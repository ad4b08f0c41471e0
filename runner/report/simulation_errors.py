"""How far virtual time is off: the same runs on an emulated cluster, pair by pair.

For a pair with step times e (emulated, measured) and s (simulated, predicted) the error is s/e - 1. For the
speed-up of a strategy over ddp in one configuration it is (s_ddp/s) / (e_ddp/e) - 1, for the time to target
as for the step time. Two strategies of a configuration are in the right order if virtual time says so too,
looked at where the emulated ones differ by more than 5 %. Emulated runs whose own checks failed count for
nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from ...strategies.errors import ConfigError
from ..records.run_directory import FAILED, OK
from .data.load import Run, load_runs
from .statistics.model_error import Pair, by_configuration, size, speedup_errors

GAP = 0.05  # strategies closer than that have no order to get right
LIMITS = {"step time": (0.05, 0.15), "speed-up": (0.03, 0.08), "time to target": (0.05, 0.15)}
ORDER_LIMIT = 0.95
PLACE = ("study", "configuration", "arm", "seed")
TIMES = ("emulated_step_s", "simulated_step_s", "emulated_target_s", "simulated_target_s")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The errors of all pairs.

    `errors`: by kind count, signed mean ("bias"), and of their sizes median and 95th percentile ("p95").
    """

    configurations: int
    pairs: int
    errors: dict[str, dict[str, float]]
    orders: int  # pairs of strategies that differ by more than `GAP`
    orders_right: int

    @property
    def short(self) -> list[str]:
        """Which limits are exceeded, in words."""
        exceeded = list[str]()
        for kind, of in self.errors.items():
            at_median, at_p95 = LIMITS[kind]
            if of["median"] > at_median or of["p95"] > at_p95:
                exceeded.append(
                    f"{kind}: median {of['median']:.1%} (limit {at_median:.0%}), "
                    f"95th percentile {of['p95']:.1%} (limit {at_p95:.0%})"
                )
        if self.orders_right < ORDER_LIMIT * self.orders:
            exceeded.append(f"order: {self.orders_right} of {self.orders} right (limit {ORDER_LIMIT:.0%})")
        return exceeded

    def sentence(self) -> str:
        """All errors in one sentence."""
        kinds = [f"{kind} {of['median']:.1%} ({of['p95']:.1%})" for kind, of in self.errors.items()]
        return (
            f"Median error (95th percentile) against {self.pairs} runs on {self.configurations} emulated "
            f"clusters of 2 to 4 ranks, whose links and devices are what was put in: {', '.join(kinds)}; "
            f"{self.orders_right} of {self.orders} pairs of strategies in the right order."
        )


def validate(pairs: Sequence[Pair]) -> Validation:
    """The errors of `pairs`."""
    targets = [pair for pair in pairs if pair["emulated_target_s"] and pair["simulated_target_s"]]
    errors = {
        "step time": [pair["simulated_step_s"] / pair["emulated_step_s"] - 1 for pair in pairs],
        "speed-up": [math.expm1(error["error"]) for error in speedup_errors(pairs)],
        "time to target": [pair["simulated_target_s"] / pair["emulated_target_s"] - 1 for pair in targets],
    }
    orders = [
        (gap > 1) == (first["simulated_step_s"] > second["simulated_step_s"])
        for together in by_configuration(pairs)
        for first, second in combinations(together, 2)
        if max(gap := first["emulated_step_s"] / second["emulated_step_s"], 1 / gap) > 1 + GAP
    ]
    return Validation(
        configurations=len({pair["configuration"] for pair in pairs}),
        pairs=len(pairs),
        errors={
            kind: {
                "count": len(values),
                "bias": fmean(values),
                "median": median(map(abs, values)),
                "p95": size(values, 0.95),
            }
            for kind, values in errors.items()
            if values
        },
        orders=len(orders),
        orders_right=sum(orders),
    )


def pairs_of(runs: Iterable[Run]) -> tuple[list[dict[str, Any]], int]:
    """The pairs among `runs` in order of configuration and arm, and how many emulated runs gave no time."""
    times: dict[tuple[str, str, str, str], dict[str, float | None]] = defaultdict(dict)
    invalid = 0
    for run in runs:
        emulated = run.world.startswith("emulated")
        # What is refused at its start ends as failed, and has no summary to be invalid by.
        if run.invalid or (emulated and run.state not in ("finished", "running", "queued")):
            invalid += 1
        elif run.state == "finished" and run.train_s and run.samples:
            world = "simulated" if run.world == "simulated" else "emulated"
            # A rank at its own pace has steps of its own: here a step is a global batch of samples.
            step_s = run.train_s / (run.samples / run.config["train"]["global_batch_size"])
            times[run.study, run.size, run.arm_name or run.strategy, str(run.seed)] |= {
                f"{world}_step_s": step_s,
                f"{world}_target_s": run.to_target_s,
            }
    pairs = [
        dict(zip(PLACE, place, strict=True)) | {name: of_both[name] for name in TIMES}
        for place, of_both in sorted(times.items())
        if of_both.keys() == set(TIMES)
    ]
    return pairs, invalid


def show_errors(folder: Path, output: Path) -> int:
    """`daso-bench validate`: print how far virtual time is off the runs below `folder`; the exit code.

    pairs.csv goes into `output`. Raises ConfigError where no pair of runs is there.
    """
    pairs, invalid = pairs_of(load_runs(folder, "validate"))
    if not pairs:
        raise ConfigError(
            f"{folder}: holds no run both emulated and in virtual time, whose checks passed "
            "(daso-bench +study=validation makes some)"
        )
    errors = validate(pairs)
    output.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(pairs).to_csv(output / "pairs.csv", index=False)
    print(errors.sentence())
    print(f"emulated runs that their own checks refused, or that failed: {invalid}")
    for line in errors.short:
        print(f"short: {line}")
    return FAILED if errors.short else OK
