"""Memory that processes of one machine share, and a barrier in it.

The memory has no name (memfd): nothing of it remains when a process is killed.
"""

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...strategies.errors import MachineError

LINE = 64  # bytes; sizes are rounded up to whole cache lines
_PER_LINE = LINE // 4

# Numbers of the futex system call (linux/unistd.h); other machines poll.
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE, _EVERYBODY = 0, 1, 2**31 - 1

POLL_S = 5e-5
SPIN_NS = 20_000
# A lost wake-up would be a hang: a rank polls after so many seconds.
_LOOK_AGAIN_S = 1.0


def offer(numel: int, dtype: torch.dtype) -> tuple[int, str]:
    """Make zeroed memory for `numel` elements.

    Returns its descriptor, to be kept open until all others have taken it, and the address by which they
    `take` it. Raises MachineError: the system has not enough memory.
    """
    size = -(-max(1, numel * dtype.itemsize) // LINE) * LINE
    try:
        descriptor = os.memfd_create("daso-bench")
        os.ftruncate(descriptor, size)
    except OSError as error:
        raise MachineError(f"{size} bytes of shared memory cannot be had: {error}") from error
    return descriptor, f"{os.fstat(descriptor).st_ino} {size} /proc/{os.getpid()}/fd/{descriptor}"


def take(address: str) -> int:
    """A descriptor of the memory at `address`.

    Raises MachineError: this process cannot see the maker's memory, or sees another one under that address.
    """
    inode, size, path = address.split(" ", 2)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"{path}: the memory of another rank of this node cannot be opened ({error}); do the ranks of a "
            "node share their processes (one container, one user)?"
        ) from error
    # In another process namespace the same path is another process's file: never write there.
    status = os.fstat(descriptor)
    if (status.st_ino, status.st_size) != (int(inode), int(size)):
        os.close(descriptor)
        raise MachineError(f"{path}: is not the memory that another rank of this node offered")
    return descriptor


def as_tensor(descriptor: int, numel: int, dtype: torch.dtype) -> Tensor:
    """The memory as a tensor [numel], mapped for as long as any view of it lives."""
    memory = mmap.mmap(descriptor, 0)
    return torch.frombuffer(memory, dtype=dtype, count=numel) if numel else torch.empty(0, dtype=dtype)


class MemoryBarrier:
    """A barrier of processes through an int32 slot of each, in shared memory.

    A slot holds how often its owner has arrived. Only the owner writes it, so a plain store is enough; a rank
    is missing while its slot holds the count before. Two ranks, a slow and a fast one:

        fast: slot = 5, slow's slot is 4: sleep in the kernel while it is 4
        slow: slot = 5, wake the ranks that sleep on it, all slots are 5: go on, arrive again, slot = 6
        fast: wakes up, slow's slot is no longer 4: go on

    No rank can be two ahead: it would have passed a barrier at which another rank has not arrived.

    slots: zeroed shared memory, int32 [n · 16], one cache line per member; place: this process's; timeout_s:
    after which `meet` gives up.
    """

    def __init__(self, slots: Tensor, place: int, timeout_s: float) -> None:
        self._memory = slots  # keeps it mapped
        self._slots = (ctypes.c_int32 * slots.numel()).from_address(slots.data_ptr())
        self._base, self._place, self._members = slots.data_ptr(), place, slots.numel() // _PER_LINE
        self._timeout_s = timeout_s
        self._count = 0
        self._futex = _system_call()
        # Spinning takes the core from the ranks that are late, unless each has a core of its own.
        self._spin_ns = SPIN_NS if self._members <= (os.cpu_count() or 1) else 0

    @staticmethod
    def size(members: int) -> int:
        """Elements of `slots` for so many members."""
        return members * _PER_LINE

    def meet(self) -> Sequence[int]:
        """Return once all members have called; then what they wrote before is visible.

        Returns the places of the members that have not come within the timeout, else none.
        """
        before, self._count = self._count, (self._count + 1) & 0x7FFFFFFF
        # The kernel has a full memory fence in each wake, which matters on weakly ordered CPUs: what this
        # rank wrote is visible before its slot changes, and (after the loop) nothing was read too early.
        self._wake()
        self._slots[self._place * _PER_LINE] = self._count
        self._wake()
        started = time.monotonic_ns()
        # Each rank waits for another one first, else the same store would wake all, on too few cores.
        for distance in range(1, self._members):
            if not self._await((self._place - distance) % self._members, before, started):
                return [p for p in range(self._members) if self._slots[p * _PER_LINE] == before]
        self._wake()
        return []

    def _await(self, place: int, before: int, started: int) -> bool:
        """Wait for the member at `place`; False after the timeout."""
        slot, slots = place * _PER_LINE, self._slots
        spin_until = started + self._spin_ns
        while slots[slot] == before:
            now = time.monotonic_ns()
            if now < spin_until:
                continue
            left = self._timeout_s - (now - started) / 1e9
            if left <= 0:
                return False
            self._sleep(slot, before, min(left, _LOOK_AGAIN_S))
        return True

    def _sleep(self, slot: int, value: int, seconds: float) -> None:
        """Sleep until woken, at most `seconds`; not at all if the slot no longer holds `value`."""
        if self._futex is None:
            time.sleep(min(seconds, POLL_S))
            return
        timeout = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))  # a struct timespec
        # Both calls are of the shared kind: a private one would see only threads of this process.
        self._futex(self._base + 4 * slot, _WAIT, value, ctypes.byref(timeout))

    def _wake(self) -> None:
        if self._futex is not None:
            self._futex(self._base + 4 * self._place * _PER_LINE, _WAKE, _EVERYBODY, None)


def _system_call() -> Callable[[int, int, int, object], None] | None:
    """The system call futex(address, operation, value, timeout), which the C library does not wrap."""
    number = _FUTEX.get(platform.machine())
    if number is None:
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long

    def futex(address: int, operation: int, value: int, timeout: object) -> None:
        call(ctypes.c_long(number), ctypes.c_void_p(address), operation, ctypes.c_long(value), timeout)

    return futex
