"""environment.json: devices, versions and commit."""

import platform
import subprocess
from pathlib import Path

import pytest

from daso_bench.runner.machine.cores import affinity
from daso_bench.runner.machine.environment import commit_of, device_index, environment, rank_row
from daso_bench.strategies.errors import MachineError


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


def test_the_environment_names_versions_hosts_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    rows = [rank_row(rank=rank, node=0, local_rank=rank, device="cpu", threads=3) for rank in range(2)]
    content = environment(rows, backend="gloo", world="local", extra={"links": None})
    assert (content["python"], content["hostname"]) == (platform.python_version(), platform.node())
    assert content["torch"][0].isdigit()
    assert content["ranks"][1]["rank"] == 1
    assert set(content["ranks"][0]["cores"]) == set(affinity())
    assert (content["variables"]["OMP_NUM_THREADS"], content["links"]) == ("3", None)
    assert (content["schema_version"], content["rules_version"]) == (1, "3.0")


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
