"""The modelled network: what it costs switched off, how exact it is, and whether it is like the kernel's.

Switched off it is a question per operation: its time, as a part of a DDP step of the small CNN. Beside it,
for information, sums of 4 KiB through the communicator, with all its books, over such of the process group
itself (`ddp_step` has whole steps over bare ones). Switched on, sums over all ranks after pauses, achieved
over asked. And whole runs of DDP on emulated slow links, whose messages are held back by the ranks, or shaped
by the kernel.
"""

import math
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD
from daso_bench.runner import config_tree, local
from daso_bench.runner.compose import compose
from daso_bench.runner.emulated.ability import impossible
from daso_bench.runner.emulated.venue import venue_of
from daso_bench.runner.hardware import ClusterConfig, LinkConfig, LinksConfig
from daso_bench.runner.network import ClusterNetwork
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.torch_communicator import TorchCommunicator
from daso_bench.runner.torch_replica import TorchReplica
from figures import Figure, geometric_mean, upper_limit
from processes import configuration, joined, summary_of

KIB, MIB = 2**10, 2**20
PAIRS, CALLS, STEPS, BATCH = 30, 100, 100, 32
SEAM_LIMIT = 1.02  # of a DDP step
ARRANGEMENTS = ((1, 1), (2, 2))
RATES_GBIT = (0.05, 0.2, 1.0)
SIZES = (256 * KIB, MIB, 4 * MIB)
PAUSES_MS = (0, 20, 100)
REPEATS = 3
OFF = 0.05
FLOORS = 20  # a message that lasts so many floors is long: being woken does not spoil it
TURNS, RUN_STEPS = 2, 30
APART = 0.10  # at most, modelled from kernel


def measure() -> list[Figure]:
    """All figures; those beside the kernel's network only where nodes can be emulated."""
    return [*seam(), *exactness(), *beside_the_kernel()]


def seam() -> list[Figure]:
    """What a sum through the communicator costs without a network, and that of a DDP step."""
    took = summary_of(configuration(), f"{__name__}:sums_and_steps")
    ratios = [a / b for a, b in zip(took["ours"], took["bare"], strict=True)]
    step_s = statistics.median(took["steps_s"])
    share = 1 + took["asking_s"] * took["sums"] / step_s
    told = f"{took['asking_s'] * 1e9:.0f} ns a sum, {took['sums']:g} sums in a step of {step_s * 1e3:.2f} ms"
    detail = f"the whole communicator; upper 95 % limit of {PAIRS} pairs of {CALLS} sums; geometric mean"
    return [
        Figure("small_sum_over_bare", upper_limit(ratios), None, f"{detail} {geometric_mean(ratios):.3f}"),
        Figure("modelled_network_off_step", share, SEAM_LIMIT, told),
    ]


