"""Layer (a): the contract that every strategy must keep, whatever it computes.

All runs are the trial run (`trial.py`) in virtual time: 3 epochs of 7 steps on an awkward model, or 6 where
the strategy reads the epoch's loss and is resumed.
"""

import dataclasses

from . import accounts, lifecycle, stop_requests
from .checks import Candidate, Check, Failed, RanksOfNodes
from .variants import OF_SCHEDULES, VARIANTS, Keys

CHECKS = {
    "ends": lifecycle.ends,
    "counts samples": lifecycle.counts_samples,
    "one model": lifecycle.one_model,
    "looks leave no trace": lifecycle.no_trace,
    "drains": lifecycle.drains,
    "stops anywhere": lifecycle.stops_anywhere,
    "resumes": lifecycle.resumes,
    "copies": lifecycle.copies,
    "rest untouched": lifecycle.rest_untouched,
    "reports": lifecycle.reports,
    "hears stop requests": stop_requests.hears_stop_requests,
    "sync points": accounts.sync_points,
    "calls in step": accounts.calls_in_step,
    "traffic formula": accounts.traffic_formula,
    "traffic by step": accounts.traffic_by_step,
    "time": accounts.time_kept,
    "buckets": accounts.buckets,
}
BRIEFLY = {
    "drains": lifecycle.drains_evenly,
    **{name: CHECKS[name] for name in ("copies", "traffic formula", "traffic by step", "time")},
    "resumes": lifecycle.resumes_here_and_there,
    "stops": lifecycle.stops_here_and_there,
}


def checks(candidate: Candidate) -> list[Check]:
    """All of them apply to every strategy; of built-in ones further keys are tried (`variants.py`)."""
    further = [_variant(keys) for keys in VARIANTS.get(candidate.builtin or "", ())]
    return [*(Check(name, run.__doc__ or "", run) for name, run in CHECKS.items()), *further]


def _variant(keys: Keys) -> Check:
    def run(candidate: Candidate, ranks: RanksOfNodes) -> None:
        config = dataclasses.replace(candidate.config, **keys)
        variant = dataclasses.replace(candidate, config=config)
        thorough = {"resumes": lifecycle.resumes} if OF_SCHEDULES & keys.keys() else {}
        for name, check in (BRIEFLY | thorough).items():
            try:
                check(variant, ranks)
            except Failed as error:
                raise Failed(f"{name}: {error}") from error

    name = "with " + " ".join(f"{key}={value}" for key, value in keys.items())
    return Check(name, "The contract also holds with these keys, in short.", run, ((2, 2),))
