"""Rules on the ranks of a job: what is wrong between hosts, and one finding for many hosts."""

from collections.abc import Sequence
from typing import Any

import pytest
from doctor_rows import Row, changed, job, only, row, torch

from daso_bench.runner.machine.facts import ProcessFacts
from daso_bench.runner.machine.job_rules import HOST_RULES, JOB_RULES, cluster_findings, gpus_of
from daso_bench.runner.machine.rules import Finding

SLURM: dict[str, Any] = {"variables__SLURM_JOB_ID": "7"}


def findings(rows: Sequence[Row], threads: int = 2, **options: Any) -> list[Finding]:
    return cluster_findings(rows, threads, **options)


def spoil(rows: Sequence[Row], host: str, **changes: Any) -> list[Row]:
    """The rows with changes on one host."""
    return [changed(entry, **changes) if entry["host"] == host else entry for entry in rows]


def with_gpus(rows: Sequence[Row], lists: Sequence[Sequence[str]]) -> list[Row]:
    return [changed(entry, visible_devices=list(names)) for entry, names in zip(rows, lists, strict=True)]


HEALTHY: dict[str, list[Row]] = {
    **{f"{shape} ranks": job(*shape) for shape in ((1,), (4,), (2, 2), (3, 1), (1, 1, 1, 1))},
    "virtual nodes share a host": [row("laptop", rank, rank, node=rank // 2) for rank in range(4)],
    "each rank has cores of its own": [
        changed(entry, cores=[4 * entry["local_rank"] + core for core in range(4)]) for entry in job(2, 2)
    ],
    "all ranks see all GPUs": with_gpus(job(2, 2), [["0", "1"]] * 4),
    "commits unknown on some hosts": spoil(job(2, 2), "n2", versions__commit=None),
    "the way to a supervisor on the same host": spoil(job(2, 2), "n1", route_interface="lo"),
    "a patch of Python": spoil(job(2, 2), "n2", versions__python="3.11.9"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with(name: str) -> None:
    assert findings(HEALTHY[name]) == []
    assert findings(HEALTHY[name][::-1]) == []


PAIR = {"a": "n1", "b": "n2", "rate_gbit": 9.0, "latency_us": 50.0, "backend": "gloo"}

# What is spoiled: (rows, options) -> severity, topic, words of what was seen, words of the fix.
SPOILED: dict[str, tuple[list[Row], dict[str, Any], str, str, str, str]] = {
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
        "sbatch --cpus-per-task=2 (and srun --cpus-per-task=2)",
    ),
    "pinned: a small machine": (
        job(2, 2, cores=[0], usable_cores=1, cores_of_machine=1), {"threads": 1}, "warning", "affinity",
        "share 1 core (of 1)", "cluster.ranks_per_node=1",
    ),
    "pinned: one mask inside of another": (
        [changed(entry, cores=[0] if entry["local_rank"] < 2 else list(range(8))) for entry in job(3)],
        {"threads": 1}, "error", "affinity",
        "2 ranks x 1 thread share 1 core", "ranks_per_node=1",
    ),
    "devices: fewer than ranks": (
        with_gpus(job(2, 2), [["0"]] * 4), {}, "error", "devices", "2 ranks see 1 GPU",
        "sbatch --gpus-per-node=2 (or cluster.ranks_per_node=1)",
    ),
    "devices: fewer, and they may share": (
        with_gpus(job(2, 2), [["0"]] * 4), {"share_gpus": True}, "warning", "devices",
        "2 ranks see 1 GPU", "sbatch",
    ),
    "devices: none on a host": (
        with_gpus(job(2, 2), [["0", "1"]] * 2 + [[]] * 2), {}, "error", "devices",
        "on n2: 2 of 2 ranks see no GPU", "sbatch --gpus-per-node=2",
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
    "versions: the source": (
        spoil(job(2, 2), "n2", versions__dirty="c9ad6c54c551896f"), {}, "error", "versions",
        "the source differs: 9240bbdd23 on n1; 9240bbdd23 with changes c9ad6c54 on n2", "activate",
    ),
    "each_rank: one interface is missing on some hosts": (
        spoil(job(1, 1, 1, variables__GLOO_SOCKET_IFNAME="eth0"), "n3", variables__GLOO_SOCKET_IFNAME="eth1"),
        {}, "error", "network", "on n3: GLOO_SOCKET_IFNAME=eth1", "GLOO_SOCKET_IFNAME=eth0",
    ),
    "each_rank: the same on all": (
        job(2, 2, folders__results__error="Read-only file system"), {}, "error", "results",
        "on n1, n2 (2 of 2 hosts): results_dir=/home/user/results: Read-only", "results_dir=PATH",
    ),
    "links: below the floor": (
        job(2, 2, **SLURM), {"pairs": [PAIR | {"rate_gbit": 0.05}]}, "error", "links",
        "n1 - n2: 0.05 Gbit/s, 50 µs (gloo); below 0.2 Gbit/s", "export GLOO_SOCKET_IFNAME=ib0 (n2 uses eth0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_found_with_its_numbers_and_a_fix(name: str) -> None:
    rows, options, severity, topic, seen, fix = SPOILED[name]
    finding = only(findings(rows, **options))
    assert (finding.severity, finding.topic) == (severity, topic)
    assert seen in finding.what
    assert fix in finding.fix


def test_every_rule_has_something_that_it_finds() -> None:
    assert {rule.__name__ for rule in (*HOST_RULES, *JOB_RULES)} == {
        name.partition(":")[0] for name in SPOILED
    }


def mesh(hosts: int, **slow: Any) -> list[dict[str, Any]]:
    """All pairs of hosts at 9 to 10 Gbit/s; `n1_n3=2.0` sets the rate of one."""
    names = [f"n{number}" for number in range(1, hosts + 1)]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return [
        PAIR | {"a": a, "b": b, "rate_gbit": slow.get(f"{a}_{b}", 9.0 + 0.1 * (number % 10))}
        for number, (a, b) in enumerate(pairs)
    ]


def test_links_that_differ_a_little_are_no_trouble() -> None:
    assert findings(job(1, 1, 1, 1), pairs=mesh(4, n1_n3=6.0)) == []


def test_one_slow_pair_is_told_against_the_median() -> None:
    finding = only(findings(job(1, 1, 1, 1), pairs=mesh(4, n1_n3=1.0)))
    assert (finding.severity, finding.topic) == ("warning", "links")
    assert finding.what == "n1 - n3: 1 Gbit/s, 50 µs (gloo); median of 6 pairs 9.25 Gbit/s, 50 µs"


def test_a_host_whose_links_are_all_slow_is_named() -> None:
    rows = job(1, 1, 1, 1, **SLURM)
    for entry in rows:
        del entry["interfaces"]["ib0"]
    finding = only(findings(rows, pairs=mesh(4, n1_n3=1.0, n2_n3=1.1, n3_n4=1.2)))
    assert finding.what.endswith("; 2 more like it")
    assert finding.cause.startswith("n3 is in all of them")
    assert finding.fix == "sbatch --exclude=n3"


def test_two_hosts_have_no_median_but_a_floor() -> None:
    assert findings(job(2, 2), pairs=[PAIR]) == []
    assert only(findings(job(2, 2), pairs=[PAIR | {"rate_gbit": 0.19}])).severity == "error"


def test_a_late_link_is_found_whatever_its_rate() -> None:
    pairs = [*mesh(4)[:-1], mesh(4)[-1] | {"latency_us": 4000.0}]
    what = "n3 - n4: 9.5 Gbit/s, 4000 µs (gloo); median of 6 pairs 9.25 Gbit/s, 50 µs"
    assert only(findings(job(1, 1, 1, 1), pairs=pairs)).what == what


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
    assert gpus_of(ProcessFacts.of(row(local_rank=1, **changes))) == names
