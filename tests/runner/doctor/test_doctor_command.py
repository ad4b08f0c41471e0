"""`daso-bench doctor`: what the machine can do, findings in blocks, exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_rows import machine, torch

from daso_bench.runner.doctor import doctor_command
from daso_bench.runner.doctor.doctor_command import doctor, launchers, wanted
from daso_bench.strategies.errors import ConfigError

Examined = Callable[..., int]


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """The doctor's exit code for a healthy laptop with some changes; the real machine is not asked."""

    def examine(*, as_json: bool = False, **changes: Any) -> int:
        monkeypatch.setattr(doctor_command, "machine_facts", lambda wanted: machine(**changes))
        return doctor([], cwd=tmp_path, as_json=as_json)

    return examine


def test_a_healthy_machine_ends_with_0_and_says_so(
    examined: Examined, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examined() == 0
    out = capsys.readouterr().out
    assert "launcher=slurm" in out
    assert "no: no sbatch on the PATH" in out
    assert out.rstrip().endswith("Nothing is wrong.")


@pytest.mark.parametrize(
    ("spoiled", "code", "end"),
    [
        ({"folders__results__error": "Permission denied"}, 3, "1 error."),
        ({"variables__OMP_NUM_THREADS": "99"}, 3, "1 warning."),
        ({"folders__shm__free_bytes": 0}, 0, "1 note: nothing that has to be mended."),
    ],
)
def test_errors_and_warnings_end_with_3_and_notes_with_0(
    spoiled: dict[str, Any], code: int, end: str, examined: Examined, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examined(**spoiled) == code
    assert capsys.readouterr().out.rstrip().endswith(end)


def test_a_finding_is_a_block_of_whole_lines(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(folders__results__error="Permission denied", folders__results__path="/a" * 200) == 3
    lines = capsys.readouterr().out.splitlines()
    place = [line.endswith(f"{'/a' * 200}: Permission denied") for line in lines].index(True)
    assert "error" in lines[place]
    assert lines[place + 1].startswith("  why: ")
    assert lines[place + 2].startswith("  fix: results_dir=PATH")


def test_an_output_of_plain_letters_gets_plain_signs(tmp_path: Path) -> None:
    code = (
        "from daso_bench.runner.records.display import make_console\n"
        "from daso_bench.runner.doctor.doctor_command import show_findings\n"
        "from daso_bench.runner.machine.rules import Finding\n"
        "show_findings(make_console(), [Finding('error', 'a', 'b', 'c', 'd')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        timeout=60,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert b"X error  a: b" in done.stdout


def test_machines_get_json(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(as_json=True, variables__OMP_NUM_THREADS="99") == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["schema_version"]) == (False, 1)
    assert report["findings"][0]["fix"] == "unset OMP_NUM_THREADS"
    simulated = {"name": "launcher=simulated", "works": True, "what": "virtual time, any number of ranks"}
    assert simulated in report["abilities"]
    assert report["facts"]["usable_cores"] == 8


def test_words_are_read_as_those_of_a_run(tmp_path: Path) -> None:
    words = ["results_dir=../r", "launcher=slurm", "launcher.port=29500", "launcher.threads_per_rank=2"]
    request = wanted([*words, "cluster.nodes=2", "cluster.ranks_per_node=[3,1]"], tmp_path / "here")
    assert request.results_dir == tmp_path / "r"
    assert (request.launcher, request.port, request.threads, request.ranks_of_nodes) == (
        "slurm",
        29500,
        2,
        (3, 1),
    )
    assert request.ranks_here == 3
    assert wanted(["cluster.nodes=3", "cluster.ranks_per_node=2"], tmp_path).ranks_here == 6
    assert wanted(["launcher.port=null", "launcher.threads_per_rank=auto"], tmp_path) == wanted([], tmp_path)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("results", "must be KEY=VALUE"),
        ("strategy=ddp", "doctor=strategy: unknown"),
        ("launcher=slrum", "did you mean 'slurm'?"),
        ("launcher.port=many", "must be a whole number"),
        ("launcher.port=70000", "between 1 and 65535"),
        ("cluster.ranks_per_node=0", "must be a whole number"),
        ("cluster.ranks_per_node=[1,2,3]", "must be one number or 2 numbers"),
        ("launcher.share_gpus=maybe", "must be true or false"),
    ],
)
def test_words_that_are_wrong_are_refused_in_a_sentence(word: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        wanted([word], tmp_path)
    assert says in str(caught.value)


LAUNCHERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a laptop": ({}, {"simulated", "local", "emulated", "torchrun"}),
    "no torch": ({"versions__torch": None, "torch": {"error": "no module"}}, set()),
    "no namespaces": (
        {"emulation": {"error": "forbidden", "netem": False}},
        {"simulated", "local", "torchrun"},
    ),
    "no torchrun": ({"torchrun": None}, {"simulated", "local", "emulated"}),
    "a login node": (
        {"commands__sbatch": "/bin/sbatch", "slurm__controller": "up"},
        {"simulated", "local", "emulated", "torchrun", "slurm"},
    ),
    "a login node without submitit": (
        {"commands__sbatch": "/bin/sbatch", "slurm__controller": "up", "submitit": None},
        {"simulated", "local", "emulated", "torchrun"},
    ),
    "a login node without its controller": (
        {"commands__sbatch": "/bin/sbatch", "slurm__controller": "no answer within 2 s"},
        {"simulated", "local", "emulated", "torchrun"},
    ),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_that_can_work_are_told(name: str) -> None:
    changes, expected = LAUNCHERS[name]
    able = launchers(machine(**changes))
    assert [ability.name.removeprefix("launcher=") for ability in able if ability.works] == [
        entry for entry in ("simulated", "local", "slurm", "torchrun", "emulated") if entry in expected
    ]
    assert all(ability.what for ability in able)


def test_gpus_are_named_with_their_memory(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(device_files=["nvidia0"], torch=torch(1)) == 0
    out = capsys.readouterr().out
    assert "H200 (139 GiB)" in out
    assert "over NCCL" in out


def test_this_machine_is_examined_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor([], cwd=tmp_path, as_json=True)
    report = json.loads(capsys.readouterr().out)
    full = ("memory", "results_dir", "TMPDIR", "shared memory")  # a machine may be short of these just now
    wrong = [
        entry for entry in report["findings"] if entry["severity"] != "note" and entry["topic"] not in full
    ]
    assert wrong == []
    assert code == (0 if report["ok"] else 3)
    assert {entry["name"]: entry["works"] for entry in report["abilities"]}["launcher=simulated"]
    assert not (tmp_path / "results").exists()
