"""Writes the file of a calibrated cluster: every number with its method, its repetitions and its interval."""

import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ....strategies.errors import ConfigError
from ...config.cluster import ClusterConfig
from ...config.typed import typed
from .fit import TRUSTED, About, Calibration, Interval, LinkClass, Overlap, Steps

_KINDS = {"gaussian": "gaussian", "lognormal": "lognormal", "student_t3": "Student's t of 3 degrees"}


def cluster_of(text: str) -> ClusterConfig:
    """The cluster that a file holds. Raises ConfigError."""
    return typed(ClusterConfig, yaml.safe_load(text), "cluster")


def render(results: Calibration, name: str) -> str:
    """The text of the file. `name`: of the file and its trace, without the suffix."""
    about, steps = results.about, results.steps
    nodes = about.ranks_of_nodes
    each = str(nodes[0]) if len(set(nodes)) == 1 else f"[{', '.join(map(str, nodes))}]"
    lines = [
        *_head(about),
        f"nodes: {len(nodes)} # as it was measured; all of them this one machine",
        f"ranks_per_node: {each} # one number, or one per node: [4, 2]",
        "links:",
        *_link("inter", results.links.get("inter"), "over 2 ranks of two nodes, which are one machine"),
        *_link("intra", results.links.get("intra"), "over 2 ranks of a node"),
        "  nics: 1 # assumption: network cards of a node",
        *_algorithm(about),
        "  sharing: fifo # assumption: of a card by transfers at the same time: one after the other; or fair",
        "  node_speeds: null # by node: its cards have so many times the rate",
        "device:",
        f"  kind: {_text(about.accelerator or about.processor)}",
        *_steps(about, steps),
        *_overlap(results.overlap),
        _speeds(steps),
        *_jitter(steps),
        f"  # {name}.csv next to this file has the {steps.own.size} measured steps of {about.batch} samples:",
        f"  # trace: PATH/{name}.csv takes them one by one, and fixed_ms to jitter_cv then have no effect.",
        "  trace: null",
        "  straggler: {rank: null, times: 4.0, every: 100, steps: 20} # a rank that is slow now and then; "
        "not measured",
        f"  input_stall_ms: {number(steps.data_ms)} # to get {about.batch} samples: median",
        "  checkpoint_s: 0 # not measured",
        "failures_s: [] # attempt k of a run loses a node after so many seconds",
        *_hold_out(results),
    ]
    return "\n".join(lines) + "\n"


def rows(results: Calibration) -> Sequence[tuple[str, str, str]]:
    """The table shown at the end: quantity, value, interval."""
    steps, fit, held = results.steps, results.steps.fit, results.hold_out
    shown = [
        ("a sample", f"{number(_rate(fit.line.slope))} a second", between(fit.samples_per_second)),
        (
            "a step",
            f"{number(fit.line.fixed * 1e3)} ms fixed",
            f"{between(fit.fixed_ms)}; worst {percent(fit.line.worst)} at {fit.line.worst_at:g} samples",
        ),
        ("forward", f"{100 * steps.forward_share:.1f} % of a step", ""),
        ("jitter", f"{_KINDS.get(steps.jitter.kind, 'none')}, {number(steps.jitter.cv)}", ""),
        ("data", f"{number(steps.data_ms)} ms a step", ""),
    ]
    for kind, link in results.links.items():
        fit_ = link.paused
        value = f"{number(fit_.latency_us)} us, {number(fit_.rate_gbit)} Gbit/s"
        sure = f"{between(fit_.latency_interval)}; {between(fit_.rate_interval)}"
        shown.append((kind, value, f"{sure}; worst {percent(fit_.worst)} at {payload(fit_.worst_at)}"))
    if results.overlap is not None and results.overlap.hidden_ms > 0:
        shown.append(("overlap loss", number(results.overlap.loss), between(results.overlap.interval)))
    if held is not None:
        value = f"{held.measured_s * 1e3:.3f} ms measured, {held.modelled * 1e3:.3f} ms modelled"
        verdict = "validated" if held.trusted else f"NOT validated, more than {TRUSTED:.0%}"
        verdict += f"; the machine changed by {percent(held.drift)} meanwhile"
        shown.append((f"ddp, {held.batch} samples a rank", value, f"{percent(held.error)}: {verdict}"))
    return shown


