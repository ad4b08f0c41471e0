"""`python -m daso_bench.runner.launch.emulated.holder PARENT`: makes the nodes, and keeps them until it ends.

stdin: one JSON line, a list with [payload bytes per second or null, latency in µs] of each node; then nothing
until its end, which is this process's. stdout: one JSON line,

    {"user": path, "nodes": [path, …], "addresses": […], "commands": […],
     "turns": whether a link's connections have equal turns}
    {"error": what failed, "cause": "unshare" | "map" | "missing" | "ip" | "tc" | "other"}

The namespaces have no names: they live in this process's open files, and in the ranks that entered them. So
whichever process is killed first, nothing is left once all of them are gone.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from ...machine.die_with_parent import LEFT_TO_THE_SUPERVISOR, die_with_parent
from .addresses import IpBatch, Shape, address, has_ipv6, plan, trial_lines
from .namespaces import CLONE_NEWNET, new_user_and_net, setns, unshare

COMMAND_S = 30.0  # one batch
# An ordinary user's PATH often lacks the folders where `tc` is.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class StepFailed(Exception):
    """A step that failed. `cause`: as in the answer."""

    def __init__(self, cause: str, error: str) -> None:
        super().__init__(error)
        self.cause = cause


def build(shapes: list[Shape]) -> dict[str, Any]:
    """Make the namespaces, which this process is in or holds from now on, and the network in them.

    Returns the answer. Raises Failed.
    """
    programs = {name: shutil.which(name, path=SEARCHED) for name in ("ip", "tc")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise StepFailed("missing", f"no command {' and '.join(missing)} on the PATH")
    try:
        new_user_and_net()
        base = _own_net()
        nodes: list[int] = []
        for _ in shapes:
            unshare(CLONE_NEWNET)
            nodes.append(_own_net())
        setns(base, CLONE_NEWNET)
    except OSError as error:
        raise StepFailed("map" if error.filename else "unshare", str(error)) from error
    proc = f"/proc/{os.getpid()}"
    commands: list[str] = []
    turns = _has_turns(str(programs["tc"]))
    for batch in plan(shapes, f"{proc}/fd/{base}", ipv6=has_ipv6(), turns=turns):
        setns(base if batch.node is None else nodes[batch.node], CLONE_NEWNET)
        _run(batch, str(programs[batch.program]))
        where = "bridges" if batch.node is None else f"node {batch.node}"
        commands += [f"{where}: {batch.program} {line}" for line in batch.summary or batch.lines]
    setns(base, CLONE_NEWNET)
    return {
        "user": f"{proc}/ns/user",
        "nodes": [f"{proc}/fd/{node}" for node in nodes],
        "addresses": [address(node) for node in range(len(nodes))],
        "commands": commands,
        "turns": turns,
    }


def _has_turns(tc: str) -> bool:
    """Whether this kernel can give the connections of a link equal turns."""
    try:
        _run(IpBatch(None, "tc", tuple(trial_lines("lo"))), tc)
    except StepFailed:
        return False
    return True


def _own_net() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _run(batch: IpBatch, program: str) -> None:
    try:
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(batch.lines) + "\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepFailed(batch.program, f"{program} -batch -: {error}") from error
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StepFailed(batch.program, f"{batch.program} {_failed_line(batch, errors)}: {errors[0]}")


def _failed_line(batch: IpBatch, errors: list[str]) -> str:
    """`ip` and `tc` end with "Command failed -:NUMBER"."""
    number = errors[-1].rpartition(":")[2]
    known = number.isdecimal() and 1 <= int(number) <= len(batch.lines)
    return batch.lines[int(number) - 1] if known else "-batch -"


def main() -> int:
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_SUPERVISOR)
    die_with_parent(int(sys.argv[1]))
    try:
        answer = build([Shape(*numbers) for numbers in json.loads(sys.stdin.buffer.readline())])
    except StepFailed as failure:
        answer = {"error": str(failure), "cause": failure.cause}
    except Exception as error:  # a fault of ours: the supervisor shows it to the user
        answer = {"error": repr(error), "cause": "other"}
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        return 1
    sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
