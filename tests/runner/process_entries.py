"""What ranks do in the tests of the launcher; imported by the ranks, without torch."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from daso_bench.runner.launch.rank_process import Link, RankTask
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError


def make(root: Path, run_id: str = "run", **plan: Any) -> RunDirectory:
    """A run directory in which ranks find `plan`."""
    tree = {"study": {"name": "study"}, "run": {"id": run_id}, "launcher": {}}
    directory = RunDirectory.create(tree, root)
    (directory.path / "plan.json").write_text(json.dumps(plan))
    return directory


def plan(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "plan.json").read_text())


def wait_for_ever() -> NoReturn:
    ours, theirs = socket.socketpair()
    while True:
        ours.recv(1)
        print(theirs)


def works(task: RankTask, link: Link) -> None:
    steps = plan(task.run_dir).get("steps", 5)
    rank = task.rank
    print(f"rank {rank} speaks")
    for step in range(1, steps + 1):
        link.steps = step
        link.progress(step=step, steps=steps, epoch=0, epochs=1, samples=8 * step)
        time.sleep(0.1)
    seen = {"rank": rank, "ranks": task.ranks, "port": task.port, "threads": task.threads}
    seen |= {"listens": task.listener is not None, "variable": os.environ.get("OMP_NUM_THREADS")}
    (task.run_dir / f"seen_{rank}.json").write_text(json.dumps(seen))
    link.finish(
        "finished", {"reached": True, "labels": ["text"], "loss": float("nan")} if rank == 0 else None
    )


def fails(task: RankTask, link: Link) -> None:
    """Rank `bad` does `how`; the others wait for it in a socket read, for ever."""
    todo = plan(task.run_dir)
    link.call = "all_reduce/gradients"
    link.progress(step=1)
    if task.rank == todo["bad"]:
        time.sleep(0.2)
        _fail(todo["how"])
        return
    if todo.get("others") == "complain":
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:12345")
    wait_for_ever()


def _fail(how: str) -> None:
    match how:
        case "raise":
            raise RuntimeError("boom\nsecond line")
        case "config":
            raise ConfigError("strategy.sync_every=0: must be >= 1")
        case "machine":
            raise MachineError("no such device")
        case "disk":
            raise OSError(28, "No space left on device")
        case "sys.exit":
            sys.exit(0)
        case "os._exit":
            os._exit(0)
        case "abort":
            os.abort()
        case "return":
            return
        case "wait":
            wait_for_ever()
        case _:
            raise AssertionError(how)


def stops_when_asked(task: RankTask, link: Link) -> None:
    step = 0
    while not link.interrupted():
        step += 1
        link.progress(step=step)
        time.sleep(0.05)
    link.finish("cancelled", None, link.interrupted())


def ignores_requests(task: RankTask, link: Link) -> None:
    while True:
        link.progress(now=time.monotonic())
        time.sleep(0.05)
