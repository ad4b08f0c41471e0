"""Runs the checks of all layers on all candidates: virtual time in worker processes, gloo beside them."""

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch

from ...strategies.errors import ConfigError, MachineError
from .. import local
from ..forkserver_guard import die_with_parent
from . import contract, equations, gloo, identities
from .findings import Candidate, Check, Failed, Finding, Layer, RanksOfNodes

CONTRACT, PROCESSES = "contract", "real processes"
LAYERS: dict[str, Layer] = {
    CONTRACT: contract.checks,
    "equations": equations.checks,
    "identities": identities.checks,
    PROCESSES: gloo.checks,
}


@dataclass(frozen=True)
class Task:
    """Check number `number` of a layer on one set of ranks; a worker process finds it again by that."""

    candidate: Candidate
    layer: str
    number: int
    ranks: RanksOfNodes

    @property
    def check(self) -> Check:
        """What is to be tried."""
        return LAYERS[self.layer](self.candidate)[self.number]


def tasks(candidate: Candidate, ranks: Sequence[RanksOfNodes]) -> list[Task]:
    """Everything there is to try on a candidate, layer by layer."""
    return [
        Task(candidate, layer, number, nodes)
        for layer, checks in LAYERS.items()
        for number, check in enumerate(checks(candidate))
        for nodes in (ranks if check.ranks is None else check.ranks)
    ]


def run(
    candidates: Sequence[Candidate],
    ranks: Sequence[RanksOfNodes],
    *,
    jobs: int,
    tell: Callable[[Candidate, list[Finding]], None],
) -> list[Finding]:
    """Try everything; `tell` is called with the findings of each candidate as soon as it is done.

    `jobs`: worker processes for virtual time; 1 works in this process. A set of ranks on which the strategy
    does not even end in virtual time is not tried with real processes, where it would hang.
    """
    findings = []
    todo = [(candidate, tasks(candidate, ranks)) for candidate in candidates]
    with _workers(jobs) as submit:
        started = [
            (candidate, [(task, None if task.layer == PROCESSES else submit(task)) for task in own])
            for candidate, own in todo
        ]
        for candidate, own in started:
            found: list[Finding] = []
            for _, same in groupby(own, key=lambda pair: pair[0].layer):
                for task, future in same:
                    found.append(future() if future is not None else _over_gloo(task, found))
            tell(candidate, found)
            findings += found
    return findings


def attempt(task: Task) -> Finding:
    """Try one check; whatever it raises is a finding."""
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
    return Finding(task.candidate.name, task.layer, check.name, task.ranks, status, text, took)


def _over_gloo(task: Task, found: Sequence[Finding]) -> Finding:
    ends = [f for f in found if (f.layer, f.check, f.ranks) == (CONTRACT, "ends", task.ranks)]
    if any(finding.status == "FAILED" for finding in ends):
        text = "not tried: it does not end in virtual time"
        return Finding(task.candidate.name, task.layer, task.check.name, task.ranks, "ok", text, 0.0)
    return attempt(task)


def _place(error: BaseException, kind: type) -> str:
    """The line of the strategy's own file that an error went through last, if any."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Task], Callable[[], Finding]]]:
    """Gives the function that starts a task and returns the one that waits for its finding."""
    if jobs <= 1:
        yield lambda task: lambda: attempt(task)
        return
    local.warm(gloo.PRELOAD)
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        with local.no_main():

            def submit(task: Task) -> Callable[[], Finding]:
                future: Future[Finding] = pool.submit(attempt, task)
                return future.result

            yield submit
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A worker's first act: one thread, and an end with the process that it was forked from."""
    torch.set_num_threads(1)
    die_with_parent(os.getppid())
