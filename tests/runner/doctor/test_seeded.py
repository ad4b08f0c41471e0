"""Real troubles: in the environment, the file system, sockets and cores of real processes."""

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from doctor_rows import Row, child_row, machine, only, row

from daso_bench.runner.doctor.probes import port_error
from daso_bench.runner.machine import rules
from daso_bench.runner.machine.facts import ProcessFacts, process_facts
from daso_bench.runner.machine.job_rules import cluster_findings, short_findings
from daso_bench.runner.machine.rules import (
    PROCESS_RULES,
    Finding,
    apply,
    machine_findings,
    shadowed,
    troubles,
)

UNWRITABLE = "/proc/daso-bench"  # nobody can make it, root neither


def diagnose(results: Path | None = None) -> list[Finding]:
    return apply(PROCESS_RULES, process_facts(results, with_commit=False))


def test_this_machine_has_no_trouble(tmp_path: Path) -> None:
    assert troubles(diagnose(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "value", "topic"),
    [
        ("OMP_NUM_THREADS", "4096", "threads"),
        ("OPENBLAS_NUM_THREADS", "4096", "threads"),
        ("GLOO_SOCKET_IFNAME", "nosuch0", "network"),
        ("GLOO_SOCKET_IFNAME", "^docker0", "network"),
        ("GLOO_SOCKET_IFNAME", "lo,nosuch0", "network"),
        ("NCCL_SOCKET_IFNAME", "=nosuch0", "network"),
        ("CUDA_LAUNCH_BLOCKING", "1", "timing"),
        ("TMPDIR", UNWRITABLE, "TMPDIR"),
    ],
)
def test_a_variable_that_hurts_is_found(
    name: str, value: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert only(diagnose(), topic).what.startswith(f"{name}={value}")


def test_results_that_cannot_be_written_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (Path(UNWRITABLE), tmp_path / "file", tmp_path / "file" / "below"):
        finding = only(diagnose(folder), "results")
        assert (finding.severity, str(folder) in finding.what) == ("error", True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in only(diagnose(tmp_path / "results"), "results").what


def test_a_file_system_without_locks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "cannot be locked" in only(diagnose(tmp_path), "results").what


def test_a_full_disk_is_found(tmp_path: Path) -> None:
    """A real file system of 1 MiB, in a namespace of its own where this machine lets one have it."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from daso_bench.runner.machine.folders import folder_facts\n"
        "print(json.dumps(folder_facts(Path(sys.argv[1]))))\n"
    )
    mount = f"mount -t tmpfs -o size=1m,nr_inodes=100 none '{tmp_path}'"
    script = f'{mount} && exec \'{sys.executable}\' -c "$0" "$1"'
    done = subprocess.run([*inside, "sh", "-c", script, code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    full, many = apply(PROCESS_RULES, ProcessFacts.of(row(folders__results=json.loads(done.stdout))))
    assert (full.severity, many.severity) == ("error", "warning")
    assert "1 MiB free" in full.what
    assert "more files" in many.what


def test_a_folder_for_temporary_files_too_long_for_sockets_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("a" * 80)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    assert only(diagnose(), "TMPDIR").severity == "error"


def test_a_taken_port_is_found() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
        error = port_error(number)
    finding = only(machine_findings(machine(wanted__port=number, port_error=error)))
    assert finding.what == f"launcher.port={number}: Address already in use"
    assert port_error(number) is None


def test_a_second_copy_on_the_pythonpath_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, copy = tmp_path / "site", tmp_path / "torch.py"
    (installed / "torch").mkdir(parents=True)
    (installed / "torch" / "__init__.py").touch()
    copy.touch()
    monkeypatch.setattr(rules, "get_path", lambda name: str(installed))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'no'}:{tmp_path}")
    assert only(shadowed(process_facts(None, with_commit=False))).what == f"PYTHONPATH has {copy}"
    monkeypatch.setenv("PYTHONPATH", str(installed))  # the copy that is in use
    assert list(shadowed(process_facts(None, with_commit=False))) == []


def pinned(rank: int, cores: set[int], **variables: str) -> Row:
    facts = child_row(
        variables={"RANK": str(rank), "LOCAL_RANK": str(rank), **variables},
        before=lambda: os.sched_setaffinity(0, cores),
    )
    return {**facts, "cores_of_machine": 8}


def test_ranks_on_one_core_are_found_and_ranks_on_their_own_are_not() -> None:
    cores = sorted(os.sched_getaffinity(0))
    bind = f"quiet,mask_cpu:{1 << cores[0]:#x}"
    rows = [pinned(rank, {cores[0]}, SLURM_CPU_BIND=bind, SLURM_JOB_ID="7") for rank in range(2)]
    finding = only(cluster_findings(rows, (2,), 1))
    assert (finding.severity, finding.topic) == ("error", "affinity")
    assert "2 ranks x 1 thread share 1 core (of 8)" in finding.what
    assert f"SLURM_CPU_BIND={bind}" in finding.cause
    assert finding.fix.startswith("unset SLURM_CPU_BIND ")
    if len(cores) > 1:
        rows = [pinned(rank, {cores[rank]}) for rank in range(2)]
        assert short_findings(rows, (2,), 1) == []
