"""Network namespaces of emulated nodes: system calls, entering a node, the process that holds all nodes.

`python -m daso_bench.runner.launch.emulated.namespaces PARENT` makes the nodes and holds them until it ends.
stdin: one JSON line, a list with [payload bytes per second or null, latency in µs] of each node; then nothing
until its end, which ends this process. stdout: one JSON line,

    {"user": path, "nodes": [path, …], "addresses": […], "commands": […],
     "turns": whether a link's connections have equal turns}
    {"error": what failed, "cause": "unshare" | "map" | "missing" | "ip" | "tc" | "other"}

The namespaces have no names: only the open files of this process and the ranks inside keep them. So they
disappear with the last of these processes, in whatever order they are killed.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ....strategies.errors import MachineError
from ...machine.signals import LEFT_TO_THE_SUPERVISOR, die_with_parent
from .addresses import IpBatch, Shape, address, has_ipv6, plan, trial_lines

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
EVERY_ID = "0 0 4294967295"
COMMAND_S = 30.0  # one batch
# An ordinary user's PATH often lacks the folders where `tc` is.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


@dataclass(frozen=True)
class NodeEntry:
    """What a rank needs to enter its node: the paths of two namespaces, its address and its interfaces.

    The paths are below /proc of the process that holds the namespaces, and valid while that process lives.
    """

    user: str
    net: str
    address: str
    interface: str
    unshaped_interface: str


def enter(entry: NodeEntry) -> None:
    """Move this process into the node, for good. Only its network changes, and what it may do to others'.

    It must have one thread, and no open socket that it means to use there. Files keep their owners.

    Raises MachineError if the node is gone, or the kernel refuses.
    """
    if sys.platform != "linux":
        raise MachineError(f"a node cannot be entered: namespaces are Linux's, this is {sys.platform}")
    with ExitStack() as opened:
        descriptors: list[tuple[int, int]] = []
        # Both are opened first: from inside the user namespace the second might not be seen.
        for path, kind in ((entry.user, CLONE_NEWUSER), (entry.net, CLONE_NEWNET)):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise MachineError(
                    f"{path}: the node's namespace cannot be opened ({os.strerror(error.errno or 0)}); has "
                    "the process that holds it ended, or does another user run this rank?"
                ) from error
            opened.callback(os.close, descriptor)
            descriptors.append((descriptor, kind))
        for (descriptor, kind), path in zip(descriptors, (entry.user, entry.net), strict=True):
            try:
                setns(descriptor, kind)
            except OSError as error:
                raise MachineError(
                    f"{path}: the node's namespace cannot be entered ({os.strerror(error.errno or 0)}); "
                    f"this process has {_threads()} threads (it must have one) and must not be inside already"
                ) from error


def unshare(kinds: int) -> None:
    """unshare(2) (Python has it from 3.12). Raises OSError."""
    _checked(ctypes.CDLL(None, use_errno=True).unshare(kinds), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """setns(2). Raises OSError."""
    _checked(ctypes.CDLL(None, use_errno=True).setns(descriptor, kind), "setns")


def new_user_and_net() -> None:
    """Move this process (one thread) into a new user and network namespace, with all capabilities there.

    Real root keeps its access to all files, as all ids are mapped to themselves. Another user appears as root
    inside and keeps their own access to files.

    Raises OSError; its `filename` is the map that could not be written, None if `unshare` failed.
    """
    pid, uid, gid = os.getpid(), os.getuid(), os.getgid()
    read_end, write_end = os.pipe()
    # A map of all ids has to be written from outside, so a child stays there to do it.
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.close(write_end)
            code = _write_maps(pid, uid, gid) if os.read(read_end, 1) else 0
        finally:
            os._exit(code)
    os.close(read_end)
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        os.write(write_end, b"x")
    finally:
        os.close(write_end)
        _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code) if 0 < code < 255 else f"code {code}", f"/proc/{pid}/uid_map")


def _write_maps(pid: int, uid: int, gid: int) -> int:
    """Returns 0, or the number of the error."""
    try:
        for name, id in (("uid_map", uid), ("gid_map", gid)):
            try:
                _write(f"/proc/{pid}/{name}", EVERY_ID)
            except PermissionError:
                if name == "gid_map":  # else a group could be left that is there to deny access
                    _write(f"/proc/{pid}/setgroups", "deny")
                _write(f"/proc/{pid}/{name}", f"0 {id} 1")
    except OSError as error:
        return error.errno or 254
    return 0


def _write(path: str, text: str) -> None:
    """One write, as the kernel wants it, whose error is seen."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class StepFailed(Exception):
    """A step of making the nodes failed. `cause`: as in the printed JSON line."""

    def __init__(self, cause: str, error: str) -> None:
        super().__init__(error)
        self.cause = cause


def build(shapes: list[Shape]) -> dict[str, Any]:
    """Make the namespaces and the network in them; this process keeps them open from now on.

    Returns the JSON line to print. Raises StepFailed.
    """
    programs = {name: shutil.which(name, path=SEARCHED) for name in ("ip", "tc")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise StepFailed("missing", f"no command {' and '.join(missing)} on the PATH")
    try:
        new_user_and_net()
        base = _current_net()
        nodes: list[int] = []
        for _ in shapes:
            unshare(CLONE_NEWNET)
            nodes.append(_current_net())
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
    """Whether this kernel has the queues that serve the connections of a link in turn."""
    try:
        _run(IpBatch(None, "tc", tuple(trial_lines("lo"))), tc)
    except StepFailed:
        return False
    return True


def _current_net() -> int:
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
