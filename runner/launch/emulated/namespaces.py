"""The system calls for user and network namespaces, and how a rank enters its node."""

import ctypes
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from ....strategies.errors import MachineError

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
EVERY_ID = "0 0 4294967295"


@dataclass(frozen=True)
class NodeEntry:
    """What a rank needs to get into its node: paths of two namespaces, and what it finds there.

    The paths are below /proc of the process that holds the namespaces; they are good for as long as it lives.
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
    """Move this process (one thread) into a new user and a new network namespace, where it may do all.

    Real root keeps its power over everybody's files, as all ids are mapped to themselves. Anybody else
    appears as root inside and stays who they are for the files.

    Raises OSError; its `filename` is the map that could not be written, None if `unshare` failed.
    """
    pid, uid, gid = os.getpid(), os.getuid(), os.getgid()
    heard, say = os.pipe()
    # A map of all ids has to be written from outside, so a child stays there to do it.
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.close(say)
            code = _write_maps(pid, uid, gid) if os.read(heard, 1) else 0
        finally:
            os._exit(code)
    os.close(heard)
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        os.write(say, b"x")
    finally:
        os.close(say)
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
