"""Troubles seeded for real: in the environment, the file system, sockets and limits of real processes."""

import errno
import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from doctor_rows import Row, child_row, machine, only, row

from daso_bench.runner.doctor.probes import port_error
from daso_bench.runner.machine.facts import rank_facts
from daso_bench.runner.machine.health import rules_python
from daso_bench.runner.machine.health.findings import Finding, troubles
from daso_bench.runner.machine.health.job_rules import cluster_findings, short_findings
from daso_bench.runner.machine.health.one_process import RANK_RULES, RULES, machine_findings

UNWRITABLE = "/proc/daso-bench"  # nobody can make it, root neither


def diagnose(results: Path | None = None) -> list[Finding]:
    return machine_findings(rank_facts(results, with_commit=False), RANK_RULES)


def test_this_machine_has_no_trouble(tmp_path: Path) -> None:
    assert troubles(diagnose(tmp_path)) == []


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_more_threads_than_cores_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "4096")
    assert only(diagnose(), "threads").what.startswith(f"{name}=4096, ")


@pytest.mark.parametrize("value", ["nosuch0", "^docker0", "=lo", "lo,nosuch0"])
def test_an_interface_that_gloo_cannot_use_is_found(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", value)
    found = only(diagnose(), "network")
    assert (found.severity, found.what) == ("error", f"GLOO_SOCKET_IFNAME={value}")


def test_an_interface_that_nccl_cannot_use_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=nosuch0")
    assert "NCCL_SOCKET_IFNAME==nosuch0" in only(diagnose(), "network").what


def test_results_that_cannot_be_written_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (Path(UNWRITABLE), tmp_path / "file", tmp_path / "file" / "below"):
        found = only(diagnose(folder), "results")
        assert (found.severity, str(folder) in found.what) == ("error", True)


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
    told = subprocess.run([*inside, "sh", "-c", script, code, str(tmp_path)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found = machine_findings(row(folders__results=json.loads(told.stdout)), RANK_RULES)
    assert [finding.severity for finding in found] == ["error", "warning"]
    assert "1 MiB free" in found[0].what
    assert "more files" in found[1].what


def test_a_folder_for_temporary_files_that_is_not_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", UNWRITABLE)
    assert only(diagnose(), "TMPDIR").what.startswith(f"TMPDIR={UNWRITABLE}: ")


def test_a_folder_for_temporary_files_too_long_for_sockets_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("a" * 80)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    assert only(diagnose(), "TMPDIR").severity == "error"


def test_a_home_that_cannot_be_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", UNWRITABLE)
    found = only(machine_findings(rank_facts(None, with_commit=False), RULES), "HOME")
    assert (found.severity, UNWRITABLE in found.what) == ("note", True)


def test_a_low_limit_of_open_files_is_found() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    facts = child_row(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard)))
    assert "may open 100 files" in only(machine_findings(facts, RANK_RULES), "limits").what


def test_an_output_that_cannot_show_all_letters_is_found() -> None:
    facts = child_row(variables={"PYTHONIOENCODING": "ascii"})
    assert only(machine_findings(facts, RANK_RULES), "encoding").what == "ascii for output"


def test_a_taken_port_is_found() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
        error = port_error(number)
    found = only(machine_findings(machine(wanted__port=number, port_error=error)))
    assert found.what == f"launcher.port={number}: Address already in use"
    assert port_error(number) is None


def test_a_second_copy_on_the_pythonpath_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "daso_bench").mkdir()
    (tmp_path / "daso_bench" / "__init__.py").write_text("")
    (tmp_path / "torch.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'no'}:{tmp_path}")
    monkeypatch.setattr(rules_python, "installed_package", lambda: Path("/opt/daso-bench"))
    found = machine_findings(rank_facts(None, with_commit=False), (rules_python.shadowed,))
    assert {finding.what for finding in found} == {
        f"PYTHONPATH has {tmp_path / 'torch.py'}",
        f"PYTHONPATH has {tmp_path / 'daso_bench'}",
    }


def test_a_pythonpath_to_the_package_in_use_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = rules_python.installed_package()
    if home is None:
        pytest.skip("daso-bench is not installed here, it cannot be shadowed")
    (tmp_path / "daso_bench").symlink_to(home)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert machine_findings(rank_facts(None, with_commit=False), (rules_python.shadowed,)) == []


def _pinned(rank: int, cores: set[int], **variables: str) -> Row:
    found = child_row(
        variables={"RANK": str(rank), "LOCAL_RANK": str(rank), **variables},
        before=lambda: os.sched_setaffinity(0, cores),
    )
    return {**found, "cores_of_machine": 8}


def test_ranks_on_one_core_are_found_and_ranks_on_their_own_are_not() -> None:
    cores = sorted(os.sched_getaffinity(0))
    bind = f"quiet,mask_cpu:{1 << cores[0]:#x}"
    rows = [_pinned(rank, {cores[0]}, SLURM_CPU_BIND=bind, SLURM_JOB_ID="7") for rank in range(2)]
    found = only(cluster_findings(rows, (2,), 1))
    assert (found.severity, found.topic) == ("error", "affinity")
    assert "2 ranks x 1 thread share 1 core (of 8)" in found.what
    assert f"SLURM_CPU_BIND={bind}" in found.cause
    assert found.fix.startswith("unset SLURM_CPU_BIND ")
    if len(cores) > 1:
        rows = [_pinned(rank, {cores[rank]}) for rank in range(2)]
        assert short_findings(rows, (2,), 1) == []


def test_a_host_name_that_means_this_host_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    mine = {**rank_facts(None, with_commit=False), "rank": 0}
    found = only(cluster_findings([mine, row("n2", 1)], (1, 1), None), "network")
    assert "the own host name localhost resolves to 127.0.0.1" in found.what
