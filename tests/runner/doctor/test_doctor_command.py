"""`daso-bench doctor`: what it asks, what the machine can do, findings in blocks, exit codes.

Small scripts stand in for Slurm, code of a child process for torch.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_rows import machine, torch

from daso_bench.runner.doctor import doctor_command
from daso_bench.runner.doctor.doctor_command import abilities, doctor, machine_facts

Examine = Callable[..., int]
AddCommand = Callable[[str, str], None]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """The doctor's exit code for a healthy laptop with some changes; the real machine is not asked."""

    def examine(*, as_json: bool = False, **changes: Any) -> int:
        monkeypatch.setattr(doctor_command, "machine_facts", lambda *_: machine(**changes))
        return doctor([], cwd=tmp_path, as_json=as_json)

    return examine


def test_a_healthy_machine_ends_with_0_and_says_so(
    examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(device_files=["nvidia0"], torch=torch(1)) == 0
    out = capsys.readouterr().out
    assert "no: no sbatch on the PATH" in out
    assert "H200 (139 GiB)" in out
    assert "over NCCL" in out
    assert out.rstrip().endswith("Nothing is wrong.")


def test_a_finding_is_a_block_of_whole_lines(examine: Examine, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(folders__results__error="Permission denied", folders__results__path="/a" * 200) == 3
    lines = capsys.readouterr().out.splitlines()
    place = max(index for index, line in enumerate(lines) if line.endswith(": Permission denied"))
    assert "error" in lines[place]
    assert lines[place + 1].startswith("  why: ")
    assert lines[place + 2].startswith("  fix: results_dir=PATH")
    assert lines[-1] == "Errors: 1, warnings: 0."


def test_json_holds_abilities_findings_and_facts(
    examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(as_json=True, variables__CUDA_LAUNCH_BLOCKING="1") == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["schema_version"]) == (False, 1)
    assert report["findings"][0]["fix"] == "unset CUDA_LAUNCH_BLOCKING"
    simulated = {"name": "launcher=simulated", "works": True, "what": "virtual time, any number of ranks"}
    assert simulated in report["abilities"]
    assert report["facts"]["usable_cores"] == 8


ON_LOGIN_NODE = {"commands__sbatch": "/bin/sbatch", "slurm__controller": "up"}
LAUNCHERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a laptop": ({}, {"simulated", "local", "emulated", "torchrun"}),
    "no torch": ({"versions__torch": None, "torch": {"error": "no module"}}, set()),
    "no namespaces, no torchrun": (
        {"emulation": {"error": "forbidden", "netem": False}, "torchrun": None},
        {"simulated", "local"},
    ),
    "a login node": (ON_LOGIN_NODE, {"simulated", "local", "emulated", "torchrun", "slurm"}),
    "a login node without submitit": (
        ON_LOGIN_NODE | {"submitit": None},
        {"simulated", "local", "emulated", "torchrun"},
    ),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_that_can_work_are_named(name: str) -> None:
    changes, expected = LAUNCHERS[name]
    rows = abilities(machine(**changes))
    assert {row["name"].removeprefix("launcher=") for row in rows if row["works"]} == expected
    assert all(row["what"] for row in rows)


# ------------------------------------------------------------------ what is asked


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddCommand:
    """Put a command into an otherwise empty PATH; torch's import is answered at once."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(
        doctor_command, "_TORCH", 'print(\'{"error": null, "version": "2", "devices": 0, "cuda": null}\')'
    )

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def test_slurm_is_asked_for_its_version_and_its_controller(command: AddCommand, tmp_path: Path) -> None:
    facts = machine_facts(tmp_path)
    assert facts.commands["sbatch"] is None
    assert facts.slurm == {"version": None, "controller": "no scontrol here"}
    command("sbatch", "echo slurm 24.11.1")
    command("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert machine_facts(tmp_path).slurm == {"version": "slurm 24.11.1", "controller": "up"}
    command("scontrol", "echo 'scontrol: fatal: no configuration' >&2; exit 1")
    assert machine_facts(tmp_path).slurm["controller"] == "fatal: no configuration"


def test_commands_that_do_not_answer_cost_little(
    command: AddCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "SHORT_S", 0.3)
    for name in ("sbatch", "scontrol"):
        command(name, "exec /bin/sleep 20")
    began = time.monotonic()
    facts = machine_facts(tmp_path)
    assert time.monotonic() - began < 15
    assert facts.slurm == {"version": None, "controller": "no answer within 0.3 s"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os._exit(9)", "exit code 9"),
        ("import time; time.sleep(20)", "no answer within 1 s"),
    ],
    ids=["raises", "exits", "hangs"],
)
def test_a_torch_that_does_not_load_is_an_answer(
    code: str, error: str, command: AddCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "_TORCH", code)
    monkeypatch.setattr(doctor_command, "TORCH_S", 1.0)
    assert machine_facts(tmp_path).torch == {"error": f"import torch: {error}"}


def test_this_machine_is_examined_for_real_and_what_libraries_print_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = f"print('hello'); import os; os.system('echo hi')\n{doctor_command._TORCH}"
    monkeypatch.setattr(doctor_command, "_TORCH", noisy)
    code = doctor([], cwd=tmp_path, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["facts"]["torch"]["error"], report["facts"]["torch"]["devices"] >= 0) == (None, True)
    full = ("results", "tmp", "shm")  # this machine may be short of these just now
    assert [entry for entry in report["findings"] if entry["topic"] not in full] == []
    assert code == (0 if report["ok"] else 3)
    assert {entry["name"]: entry["works"] for entry in report["abilities"]}["launcher=simulated"]
    assert not (tmp_path / "results").exists()
