"""Facts about the real machine, and what can be written in folders."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from daso_bench.runner.machine import facts as module
from daso_bench.runner.machine import interfaces
from daso_bench.runner.machine.facts import ProcessFacts, process_facts
from daso_bench.runner.machine.folders import folder_facts


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
    interface = interfaces.route_to("127.0.0.1")
    assert interface is not None
    assert interfaces.interfaces()[interface]["loopback"]
    assert process_facts(tmp_path, master="no-such-host.invalid").route_interface is None


def test_a_name_server_that_does_not_answer_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def silent(*arguments: object, **options: object) -> list[object]:
        answer.wait(10)
        return []

    monkeypatch.setattr(interfaces, "RESOLVE_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(TimeoutError, match=r"no answer about n1 within 0\.05 s"):
        interfaces.route_to("n1")
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
