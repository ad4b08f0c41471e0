"""Checkpoints: atomic, verified, never executed, and no loss on a full disk."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from daso_bench.runner.training import checkpoint
from daso_bench.strategies.errors import ConfigError, MachineError


def save(folder: Path, step: int, value: float = 1.0) -> Path:
    state = {"x": torch.full((3,), value), "n": step, "list": [1, None, "a"], "nested": {"t": torch.zeros(0)}}
    return checkpoint.save(folder, step, 0, state, {"model": {"w": torch.ones(2)}}, lambda: None, 1)


def test_what_was_written_comes_back(tmp_path: Path):
    path = save(tmp_path, 7, 0.1)
    state = checkpoint.read(path / "rank_0.pt")
    assert torch.equal(state["x"], torch.full((3,), 0.1))
    assert (state["n"], state["list"]) == (7, [1, None, "a"])
    assert checkpoint.newest_valid(tmp_path) == (path, [])
    assert checkpoint.verify(path)["step"] == 7


def test_the_two_newest_are_kept(tmp_path: Path):
    for step in (1, 2, 30, 4):
        save(tmp_path, step)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["step_0000000030", "step_0000000004"]


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("rank_0.pt", halve, "bytes"),
        ("rank_0.pt", flip, "changed"),
        ("model.pt", Path.unlink, "is missing"),
        ("rank_0.pt", lambda file: file.write_bytes(b""), "has 0 bytes"),
        ("manifest.json", halve, "missing or damaged"),
        ("manifest.json", Path.unlink, "missing or damaged"),
        ("manifest.json", lambda file: file.write_text("[]"), "missing or damaged"),
    ],
)
def test_a_damaged_newest_one_is_named_and_the_one_before_is_used(tmp_path: Path, name, damage, words):
    before = save(tmp_path, 1)
    victim = save(tmp_path, 2) / name
    damage(victim)
    path, sentences = checkpoint.newest_valid(tmp_path)
    assert path == before
    assert len(sentences) == 1
    assert str(victim) in sentences[0]
    assert words in sentences[0]


def test_a_checkpoint_from_elsewhere_does_not_follow_the_one_beside_it(tmp_path: Path):
    own = save(tmp_path / "own", 1)
    save(tmp_path / "other", 1, 2.0)
    shutil.copytree(save(tmp_path / "other", 2), tmp_path / "own" / "step_0000000002")
    path, sentences = checkpoint.newest_valid(tmp_path / "own")
    assert path == own
    assert len(sentences) == 1
    assert sentences[0].endswith("step_0000000002: does not follow step_0000000001, which lies beside it")


@pytest.mark.parametrize("damage", [halve, Path.unlink])
def test_a_lost_older_manifest_leaves_the_newer_checkpoint_whole(tmp_path: Path, damage):
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    damage(older / "manifest.json")
    assert checkpoint.newest_valid(tmp_path) == (newer, [])
    assert checkpoint.newest_valid(tmp_path) == (save(tmp_path, 2, 3.0), []), "saved again"


def test_nothing_whole_is_nothing(tmp_path: Path):
    halve(save(tmp_path, 1) / "model.pt")
    (tmp_path / ".partial_step_0000000009").mkdir()
    (tmp_path / "step_notanumber").mkdir()
    path, sentences = checkpoint.newest_valid(tmp_path)
    assert path is None
    assert len(sentences) == 1
    assert checkpoint.newest_valid(tmp_path / "absent") == (None, [])


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_code_in_a_file_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "evil.pt"
    torch.save({"x": Evil()}, file)
    raw = tmp_path / "raw.pt"
    raw.write_bytes(pickle.dumps(Evil()))
    for victim in (file, raw):
        with pytest.raises(ConfigError, match=f"{victim.name}: cannot be read"):
            checkpoint.read(victim)
    assert not (tmp_path / "executed").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's always-full device")
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path):
    before = save(tmp_path, 1)
    partial = tmp_path / ".partial_step_0000000002"

    def fill() -> None:
        target = partial / "rank_0.pt"
        if partial.is_dir() and not target.is_symlink() and not target.exists():
            target.symlink_to("/dev/full")

    with pytest.raises(
        MachineError, match=r"rank_0\.pt: cannot be saved .*free space, then `daso-bench resume`"
    ):
        checkpoint.save(tmp_path, 2, 0, {"x": torch.zeros(10_000)}, {}, fill, 1)
    assert checkpoint.newest_valid(tmp_path) == (before, [])


def test_the_final_model_stays_and_resume_states_go(tmp_path: Path):
    save(tmp_path, 3)
    checkpoint.save_final(tmp_path, {"model": {"w": torch.ones(1)}})
    assert checkpoint.complete(tmp_path), "a kill before the run is known to be finished can still resume"
    checkpoint.drop_resume_states(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert checkpoint.read(tmp_path / "final" / "model.pt")["model"]["w"].item() == 1
