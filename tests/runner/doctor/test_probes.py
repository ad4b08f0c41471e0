"""Facts that the doctor gathers: small scripts stand in for Slurm, code of a child process for torch."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from doctor_rows import only

from daso_bench.runner.doctor import probes
from daso_bench.runner.doctor.probes import Wanted, machine_facts
from daso_bench.runner.machine.rules import machine_findings

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Put a command into an otherwise empty PATH; torch's import is answered at once."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(probes, "_TORCH", 'print(\'{"error": null, "version": "2", "devices": 0}\')')

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def slurm(tmp_path: Path) -> Mapping[str, Any]:
    return machine_facts(Wanted(results_dir=tmp_path)).slurm


def test_a_machine_without_slurm_says_so(play: Play, tmp_path: Path) -> None:
    facts = machine_facts(Wanted(results_dir=tmp_path))
    assert facts.commands["sbatch"] is None
    assert (facts.slurm["version"], facts.slurm["controller"]) == (None, "no scontrol here")


def test_slurm_tells_its_version_and_that_it_is_up(play: Play, tmp_path: Path) -> None:
    play("sbatch", "echo slurm 24.11.1")
    play("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert slurm(tmp_path) == {"version": "slurm 24.11.1", "controller": "up", "job_known": None}


def test_a_controller_that_is_down_is_told_in_its_own_words(play: Play, tmp_path: Path) -> None:
    play("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    assert slurm(tmp_path)["controller"] == "Slurmctld(primary) at head is DOWN"
    play("scontrol", "echo 'scontrol: fatal: no configuration' >&2; exit 1")
    assert slurm(tmp_path)["controller"] == "fatal: no configuration"


def test_commands_that_do_not_answer_cost_little(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "SHORT_S", 0.3)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("sbatch", "scontrol", "squeue"):
        play(name, "exec /bin/sleep 20")
    began = time.monotonic()
    facts = slurm(tmp_path)
    assert time.monotonic() - began < 15
    assert facts == {"version": None, "controller": "no answer within 0.3 s", "job_known": None}


@pytest.mark.parametrize(
    ("says", "known"),
    [
        ("echo RUNNING", True),
        ("exit 0", False),  # it has just ended
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", None),
    ],
)
def test_a_job_is_asked_for(
    says: str, known: bool | None, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    play("squeue", says)
    assert slurm(tmp_path)["job_known"] is known


def test_a_leaked_job_is_found_through_all_of_it(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "0")
    play("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    finding = only(machine_findings(machine_facts(Wanted(results_dir=tmp_path))), "slurm")
    assert finding.what == "SLURM_JOB_ID=7, which squeue does not know"


def test_what_forbids_emulated_nodes_is_told(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "impossible", lambda: "emulated nodes: forbidden")
    facts = machine_facts(Wanted(results_dir=tmp_path))
    assert facts.emulation == {"error": "emulated nodes: forbidden", "netem": False}
    monkeypatch.setattr(probes, "impossible", lambda: None)
    for netem in (True, False):
        monkeypatch.setattr(probes, "has_netem", lambda netem=netem: netem)
        assert machine_facts(Wanted(results_dir=tmp_path)).emulation == {"error": None, "netem": netem}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os._exit(9)", "exit code 9"),
        ("import time; time.sleep(20)", "import torch took more than 1 s"),
    ],
)
def test_a_torch_that_does_not_load_is_an_answer(
    code: str, error: str, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_TORCH", code)
    monkeypatch.setattr(probes, "TORCH_S", 1.0)
    facts = machine_facts(Wanted(results_dir=tmp_path))
    assert (facts.torch or {})["error"] == error
    assert error in only(machine_findings(facts), "python").what


def test_what_libraries_print_while_they_load_is_not_the_answer() -> None:
    code = probes._TORCH.replace(
        "import torch", "import torch; print('hello'); import os; os.system('echo hi')"
    )
    facts = probes._TorchImport([probes.sys.executable, "-P", "-c", code], 60.0).result()
    assert (facts["error"], facts["devices"] >= 0) == (None, True)
