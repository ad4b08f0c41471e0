"""Cores, threads, devices, versions and commit."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from daso_bench.runner.machine import environment as module
from daso_bench.runner.machine.environment import (
    commit_of,
    device_index,
    environment,
    rank_row,
    threads_per_rank,
    timing_validity,
    usable_cores,
)
from daso_bench.strategies.errors import ConfigError, MachineError


def test_a_rank_that_sees_one_device_uses_it_whatever_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_NTASKS": "4", "SLURM_LOCALID": "2", "CUDA_VISIBLE_DEVICES": "2"}.items():
        monkeypatch.setenv(name, value)
    assert device_index(local_rank=2, visible=1) == 0
    row = rank_row(rank=2, node=0, local_rank=2, device="cuda:0", threads=1)
    assert (row["local_rank"], row["device"], row["visible_devices"]) == (2, "cuda:0", ["2"])


def test_devices_are_given_out_in_order_and_shared_only_if_asked() -> None:
    assert [device_index(rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    assert device_index(3, 0) is None
    with pytest.raises(MachineError, match="local rank 2 has no device of its own: 2 are visible"):
        device_index(2, 2)
    assert [device_index(rank, 2, share=True) for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("setting", "ranks", "cores", "threads"),
    [("auto", 2, 8, 4), ("auto", 3, 8, 2), ("auto", 4, 2, 1), (3, 4, 2, 3)],
)
def test_threads_are_the_cores_over_the_ranks_unless_told(
    setting: int | str, ranks: int, cores: int, threads: int
) -> None:
    assert threads_per_rank(setting, ranks, cores) == threads  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("setting", [0, -1, "many", True, 1.5, None])
def test_threads_that_are_no_number_are_refused(setting: object) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.threads_per_rank=.*must be auto or >= 1"):
        threads_per_rank(setting, 2)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "reasons"),
    [
        (2, 1, 2, []),
        (4, 1, 2, ["4 ranks x 1 thread share 2 cores"]),
        (2, 2, 1, ["2 ranks x 2 threads share 1 core"]),
        (1, 4, 2, ["1 rank x 4 threads shares 2 cores"]),
    ],
)
def test_a_timing_on_shared_cores_is_not_valid(
    ranks: int, threads: int, cores: int, reasons: list[str]
) -> None:
    assert timing_validity(ranks, threads, cores) == (not reasons, reasons)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system knows no affinity")
def test_usable_cores_are_those_of_the_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from daso_bench.runner.machine.environment import usable_cores; print(usable_cores())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "1\n"
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_a_containers_quota_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "membership").write_text("1:cpu:/x\n0::/outer/inner\n")
    inner = tmp_path / "root" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    quota = module._cpu_quota(tmp_path / "root", tmp_path / "membership")
    assert quota == 1.5
    assert module._cpu_quota(tmp_path / "root", tmp_path / "none") is None
    monkeypatch.setattr(module, "_cpu_quota", lambda root, membership: quota)
    monkeypatch.setattr(module, "affinity", lambda: list(range(64)))
    assert usable_cores() == 2


def test_the_environment_names_versions_hosts_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    rows = [rank_row(rank=rank, node=0, local_rank=rank, device="cpu", threads=3) for rank in range(2)]
    found = environment(rows, backend="gloo", world="local", extra={"links": None})
    assert (found["python"], found["hostname"]) == (platform.python_version(), platform.node())
    assert found["torch"][0].isdigit()
    assert found["ranks"][1]["rank"] == 1
    assert set(found["ranks"][0]["cores"]) == set(module.affinity())
    assert (found["variables"]["OMP_NUM_THREADS"], found["links"]) == ("3", None)
    assert (found["schema_version"], found["rules_version"]) == (1, "2.0")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_gives_its_commit_and_a_hash_of_its_changes(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == (None, None)
    (tmp_path / "a.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "ignored").write_text("x")
    assert commit_of(tmp_path) == (head, None)
    seen: list[str | None] = []
    for name, text in [("a.py", "2\n"), ("a.py", "3\n"), ("b.py", "1\n"), ("b.py", "2\n")]:
        (tmp_path / name).write_text(text)
        seen.append(commit_of(tmp_path)[1])
        assert commit_of(tmp_path) == (head, seen[-1])
    assert None not in seen
    assert len(set(seen)) == 4