def trace(own: np.ndarray) -> str:
    """The CSV file of single step times [ranks, steps], as `cluster.device.trace` reads it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "step_s"])
    for rank, times in enumerate(own.tolist()):
        writer.writerows([rank, f"{seconds:.9f}"] for seconds in times)
    return text.getvalue()


def write(path: Path, text: str) -> None:
    """Write a file atomically. Raises ConfigError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def number(value: float) -> str:
    """Four significant digits, in a form that every reader of YAML takes for a number."""
    if math.isinf(value):
        return ".inf"
    return np.format_float_positional(value, precision=4, unique=False, fractional=False, trim="-")


def percent(share: float) -> str:
    """0.031 as +3.1 %."""
    return f"{100 * share:+.1f} %"


def between(interval: Interval, shown: Callable[[float], str] = number) -> str:
    """An interval for people."""
    return f"{shown(interval[0])} to {shown(interval[1])}"


def payload(count: float) -> str:
    """Bytes as 64 KiB."""
    for unit in ("B", "KiB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} MiB"


def _head(about: About) -> list[str]:
    machine = about.accelerator or about.processor
    shape, s = " + ".join(map(str, about.ranks_of_nodes)), "s" * (about.threads != 1)
    return [
        f"# This machine with {shape} ranks, {about.model} on {about.dataset}, measured (virtual time)",
        "#",
        f"# {about.command}",
        f"# {about.date}; {about.processor}, {about.cores} usable cores; torch {about.torch}",
        f"# {about.ranks} processes of {about.threads} thread{s} each on {machine}.",
        "# Its nodes are one machine: what is between them is no network, and inter is much like intra.",
        f"# Step times are those of {about.model} on samples like {about.dataset}'s, and of nothing else.",
        "# Medians over rounds in which the sizes took turns; intervals are of 95 % (bootstrap over rounds).",
    ]


def _algorithm(about: About) -> list[str]:
    if about.accelerator is None:
        return ["  algorithm: ring # of an all-reduce, what gloo does: ring, tree, hierarchical, auto"]
    return ["  algorithm: auto # of an all-reduce: ring, tree, hierarchical; auto: the fastest of them"]


def _link(kind: str, link: LinkClass | None, over: str) -> list[str]:
    if link is None:
        return [
            f"  {kind}: # not measured: the run has no two such ranks",
            "    rate_gbit: null",
            "    latency_us: 0",
            "    efficiency: 1.0",
        ]
    fit, loop = link.paused, link.back_to_back
    sizes = f"{payload(link.payloads[0])} to {payload(link.payloads[-1])}"
    return [
        f"  {kind}: # all-reduce {over}: {link.rounds} rounds of {len(link.payloads)} sizes, {sizes}.",
        "    # Each after a training step, for that is when training sends: sockets and caches are cold",
        "    # then, which a loop of nothing but sums never sees. Least squares of relative errors.",
        f"    # Worst size: {payload(fit.worst_at)}, modelled {percent(fit.worst)} of what was measured.",
        f"    # Back to back: {number(loop.latency_us)} us, {number(loop.rate_gbit)} Gbit/s, worst "
        f"{percent(loop.worst)} at {payload(loop.worst_at)}.",
        f"    rate_gbit: {number(fit.rate_gbit)} # {between(fit.rate_interval)}",
        f"    latency_us: {number(fit.latency_us)} # of a message: {between(fit.latency_interval)}",
        "    efficiency: 1.0 # is in the rate",
    ]


def _steps(about: About, steps: Steps) -> list[str]:
    fit, line = steps.fit, steps.fit.line
    sizes = ", ".join(map(str, steps.sizes))
    clamped = {
        "": [],
        "fixed": ["  # The fixed part came out below 0 and is 0: fitted once more through the origin."],
        "slope": ["  # Time did not grow with the samples: a sample takes none, all of a step is fixed."],
    }[line.clamped]
    return [
        f"  # {len(steps.seconds)} rounds of steps of {sizes} samples, {about.ranks} ranks at once,",
        "  # forward, backward and optimizer, wrapped for ddp but without its sums. Least squares of",
        f"  # relative errors. Worst size: {line.worst_at:g}, modelled {percent(line.worst)}.",
        *clamped,
        f"  samples_per_second: {number(_rate(line.slope))} # of one rank: {between(fit.samples_per_second)}",
        "  tflops: null # sustained, instead of samples_per_second",
        f"  fixed_ms: {number(line.fixed * 1e3)} # of a step, whatever its batch: {between(fit.fixed_ms)}",
        f"  forward_share: {number(steps.forward_share)} # of a step of {about.batch} samples: median of "
        f"{steps.own.size} steps",
    ]


def _overlap(overlap: Overlap | None) -> list[str]:
    if overlap is None or overlap.hidden_ms == 0:
        why = "a single rank sums nothing" if overlap is None else "one bucket, no sum runs during backward"
        return [f"  overlap_loss: 0 # not measurable: {why}"]
    return [
        f"  # {overlap.rounds} rounds of a step alone, the sums of its buckets alone, and ddp's step. Sums",
        f"  # run {overlap.hidden_ms:.3f} ms during the backward pass and change it by "
        f"{overlap.stretched_ms:+.3f} ms.",
        f"  overlap_loss: {number(overlap.loss)} # the second over the first, within 0 and 1: "
        f"{between(overlap.interval)}",
    ]


def _speeds(steps: Steps) -> str:
    if steps.speeds is None:
        return "  speeds: null # by rank; measured: all within 5 % of the median rank"
    speeds = ", ".join(map(str, steps.speeds))
    return f"  speeds: [{speeds}] # by rank, the median rank's is 1: medians of rounds"


def _jitter(steps: Steps) -> list[str]:
    jitter = steps.jitter
    count = f"{steps.own.size} steps of {len(steps.own)} ranks"
    if jitter.kind == "none":
        return [f"  jitter: none # {count} never differed", "  jitter_cv: 0"]
    likelihoods = ", ".join(f"{kind} {value:.3f}" for kind, value in jitter.log_likelihoods.items())
    return [
        f"  jitter: {jitter.kind} # log-likelihood a step, {count}: {likelihoods}",
        f"  jitter_cv: {number(jitter.cv)} # where that family fits best; standard deviation over mean, as "
        f"measured: {number(jitter.measured_cv)}",
    ]


def _hold_out(results: Calibration) -> list[str]:
    about, held = results.about, results.hold_out
    if held is None:
        return ["validated_ranks: 0 # nothing was compared"]
    runs = ", ".join(f"{seconds * 1e3:.3f}" for seconds in held.measured)
    lines = [
        f"# Hold-out: ddp, {held.steps} steps of {held.batch} samples a rank, a size that no fit has seen:",
        f"# measured {held.measured_s * 1e3:.3f} ms a step (runs: {runs}),",
        f"# modelled {held.modelled * 1e3:.3f} ms: {percent(held.error)}",
        f"# The machine itself changed meanwhile: after the runs the step alone took {percent(held.drift)}.",
    ]
    if held.trusted:
        return [*lines, f"validated_ranks: {about.ranks} # within {TRUSTED:.0%}"]
    return [*lines, f"validated_ranks: 0 # not within {TRUSTED:.0%}: do not trust times modelled with this"]


def _rate(slope: float) -> float:
    return 1 / slope if slope > 0 else math.inf


def _text(value: Any) -> str:
    """`value` as YAML writes it, on one line."""
    return yaml.safe_dump(str(value), width=10**6).splitlines()[0]
