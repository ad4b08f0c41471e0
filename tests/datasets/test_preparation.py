"""One process at a time, and nothing that looks complete from one that was killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from daso_bench.datasets.preparation import LOCK, TEMPORARY, locked, replacing, scratch

HOLD = """
import sys, time, pathlib
from daso_bench.datasets.preparation import locked, scratch
with locked(pathlib.Path(sys.argv[1])), scratch(pathlib.Path(sys.argv[1])) as temporary:
    (temporary / "half").write_text("half")
    print("holds", flush=True)
    time.sleep(60)
"""


ONCE = """
import sys, time, pathlib
from daso_bench.datasets.preparation import locked, replacing
folder = pathlib.Path(sys.argv[1])
with locked(folder):
    if not (folder / "made").exists():
        time.sleep(0.3)
        with replacing(folder / "made") as temporary:
            temporary.write_text(sys.argv[2])
        print("made", flush=True)
"""


def test_of_two_processes_at_once_one_works_and_the_other_finds_it_done(tmp_path: Path) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", ONCE, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    told = [process.communicate()[0] for process in both]
    assert sorted(told) == ["", "made\n"]
    assert (tmp_path / "made").read_text() == "ab"[told.index("made\n")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "made"]


def test_a_killed_process_gives_up_the_lock_and_its_leftovers_are_removed(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "holds\n"
        left = [path for path in tmp_path.iterdir() if path.name.startswith(TEMPORARY)]
        assert (left[0] / "half").exists()
        other.send_signal(signal.SIGKILL)
        with locked(tmp_path):
            assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_a_file_takes_its_name_when_it_is_complete_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "made"
    path.write_text("old")
    with contextlib.suppress(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_folder_is_on_the_same_file_system_and_goes_away(tmp_path: Path) -> None:
    with scratch(tmp_path) as temporary:
        assert temporary.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=f"{tmp_path}: cannot be written"), locked(tmp_path):
        pass


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path / 'file'}: is no"), locked(tmp_path / "file"):
        pass


def test_a_failure_leaves_no_folder_that_was_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), locked(tmp_path / "a" / "b"):
        raise ConnectionError("no network")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_what_was_there_and_what_came(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()

    def fail_halfway(folder: Path) -> None:
        with locked(folder):
            (folder / "came").touch()
            raise ConnectionError("no network")

    for folder in (tmp_path / "there", tmp_path / "new"):
        with pytest.raises(ConnectionError):
            fail_halfway(folder)
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["came", "mine"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["came"]


def test_who_waited_for_one_that_failed_is_alone_too(tmp_path: Path) -> None:
    """Its lock file is gone with the failure: a third process must not get another one beside it."""
    folder = tmp_path / "data"
    alone: list[bool] = []
    inside: list[int] = []

    def wait_and_hold(number: int) -> None:
        with locked(folder):
            inside.append(number)
            time.sleep(0.1)
            alone.append(inside == [number])
            inside.remove(number)

    threads = [threading.Thread(target=wait_and_hold, args=(number,)) for number in range(4)]
    with contextlib.suppress(ConnectionError), locked(folder):
        threads[0].start()
        threads[1].start()
        time.sleep(0.2)  # both wait for this file now
        raise ConnectionError("no network")
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone == [True] * 4
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    for folder in (Path("/proc/nothing"), tmp_path / "afile" / "below"):
        (tmp_path / "afile").touch()
        with pytest.raises(OSError, match=f"^{folder}: cannot be written"), locked(folder):
            pass
