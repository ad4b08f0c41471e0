"""One process at a time, and nothing that looks complete from one that was killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daso_bench.datasets.atomic_files import LOCK, TEMPORARY, locked, replacing, scratch

HOLD = """
import sys, time, pathlib
from daso_bench.datasets.atomic_files import locked, scratch
with locked(pathlib.Path(sys.argv[1])), scratch(pathlib.Path(sys.argv[1])) as temporary:
    (temporary / "half").write_text("half")
    print("holds", flush=True)
    time.sleep(60)
"""


ONCE = """
import sys, time, pathlib
from daso_bench.datasets.atomic_files import locked, replacing
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
    outputs = [process.communicate()[0] for process in both]
    assert sorted(outputs) == ["", "made\n"]
    assert (tmp_path / "made").read_text() == "ab"[outputs.index("made\n")]
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
    with replacing(path) as temporary, scratch(tmp_path) as folder:
        assert folder.parent == tmp_path
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path / 'file'}: is no"), locked(tmp_path / "file"):
        pass
    folders = [Path("/proc/nothing"), tmp_path / "file" / "below"]
    if os.geteuid() != 0:  # root may write everywhere
        (tmp_path / "shut").mkdir(mode=0o500)
        folders.append(tmp_path / "shut")
    for folder in folders:
        with pytest.raises(OSError, match=f"^{folder}: cannot be written"), locked(folder):
            pass
