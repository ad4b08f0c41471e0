"""Links between nodes: whether emulated and modelled ones have the rate asked for.

The kernel makes emulated links; the ranks themselves hold messages back on modelled ones. Measured are
all-reduces over gloo after pauses of all lengths. A link is right if long messages take as long as asked and
no message is faster: what passes unshaped after a pause would favour strategies that pause. The floor is what
a small message takes without any link (waking up, the machine itself); messages that are short against it say
nothing.
"""

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from figures import Figure
from processes import configuration, joined, summary_of

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config import load
from daso_bench.runner.config.cluster import ClusterConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import EmulatedConfig, LocalConfig
from daso_bench.runner.config.parts import RunInfo
from daso_bench.runner.launch.emulated.nodes import impossible
from daso_bench.strategies.topology import WORLD

KIB, MIB = 2**10, 2**20
CLUSTERS = ((1, 1), (2, 2))  # ranks of nodes
RATES_GBIT = (0.05, 0.2, 1.0)
PAUSES_MS = (0, 20, 100)
SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB)
REPEATS, LONGEST_S = 5, 8.0
FLOORS = 20  # a message that lasts so many floors is long
OFF = 0.05
TOO_FAST = {"kernel": 1.10, "modelled": 1.05}
TURNS, RUN_STEPS, APART = 2, 30, 0.10  # of whole runs, modelled from kernel

# ------------------------------------------------------------------ rates


@dataclass(frozen=True, kw_only=True)
class Message:
    """All-reduces of `size` bytes after a pause: seconds at the rate asked for, and their median."""

    size: int
    pause_ms: float
    asked_s: float
    took_s: float

    @property
    def over_asked(self) -> float:
        """The rate achieved over the rate asked for."""
        return self.asked_s / self.took_s

    def __str__(self) -> str:
        return f"{self.over_asked:.3f} of asked, {self.size / MIB:g} MiB after {self.pause_ms:g} ms"


def emulated_link() -> list[Figure]:
    """Rates of links that the kernel makes, where it can."""
    if reason := impossible():
        return [Figure("emulated_link", math.nan, None, reason)]
    return _rates("kernel", "emulated")


def modelled_network() -> list[Figure]:
    """Rates of links that the ranks model, and whole runs on them against runs on the kernel's links."""
    return [*_rates("modelled", "modelled"), *_modelled_over_kernel()]


def _rates(network: str, name: str) -> list[Figure]:
    """Of each cluster and rate the worst deviation of a long message, and the fastest message."""
    figures: list[Figure] = []
    for ranks_of_nodes in CLUSTERS:
        (small,) = achieved(ranks_of_nodes, 1.0, "none", sizes=(64 * KIB,), pauses_ms=(20,), repeats=20)
        for rate_gbit in RATES_GBIT:
            messages = achieved(ranks_of_nodes, rate_gbit, network)
            cluster = f"{name}_{len(ranks_of_nodes)}x{ranks_of_nodes[0]}_{rate_gbit:g}gbit"
            figures += of_rate(cluster, messages, small.took_s, TOO_FAST[network])
    return figures


def of_rate(name: str, messages: Sequence[Message], floor_s: float, too_fast: float) -> list[Figure]:
    """The figures of one rate; without a long message there is nothing to hold against the limit."""
    floor = f"floor {floor_s * 1000:.1f} ms"
    long = [message for message in messages if message.asked_s >= FLOORS * floor_s]
    off = Figure(f"{name}_off", math.nan, None, f"no message of {FLOORS} floors; {floor}")
    if long:
        worst = max(long, key=lambda message: abs(message.over_asked - 1))
        off = Figure(f"{name}_off", abs(worst.over_asked - 1), OFF, f"{worst}; {floor}")
    fastest = max(messages, key=lambda message: message.over_asked)
    return [off, Figure(f"{name}_fastest", fastest.over_asked, too_fast, f"{fastest}; {floor}")]


