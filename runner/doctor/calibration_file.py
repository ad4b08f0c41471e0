"""Writes the file of a calibrated cluster: every number with its method, its repetitions and its interval."""

from pathlib import Path

import numpy as np
import yaml

from ..config.cluster import ClusterConfig
from ..config.typed import typed
from ..machine.folders import writing
from ..records import display
from .calibration_fit import TRUSTED, Calibration, Interval, Overlap

MESSAGES = 2  # one after the other, of an all-reduce of two ranks; its payload passes the link once


def cluster_of(text: str) -> ClusterConfig:
    """The cluster that a file holds. Raises ConfigError."""
    return typed(ClusterConfig, yaml.safe_load(text), "cluster")


def render(results: Calibration, name: str) -> str:
    """The text of the file. `name`: of the file and its trace, without the suffix."""
    steps, nodes = results.steps, results.ranks_of_nodes
    each = str(nodes[0]) if len(set(nodes)) == 1 else f"[{', '.join(map(str, nodes))}]"
    kind = yaml.safe_dump(results.device, width=10**6).splitlines()[0]
    algorithm = "auto # of an all-reduce: ring, tree, hierarchical; auto: the fastest of them"
    if not results.on_gpus:
        algorithm = "ring # of an all-reduce, what gloo does: ring, tree, hierarchical, auto"
    speeds = "null # by rank; measured: all within 5 % of the median rank"
    if steps.speeds is not None:
        values = ", ".join(map(str, steps.speeds))
        speeds = f"[{values}] # by rank, the median rank's is 1: medians of rounds"
    lines = [
        *(f"# {line}".rstrip() for line in results.about),
        "# Its nodes are one machine: what is between them is no network, and inter is much like intra.",
        "# Medians over rounds in which the sizes took turns; intervals are of 95 % (bootstrap over rounds).",
        f"nodes: {len(nodes)} # as it was measured; all of them this one machine",
        f"ranks_per_node: {each} # one number, or one per node: [4, 2]",
        "links:",
        *_link(results, "inter", "over 2 ranks of two nodes, which are one machine"),
        *_link(results, "intra", "over 2 ranks of a node"),
        "  nics: 1 # assumption: network cards of a node",
        f"  algorithm: {algorithm}",
        "  sharing: fifo # assumption: of a card by transfers at the same time: one after the other; or fair",
        "  node_speeds: null # by node: its cards have so many times the rate",
        "  model: alpha_beta # of a transfer: alpha_beta, nccl, gloo (docs/simulation.md)",
        "  launch_us: 0 # with model=nccl: once an operation",
        "  ramp: 0 # with model=nccl: of the curve from latency to rate, 0 to 1",
        "  nvls_gbit: null # with model=nccl: of a rank where the switches of its node add (NVLS)",
        "device:",
        f"  kind: {kind}",
        *_steps(results),
        *_overlap(results.overlap),
        "  bucket_us: 0 # of the backward pass, for each bucket whose sum is started; not measured",
        f"  speeds: {speeds}",
        f"  jitter: {steps.jitter} # of {steps.own.size} steps: none, or the likeliest family",
        f"  jitter_cv: {number(steps.jitter_cv)} # the likeliest standard deviation over mean",
        f"  # {name}.csv next to it has the {steps.own.size} measured steps of {results.batch} samples:",
        f"  # trace: PATH/{name}.csv takes them one by one, and fixed_ms to jitter_cv then have no effect.",
        "  trace: null",
        "  straggler: {rank: null, times: 4.0, every: 100, steps: 20} # a rank that is slow now and then; "
        "not measured",
        f"  input_stall_ms: {number(steps.data_ms)} # to get {results.batch} samples: median",
        "  checkpoint_s: 0 # not measured",
        "failures_s: [] # attempt k of a run loses a node after so many seconds",
        *held_out_lines(results),
    ]
    return "\n".join(lines) + "\n"


