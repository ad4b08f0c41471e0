"""`prepare` with a reader, and what a run says that finds no file of its reader."""

from pathlib import Path

import pytest
from asking import code_of
from pictures import cats_and_dogs, plain, put  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import requests
from daso_bench.runner.records.display import make_console
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.studies.prepare_data import Preparation
from daso_bench.strategies.errors import ConfigError

FOLDER = ("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8")
BATCH = "train.global_batch_size=8"


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of 12 images in imgs/ of the folder in which the user stands."""
    monkeypatch.chdir(tmp_path)
    return cats_and_dogs(tmp_path / "imgs")


def test_prepare_packs_once_beside_what_is_known_of_the_files(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prepare", *FOLDER, "reader=node_batch"]) == 0
    shown = capsys.readouterr().out
    assert "packed: 20 training samples (image file, 0.0 MB, shuffle_seed 0) in" in shown
    (file,) = (images / ".daso-bench").glob("*.packed")
    assert file.name.endswith("-shuffled0.packed")
    assert run(["prepare", *FOLDER, "reader=chunked_shuffle", "dataset.augment=flip"]) == 0
    assert "packed before: 20 training samples" in capsys.readouterr().out
    assert run(["prepare", *FOLDER]) == 0
    assert "packed" not in capsys.readouterr().out


def test_a_run_without_the_file_says_what_to_type_and_starts_nothing(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FOLDER, "reader=block", "launcher=simulated", "cluster=slow_link", BATCH]
    assert code_of(*words, "train.epochs=1") == 2
    shown = capsys.readouterr().err
    assert "reader=block: there is no file" in shown
    assert f"daso-bench prepare dataset=imagefolder reader=block dataset.root={images}" in shown
    assert not list(Path("results").glob("**/ranks/*"))


def test_a_dry_run_refuses_a_file_that_is_not_there_or_of_another_order(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = [*FOLDER, "reader=node_batch", "reader.path=packed"]
    words = ["--dry-run", BATCH, *packed]
    assert run(words) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "would refuse: reader=node_batch: there is no file" in shown
    assert "make it: daso-bench prepare dataset=imagefolder reader=node_batch" in shown
    assert run(["prepare", *packed]) == 0
    capsys.readouterr()
    assert run(words) == 0
    assert "would run" in " ".join(capsys.readouterr().out.split())
    assert run([*words, "reader.shuffle_seed=3"]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "its shuffle_seed is 0, and must be 3; make the file again: " in shown
    assert run([*words[:-2], "reader=chunked_shuffle", "reader.path=packed", "cluster.nodes=2"]) == 2
    assert "2 nodes need 8" in " ".join(capsys.readouterr().out.split())


def test_a_run_records_which_file_it_has_and_takes_none_of_other_samples(images: Path) -> None:
    assert run(["prepare", *FOLDER, "reader=block"]) == 0
    (request,) = requests([*FOLDER, "reader=block", BATCH], sweep=False, cwd=Path.cwd())
    assert request.config is not None
    directory = RunDirectory.create(request.config.tree, Path.cwd())
    Preparation(make_console()).record(directory, request.config)
    packed = read_json(directory.path / "data.json")["packed"]
    assert (packed["records"], packed["encoding"], packed["shuffle_seed"]) == (20, "image file", 0)
    put(images / "cats" / "3.png", plain(7))
    again = r"its digest of the samples is \w+, and must be \w+; make the file again: daso-bench prepare"
    with pytest.raises(ConfigError, match=again):
        Preparation(make_console()).check(request.config)


def test_prepare_takes_no_other_words(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("prepare", *FOLDER, "model=mlp") == 2
    assert "model=mlp: must be dataset=NAME or dataset.KEY=VALUE or reader=NAME or" in capsys.readouterr().err
