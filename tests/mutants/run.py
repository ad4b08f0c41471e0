"""`make mutants`: breaks strategies on purpose, one fault at a time, and counts what their proofs find.

    python tests/mutants/run.py [NAME-PART] [jobs=2]

Each fault is a small replacement in a copy of the package; the proofs and the contract of its strategy run
on it, or the one test that it names. Prints a line per fault, then `mutants killed K of M` and the survivors.
Exit code 1 if fewer than 95 % were killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS, Fault  # noqa: E402 (the path above makes it importable)

PARTS = ("__init__.py", "py.typed", "conf", "runner", "strategies", "models", "datasets")
TIMEOUT_S = 1200
LEAST = 0.95


def copy_of_the_package(folder: Path) -> Path:
    """The package as `folder`/daso_bench."""
    package = folder / "daso_bench"
    package.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, package / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, package / part)
    return package


def kills(fault: Fault, path: Path) -> tuple[bool, str]:
    """Whether the package at `path` fails the fault's test, or a proof of its strategy; and how."""
    if fault.test:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", fault.test]
    else:
        command = [sys.executable, str(Path(__file__).parent / "one.py"), fault.strategy]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode == -signal.SIGXCPU:
        return True, "does not end"
    said = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout.strip()):
        # The proofs themselves broke, or there is no such test: that says nothing about the fault.
        raise RuntimeError(f"{fault.name}: {(done.stderr or done.stdout)[-2000:]}")
    return done.returncode == 1, said[-1] if said else ""


def try_fault(fault: Fault) -> tuple[Fault, bool, str, float]:
    """Plant one fault and run what must find it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        package = copy_of_the_package(Path(folder))
        fault.plant(package)
        killed, told = kills(fault, Path(folder))
    return fault, killed, told, time.monotonic() - began


def main(arguments: list[str]) -> int:
    """The exit code."""
    options = dict(word.split("=", 1) for word in arguments if "=" in word)
    parts = [word for word in arguments if "=" not in word]
    chosen = [
        fault for fault in FAULTS if all(part in fault.name or part == fault.strategy for part in parts)
    ]
    if not chosen:
        print(f"no fault is called {' '.join(parts)}", file=sys.stderr)
        return 2
    survivors: list[Fault] = []
    with tempfile.TemporaryDirectory() as folder:
        copy_of_the_package(Path(folder))
        for fault in {fault.test or fault.strategy: fault for fault in chosen}.values():
            killed, told = kills(fault, Path(folder))
            if killed:
                print(f"{fault.test or fault.strategy} fails without any fault: {told}", file=sys.stderr)
                return 1
    with ThreadPoolExecutor(int(options.get("jobs", 2))) as pool:
        for fault, killed, told, took in pool.map(try_fault, chosen):
            kind = " (timing)" if fault.timing else ""
            print(
                f"{'killed' if killed else 'SURVIVED':8} {fault.name}{kind}, {took:.0f} s: {told[:150]}",
                flush=True,
            )
            if not killed:
                survivors.append(fault)
    timing = sum(fault.timing for fault in chosen)
    print(f"mutants killed {len(chosen) - len(survivors)} of {len(chosen)} ({timing} of them timing faults)")
    for fault in survivors:
        print(f"survivor: {fault.name}: {fault.old.strip()!r} -> {fault.new.strip()!r}")
    return 0 if len(chosen) - len(survivors) >= LEAST * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
