"""Pads inside forward and backward, by hand on a clock that only tests move."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_entries_padding import LAYERS, passes
from real_runs import finished
from runs import config
from torch import Tensor, nn

from daso_bench.runner.config.cluster import DeviceConfig
from daso_bench.runner.training.device_model import ClusterDevice, Device, Profile
from daso_bench.runner.training.slow_device import Padding
from daso_bench.strategies.errors import ConfigError

MS = 1_000_000


class Clock:
    """Time that passes when layers compute, when somebody sleeps, and not by itself."""

    def __init__(self, late_ns: int = 0) -> None:
        self.ns, self.late_ns = 1_000_000_007, late_ns
        self.slept: list[float] = []  # ms

    def now(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds * 1e3)
        self.ns += round(seconds * 1e9) + self.late_ns


class Tick(torch.autograd.Function):
    """Nothing, for some time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "Layer") -> Tensor:
        ctx.layer = layer
        layer.clock.ns += round(layer.forward_ms * MS)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.layer.clock.ns += round(ctx.layer.backward_ms * MS)
        return gradients[0], None


class Layer(nn.Module):
    """Times a weight; takes as many milliseconds as it says."""

    def __init__(self, clock: Clock, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.clock, self.forward_ms, self.backward_ms = clock, forward_ms, backward_ms

    def forward(self, x: Tensor) -> Tensor:
        return Tick.apply(x * self.weight, self)  # pyright: ignore[reportReturnType] (it is what forward returns)


class Rig:
    """Two layers of 1 and 3 ms forward, 2 and 6 backward; on the device they take 40 forward, 80 backward."""

    def __init__(self, device: Device | None = None, late_ns: int = 0, measured: bool = True) -> None:
        self.clock = Clock(late_ns)
        self.first, self.last = Layer(self.clock, 1, 2), Layer(self.clock, 3, 6)
        self.model = nn.Sequential(self.first, self.last)
        self.samples: list[int] = []

        def step_ns(rank: int, samples: int) -> int:
            self.samples.append(samples)
            return 120 * MS

        self.padding = Padding(
            self.model, device or Device(0, step_ns), now=self.clock.now, sleep=self.clock.sleep
        )
        # Behind the pads' own hooks: when the layer is over, and when its gradient is there; in ms.
        self.marks: list[float] = []
        self._since = 0
        for layer in (self.first, self.last):
            layer.register_forward_hook(lambda *_: self.mark())
            layer.weight.register_post_accumulate_grad_hook(lambda _: self.mark())
        if measured:
            self.padding.measure(self.passes, 3)

    def mark(self) -> None:
        self.marks.append((self.clock.ns - self._since) / MS)

    def costs(self, *ms: float) -> None:
        """Of both layers forward, then of the first and the last one backward."""
        self.first.forward_ms, self.last.forward_ms, self.first.backward_ms, self.last.backward_ms = ms

    def passes(self) -> None:
        self.marks = []
        self._since = self.clock.ns
        loss = self.model(torch.ones(1)).sum()
        self.padding.begin_backward()
        self._since = self.clock.ns
        loss.backward()

    def step(self, samples: int = 8) -> list[float]:
        """Milliseconds at the ends of both layers forward and backward, each since its pass began."""
        self.padding.begin(samples)
        self.passes()
        self.padding.end()
        return self.marks


def test_shares_are_what_layers_took_when_they_were_measured():
    rig = Rig()
    assert rig.padding.forward == [("0", 0.25), ("1", 1.0), ("Sequential", 1.0)]
    assert rig.padding.backward == [("1", 0.75), ("0", 1.0)]
    assert rig.clock.slept == []
    assert rig.samples == []  # nothing was drawn for it


def test_what_a_step_takes_on_this_machine_and_on_the_device_is_known_before_training():
    rig = Rig(ClusterDevice(DeviceConfig(samples_per_second=1000), 0, Profile.by_size([1]), 7))
    assert rig.padding.measured_s == pytest.approx(12e-3)
    assert rig.padding.expected_s(50) == pytest.approx(50e-3)
    assert rig.padding.device.drawn == 0


def test_shares_are_medians_over_steps():
    rig = Rig(measured=False)
    firsts = iter((1, 9, 1, 5, 1))

    def step() -> None:
        rig.first.forward_ms = next(firsts)
        rig.passes()

    rig.padding.measure(step, 5)
    assert [share for _, share in rig.padding.forward] == [0.25, 1.0, 1.0]


@pytest.mark.parametrize(
    ("costs", "ends", "slept"),
    [
        ((0, 0, 0, 0), [10, 40, 60, 80], [10, 30, 60, 20]),  # each layer ends at its share
        ((1, 3, 2, 6), [10, 40, 60, 80], [9, 27, 54, 18]),  # real computing takes its part of the pad
        ((25, 3, 2, 70), [25, 40, 70, 80], [12, 8]),  # a layer that was late is caught up with
        ((10 - 0.05, 30, 20, 60 - 0.051), [9.95, 40 - 0.05, 60, 80], [0.051]),  # 50 us are not slept
    ],
)
def test_layers_end_at_their_shares_of_the_pass(
    costs: tuple[float, ...], ends: list[float], slept: list[float]
):
    """In ms; a layer's first numbers are forward, its last backward."""
    rig = Rig()
    rig.costs(*costs)
    assert rig.step() == pytest.approx(ends)
    assert rig.clock.slept == pytest.approx(slept)
    assert rig.samples == [8]


def test_sleeping_too_long_is_time_spent():
    """A millisecond each time; only the last one of a pass is left."""
    rig = Rig(late_ns=MS)
    rig.costs(0, 0, 0, 0)
    assert rig.step() == [11, 41, 61, 81]
    assert rig.clock.slept == [10, 29, 60, 19]


def test_what_is_excluded_comes_on_top():
    """Launching the last layer's bucket takes longer than the pass, and so long nothing is computed."""
    rig = Rig()

    def launch(parameter: Tensor) -> None:
        with rig.padding.excluded():
            rig.clock.ns += 500 * MS

    rig.last.weight.register_post_accumulate_grad_hook(launch)
    assert rig.step() == [10, 40, 60, 580]
    assert rig.clock.slept == [9, 27, 54, 18]
    assert rig.padding.overruns == 0
    rig.marks.clear()
    with rig.padding.excluded():  # outside of a step it is nothing
        rig.clock.ns += 5 * MS
    assert rig.step() == [10, 40, 60, 580]


def test_what_happens_between_and_behind_the_passes_is_nobodys_computing():
    rig = Rig()
    rig.costs(0, 0, 0, 0)
    rig.padding.begin(1)
    loss = rig.model(torch.ones(1)).sum()
    rig.clock.ns += 1000 * MS
    rig.padding.begin_backward()
    loss.backward()
    rig.clock.ns += 1000 * MS  # DDP waits
    rig.padding.end()
    assert rig.clock.slept == [10, 30, 60, 20]
    assert rig.padding.overruns == 0


@pytest.mark.parametrize(
    ("costs", "overruns"),
    [
        ((1, 3, 2, 6), 0),
        ((1, 39, 20, 60), 0),
        ((1, 39.1, 0, 0), 1),  # forward alone
        ((0, 0, 20.1, 60), 1),  # backward alone
        ((30, 30, 100, 100), 1),
        ((39, 0, 0, 79), 0),  # a layer alone is caught up with
    ],
)
def test_a_step_that_is_too_fast_for_this_machine_is_counted(costs: tuple[float, ...], overruns: int):
    rig = Rig()
    rig.step()
    rig.costs(*costs)
    rig.step()
    padding = rig.padding
    assert (padding.steps, padding.overruns) == (2, overruns)


def test_an_evaluation_is_not_padded():
    rig = Rig()
    rig.step()
    slept = len(rig.clock.slept)
    rig.model.eval()
    with torch.no_grad():
        rig.model(torch.ones(1))
    rig.model.train()
    rig.model(torch.ones(1)).sum().backward()
    assert len(rig.clock.slept) == slept
    assert rig.padding.steps == 1


class Moody(nn.Module):
    """Three layers; takes another way when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))
        self.mood = "usual"

    def forward(self, x: Tensor) -> Tensor:
        match self.mood:
            case "skips":
                return self.c(self.a(x))
            case "swaps":
                return self.c(self.a(self.b(x)))
            case "stays":
                return self.c(self.c(self.b(self.a(x))))
            case _:
                return self.c(self.b(self.a(x)))


@pytest.mark.parametrize(
    ("mood", "came", "expected"), [("skips", "c", "b"), ("swaps", "b", "a"), ("stays", "c", "Moody")]
)
def test_a_model_that_runs_other_layers_in_some_steps_is_refused(mood: str, came: str, expected: str):
    """A pad of a layer left out would lie somewhere else."""
    model = Moody()
    padding = Padding(model, Device(0, lambda rank, samples: MS))
    moods = iter(["usual", "usual", mood])

    def step() -> None:
        model.mood = next(moods)
        passes(model, padding, torch.ones(1, 2))

    with pytest.raises(ConfigError) as measuring:
        padding.measure(step, 3)
    model.mood = "usual"
    padding.measure(lambda: passes(model, padding, torch.ones(1, 2)), 2)
    padding.begin(1)
    passes(model, padding, torch.ones(1, 2))
    padding.end()
    model.mood = mood
    padding.begin(1)
    with pytest.raises(ConfigError) as training:
        passes(model, padding, torch.ones(1, 2))
    for error in (measuring, training):
        text = str(error.value)
        assert text.startswith(
            f"cluster.device: the model reached {came} where an earlier step reached {expected}, "
        )
        assert "launcher=simulated" in text


def test_a_model_on_a_gpu_is_refused():
    """The meta device stands for all that are not the processor."""
    for model in (nn.Linear(2, 2, device="meta"), nn.BatchNorm1d(2, affine=False, device="meta")):
        with pytest.raises(ConfigError) as error:
            Padding(model, Device(0, lambda rank, samples: MS))
        assert str(error.value).startswith("cluster.device: the model is on meta, ")
        assert "launcher=simulated" in str(error.value)


class Awkward(nn.Module):
    """A convolution used twice, batch normalisation, an inplace ReLU, tied and frozen weights, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.25)
        self.frozen = nn.Linear(32, 8).requires_grad_(False)
        self.into, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.out.weight = self.into.weight
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.relu(self.norm(self.conv(x)))
        x = self.frozen(self.drop(x).flatten(1))
        return self.out(nn.functional.gelu(self.into(x))) * self.scale


