"""Files of a folder in one order on every system; what is held out of train, the same whatever the order."""

import contextlib
import http.client
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets import verification
from daso_bench.datasets.atomic_files import LOCK, TEMPORARY, locked, replacing, scratch
from daso_bench.datasets.downloads import fetching
from daso_bench.datasets.listing import File, folders_in, hold_out, images_below, natural
from daso_bench.datasets.verification import HEAD, PIECE, digest_of_files, sample_of


def test_numbers_in_names_count_by_their_value() -> None:
    names = ["b.jpg", "10.jpg", "2.jpg", "a10b2.jpg", "a10b10.jpg", "a2.jpg", "02.jpg", "²3.jpg"]
    wanted = ["02.jpg", "2.jpg", "10.jpg", "a2.jpg", "a10b2.jpg", "a10b10.jpg", "b.jpg", "²3.jpg"]
    for listed in (names, names[::-1], sorted(names)):
        assert sorted(listed, key=natural) == wanted


def test_hidden_names_and_clutter_are_not_looked_at(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "cats", "__MACOSX", "Dogs"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.jpg").touch()
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert folders_in(str(tmp_path)) == ["Dogs", "cats"]


def test_images_are_found_at_any_depth_and_other_files_counted(tmp_path: Path) -> None:
    """Links are followed; one to nowhere is listed, and a name that is no UTF-8 is kept."""
    names = (
        "10.JPG",
        "2.jpeg",
        "deep/er/1.png",
        "notes.txt",
        "README",
        "._2.jpeg",
        "Thumbs.db",
        ".git/x.jpg",
    )
    for name in names:
        path = tmp_path / "cats" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    (tmp_path / "elsewhere").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/elsewhere/\xff1.jpg")).write_bytes(b"123")
    (tmp_path / "cats" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cats" / "gone.jpg").symlink_to(tmp_path / "nothing")
    others: Counter[str] = Counter()
    files = images_below(str(tmp_path), "cats", 7, others)
    assert [os.fsencode(file.path) for file in files] == [
        b"cats/2.jpeg",
        b"cats/10.JPG",
        b"cats/deep/er/1.png",
        b"cats/gone.jpg",
        b"cats/link/\xff1.jpg",
    ]
    assert [(file.label, file.size) for file in files[:3]] == [(7, 3)] * 3
    assert others == {".txt": 1, "no suffix": 1}


# ------------------------------------------------------------------ held out of train


def held_out(files: list[File], count: int, *names: str) -> dict[str, list[File]]:
    """`count` of each class, drawn by their paths as they are."""
    return hold_out(files, lambda samples: count, names=names, drawn_as=lambda path: path)


def files_of(sizes: list[int]) -> list[File]:
    return [File(f"{label}/{n}.jpg", label, 1, 1) for label, size in enumerate(sizes) for n in range(size)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 20))
def test_each_class_gives_its_part_and_keeps_an_image(sizes: list[int], count: int) -> None:
    files = files_of(sizes)
    splits = held_out(files, count, "validation", "test")
    assert sorted(file.path for split in splits.values() for file in split) == sorted(f.path for f in files)
    for label, size in enumerate(sizes):
        counts = {name: sum(file.label == label for file in split) for name, split in splits.items()}
        assert counts["train"] >= 1
        assert counts["validation"] == counts["test"] == min(count, (size - 1) // 2)


def test_the_order_of_listing_does_not_matter_and_a_new_file_moves_few_others() -> None:
    files = files_of([100])
    drawn = {file.path for file in held_out(files, 10, "test")["test"]}
    shuffled = random.Random(1).sample(files, len(files))
    assert {file.path for file in held_out(shuffled, 10, "test")["test"]} == drawn
    after = held_out([*files, File("0/new.jpg", 0, 1, 1)], 10, "test")["test"]
    assert len(drawn & {file.path for file in after}) >= 9


def test_the_draw_is_frozen_and_follows_from_what_files_are_drawn_as() -> None:
    """Other files here are other splits than those of published numbers."""
    for prefix in ("", "deep/down/"):
        files = [File(f"{prefix}{file.path}", 0, 1, 1) for file in files_of([20])]
        splits = hold_out(
            files,
            lambda samples: 4,
            names=["validation", "test"],
            drawn_as=lambda path, prefix=prefix: path.removeprefix(prefix),
        )
        assert [file.path for file in splits["validation"]] == [f"{prefix}0/{n}.jpg" for n in (1, 2, 6, 18)]
        assert [file.path for file in splits["test"]] == [f"{prefix}0/{n}.jpg" for n in (7, 14, 16, 17)]


def written(root: Path, contents: Mapping[str, bytes | bytearray]) -> str:
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return digest_of_files(str(root), list(contents))


@pytest.mark.parametrize("place", [0, HEAD - 1, 3 * HEAD - 1, 3 * HEAD - PIECE])
def test_a_changed_byte_at_the_begin_or_the_end_changes_the_digest(tmp_path: Path, place: int) -> None:
    content = bytearray(os.urandom(3 * HEAD))
    before = written(tmp_path, {"a": content, "b": b"small"})
    assert written(tmp_path, {"a": content, "b": b"small"}) == before
    content[place] ^= 1
    assert written(tmp_path, {"a": content, "b": b"small"}) != before


def test_little_is_read_of_many_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "FIRST_BYTES", 8 * PIECE)
    content = bytearray(os.urandom(HEAD))
    before = written(tmp_path, {str(number): content for number in range(4)})
    content[2 * PIECE] ^= 1  # behind the 4 KiB that are left for each of four files
    unread = written(tmp_path, {str(number): content for number in range(4)}) == before
    content[PIECE] ^= 1
    assert written(tmp_path, {str(number): content for number in range(4)}) != before
    assert unread


def test_what_is_no_file_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert digest_of_files(str(tmp_path), ["pipe", "missing"]) == digest_of_files(str(tmp_path), ["x", "y"])


def test_a_sample_is_spread_over_all_files() -> None:
    paths = [str(number) for number in range(6400)]
    assert sample_of(paths) == [str(100 * number) for number in range(64)]
    assert sample_of(paths[:3]) == ["0", "1", "2"]
    assert sample_of([]) == []


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


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("File not found or corrupted."),
        OSError("<urlopen error [Errno -2] Name or service not known>"),
        http.client.BadStatusLine("<html>please\nlog in</html>"),
        ValueError("Invalid IPv6 URL"),
        TimeoutError(),
    ],
    ids=["corrupted", "no network", "no HTTP", "malformed address", "no answer"],
)
def test_a_failed_download_is_one_message(error: Exception) -> None:
    message = r"^Title could not be fetched \(.+\): elsewhere$"
    with pytest.raises(ConnectionError, match=message), fetching("Title", "elsewhere"):
        raise error


def test_what_is_no_failure_of_a_download_is_passed_on() -> None:
    with pytest.raises(TypeError, match="a fault of ours"), fetching("Title", "elsewhere"):
        raise TypeError("a fault of ours")
