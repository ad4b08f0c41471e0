"""A GPU of numbers: streams are clocks that run ahead of the host, events are moments of them."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


class FakeGPU:
    """`now`: what the host knows to be over (ms). Whoever waits with the host is noted in `host_waits`."""

    def __init__(self) -> None:
        self.clocks: dict[Any, float] = {"computing": 0.0}
        self.stream: Any = "computing"
        self.now = 0.0
        self.host_waits: list[float] = []

    def compute(self, ms: float) -> None:
        """Launch work on the present stream."""
        self.clocks[self.stream] += ms

    def event(self) -> Any:
        return FakeEvent(self)

    # ---------------------------------------------------------------- as cuda_timing.Streams

    def mark(self) -> Any:
        event = FakeEvent(self)
        event.record()
        return event

    @contextmanager
    def side(self, of: Any) -> Iterator[None]:
        before, self.stream = self.stream, of
        self.clocks.setdefault(of, 0.0)
        yield
        self.stream = before

    def await_mark(self, mark: "FakeEvent") -> None:
        self.clocks[self.stream] = max(self.clocks[self.stream], mark.at)


class FakeEvent:
    def __init__(self, gpu: FakeGPU) -> None:
        self.gpu, self.at = gpu, float("inf")

    def record(self, stream: Any = None) -> None:
        self.at = self.gpu.clocks[self.gpu.stream]

    def query(self) -> bool:
        return self.at <= self.gpu.now

    def synchronize(self) -> None:
        self.gpu.host_waits.append(self.at)
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.query(), "asked before it is over"
        assert end_event.query(), "asked before it is over"
        return end_event.at - self.at


class FakeWork:
    """An operation of NCCL that is over at `ends` (ms); the stream in which it is waited for waits."""

    def __init__(self, gpu: FakeGPU, ends: float) -> None:
        self.gpu, self.ends = gpu, ends

    def wait(self) -> None:
        self.gpu.clocks[self.gpu.stream] = max(self.gpu.clocks[self.gpu.stream], self.ends)


class HostStreams:
    """Streams of a rank without a GPU: what is waited for has been waited for, on the host."""

    def mark(self) -> int:
        return time.monotonic_ns()

    def side(self, of: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def await_mark(self, mark: int) -> None:
        return


class NotedStreams(HostStreams):
    """Remembers whose side streams were asked for."""

    def __init__(self) -> None:
        self.sides: list[Any] = []

    def side(self, of: Any) -> AbstractContextManager[None]:
        self.sides.append(of)
        return super().side(of)


class HostEvent:
    """An event that is over."""

    def record(self, *stream: Any) -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True
