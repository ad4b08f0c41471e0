"""environment.json: devices, versions and commit."""

import json
import os
import platform
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import config, simulated

from daso_bench.runner.machine import facts as machine_facts
from daso_bench.runner.machine import facts as module
from daso_bench.runner.machine import gpu_facts
from daso_bench.runner.machine.cores import affinity
from daso_bench.runner.machine.environment import commit_of, environment, rank_row
from daso_bench.runner.machine.facts import ProcessFacts, process_facts
from daso_bench.runner.machine.folders import folder_facts
from daso_bench.runner.training.trainer import Trainer


def test_the_environment_names_versions_hosts_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    rows = [rank_row(rank=rank, node=0, local_rank=rank, device="cuda:0", threads=3) for rank in range(2)]
    content = environment(rows, backend="gloo", world="local", extra={"links": None})
    assert (content["python"], content["hostname"]) == (platform.python_version(), platform.node())
    assert content["torch"][0].isdigit()
    row = content["ranks"][1]
    assert (row["rank"], row["local_rank"], row["device"], row["visible_devices"]) == (1, 1, "cuda:0", ["2"])
    assert set(row["cores"]) == set(affinity())
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
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.csv").write_text("no run reads it\n")
    assert commit_of(tmp_path) == (head, None)
    seen: list[str | None] = []
    for name, text in [("a.py", "2\n"), ("a.py", "3\n"), ("b.py", "1\n"), ("b.py", "2\n")]:
        (tmp_path / name).write_text(text)
        seen.append(commit_of(tmp_path)[1])
        assert commit_of(tmp_path) == (head, seen[-1])
    assert None not in seen
    assert len(set(seen)) == 4


MODULES = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023": "535.104.05",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)": "570.86.15",
    "something else\n": None,
}


@pytest.mark.parametrize(("told", "version"), MODULES.items())
def test_the_drivers_version_is_read_from_its_kernel_module(tmp_path: Path, told: str, version: str | None):
    file = tmp_path / "version"
    assert gpu_facts.driver(file) is None
    file.write_text(f"{told}\nGCC version:  gcc version 12.3.0\n")
    assert gpu_facts.driver(file) == version


def test_variables_that_change_how_gpus_compute_or_speak_are_kept():
    kept = {"NCCL_ALGO": "Ring", "NVIDIA_TF32_OVERRIDE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert gpu_facts.variables({**kept, "HOME": "/root", "MY_NCCL_ALGO": "Tree"}) == kept


def test_a_rank_says_what_its_gpu_is_driven_by(monkeypatch: pytest.MonkeyPatch):
    assert gpu_facts.of_rank(torch.device("cpu")) is None
    assert gpu_facts.peak_memory(torch.device("cpu")) == (-1, -1)
    found = SimpleNamespace(total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    told = gpu_facts.of_rank(torch.device("cuda", 0)) or {}
    assert set(told) == {"memory", "capability", "driver", "cuda", "cudnn", "nccl", "variables"}
    assert (told["memory"], told["capability"]) == (80 * 2**30, "9.0")
    assert told["cuda"] == torch.version.cuda
    assert told["variables"]["NCCL_P2P_DISABLE"] == "1"


def test_the_summary_has_each_ranks_peak_of_memory_where_some_are_on_gpus(monkeypatch: pytest.MonkeyPatch):
    class OnGPUs(Trainer):
        def begin(self, resumed_from: str | None) -> None:
            self.context.comm.some_on_gpus = True
            super().begin(resumed_from)

    peaks = iter([(100, 200), (-1, -1), (300, 400)])
    monkeypatch.setattr(gpu_facts, "peak_memory", lambda device: next(peaks))
    cfg = config(ranks=[2, 1], epochs=1)
    summary: dict[str, Any] = simulated(cfg, loop=OnGPUs).results[0].summary
    of_ranks = zip(
        *(summary["gpu_memory"][key] for key in ("allocated_bytes", "reserved_bytes")), strict=True
    )
    assert sorted(of_ranks, key=str) == [(100, 200), (300, 400), (None, None)]
    assert "gpu_memory" not in simulated(cfg).results[0].summary


def test_facts_of_this_process_survive_json(tmp_path: Path) -> None:
    facts = process_facts(tmp_path, master="localhost")
    row = json.loads(json.dumps(facts.as_row(), allow_nan=False))
    assert ProcessFacts.of({**row, "another": 1}) == facts
    assert facts.host == socket.gethostname()
    assert facts.cores == sorted(os.sched_getaffinity(0))
    assert facts.versions["torch"]
    assert facts.folders["results"]["error"] is None
    assert facts.route_interface in facts.interfaces
    assert facts.torch is None


def test_facts_are_had_without_torch() -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from daso_bench.runner.machine.facts import process_facts\n"
        "process_facts(Path())\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_route_to_this_host_ends_in_the_loopback(tmp_path: Path) -> None:
    interface = machine_facts.route_to("127.0.0.1")
    assert interface is not None
    assert machine_facts.interfaces()[interface]["loopback"]
    assert process_facts(tmp_path, master="no-such-host.invalid").route_interface is None


def test_a_name_server_that_does_not_answer_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def silent(*arguments: object, **options: object) -> list[object]:
        answer.wait(10)
        return []

    monkeypatch.setattr(machine_facts, "RESOLVE_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(TimeoutError, match=r"no answer about n1 within 0\.05 s"):
        machine_facts.route_to("n1")
    answer.set()


def test_a_folder_that_is_still_to_be_made_is_judged_where_it_would_be_made(tmp_path: Path) -> None:
    facts = folder_facts(tmp_path / "results" / "of" / "mine")
    assert facts["error"] is None
    assert 0 < facts["free_bytes"] <= facts["total_bytes"]
    assert list(tmp_path.iterdir()) == []


def test_gpus_are_seen_by_their_device_files(tmp_path: Path) -> None:
    assert module._device_files(tmp_path) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert module._device_files(tmp_path) == ["nvidia0", "nvidia1"]
