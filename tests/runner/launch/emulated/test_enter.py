"""Ranks in their nodes: only the network is another one. As this user (root too), and as an ordinary one."""

import json
import os
import sys
from pathlib import Path

import pytest
from people import HERE, Person

from daso_bench.runner.launch.emulated.namespaces import NodeEntry, enter
from daso_bench.strategies.errors import MachineError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def test_a_rank_in_its_node_keeps_files_memory_statistics_and_its_tie_to_the_forkserver(person: Person):
    rows = json.loads(person.run("inside.py", str(person.folder)))
    for row in rows:
        assert row["uid"] == 0
        assert row["interfaces"] == ["e0", "f0", "lo"]
        assert row["tied"] == ["SIGKILL", "SIGKILL"]
        assert row["tied_again"] == "SIGKILL"
        assert set(row["schedstat"]) == {3}
        assert row["watched"]
        written = person.folder / f"rank_{row['rank']}"
        assert written.read_text() == "written"
        assert written.stat().st_uid == person.uid
        assert "cannot be entered (Invalid argument)" in row["again"]
    assert rows[0]["memory"] == 7.0
    assert rows[0]["peers"] == ["10.99.0.1", "10.99.0.2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root's power over others' files")
def test_root_in_a_node_still_writes_into_folders_of_other_users(tmp_path: Path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, 12345)
    with_root = Person((sys.executable,), folder, HERE, 0)
    with_root.run("inside.py", str(folder))
    assert (folder / "rank_0").stat().st_uid == 0


def test_a_node_that_is_gone_is_told_with_its_path():
    gone = NodeEntry("/proc/1/ns/nothing", "/proc/1/fd/nothing", "10.99.0.1", "e0", "f0")
    with pytest.raises(MachineError, match=r"/proc/1/ns/nothing: .*No such file.*ended"):
        enter(gone)