def achieved(
    ranks_of_nodes: Sequence[int],
    rate_gbit: float,
    network: str,
    *,
    sizes: Sequence[int] = SIZES,
    pauses_ms: Sequence[int] = PAUSES_MS,
    repeats: int = REPEATS,
) -> list[Message]:
    """All-reduces of so many bytes after such pauses, but for those of more than LONGEST_S.

    `network`: who makes the links, as of `launcher.network`. Raises MachineError where nodes cannot be had.
    """
    ranks = sum(ranks_of_nodes)
    asked_s = {size: 2 * (ranks - 1) / ranks * size * 8 / (rate_gbit * 1e9) for size in sizes}
    wanted = [(size, pause) for size in sizes if asked_s[size] <= LONGEST_S for pause in pauses_ms]
    link = LinkConfig() if network == "none" else LinkConfig(rate_gbit=rate_gbit)
    links = LinksConfig(inter=link, algorithm="auto" if network == "none" else "ring")
    nodes = len(ranks_of_nodes)
    config = configuration(
        cluster=ClusterConfig(nodes=nodes, ranks_per_node=tuple(ranks_of_nodes), links=links),
        launcher=(EmulatedConfig if network == "kernel" else LocalConfig)(network=network),
        run=RunInfo(tag=json.dumps([wanted, repeats])),
    )
    took_s = summary_of(config, f"{__name__}:send")["took_s"]
    return [
        Message(size=size, pause_ms=pause, asked_s=asked_s[size], took_s=seconds)
        for (size, pause), seconds in zip(wanted, took_s, strict=True)
    ]


def send(*arguments: Any) -> None:
    """A rank: the all-reduces that the run's tag lists."""
    config, comm = joined(*arguments)
    wanted, repeats = json.loads(config.run.tag)
    comm.all_reduce(torch.zeros(MIB // 4), WORLD).wait()  # TCP finds its windows
    took_s: list[float] = []
    for size, pause_ms in wanted:
        took_s.append(statistics.median(_seconds(comm, size, pause_ms, repeats)))
        arguments[-1].progress(step=len(took_s))
    arguments[-1].finish("finished", {"took_s": took_s}, None)


def _seconds(comm: TorchCommunicator, size: int, pause_ms: float, repeats: int) -> list[float]:
    """Of each all-reduce, from the moment that all ranks had called it until all had it, on one clock."""
    tensor, stamps = torch.zeros(size // 4), torch.zeros(2 * repeats, dtype=torch.float64)
    for repeat in range(repeats):
        comm.barrier(WORLD)
        time.sleep(pause_ms / 1e3)
        stamps[2 * repeat] = time.monotonic()
        comm.all_reduce(tensor, WORLD).wait()
        stamps[2 * repeat + 1] = time.monotonic()
    everybody = torch.zeros(comm.topology.ranks * len(stamps), dtype=torch.float64)
    comm.all_gather(everybody, stamps, WORLD, channel="control").wait()
    last = everybody.view(comm.topology.ranks, repeats, 2).amax(0)
    return (last[:, 1] - last[:, 0]).tolist()


# ------------------------------------------------------------------ whole runs


def _modelled_over_kernel() -> list[Figure]:
    """The step of whole DDP runs on slow links, modelled over kernel, runs in turn."""
    name = "modelled_over_kernel_step"
    if reason := impossible():
        return [Figure(name, math.nan, None, reason)]
    step_s: dict[str, list[float]] = {"modelled": [], "kernel": []}
    invalid: list[str] = []
    for turn in range(TURNS):
        for network in sorted(step_s, reverse=bool(turn % 2)):
            words = ["strategy=ddp", "launcher=emulated", f"launcher.network={network}"]
            words += ["launcher.on_invalid=record", f"train.max_steps={RUN_STEPS}"]
            summary = summary_of(load.run_config(words, cwd=Path.cwd()))
            step_s[network].append(summary["train_s"] / RUN_STEPS)
            invalid += summary["validity"]["reasons"]
    medians = {network: statistics.median(times) for network, times in step_s.items()}
    ratio = medians["modelled"] / medians["kernel"]
    times = ", ".join(f"{network} {1e3 * seconds:.1f} ms" for network, seconds in medians.items())
    detail = f"ddp, wide_mlp, slow_link: {times}{f'; not valid: {invalid[0]}' if invalid else ''}"
    return [
        Figure(name, ratio, 1 + APART, detail),
        Figure(f"{name}_least", ratio, 1 - APART, "the same, from below", at_least=True),
    ]
