"""Runs the proofs and the contract of one built-in strategy, and stops at the first that fails.

Started by run.py with a mutated copy of the package first on the path. Exit code 0: everything held (the
fault survived); 1: something did not, its name is the last line. SIGXCPU ends what takes `CPU_S` seconds of
processor time: a busy machine is no fault.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))

from proof import builtin
from proofs import proofs_of

from daso_bench.runner.conformance.check_command import RANKS
from daso_bench.runner.conformance.kit import CONTRACT, CONTRACT_CHECKS, attempt

CPU_S = 120


def failures(strategy: str) -> Iterator[str]:
    """A line for each proof and each check of the contract that does not hold."""
    for proof in proofs_of(strategy):
        try:
            proof.run()
        except Exception as error:  # a broken strategy may raise anything
            yield f"{proof.name}: {error}"
    for name in CONTRACT_CHECKS:
        for ranks in RANKS:
            result = attempt(builtin(strategy), CONTRACT, name, ranks)
            if result.status == "FAILED":
                yield f"{name} on {list(ranks)}: {result.text}"


def main(strategy: str) -> int:
    """The exit code."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    for failure in failures(strategy):
        print(failure.splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
