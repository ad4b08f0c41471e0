"""scripts/slurm/dev_cluster without a cluster: what it refuses, what it says, and whom it never ends."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import daso_bench

SCRIPT = Path(daso_bench.__file__).parent / "scripts" / "slurm" / "dev_cluster"


def load() -> ModuleType:
    """The file has no extension, so its loader is named."""
    loader = importlib.machinery.SourceFileLoader("dev_cluster", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A machine without Slurm, whose root we are, and with a lock that no real command holds."""
    module = load()
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(module, "FOREIGN", ())
    monkeypatch.setattr(module, "LOCK", f"\0daso-bench-test-{os.getpid()}")
    monkeypatch.setattr(module, "pids", list)
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    yield module
    del sys.modules["dev_cluster"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def written_down(tool: ModuleType, child: subprocess.Popen[bytes], later: int = 0):
    start = tool.start_of(child.pid)
    assert start is not None
    return tool.Process("slurmd-n1", "n1", child.pid, start + later, "")


def refused(tool: ModuleType, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The only line that is said before exit code 3."""
    assert tool.main(list(words)) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# ------------------------------------------------------------------ refusals


def test_a_foreign_slurm_conf_and_a_user_who_is_not_root_are_refused(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_CONF", "/cluster/slurm.conf")
        assert "`unset SLURM_CONF`" in refused(tool, capsys, "up")
    with monkeypatch.context() as patch:
        (tmp_path / "slurm.conf").touch()
        patch.setattr(tool, "FOREIGN", (str(tmp_path / "slurm.conf"),))
        assert "belongs to a Slurm cluster" in refused(tool, capsys, "up")
    monkeypatch.setattr(tool.os, "geteuid", lambda: 1000)
    for words in (["up"], ["node-down", "n1"], ["node-up", "n1"]):
        assert "sudo" in refused(tool, capsys, *words, "--folder", str(tmp_path))


def test_a_running_slurm_daemon_that_is_not_ours_is_refused(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    daemon = tmp_path / "slurmd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", daemon)
    child = subprocess.Popen([daemon, "60"])
    try:
        deadline = time.monotonic() + 10  # the kernel gives it its name when it begins to run
        while Path(f"/proc/{child.pid}/comm").read_text().strip() != "slurmd" and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.setattr(tool, "pids", lambda: [child.pid])
        said = refused(tool, capsys, "up", "--folder", str(tmp_path / "cluster"))
        assert f"pid {child.pid}" in said
    finally:
        child.kill()
        child.wait()


def test_a_missing_command_is_named_with_its_debian_package(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tool, "SEARCH", str(tmp_path))
    said = refused(tool, capsys, "up", "--folder", str(tmp_path / "cluster"))
    assert "slurmctld" in said
    assert (
        "apt install iproute2 mariadb-server mount munge slurm-client slurm-wlm slurmdbd util-linux" in said
    )
    said = refused(tool, capsys, "up", "--no-accounting", "--folder", str(tmp_path / "cluster"))
    assert "mariadb-server" not in said


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a path as short as the cluster wants it; pytest's own grows with the test's name."""
    with tempfile.TemporaryDirectory(prefix="dc-") as folder:
        yield Path(folder)


def test_a_folder_with_other_peoples_files_is_refused_and_kept(tool: ModuleType, short_path: Path):
    (short_path / "thesis.tex").touch()
    with pytest.raises(tool.Refusal, match="not empty"):
        tool.refuse_folder(short_path)
    with pytest.raises(tool.Refusal, match="letters, digits"):
        tool.refuse_folder(Path("/a folder"))
    with pytest.raises(tool.Refusal, match="letters, digits"):
        tool.refuse_folder(Path("/" + 80 * "x"))
    assert (short_path / "thesis.tex").exists()


def test_a_network_that_is_in_use_is_left_alone(tool: ModuleType, monkeypatch: pytest.MonkeyPatch):
    routes = [{"dst": "default"}, {"dst": "10.77.0.0/16"}, {"dst": "10.78.0.9"}, {"dst": "192.168.0.0/24"}]
    monkeypatch.setattr(tool, "call", lambda *words: json.dumps(routes))
    assert tool.free_network() == "10.79.0"


# ------------------------------------------------------------------ whom it ends


def test_a_process_that_was_given_the_id_of_ours_is_not_signalled(
    tool: ModuleType, sleeper: subprocess.Popen[bytes]
):
    other = written_down(tool, sleeper, later=-1)
    assert not other.alive()
    other.send(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)


def test_a_process_that_is_ours_is_signalled_and_is_dead_before_it_is_reaped(
    tool: ModuleType, sleeper: subprocess.Popen[bytes]
):
    ours = written_down(tool, sleeper)
    assert ours.alive()
    ours.send(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not ours.alive()
    sleeper.wait()
    ours.send(signal.SIGKILL)  # nobody


def test_nothing_in_our_own_namespaces_is_killed(
    tool: ModuleType, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tool, "pids", lambda: [sleeper.pid])
    tool.kill_inside(written_down(tool, sleeper), set())
    assert sleeper.poll() is None


# ------------------------------------------------------------------ what is written down


def test_what_is_written_down_is_read_back_and_no_id_is_ours_after_a_reboot(
    tool: ModuleType, sleeper: subprocess.Popen[bytes], tmp_path: Path
):
    values = dict(nodes=2, cpus=8, gpus=2, accounting=True, network="10.77.0")
    cluster = tool.Cluster(tmp_path, **values)
    cluster.processes["slurmd-n1"] = written_down(tool, sleeper)
    cluster.save()
    again = tool.Cluster.load(tmp_path)
    assert again == cluster
    assert again.alive() == [cluster.processes["slurmd-n1"]]
    earlier = tool.Cluster(tmp_path, **values, boot="another boot", processes=cluster.processes)
    assert earlier.alive() == []
