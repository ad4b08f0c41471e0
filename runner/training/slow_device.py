"""Emulation of a slower device on a fast CPU: sleeps after each layer of forward and backward.

After each layer the rank sleeps until its compute clock has reached the layer's measured share of the time
that `Device.step_ns` gives. Forward and backward have a clock each. It counts from the start of its pass,
with sleeps and their lateness, without `excluded` times.

The place of a sleep decides what a run measures. DDP sums buckets during the backward pass and waits for them
inside `backward()`: with a single sleep before or after it no sum is hidden behind computation, and a sleep
until a deadline after the wait hides the wait. So sleeps are between layers, and no clock runs while sums are
waited for. The events of a parameter are, in this order:

    its gradient is computed; its hook sleeps; the gradient is accumulated; DDP launches its bucket

DDP waits for the sums after the last parameter's events, when no sleep is left.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median

from torch import nn

from ...strategies.errors import ConfigError
from .device_model import Device

AHEAD = 256  # steps drawn to estimate the device's step time
SHORTEST_SLEEP_NS = 50_000  # time.sleep returns some 60 us late: shorter sleeps are left to the next layer


LayerMarks = list[tuple[str, float]]
"""The layers of a pass in the order in which they end, and the share of its time that has passed then.

In forward a layer is a module without children, or the model itself, which ends last. In backward it is the
module whose parameter has its gradient; one with two parameters ends twice. Time of other operations counts
with the next layer. Shares never fall; the last is 1.0.
"""


@dataclass
class _Pass:
    """Forward or backward of the open step; nanoseconds."""

    layers: LayerMarks
    padded_ns: int
    since: int
    place: int = 0  # of the next mark
    slept_ns: int = 0
    excluded_ns: int = 0
    real_ns: int = 0  # of computing, up to the last mark so far


class Padding:
    """Makes a step of `model` take the time of `device`, on CPUs.

    A step is `begin(samples)`, forward, `begin_backward()`, backward, `end()`. Outside of a step, and until
    `measure` was called, nothing is padded and no number is drawn from the device. Values do not change: not
    a bit of losses or gradients.

    Every step has to run the same layers in the same order, else ConfigError names the layer: the sleep of a
    missing layer would move to another place, and the times would look valid.

    model: the module of forward and backward, with the criterion if its time is to count; before or after it
    is wrapped in DDP. Its hooks are never removed. now: a monotonic clock in nanoseconds; sleep: of seconds.
    Raises ConfigError for a model on a GPU, where hooks run when kernels are launched, not when they end.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        *,
        now: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.device.type != "cpu":
                raise ConfigError(
                    f"cluster.device: the model is on {tensor.device}, and only CPUs can be slowed down "
                    "layer by layer; take launcher=simulated, or the real device (cluster=laptop)"
                )
        self.device = device
        self.forward: LayerMarks = []
        self.backward: LayerMarks = []
        self.steps = 0
        self.overruns = 0  # steps whose computation alone took longer, in forward or in backward
        self.measured_s = 0.0  # median time of a step's computation when it was measured
        self._now, self._sleep = now, sleep
        self._passes: list[_Pass] = []
        self._backward_ns = 0
        # While measuring: (layer, nanoseconds since the pass began), for both passes of this step.
        self._measured: list[list[tuple[str, int]]] | None = None
        self._since = 0
        root = type(model).__name__
        for name, module in model.named_modules():
            if module is model or not list(module.children()):
                module.register_forward_hook(self._hook(name or root))
        for name, parameter in model.named_parameters():  # a shared parameter appears once
            if parameter.requires_grad:
                parameter.register_hook(self._hook(name.rpartition(".")[0] or root))

    def measure(self, step: Callable[[], None], steps: int = 20) -> None:
        """Measure each layer's share of forward and backward in `steps` calls of `step`, without pads.

        `step`: a training step without communication, which calls `begin_backward` between the passes. It
        may call `begin` right before forward, and `end`. Gradients and running statistics change; the caller
        restores them.

        Raises ConfigError where steps run different layers.
        """
        measured: list[list[list[tuple[str, int]]]] = []
        try:
            for _ in range(steps):
                self._measured = [[]]
                self._since = self._now()
                step()
                assert len(self._measured) == 2, "begin_backward is called once, between the passes"
                assert all(self._measured), "layers go forward, and parameters get gradients"
                measured.append(self._measured)
        finally:
            self._measured = None
        for place in (0, 1):
            _layer_marks([step[place] for step in measured])  # raises where steps differ
        # The faster half: the steps that other processes disturbed least.
        measured.sort(key=lambda step: sum(marks[-1][1] for marks in step))
        self.measured_s = median(sum(marks[-1][1] for marks in step) for step in measured) / 1e9
        quiet = max(1, steps // 2)
        self.forward, self.backward = (
            _layer_marks([step[place] for step in measured[:quiet]]) for place in (0, 1)
        )

    def expected_s(self, samples: int) -> float:
        """Lower quartile of the device's next step times with `samples` samples; the draws are undone.

        Not the mean: the slow steps of a straggler give its other steps no more time.
        """
        drawn = self.device.drawn
        ahead = sorted(sum(self.device.step_ns(samples)) for _ in range(AHEAD))
        self.device.drawn = drawn
        return ahead[AHEAD // 4] / 1e9

    def begin(self, samples: int) -> None:
        """A step of `samples` samples begins with its forward pass."""
        if self._measured is not None:
            self._measured = [[]]
            self._since = self._now()
        elif self.forward:
            forward_ns, self._backward_ns = self.device.step_ns(samples)
            self._passes = [_Pass(self.forward, forward_ns, self._now())]

    def begin_backward(self) -> None:
        """The backward pass begins."""
        if self._measured is not None:
            self._measured.append([])
            self._since = self._now()
        elif self._passes:
            self._passes.append(_Pass(self.backward, self._backward_ns, self._now()))

    def end(self) -> None:
        """The step is over; count it. Raises ConfigError if it left out a layer."""
        passes, self._passes = self._passes, []
        if not passes:
            return
        assert len(passes) == 2, "begin_backward is called once, between the passes"
        for half in passes:
            if half.place < len(half.layers):
                raise _differs(None, half.layers[half.place][0])
        self.steps += 1
        self.overruns += any(half.real_ns > half.padded_ns for half in passes)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Stop the compute clock, for work of this rank that its device would not do.

        Used around the launch of a bucket, by the thread that computes; not nested.
        """
        if not self._passes:
            yield
            return
        current, began = self._passes[-1], self._now()
        try:
            yield
        finally:
            current.excluded_ns += self._now() - began

    def _hook(self, layer: str) -> Callable[..., None]:
        # A closure, not a bound method: with that a deep copy of the model would copy this object and its
        # device.
        def hook(*_: object) -> None:
            if self._measured is not None:
                self._measured[-1].append((layer, self._now() - self._since))
            elif self._passes:
                self._pad(self._passes[-1], layer)

        return hook

    def _pad(self, current: _Pass, layer: str) -> None:
        """Sleep until the clock of this pass has reached the time at which `layer` ends on the device."""
        layers, place = current.layers, current.place
        expected, share = layers[place] if place < len(layers) else (None, 1.0)
        if layer != expected:
            raise _differs(layer, expected)
        current.place += 1
        began = self._now()
        computed = began - current.since - current.excluded_ns
        current.real_ns = computed - current.slept_ns
        rest = round(share * current.padded_ns) - computed
        if rest > SHORTEST_SLEEP_NS:
            self._sleep(rest / 1e9)
            current.slept_ns += self._now() - began


def _layer_marks(steps: Sequence[Sequence[tuple[str, int]]]) -> LayerMarks:
    """Medians of (layer, nanoseconds since the pass began) over several steps.

    Raises ConfigError where a step ran other layers than the first.
    """
    layers = [layer for layer, _ in steps[0]]
    for step in steps[1:]:
        for expected, mark in zip_longest(layers, step):
            layer = None if mark is None else mark[0]
            if layer != expected:
                raise _differs(layer, expected)
    ends = [median(step[place][1] for step in steps) for place in range(len(layers))]
    shares = [end / max(ends[-1], 1) for end in ends]
    return list(zip(layers, [*shares[:-1], 1.0], strict=True))


def _differs(layer: str | None, expected: str | None) -> ConfigError:
    """The error for a step with `layer` where another had `expected`; None: the pass ended there."""
    end = "the end of the pass"
    return ConfigError(
        f"cluster.device: the model reached {layer or end} where an earlier step reached {expected or end}, "
        "and only a model that runs the same layers in each step can be slowed down layer by layer; "
        "take launcher=simulated, or the real device (cluster=laptop)"
    )