def trained(padded: bool) -> tuple[dict[str, Tensor], Padding | None]:
    torch.manual_seed(3)
    model = Awkward()
    padding = None
    if padded:
        padding = Padding(model, Device(0, lambda rank, samples: 9 * MS))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        padding.measure(lambda: passes(model, padding, torch.randn(4, 2, 4, 4)), 5)
        model.load_state_dict(before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(4)
    for _ in range(3):
        optimizer.zero_grad()
        if padding is not None:
            padding.begin(4)
        loss = model(torch.randn(4, 2, 4, 4)).square().mean()
        if padding is not None:
            padding.begin_backward()
        loss.backward()
        if padding is not None:
            padding.end()
        optimizer.step()
    return model.state_dict(), padding


def test_pads_change_no_bit_of_an_awkward_model():
    """Layers used twice are marked twice in forward; in backward each trained parameter is, once."""
    plain, _ = trained(padded=False)
    padded, padding = trained(padded=True)
    for name, value in plain.items():
        assert torch.equal(value, padded[name]), name
    assert padding is not None
    twice = ["conv", "norm", "relu"] * 2
    assert [layer for layer, _ in padding.forward] == [*twice, "drop", "frozen", "into", "out", "Awkward"]
    # conv, norm: weight and bias; the tied weight once, after both of its uses; out's bias; the scale.
    backward = [layer for layer, _ in padding.backward]
    assert sorted(backward) == ["Awkward", "conv", "conv", "into", "norm", "norm", "out"]
    assert backward[0] == "Awkward"
    assert set(backward[-4:]) == {"conv", "norm"}
    assert padding.steps == 3


def test_ddp_hears_of_a_gradient_after_its_pad(tmp_path: Path):
    """On a clock that only sleeps move, a bucket is launched when the share of its last layer has passed."""
    cfg = config(ranks=[1, 1], results=tmp_path)
    _, summary = finished(cfg, entry="gloo_entries_padding:order")
    orders = summary["launched"]
    assert len(orders) == 2
    for launched in orders:
        assert [layers for layers, _, _ in launched] == [[str(layer)] for layer in reversed(range(LAYERS))]
        for _, at_ns, share in launched:
            assert at_ns == pytest.approx(share * 1000 * MS, abs=0.2 * MS)
