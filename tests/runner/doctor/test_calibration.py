"""`daso-bench calibrate`: fits by hand and on data of known truth, the file, one real machine."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from asking import code_of

from daso_bench.runner.communication.link_costs import ClusterNetwork
from daso_bench.runner.config.cluster import DeviceConfig
from daso_bench.runner.config.load import run_config
from daso_bench.runner.doctor import calibrate_command
from daso_bench.runner.doctor import calibration_fit as fit
from daso_bench.runner.doctor.calibrate_command import calibrate, overlap_of, rounds, steps_of
from daso_bench.runner.doctor.calibration_file import MESSAGES, cluster_of, render
from daso_bench.runner.doctor.calibration_fit import Calibration, HoldOut
from daso_bench.runner.launch import local
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.runner.training.device_model import factors, read_trace
from daso_bench.strategies.topology import Topology

SIZES = (8, 16, 24, 32, 48, 64, 128)


def noisy(truth: Sequence[float], rounds: int, share: float) -> np.ndarray:
    """`rounds` of `truth` [sizes], each time off by about `share`."""
    rng = np.random.default_rng(1)
    return np.array(truth) * (1 + share * rng.standard_normal((rounds, len(truth))))


# ---------------------------------------------------------------------- fits


@pytest.mark.parametrize(
    ("x", "seconds", "fixed", "slope"),
    [
        ([1, 2], [3e-3, 5e-3], 1e-3, 2e-3),
        # A negative fixed part: 1/t-weighted through the origin, (1/1 + 2/3) / (1 + 4/9).
        ([1, 2], [1.0, 3.0], 0.0, 15 / 13),
        # A time that falls with the samples: (1/4 + 1/2) / (1/16 + 1/4), whatever the samples.
        ([1, 2], [4.0, 2.0], 2.4, 0.0),
        # Relative errors: Σ ((s - 100)/100)² + ((s - 200)/200)² is smallest at s = 120, absolute ones at 150.
        ([0, 1, 1], [1.0, 100.0, 200.0], 1.0, 119.0),
    ],
)
def test_a_line_by_hand(x: list[float], seconds: list[float], fixed: float, slope: float):
    assert fit.line_through(x, seconds) == (pytest.approx(fixed), pytest.approx(slope))


def test_the_worst_size_has_the_sign_of_its_error():
    """Three points, the last of them far too slow: the line is above the second and below the third."""
    line = fit.line_fit([1, 2, 3], np.array([[1.0, 2.0, 6.0]] * 2))
    assert line.worst_at == 3
    assert line.worst == pytest.approx((line.fixed + 3 * line.slope) / 6 - 1)
    assert line.worst < -0.1


def test_a_step_fit_finds_the_truth_behind_noise():
    truth = [2e-3 + n / 10_000 for n in SIZES]
    result = fit.line_fit(SIZES, noisy(truth, 60, 0.05))
    assert result.fixed == pytest.approx(2e-3, rel=0.05)
    assert result.rate == pytest.approx(10_000, rel=0.03)
    for (low, high), value, width in (
        (result.fixed_interval, 2e-3, 0.4e-3),
        (result.rate_interval, 10_000, 1000),
    ):
        assert low < value < high
        assert high - low < width


def test_a_few_disturbed_rounds_do_not_move_the_fit():
    seconds = noisy([2e-3 + n / 10_000 for n in SIZES], 60, 0.01)
    seconds[::10] *= 20
    result = fit.line_fit(SIZES, seconds)
    assert result.fixed == pytest.approx(2e-3, rel=0.03)
    assert result.fixed_interval == (pytest.approx(2e-3, rel=0.03), pytest.approx(2e-3, rel=0.03))


def test_a_link_fit_is_what_the_network_makes_of_it():
    """100 us a message and 8 Gbit/s: two ranks send two messages, and the payload once: 1 ns a byte."""
    payloads = calibrate_command.PAYLOADS
    truth = [200e-6 + payload * 1e-9 for payload in payloads]
    result = fit.line_fit(payloads, noisy(truth, 40, 0.05))
    latency_us, rate_gbit = 1e6 * result.fixed / MESSAGES, 8e-9 * result.rate
    assert latency_us == pytest.approx(100, rel=0.02)
    assert rate_gbit == pytest.approx(8, rel=0.02)
    assert abs(result.worst) < 0.05
    text = f"nodes: 1\nranks_per_node: 2\nlinks: {{intra: {{rate_gbit: {rate_gbit}, "
    cluster = cluster_of(text + f"latency_us: {latency_us}}}}}")
    network, topology = ClusterNetwork(cluster.links, Topology.of([2])), Topology.of([2])
    for payload, seconds in zip(payloads, truth, strict=True):
        modelled = network.cost(topology, "all_reduce", (0, 1), payload).duration_ns / 1e9
        assert modelled == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(("kind", "cv"), [("gaussian", 0.1), ("lognormal", 0.3), ("student_t3", 0.1)])
def test_the_jitter_that_was_drawn_is_found(kind: str, cv: float):
    drawn = factors(kind, cv, np.random.default_rng(0), 2000).reshape(2, 1000)
    slower = drawn * np.array([[3e-3], [5e-3]])  # a rank's own speed is no jitter
    assert fit.jitter_fit(slower) == (kind, pytest.approx(cv, rel=0.1))


@pytest.mark.parametrize("kind", ["gaussian", "lognormal", "student_t3"])
def test_a_density_has_area_and_mean_1_and_the_deviation_that_was_asked_for(kind: str):
    x = np.linspace(1e-4 if kind == "lognormal" else -200, 200, 400_001)  # t has tails
    density = np.exp(fit.log_density(kind, 0.2, x))
    step = x[1] - x[0]
    assert density.sum() * step == pytest.approx(1, abs=2e-3)
    assert (x * density).sum() * step == pytest.approx(1, abs=2e-3)
    spread = math.sqrt(((x - 1) ** 2 * density).sum() * step)
    assert spread == pytest.approx(0.2, rel=0.02)


def test_a_jitter_too_wide_for_a_family_is_as_wide_as_may_be():
    kind, cv = fit.jitter_fit(factors("lognormal", 1.0, np.random.default_rng(0), 4000)[None] ** 2)
    DeviceConfig(samples_per_second=1.0, jitter=kind, jitter_cv=cv).check(1)
    assert (kind, cv) == ("lognormal", pytest.approx(1.0))


def test_steps_that_never_differ_have_no_jitter():
    assert fit.jitter_fit(np.full((2, 50), 3e-3)) == ("none", 0.0)


def test_ranks_are_alike_up_to_5_percent():
    assert fit.rank_speeds(np.array([[1.0, 1.04, 1.0, 0.97]] * 3)) is None
    assert fit.rank_speeds(np.array([[1.0, 2.0, 1.0], [1.0, 2.0, 1.0], [9.0, 2.0, 1.0]])) == (1.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("ready", "sums", "hidden"),
    [
        ([1.0], [5.0], 0.0),  # one bucket is there when the pass ends
        ([0.5, 1.0], [1.0, 5.0], 1.0),  # from 2 + 2 to 5, the pass ends at 6
        ([0.5, 1.0], [9.0, 5.0], 2.0),  # goes on after the pass, the second waits for it
        ([0.25, 0.5, 1.0], [2.0, 0.5, 1.0], 2.5),  # from 3 to 5, and right behind it to 5.5
        ([0.25, 0.5, 1.0], [9.0, 9.0, 1.0], 3.0),
    ],
)
def test_what_overlaps_with_backward_by_hand(ready: list[float], sums: list[float], hidden: float):
    """A forward pass of 2 and a backward pass of 4."""
    assert fit.overlapped(2.0, 4.0, ready, sums) == pytest.approx(hidden)


@pytest.mark.parametrize(
    ("stretched", "hidden", "loss"), [(0.5, 2.0, 0.25), (-0.1, 2.0, 0.0), (3.0, 2.0, 1.0), (0.5, 0.0, 0.0)]
)
def test_overlap_loss_by_hand(stretched: float, hidden: float, loss: float):
    assert fit.overlap_loss(stretched, hidden) == loss


def test_overlap_loss_of_measured_rounds():
    """Forward 2, backward 4, with sums 4.5 beside it: the first sum takes 1 of it, the second comes after.

    Two rounds are slower as a whole, which is no loss.
    """
    took = {
        "alone": [[2.0, 6.0]] * 3 + [[2.0, 16.0]] * 2,
        "ddp": [[2.0, 6.5]] * 3 + [[2.0, 16.5]] * 2,
        "sums": [[1.0, 3.0]] * 5,
        "ready": [0.5, 1.0],
    }
    result = overlap_of(took)
    assert (result.loss, result.rounds) == (pytest.approx(0.5), 5)
    assert (result.stretched_ms, result.hidden_ms) == (pytest.approx(500), pytest.approx(1000))
    assert result.interval[1] == pytest.approx(0.5)
    shifted = {**took, "alone": [[2.0, 6.0]] * 2 + [[2.0, 16.0]] * 3}
    shifted["ddp"] = [[2.0, 6.5]] * 2 + [[2.0, 16.5]] * 3
    assert overlap_of(shifted).stretched_ms == pytest.approx(500)


@pytest.mark.parametrize(
    ("batch", "sizes"), [(1, [1, 2, 4]), (2, [2, 3, 4, 8]), (32, [8, 16, 24, 32, 48, 64, 128])]
)
def test_sizes_lie_around_the_batch_of_the_run(batch: int, sizes: list[int]):
    assert fit.sizes_around(batch) == sizes


def test_the_hold_out_is_a_size_that_was_not_fitted():
    assert fit.held_out(32, SIZES, 1000) == 40
    assert fit.held_out(32, SIZES, 30) == 30
    assert fit.held_out(1, [1, 2, 4], 100) == 3
    assert fit.held_out(1, [1, 2, 4], 2) is None


def test_slow_models_are_measured_in_fewer_rounds():
    assert [rounds(40.0, round_s, 6, 100) for round_s in (0.1, 1.0, 10.0)] == [100, 40, 6]
    assert rounds(40.0, 1.0, 6, 100, effort=0.03) == 2


# ---------------------------------------------------------------------- the file


def results_of(ranks_of_nodes: tuple[int, ...], **changes: Any) -> Calibration:
    """Results of a machine: 2 ms + n / 10,000 per step, 100 us and 8 Gbit/s, an overlap loss of a half."""
    ranks, sizes = sum(ranks_of_nodes), SIZES
    rng = np.random.default_rng(0)
    took = {
        "sizes": [[[2e-3 + size / 10_000] * ranks for size in sizes]] * 4,
        "own": (5.2e-3 * factors("gaussian", 0.05, rng, ranks * 40)).reshape(ranks, 40).tolist(),
        "own_forward": [[1.3e-3] * 40] * ranks,
        "data": [1e-4] * ranks,
    }
    seconds = [[200e-6 + payload * 1e-9 for payload in calibrate_command.PAYLOADS]] * 4
    links = {"intra": max(ranks_of_nodes) > 1, "inter": len(ranks_of_nodes) > 1}
    link = fit.line_fit(calibrate_command.PAYLOADS, np.array(seconds))
    overlap = dict(alone=[[2.0, 6.0]] * 5, ddp=[[2.0, 6.5]] * 5, sums=[[1.0, 3.0]] * 5, ready=[0.5, 1])
    result = Calibration(
        about=("This machine with small_cnn on digits", "", "daso-bench calibrate"),
        batch=32,
        device="A CPU: of 2 GHz #1",
        on_gpus=False,
        ranks_of_nodes=ranks_of_nodes,
        steps=steps_of(took, sizes),
        links={kind: link for kind, there in links.items() if there},
        overlap=overlap_of(overlap) if ranks > 1 else None,
    )
    return dataclasses.replace(result, **changes)


def held(error: float) -> HoldOut:
    return HoldOut(batch=40, steps=60, measured=(0.9, 1.0, 2.0), modelled=1.0 + error)


@pytest.mark.parametrize("ranks_of_nodes", [(1,), (2,), (1, 1), (2, 2), (2, 1)])
def test_the_file_says_the_cluster_that_was_measured(ranks_of_nodes: tuple[int, ...]):
    result = results_of(ranks_of_nodes, hold_out=held(0.1))
    text = render(result, "mine")
    assert yaml.safe_load(text)["device"].keys() == {field.name for field in dataclasses.fields(DeviceConfig)}
    assert max(map(len, text.splitlines())) <= 120
    cluster = cluster_of(text)
    assert cluster.ranks_of_nodes == ranks_of_nodes
    assert cluster.validated_ranks == sum(ranks_of_nodes)
    device, links = cluster.device, cluster.links
    assert device.samples_per_second == pytest.approx(10_000)
    assert device.fixed_ms == pytest.approx(2)
    assert device.forward_share == pytest.approx(0.25, rel=0.05)
    assert (device.trace, device.kind) == (None, ("A CPU: of 2 GHz #1",))
    assert device.jitter == result.steps.jitter
    assert device.jitter_cv == pytest.approx(result.steps.jitter_cv, rel=1e-3)
    assert device.input_stall_ms == pytest.approx(0.1)
    assert device.overlap_loss == (0.5 if sum(ranks_of_nodes) > 1 else 0)
    for link, there in ((links.intra, max(ranks_of_nodes) > 1), (links.inter, len(ranks_of_nodes) > 1)):
        assert (link.rate_gbit is not None) == there
        if there:
            assert (link.latency_us, link.rate_gbit) == (pytest.approx(100), pytest.approx(8))
    assert links.algorithm == "ring"
    cluster.check_virtual()


@pytest.mark.parametrize(("error", "ranks"), [(0.149, 4), (-0.149, 4), (0.151, 0), (-0.151, 0)])
def test_what_is_off_by_more_than_15_percent_is_not_validated(error: float, ranks: int):
    text = render(results_of((2, 2), hold_out=held(error)), "mine")
    assert cluster_of(text).validated_ranks == ranks
    assert f"{100 * error:+.1f} %" in text
    assert "measured 1000.000 ms" in text  # the median run


def test_odd_ranks_have_speeds_and_without_a_hold_out_nothing_is_validated():
    results = results_of((2,))
    assert results.steps.speeds is None
    steps = dataclasses.replace(results.steps, speeds=(1.0, 0.5))
    cluster = cluster_of(render(dataclasses.replace(results, steps=steps), "mine"))
    assert (cluster.device.speeds, cluster.validated_ranks) == ((1.0, 0.5), 0)


@pytest.mark.parametrize(
    ("sizes", "seconds", "key", "value"),
    [
        (SIZES, [5e-3] * 4 + [4e-3] * 3, "samples_per_second", math.inf),
        ((1, 2), [1.0, 3.0], "fixed_ms", 0),
    ],
)
def test_clamped_and_infinite_numbers_are_written_and_read(
    sizes: tuple[int, ...], seconds: list[float], key: str, value: float
):
    results = results_of((2,))
    steps = dataclasses.replace(results.steps, fit=fit.line_fit(sizes, np.array([seconds] * 3)))
    text = render(dataclasses.replace(results, steps=steps), "mine")
    assert getattr(cluster_of(text).device, key) == value


# ---------------------------------------------------------------------- the command


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(local, "launch", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(local, "warm", lambda: None)


@pytest.mark.parametrize("there", ["mine.yaml", "mine.csv"])
def test_a_cluster_that_is_there_is_not_replaced(
    nothing_starts: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
):
    file = tmp_path / "out" / "cluster" / there
    file.parent.mkdir(parents=True)
    file.write_text("kept")
    assert code_of("calibrate", "--name", "mine", "--output", "out") == 2
    assert f"{there}: is there already; --force replaces it" in capsys.readouterr().err
    assert file.read_text() == "kept"


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("failed", 3), ("cancelled", 130)])
def test_a_measurement_that_fails_or_is_interrupted_writes_nothing(
    nothing_starts: None, monkeypatch: pytest.MonkeyPatch, capsys: Any, status: str, code: int
):
    outcome = Outcome(status=status, reason="rank 1 died", exit_code=code, details="Traceback of rank 1")
    monkeypatch.setattr(local, "launch", lambda *_, **__: outcome)
    assert code_of("calibrate", "cluster=one_node") == code
    assert not list(Path().iterdir())
    shown = capsys.readouterr()
    assert ("nothing is written: rank 1 died" in shown.out) == (code != 130)
    assert ("interrupted" in shown.err) == (code == 130)


def test_a_real_machine_of_two_ranks_becomes_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Two nodes of one rank, a model of two buckets; few rounds: the numbers are only to be possible ones."""
    monkeypatch.setattr(calibrate_command, "PAYLOADS", calibrate_command.PAYLOADS[:8])  # to 16 MiB
    words = ["cluster.nodes=2", "cluster.ranks_per_node=1", "model=mlp", "model.hidden=[700,700]"]
    words += ["train.global_batch_size=16", "launcher.threads_per_rank=1"]
    code = calibrate(words, name="mine", output=Path("out"), cwd=tmp_path, effort=0.03)
    assert code == 0, capsys.readouterr().out
    folder = tmp_path / "out"
    assert sorted(path.name for path in (folder / "cluster").iterdir()) == ["mine.csv", "mine.yaml"]
    asked = ["launcher=simulated", "cluster=mine", *words[2:5], "launcher.timing_only=true"]
    config = run_config([*asked, "train.max_steps=3"], cwd=folder, config_dir=folder)
    cluster, device = config.cluster, config.cluster.device
    assert cluster.ranks_of_nodes == (1, 1)
    assert cluster.links.intra.rate_gbit is None
    assert cluster.links.inter.rate_gbit is not None
    assert 0.01 < cluster.links.inter.rate_gbit < 1000
    assert device.samples_per_second is not None
    assert device.samples_per_second > 10
    assert 0.05 < device.forward_share < 0.95
    assert device.jitter != "none"
    assert cluster.validated_ranks in (0, 2)
    for rank in (0, 1):
        times = read_trace(folder / "cluster" / "mine.csv", rank)
        assert len(times) % calibrate_command.OWN_STEPS == 0
        assert 1e-5 < min(times) < 1
    text = (folder / "cluster" / "mine.yaml").read_text()
    assert "during the backward pass" in text  # both buckets were seen
    assert " steps of 10 samples a rank, a size that no fit has seen" in text
    shown = capsys.readouterr().out
    assert "2 ranks, a step of 8 samples" in shown
    assert "--config-dir out launcher=simulated cluster=mine model=mlp" in shown