def sums_and_steps(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """A rank: blocks of small sums in turn, ours and the process group's own; then DDP steps."""
    _, comm = joined(run_dir, rank, port, listener, threads)
    group, tensor = comm.ddp_group(), torch.zeros(KIB)
    assert group is not None, "there are two ranks"
    arms: dict[str, Callable[[], object]] = {
        "ours": lambda: comm.all_reduce(tensor, WORLD, channel="gradients").wait(),
        "bare": lambda: group.allreduce([tensor]).wait(),
    }
    took: dict[str, list[float]] = {name: [] for name in arms}
    for pair in range(-1, PAIRS):  # the first one warms up
        for name in sorted(arms, reverse=bool(pair % 2)):
            comm.barrier(WORLD)
            began = time.perf_counter()
            for _ in range(CALLS):
                arms[name]()
            if pair >= 0:
                took[name].append(time.perf_counter() - began)
        link.progress(step=pair + 1)
    asking = [_asking_s(comm, tensor) for _ in range(PAIRS)]
    torch.manual_seed(1)
    replica = TorchReplica(SmallCNN().build(InputSpec(1, 8, 8, 10)), nn.CrossEntropyLoss(), comm)
    replica.optimizer = torch.optim.SGD(replica.stepped, lr=0.01)
    replica.average_gradients_over(WORLD)
    batch = Batch(torch.rand(BATCH, 1, 8, 8), torch.arange(BATCH) % 10, (BATCH,) * ranks)
    steps_s: list[float] = []
    for step in range(STEPS + 10):
        if step == 10:
            comm.traffic.clear()
            steps_s.clear()
        began = time.perf_counter()
        replica.compute_gradients(batch)
        replica.optimizer.step()
        steps_s.append(time.perf_counter() - began)
    sums = comm.traffic.verbs["gradients.all_reduce"] / STEPS
    link.finish(
        "finished", {**took, "asking_s": statistics.median(asking), "steps_s": steps_s, "sums": sums}, None
    )


def _asking_s(comm: TorchCommunicator, tensor: torch.Tensor) -> float:
    """Seconds that a sum spends on asking whether anything holds it back or stands in for its tensor."""
    members, size = comm.members(WORLD), tensor.numel() * tensor.element_size()
    began = time.perf_counter()
    for _ in range(CALLS):
        comm._hold("all_reduce", "gradients", members, size)
        comm._here(tensor)
    return (time.perf_counter() - began) / CALLS


def exactness() -> list[Figure]:
    """Per cluster and rate: the worst deviation of a long message, and how late short ones are."""
    figures: list[Figure] = []
    for ranks_of_nodes in ARRANGEMENTS:
        cluster = ClusterConfig(nodes=len(ranks_of_nodes), ranks_per_node=ranks_of_nodes)
        found = summary_of(configuration(cluster=cluster), f"{__name__}:messages")
        for rate_gbit in RATES_GBIT:
            rows = [row for row in found["rows"] if row["rate_gbit"] == rate_gbit]
            long = [row for row in rows if row["asked_s"] >= FLOORS * found["floor_s"]]
            name = f"modelled_{len(ranks_of_nodes)}x{ranks_of_nodes[0]}_{rate_gbit:g}gbit"
            floor = f"floor {found['floor_s'] * 1e3:.1f} ms"
            worst = max(long, key=lambda row: abs(row["over_asked"] - 1), default=None)
            off = math.nan if worst is None else abs(worst["over_asked"] - 1)
            shown = f"no message of {FLOORS} floors" if worst is None else _told(worst)
            first = min(rows, key=lambda row: row["over_asked"])
            latest = max(rows, key=lambda row: row["took_s"] - row["asked_s"])
            figures += [
                Figure(f"{name}_off", off, None if worst is None else OFF, f"{shown}; {floor}"),
                Figure(
                    f"{name}_fastest", first["over_asked"], 1 - OFF, f"{_told(first)}; {floor}", at_least=True
                ),
                Figure(
                    f"{name}_late_ms",
                    1e3 * (latest["took_s"] - latest["asked_s"]),
                    None,
                    f"{_told(latest)}; {floor}",
                ),
            ]
    return figures


def _told(row: dict[str, float]) -> str:
    return (
        f"{row['over_asked']:.3f} of {row['asked_s'] * 1e3:.3g} ms, {row['size'] / MIB:g} MiB "
        f"after {row['pause_ms']:g} ms"
    )


def messages(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """A rank: sums of all sizes over links of all rates after all pauses, and the floor without any."""
    _, comm = joined(run_dir, rank, port, listener, threads)
    rows: list[dict[str, float]] = []
    floor_s = statistics.median(_seconds(comm, 64 * KIB, pause_ms=20, repeats=20))
    for rate_gbit, size, pause_ms in product(RATES_GBIT, SIZES, PAUSES_MS):
        links = LinksConfig(inter=LinkConfig(rate_gbit=rate_gbit), algorithm="ring").or_free()
        network = ClusterNetwork(links, comm.topology)
        comm.model(network)
        asked_s = network.cost(comm.topology, "all_reduce", comm.members(WORLD), size).duration_ns / 1e9
        took_s = statistics.median(_seconds(comm, size, pause_ms=pause_ms, repeats=REPEATS))
        row = {"rate_gbit": rate_gbit, "size": size, "pause_ms": pause_ms, "asked_s": asked_s}
        rows.append({**row, "took_s": took_s, "over_asked": took_s / asked_s})
        link.progress(step=len(rows))
    link.finish("finished", {"floor_s": floor_s, "rows": rows}, None)


def _seconds(comm: TorchCommunicator, size: int, *, pause_ms: float, repeats: int) -> list[float]:
    """Of each sum, from the moment that all ranks had called it until all had it: one clock for all."""
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


def beside_the_kernel() -> list[Figure]:
    """The step of whole DDP runs on slow links, modelled over kernel, runs in turn."""
    name = "modelled_over_kernel_step"
    if reason := impossible():
        return [Figure(name, math.nan, None, reason)]
    took: dict[str, list[float]] = {"modelled": [], "kernel": []}
    invalid: list[str] = []
    for turn in range(TURNS):
        for network in sorted(took, reverse=bool(turn % 2)):
            step_s, reasons = _run(network)
            took[network].append(step_s)
            invalid += reasons
    medians = {network: statistics.median(times) for network, times in took.items()}
    ratio = medians["modelled"] / medians["kernel"]
    told = ", ".join(f"{network} {1e3 * step_s:.1f} ms" for network, step_s in medians.items())
    said = f"; not valid: {invalid[0]}" if invalid else ""
    return [
        Figure(name, ratio, 1 + APART, f"ddp, wide_mlp, slow_link: {told}{said}"),
        Figure(f"{name}_least", ratio, 1 - APART, "the same, from below", at_least=True),
    ]


def _run(network: str) -> tuple[float, list[str]]:
    """Seconds of a step, and why the run is not valid."""
    words = ["strategy=ddp", "launcher=emulated", f"launcher.network={network}", "launcher.on_invalid=record"]
    with tempfile.TemporaryDirectory() as folder:
        words += [f"train.max_steps={RUN_STEPS}", f"results_dir={folder}"]
        (job,) = compose(words, sweep=False, config_dir=None)
        if job.config is None:
            raise job.error or RuntimeError("not composed")
        config = config_tree.from_composed(job.config, Path(folder))
        directory = RunDirectory.create(config_tree.to_plain(config), config.results_dir)
        outcome = local.launch(
            directory, ranks=config.cluster.ranks, threads=1, venue=venue_of(config), stall_s=300
        )
    if outcome.status != "finished" or outcome.summary is None:
        raise RuntimeError(f"{outcome.reason}\n{outcome.details}")
    return outcome.summary["train_s"] / RUN_STEPS, outcome.summary["apparatus"]["reasons"]
