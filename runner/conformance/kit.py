"""The conformance kit: all checks, and running them, in virtual time and with real processes over gloo."""

import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import torch

from ...strategies.errors import ConfigError, MachineError
from ..launch import local
from ..machine.signals import die_with_parent
from . import communication_checks, lifecycle, real_processes
from .checks import Candidate, Check, CheckResult, Failed, RanksOfNodes

CONTRACT, PROCESSES = "contract", "real processes"

CONTRACT_CHECKS: dict[str, Check] = {
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
    "hears stop requests": communication_checks.hears_stop_requests,
    "sync points": communication_checks.sync_points,
    "calls in step": communication_checks.calls_in_step,
    "time": communication_checks.time_kept,
    "buckets": communication_checks.buckets,
}
"""The contract that every strategy must keep, tried in virtual time on the run of `trial.py`."""

LAYERS: dict[str, dict[str, Check]] = {
    CONTRACT: CONTRACT_CHECKS,
    PROCESSES: {"as in virtual time": real_processes.as_in_virtual_time},
}
"""By layer and name. The docstring of a check says the property in one sentence."""

Wait = Callable[[], list[CheckResult]]
Submit = Callable[[Candidate, RanksOfNodes, list[str]], Wait]
"""Start the named checks of the contract; the result waits for them."""


def run(
    candidates: Sequence[Candidate],
    ranks: Sequence[RanksOfNodes],
    *,
    jobs: int,
    show: Callable[[Candidate, list[CheckResult]], None],
) -> list[CheckResult]:
    """Run all checks; `show` is called with the results of each candidate as soon as it is done.

    `jobs`: worker processes for virtual time; 1 works in this process. A set of ranks on which the strategy
    does not even end in virtual time is not tried with real processes, where it would hang.
    """
    findings: list[CheckResult] = []
    names, largest_first = list(LAYERS[CONTRACT]), sorted(ranks, key=sum, reverse=True)
    with _quiet(), _workers(jobs) as submit:
        # The contract's checks on one set of ranks read the same few runs: they share a process.
        begun = [{nodes: submit(one, nodes, names) for nodes in largest_first} for one in candidates]
        for candidate, waits in zip(candidates, begun, strict=True):
            contract = {nodes: waits[nodes]() for nodes in ranks}
            results = [result for of_check in zip(*contract.values(), strict=True) for result in of_check]
            for name in LAYERS.get(PROCESSES, ()):
                results += [_over_gloo(candidate, name, nodes, contract[nodes]) for nodes in contract]
            show(candidate, results)
            findings += results
    return findings


def attempt_contract(candidate: Candidate, ranks: RanksOfNodes, names: Sequence[str]) -> list[CheckResult]:
    """Run checks of the contract one after the other."""
    return [attempt(candidate, CONTRACT, name, ranks) for name in names]


def attempt(candidate: Candidate, layer: str, name: str, ranks: RanksOfNodes) -> CheckResult:
    """Run one check; an exception of the strategy becomes a result."""
    began = time.perf_counter()
    try:
        status, text = "ok", LAYERS[layer][name](candidate, ranks) or ""
    except ConfigError as error:
        status, text = "refuses", str(error)
    except Failed as error:
        status, text = "FAILED", str(error)
    except MachineError:
        raise
    except Exception as error:  # a strategy may raise anything
        place = _place(error, candidate.strategy_class)
        status, text = "FAILED", f"{type(error).__name__}: {error}{place}"
    took = time.perf_counter() - began
    return CheckResult(candidate.name, layer, name, ranks, status, text, took)


def _over_gloo(
    candidate: Candidate, name: str, ranks: RanksOfNodes, contract: Sequence[CheckResult]
) -> CheckResult:
    if any(result.check == "ends" and result.status == "FAILED" for result in contract):
        text = "not tried: it does not end in virtual time"
        return CheckResult(candidate.name, PROCESSES, name, ranks, "ok", text, 0.0)
    return attempt(candidate, PROCESSES, name, ranks)


def _place(error: BaseException, kind: type) -> str:
    """The line of the strategy's own file that an error went through last, if any."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings that strategies log during checks."""
    log = logging.getLogger("daso_bench")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _workers(jobs: int) -> Iterator[Submit]:
    """Gives a function that starts tasks and returns a function that waits for their results."""
    if jobs <= 1:
        yield lambda *work: lambda: attempt_contract(*work)
        return
    local.warm(real_processes.PRELOAD)
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        with local.no_main():
            yield lambda *work: pool.submit(attempt_contract, *work).result
    except BrokenProcessPool as error:
        raise MachineError(f"a process that ran checks has died ({error}); --jobs=1 uses none") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a worker: one thread, and it ends with the process that started it."""
    torch.set_num_threads(1)
    logging.getLogger("daso_bench").setLevel(logging.ERROR)
    die_with_parent(os.getppid())
