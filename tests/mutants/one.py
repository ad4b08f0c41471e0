"""Runs the virtual layers of the conformance kit on one strategy, and stops at the first check that fails.

Started by run.py with a mutated copy of the package first on the path. Exit code 0: everything held (the
fault survived); 1: something did not, its name is the last line. SIGXCPU ends what takes `CPU_S` seconds of
processor time: a busy machine is no fault.
"""

import resource
import sys

import torch

from daso_bench.runner.conformance.candidates import RANKS, candidates
from daso_bench.runner.conformance.kit import PROCESSES, attempt, tasks

QUICK = ("traffic by step", "time", "hears stop requests")
"""Checks of the contract that find what equations do not."""
CPU_S = 120


def main(name: str, first: str = "equations") -> int:
    """The exit code for the strategy `name`; the layer `first` is tried first."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    ((candidate, _),) = candidates([f"strategy={name}"], None)
    order = sorted(
        tasks(candidate, RANKS), key=lambda task: (task.layer != first, task.check.name not in QUICK)
    )
    for task in order:
        if task.layer == PROCESSES:
            continue
        found = attempt(task)
        if found.status == "FAILED":
            print(f"{found.layer}: {found.check} on {list(found.ranks)}: {found.text}".splitlines()[0])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
