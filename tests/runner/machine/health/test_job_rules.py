"""Rules on a job: what is wrong between ranks and hosts, and how one finding tells of many hosts."""

from collections.abc import Sequence
from typing import Any

import pytest
from doctor_rows import Row, changed, job, only, row, torch

from daso_bench.runner.machine.health.cluster_ranks import devices_of
from daso_bench.runner.machine.health.findings import Finding
from daso_bench.runner.machine.health.job_rules import JOB_RULES, cluster_findings, short_findings

SLURM: dict[str, Any] = {"variables__SLURM_JOB_ID": "7"}


def findings(
    rows: Sequence[Row], *ranks_of_nodes: int, threads: int | None = 2, **options: Any
) -> list[Finding]:
    return cluster_findings(rows, ranks_of_nodes, threads, **options)


def spoil(rows: Sequence[Row], host: str, **changes: Any) -> list[Row]:
    """The rows with changes on one host."""
    return [changed(entry, **changes) if entry["host"] == host else entry for entry in rows]


def visible(rows: Sequence[Row], lists: Sequence[Sequence[str]]) -> list[Row]:
    return [changed(entry, visible_devices=list(names)) for entry, names in zip(rows, lists, strict=True)]


@pytest.mark.parametrize("ranks_of_nodes", [(1,), (4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_nothing_is_wrong_with_a_healthy_job(ranks_of_nodes: tuple[int, ...]) -> None:
    rows = job(*ranks_of_nodes, sees_token=True, clock_offset_s=0.01)
    assert findings(rows, *ranks_of_nodes) == []
    assert findings(rows[::-1], *ranks_of_nodes) == []


HEALTHY: dict[str, list[Row]] = {
    "each rank has cores of its own": [
        changed(entry, cores=[4 * entry["local_rank"] + core for core in range(4)]) for entry in job(2, 2)
    ],
    "all ranks see all GPUs": visible(job(2, 2), [["0", "1"]] * 4),
    "loopback names, and gloo told an interface": job(
        2, 2, host_addresses=["127.0.1.1"], variables__GLOO_SOCKET_IFNAME="eth0"
    ),
    "commits unknown on some hosts": spoil(job(2, 2), "n2", versions__commit=None),
    "clocks nearly the same": spoil(job(2, 2, clock_offset_s=0.0), "n2", clock_offset_s=0.4),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with(name: str) -> None:
    assert findings(HEALTHY[name], 2, 2) == []


def test_virtual_nodes_share_a_host_without_trouble() -> None:
    rows = [row("laptop", rank, rank, node=rank // 2, host_addresses=["127.0.1.1"]) for rank in range(4)]
    assert findings(rows, 2, 2) == []


PAIR = {"a": "n1", "b": "n2", "rate_gbit": 9.0, "latency_us": 50.0, "backend": "gloo"}

# What is spoiled: (rows, options) -> severity, topic, words of what was seen, words of the fix.
SPOILED: dict[str, tuple[list[Row], dict[str, Any], str, str, str, str]] = {
    "started: one of a node": (
        job(2, 1, **SLURM), {}, "error", "ranks",
        "4 ranks asked for (cluster.nodes=2, cluster.ranks_per_node=[2, 2]), 3 started (n1: 2, n2: 1)",
        "sbatch --nodes=2 --ntasks=4 --ntasks-per-node=2 (or cluster.nodes=2 cluster.ranks_per_node=[2,1])",
    ),
    "started: none": ([], {}, "error", "ranks", "0 started (none)", "torchrun --nnodes=2 --nproc-per-node=2"),
    "started: too many": (
        job(4, 4), {}, "error", "ranks", "4 ranks asked for", "or cluster.nodes=2 cluster.ranks_per_node=4",
    ),
    "started: all are rank 0": (
        [row("n1", 0, **SLURM) for _ in range(4)], {}, "error", "ranks",
        "4 processes with the ranks 0, where 0 to 3 are wanted", "srun ",
    ),
    "started: no rank has a number": (
        [changed(entry, rank=None) for entry in job(2, 2)], {}, "error", "ranks",
        "4 processes with the ranks none", "torchrun --nnodes=2",
    ),
    "grouped: other nodes": (
        job(3, 1, **SLURM), {}, "error", "nodes",
        "asked for [2, 2] ranks on 2 nodes, started [3, 1] on n1, n2",
        "sbatch --nodes=2 --ntasks=4 --ntasks-per-node=2",
    ),
    "grouped: all on one": (
        job(4), {"threads": 1}, "error", "nodes", "started [4] on n1",
        "cluster.nodes=1 cluster.ranks_per_node=4",
    ),
    "grouped: dealt out in turn": (
        [row(f"n{1 + rank % 2}", rank, rank // 2) for rank in range(4)], {}, "error", "nodes",
        "ranks are dealt out in turn (0: n1, 1: n2, 2: n1, 3: n2, ...)", "srun --distribution=block",
    ),
    "pinned: all on one core": (
        job(2, 2, cores=[0], usable_cores=1, variables__SLURM_CPU_BIND="quiet,mask_cpu:0x1", **SLURM),
        {"threads": 1}, "error", "affinity",
        "on n1, n2 (2 of 2 hosts): 2 ranks x 1 thread share 1 core (of 8)", "unset SLURM_CPU_BIND ",
    ),
    "pinned: Slurm gave too little": (
        spoil(job(2, 2, **SLURM), "n2", cores=[0], usable_cores=1), {"threads": 1}, "error", "affinity",
        "on n2: 2 ranks x 1 thread share 1 core (of 8)", "sbatch --cpus-per-task=1 (and srun",
    ),
    "pinned: more threads than cores": (
        job(2, 2), {"threads": 6}, "warning", "affinity",
        "on n1, n2 (2 of 2 hosts): 2 ranks x 6 threads share 8 cores", "launcher.threads_per_rank=4",
    ),
    "pinned: more threads than Slurm's cores": (
        job(2, 2, cores=[0, 1], **SLURM), {"threads": 2}, "warning", "affinity", "share 2 cores (of 8)",
        "sbatch --cpus-per-task=2 (or launcher.threads_per_rank=1)",
    ),
    "pinned: a small machine": (
        job(2, 2, cores=[0], usable_cores=1, cores_of_machine=1), {"threads": 1}, "warning", "affinity",
        "share 1 core (of 1)", "cluster.ranks_per_node=1",
    ),
    "pinned: one mask inside of another": (
        [changed(entry, cores=[0] if entry["local_rank"] < 2 else list(range(8))) for entry in job(3)],
        {"asked": (3,), "threads": 1}, "error", "affinity",
        "2 ranks x 1 thread share 1 core", "ranks_per_node=1",
    ),
    "quota": (
        job(2, 2, usable_cores=1), {"threads": 2}, "warning", "affinity",
        "2 threads per rank, 1 cores' worth of time", "launcher.threads_per_rank=1",
    ),
    "devices: fewer than ranks": (
        visible(job(2, 2), [["0"]] * 4), {}, "error", "devices", "2 ranks see 1 GPU",
        "sbatch --gpus-per-node=2 (or cluster.ranks_per_node=1)",
    ),
    "devices: fewer, and they may share": (
        visible(job(2, 2), [["0"]] * 4), {"share_gpus": True}, "warning", "devices",
        "2 ranks see 1 GPU", "sbatch",
    ),
    "devices: one a task": (
        visible(job(2, 2), [["0"], ["1"]] * 2), {}, "note", "devices",
        "on n1, n2 (2 of 2 hosts): each rank sees one GPU, its own", "sbatch --gpus-per-node=N",
    ),
    "devices: none on a host": (
        visible(job(2, 2), [["0", "1"]] * 2 + [[]] * 2), {}, "error", "devices",
        "on n2: 2 of 4 ranks see no GPU", "sbatch --gpus-per-node=2",
    ),
    "host_names: no known way": (
        job(2, 2, host_addresses=["127.0.1.1"], route=None), {}, "warning", "network",
        "on n1, n2 (2 of 2 hosts): the own host name n1 resolves to 127.0.1.1",
        "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "host_names: the launcher takes the route": (
        job(2, 2, host_addresses=["127.0.1.1"]), {}, "note", "network",
        "on n1, n2 (2 of 2 hosts): the own host name n1 resolves to 127.0.1.1",
        "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "routes: none": (
        spoil(job(2, 2), "n2", route={"to": "n1", "address": None, "interface": None, "error": "down"}),
        {}, "error", "network", "on n2: no route to n1: down", "export MASTER_ADDR=",
    ),
    "routes: to itself": (
        spoil(job(2, 2), "n2", route={"to": "n1", "address": "127.0.1.1", "interface": "lo", "error": None}),
        {}, "error", "network", "on n2: the route to n1 is loopback (127.0.1.1)", "export MASTER_ADDR=",
    ),
    "loopback_interface": (
        job(2, 2, variables__GLOO_SOCKET_IFNAME="lo"), {}, "error", "network",
        "on n1, n2 (2 of 2 hosts): GLOO_SOCKET_IFNAME=lo", "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "versions: torch": (
        spoil(job(2, 2), "n2", versions__torch="2.9.0"), {}, "error", "versions",
        "torch differs: 2.14.1 on n1; 2.9.0 on n2", "activate",
    ),
    "versions: a host without the package": (
        spoil(job(2, 2), "n2", versions__daso_bench=None), {}, "error", "versions",
        "daso-bench differs: 0.1.0 on n1; none on n2", "activate",
    ),
    "versions: Python": (
        spoil(job(2, 2), "n2", versions__python="3.12.1"), {}, "error", "versions",
        "Python differs", "activate",
    ),
    "versions: a patch of Python": (
        spoil(job(2, 2), "n2", versions__python="3.11.9"), {}, "note", "versions",
        "Python differs", "activate",
    ),
    "versions: the source": (
        spoil(job(2, 2), "n2", versions__dirty="c9ad6c54c551896f"), {}, "error", "versions",
        "the source differs: 9240bbdd23 on n1; 9240bbdd23 with changes c9ad6c54 on n2", "activate",
    ),
    "results_folder": (
        spoil(job(2, 2, sees_token=True), "n2", sees_token=False), {}, "error", "results",
        "on n2: rank 0's file in /home/user/results is not there", "results_dir=PATH",
    ),
    "clocks": (
        spoil(job(2, 2, clock_offset_s=0.0), "n2", clock_offset_s=-3.25), {}, "warning", "clock",
        "the clocks of n2 and n1 are 3.25 s apart", "chronyc makestep",
    ),
    "open_files": (
        job(*[8] * 32, open_files={"soft": 1024, "hard": 4096}), {"asked": (8,) * 32, "threads": 1},
        "warning", "limits", "(32 of 32 hosts): a process may open 1024 files", "ulimit -n 4096",
    ),
    "of_each_rank: one interface is missing on some hosts": (
        spoil(job(1, 1, 1, variables__GLOO_SOCKET_IFNAME="eth0"), "n3", variables__GLOO_SOCKET_IFNAME="eth1"),
        {"asked": (1, 1, 1)}, "error", "network", "on n3: GLOO_SOCKET_IFNAME=eth1", "GLOO_SOCKET_IFNAME=eth0",
    ),
    "of_each_rank: the same on all": (
        job(2, 2, folders__results__error="Read-only file system"), {}, "error", "results",
        "on n1, n2 (2 of 2 hosts): results_dir=/home/user/results: Read-only", "results_dir=PATH",
    ),
    "links: below the floor": (
        job(2, 2, **SLURM), {"pairs": [PAIR | {"rate_gbit": 0.05}]}, "error", "links",
        "n1 - n2: 0.05 Gbit/s (gloo), below 0.2 Gbit/s", "export GLOO_SOCKET_IFNAME=ib0 (n2 uses eth0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_found_with_its_numbers_and_a_fix(name: str) -> None:
    rows, options, severity, topic, seen, fix = SPOILED[name]
    options = dict(options)
    found = only(findings(rows, *options.pop("asked", (2, 2)), **options))
    assert (found.severity, found.topic) == (severity, topic)
    assert seen in found.what
    assert fix in found.fix


def test_every_rule_has_something_that_it_finds() -> None:
    assert {rule.__name__ for rule in JOB_RULES} == {name.partition(":")[0] for name in SPOILED}


def test_before_a_training_only_errors_and_warnings_are_told() -> None:
    rows = spoil(job(2, 2), "n2", versions__python="3.11.9")
    assert findings(rows, 2, 2) != []
    assert short_findings(rows, (2, 2), 2) == []
    assert only(short_findings(job(2, 1), (2, 2), 2)).topic == "ranks"


def mesh(hosts: int, **slow: Any) -> list[dict[str, Any]]:
    """All pairs of hosts at 9 to 10 Gbit/s; `n1_n3=2.0` sets the rate of one."""
    names = [f"n{number}" for number in range(1, hosts + 1)]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return [
        PAIR | {"a": a, "b": b, "rate_gbit": slow.get(f"{a}_{b}", 9.0 + 0.1 * (number % 10))}
        for number, (a, b) in enumerate(pairs)
    ]


def test_links_that_differ_a_little_are_no_trouble() -> None:
    assert findings(job(1, 1, 1, 1), 1, 1, 1, 1, pairs=mesh(4, n1_n3=6.0)) == []


def test_one_slow_pair_is_told_against_the_median() -> None:
    found = only(findings(job(1, 1, 1, 1), 1, 1, 1, 1, pairs=mesh(4, n1_n3=1.0)))
    assert (found.severity, found.topic) == ("warning", "links")
    assert found.what == "n1 - n3: 1 Gbit/s (gloo), median of 6 pairs 9.25 Gbit/s"


def test_a_host_whose_links_are_all_slow_is_named() -> None:
    rows = job(1, 1, 1, 1, **SLURM)
    for entry in rows:
        del entry["interfaces"]["ib0"]
    found = only(findings(rows, 1, 1, 1, 1, pairs=mesh(4, n1_n3=1.0, n2_n3=1.1, n3_n4=1.2)))
    assert found.what.endswith("; 2 more like it")
    assert found.cause.startswith("n3 is in all of them")
    assert found.fix == "sbatch --exclude=n3"


def test_two_hosts_have_no_median_but_a_floor_that_can_be_moved() -> None:
    assert findings(job(2, 2), 2, 2, pairs=[PAIR]) == []
    assert only(findings(job(2, 2), 2, 2, pairs=[PAIR], floor_gbit=10.0)).severity == "error"


def test_a_late_link_is_found_whatever_its_rate() -> None:
    pairs = [*mesh(4)[:-1], mesh(4)[-1] | {"latency_us": 4000.0}]
    assert (
        only(findings(job(1, 1, 1, 1), 1, 1, 1, 1, pairs=pairs)).what
        == "n3 - n4: 4000 µs (gloo), median 50 µs"
    )


def test_backends_are_compared_each_with_its_own() -> None:
    nccl = [pair | {"backend": "nccl", "rate_gbit": 180.0} for pair in mesh(4)]
    assert findings(job(1, 1, 1, 1), 1, 1, 1, 1, pairs=[*mesh(4), *nccl]) == []


def test_pairs_without_numbers_say_nothing() -> None:
    pairs = [pair | {"rate_gbit": None, "latency_us": None} for pair in mesh(4)]
    assert findings(job(1, 1, 1, 1), 1, 1, 1, 1, pairs=pairs) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"visible_devices": ["0"]}, ["0"]),
        # As seen under Slurm 22.05 with --gpus-per-task=1: numbers of the host.
        ({"visible_devices": ["1"], "variables__SLURM_STEP_GPUS": "1"}, ["1"]),
        # Where tasks are confined to their devices, each calls its first one 0.
        ({"visible_devices": ["0"], "variables__SLURM_STEP_GPUS": "3"}, ["3"]),
        ({"visible_devices": ["0"], "variables__SLURM_STEP_GPUS": "2,3"}, ["task 1: 0"]),
        ({"visible_devices": ["0"], "variables__SLURM_GPUS_PER_TASK": "1"}, ["task 1: 0"]),
        ({"visible_devices": ["0"], "torch": torch(1, uuids=["GPU-77"])}, ["GPU-77"]),
        ({"torch": torch(2, uuids=["", ""])}, ["0", "1"]),
        ({}, []),
    ],
)
def test_gpus_of_a_host_are_told_apart(changes: dict[str, Any], names: list[str]) -> None:
    assert devices_of(row(local_rank=1, **changes)) == names
