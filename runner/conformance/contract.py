"""The contract that every strategy must keep, whatever it computes.

All runs are the trial run (`trial.py`) in virtual time: 3 epochs of 7 steps on an awkward model, or 6 where
the strategy reads the epoch's loss and is resumed.
"""

from . import accounts, lifecycle, stop_requests
from .checks import Candidate, Check

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
    "time": accounts.time_kept,
    "buckets": accounts.buckets,
}


def checks(candidate: Candidate) -> list[Check]:
    """All of them apply to every strategy."""
    return [Check(name, run.__doc__ or "", run) for name, run in CHECKS.items()]