def trace(own: np.ndarray) -> str:
    """The CSV file of single step times [ranks, steps], as `cluster.device.trace` reads it."""
    lines = [f"{rank},{seconds:.9f}" for rank, times in enumerate(own.tolist()) for seconds in times]
    return "\n".join(["rank,step_s", *lines]) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file and its folder. Raises ConfigError, MachineError if the disk is full."""
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------ numbers in words


def number(value: float) -> str:
    """Four significant digits, in a form that every reader of YAML takes for a number."""
    if np.isinf(value):
        return ".inf"
    return np.format_float_positional(value, precision=4, unique=False, fractional=False, trim="-")


def percent(share: float) -> str:
    """0.031 as +3.1 %."""
    return f"{100 * share:+.1f} %"


def between(interval: Interval, times: float = 1) -> str:
    return f"{number(times * interval[0])} to {number(times * interval[1])}"


# ------------------------------------------------------------------ parts of the file


def _link(results: Calibration, kind: str, over: str) -> list[str]:
    if kind not in results.links:
        free = "{rate_gbit: null, latency_us: 0, efficiency: 1.0, cap_gbit: null}"
        return [f"  {kind}: {free} # not measured: the run has no two such ranks"]
    fit = results.links[kind]
    latency_us = number(1e6 * fit.fixed / MESSAGES)
    return [
        f"  {kind}: # all-reduce {over}: {fit.rounds} rounds, each of all sizes.",
        "    # Each after a training step, for that is when training sends: sockets and caches are cold",
        "    # then. Least squares of relative errors.",
        f"    # Worst size: {display.size(fit.worst_at)}, modelled {percent(fit.worst)}.",
        f"    rate_gbit: {number(8e-9 * fit.rate)} # {between(fit.rate_interval, 8e-9)}",
        f"    latency_us: {latency_us} # of a message: {between(fit.fixed_interval, 1e6 / MESSAGES)}",
        "    efficiency: 1.0 # is in the rate",
        "    cap_gbit: null # is in the rate",
    ]


def _steps(results: Calibration) -> list[str]:
    steps, fit = results.steps, results.steps.fit
    sizes, fixed_ms = ", ".join(map(str, steps.sizes)), between(fit.fixed_interval, 1e3)
    return [
        f"  # {fit.rounds} rounds of steps of {sizes} samples, {results.ranks} ranks at once,",
        "  # forward, backward and optimizer, wrapped for ddp but without its sums. Least squares of",
        "  # relative errors; neither fixed_ms nor the time of a sample can come out below 0.",
        f"  # Worst size: {fit.worst_at:g}, modelled {percent(fit.worst)}.",
        f"  samples_per_second: {number(fit.rate)} # of one rank: {between(fit.rate_interval)}",
        "  tflops: null # sustained, instead of samples_per_second",
        f"  fixed_ms: {number(1e3 * fit.fixed)} # of a step, whatever its batch: {fixed_ms}",
        f"  forward_share: {number(steps.forward_share)} # of a step of {results.batch} samples: median of "
        f"{steps.own.size} steps",
    ]


def _overlap(overlap: Overlap | None) -> list[str]:
    if overlap is None or overlap.hidden_ms == 0:
        return ["  overlap_loss: 0 # not measurable: no sum runs during the backward pass"]
    return [
        f"  # {overlap.rounds} rounds of a step alone, the sums of its buckets alone, and ddp's step. Sums",
        f"  # run {overlap.hidden_ms:.3f} ms during the backward pass and change it by "
        f"{overlap.stretched_ms:+.3f} ms.",
        f"  overlap_loss: {number(overlap.loss)} # the second over the first, within 0 and 1: "
        f"{between(overlap.interval)}",
    ]


def held_out_lines(results: Calibration) -> list[str]:
    """Whether virtual time was right about runs that no fit has seen, for the file and for the screen."""
    held = results.hold_out
    if held is None:
        return ["validated_ranks: 0 # nothing was compared"]
    runs = ", ".join(f"{seconds * 1e3:.3f}" for seconds in held.measured)
    lines = [
        f"# Hold-out: ddp, {held.steps} steps of {held.batch} samples a rank, a size that no fit has seen:",
        f"# measured {held.measured_s * 1e3:.3f} ms a step (runs: {runs}),",
        f"# modelled {held.modelled * 1e3:.3f} ms: {percent(held.error)}",
    ]
    if abs(held.error) <= TRUSTED:
        return [*lines, f"validated_ranks: {results.ranks} # within {TRUSTED:.0%}"]
    return [*lines, f"validated_ranks: 0 # not within {TRUSTED:.0%}: do not trust times modelled with this"]
