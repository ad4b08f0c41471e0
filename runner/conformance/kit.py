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
from dataclasses import dataclass

import torch

from ...strategies.errors import ConfigError, MachineError
from ..launch import local
from ..machine.signals import die_with_parent
from . import accounts, lifecycle, real_processes, stop_requests
from .checks import Candidate, Check, CheckResult, Failed, Layer, RanksOfNodes

CONTRACT_CHECKS = {
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


def contract_checks(candidate: Candidate) -> list[Check]:
    """The contract that every strategy must keep, tried in virtual time on the run of `trial.py`."""
    return [Check(name, run.__doc__ or "", run) for name, run in CONTRACT_CHECKS.items()]


CONTRACT, PROCESSES = "contract", "real processes"
LAYERS: dict[str, Layer] = {
    CONTRACT: contract_checks,
    PROCESSES: real_processes.checks,
}

Wait = Callable[[], list[CheckResult]]
Submit = Callable[["Sequence[CheckTask]"], Wait]


@dataclass(frozen=True)
class CheckTask:
    """Check number `number` of a layer on one set of ranks; it can be sent to a worker process."""

    candidate: Candidate
    layer: str
    number: int
    ranks: RanksOfNodes

    @property
    def check(self) -> Check:
        """The check itself, which cannot be pickled."""
        return LAYERS[self.layer](self.candidate)[self.number]


def tasks(candidate: Candidate, ranks: Sequence[RanksOfNodes]) -> list[CheckTask]:
    """All checks of a candidate on all sets of ranks, layer by layer."""
    return [
        CheckTask(candidate, layer, number, nodes)
        for layer, checks in LAYERS.items()
        for number in range(len(checks(candidate)))
        for nodes in ranks
    ]


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
    findings = []
    with _quiet(), _workers(jobs) as submit:
        started = [(candidate, _started(candidate, ranks, submit)) for candidate in candidates]
        for candidate, (order, waits) in started:
            outcomes = {
                task: finding for some, wait in waits for task, finding in zip(some, wait(), strict=True)
            }
            for task in order:
                if task.layer == PROCESSES:
                    outcomes[task] = _over_gloo(task, list(outcomes.values()))
            results = [outcomes[task] for task in order]
            show(candidate, results)
            findings += results
    return findings


def _started(
    candidate: Candidate, ranks: Sequence[RanksOfNodes], submit: Submit
) -> tuple[list[CheckTask], list[tuple[list[CheckTask], Wait]]]:
    """All tasks of a candidate in the order of display, and those in virtual time, which are started."""
    order = tasks(candidate, ranks)
    together: dict[RanksOfNodes, list[CheckTask]] = {}
    for task in order:
        if task.layer != PROCESSES:
            # The contract's checks on one set of ranks read the same few runs: they share a process.
            together.setdefault(task.ranks, []).append(task)
    largest_first = sorted(together.values(), key=lambda some: -len(some) * sum(some[0].ranks))
    return order, [(some, submit(some)) for some in largest_first]


def attempt_all(some: Sequence[CheckTask]) -> list[CheckResult]:
    """Run checks one after the other."""
    return [attempt(task) for task in some]


def attempt(task: CheckTask) -> CheckResult:
    """Run one check; an exception of the strategy becomes a result."""
    check, began = task.check, time.perf_counter()
    try:
        status, text = "ok", check.run(task.candidate, task.ranks) or ""
    except ConfigError as error:
        status, text = "refuses", str(error)
    except Failed as error:
        status, text = "FAILED", str(error)
    except MachineError:
        raise
    except Exception as error:  # a strategy may raise anything
        status, text = (
            "FAILED",
            f"{type(error).__name__}: {error}{_place(error, task.candidate.strategy_class)}",
        )
    took = time.perf_counter() - began
    return CheckResult(task.candidate.name, task.layer, check.name, task.ranks, status, text, took)


def _over_gloo(task: CheckTask, earlier: Sequence[CheckResult]) -> CheckResult:
    ends = [f for f in earlier if (f.layer, f.check, f.ranks) == (CONTRACT, "ends", task.ranks)]
    if any(finding.status == "FAILED" for finding in ends):
        text = "not tried: it does not end in virtual time"
        return CheckResult(task.candidate.name, task.layer, task.check.name, task.ranks, "ok", text, 0.0)
    return attempt(task)


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
        yield lambda some: lambda: attempt_all(some)
        return
    local.warm(real_processes.PRELOAD)
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        with local.no_main():
            yield lambda some: pool.submit(attempt_all, some).result
    except BrokenProcessPool as error:
        raise MachineError(f"a process that ran checks has died ({error}); --jobs=1 uses none") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a worker: one thread, and it ends with the process that started it."""
    torch.set_num_threads(1)
    logging.getLogger("daso_bench").setLevel(logging.ERROR)
    die_with_parent(os.getppid())
