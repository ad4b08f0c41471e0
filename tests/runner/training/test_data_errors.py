"""What is wrong with files is told in a sentence, not by a traceback; what of them was in the page cache."""

import dataclasses
import os
import shlex
from pathlib import Path

import pytest
from asking import code_of
from pictures import cats_and_dogs  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.datasets.atomic_files import BadFile
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import BadImage
from daso_bench.datasets.verification import SAMPLED
from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import data_of
from daso_bench.runner.machine.page_cache import drop
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.training.data_errors import data_errors, file_errors
from daso_bench.strategies.errors import ConfigError, MachineError

IMAGES = (
    *("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8", "model=mlp"),
    *("train.global_batch_size=8", "train.epochs=1"),
)
RUN = (
    *IMAGES,
    *("launcher=simulated", "cluster=ethernet_1g", "cluster.nodes=2", "cluster.ranks_per_node=1"),
)


def test_evaluate_names_a_bad_image_a_vanished_one_and_a_set_that_is_gone(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(RUN) == 0
    (folder,) = Path("results/runs").resolve().glob("*-s0-*")
    image = ImageFolder(root="imgs").load().test.path(0)  # pyright: ignore
    messages = []
    for spoil in (
        lambda: Path(image).write_bytes(b""),
        Path(image).unlink,
        lambda: images.rename("elsewhere"),
    ):
        spoil()
        capsys.readouterr()
        assert code_of("evaluate", str(folder)) == 2
        messages.append(capsys.readouterr().err)
    way = "daso-bench prepare dataset=imagefolder dataset.root="
    assert f"{image}: empty (0 bytes)" in messages[0]
    assert f"{image}: No such file or directory" in messages[1]
    assert "not prepared with these keys" in messages[2]
    assert all(way in text and "Traceback" not in text for text in messages)


def test_a_bad_file_in_training_is_a_sentence_with_a_way_out_and_no_resume_is_offered(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = images / "cats" / "5.png"
    bad.write_bytes(bad.read_bytes()[:40].ljust(70, b"\0"))
    keys = ["dataset.check=none", "dataset.prepared=kept", "dataset.holdout=0.2"]
    keys.append("dataset.std=[0.2,0.2,0.2]")
    assert run([*RUN, *keys]) == 2
    shown = capsys.readouterr().out
    (folder,) = Path("results/runs").resolve().iterdir()
    messages = RunDirectory(folder).status()["reason"]
    assert "Traceback" not in shown
    assert "daso-bench resume" not in shown
    assert f"BadData: {bad}: " in messages
    way = shlex.split(messages.partition("daso-bench prepare ")[2])
    assert way == [
        "dataset=imagefolder",
        f"dataset.root={images}",
        f"dataset.prepared={images.parent / 'kept'}",
        *("dataset.std=[0.2,0.2,0.2]", "dataset.resize=8", "dataset.crop=8", "dataset.holdout=0.2"),
        "dataset.check=decode",
    ]
    with pytest.raises(ConfigError, match=r"1 of 24 files are bad(.|\n)*cats/5\.png"):
        run(["prepare", *way])


def test_text_in_the_way_out_is_quoted_where_the_grammar_wants_it() -> None:
    dataset = ImageFolder(root="my imgs", prepared="a,b größe")
    with pytest.raises(ConfigError) as raised, file_errors(dataset):
        raise BadImage("a.jpg", "empty")
    _, _, words = str(raised.value).partition("daso-bench prepare ")
    chosen, _ = data_of(shlex.split(words), cwd=Path("/"))
    assert chosen == dataclasses.replace(dataset, root="/my imgs", prepared="/a,b größe", check="decode")


def test_each_kind_of_trouble_has_its_error() -> None:
    """A value error is the user's only where nothing but the data set's code runs."""
    dataset = ImageFolder(root="imgs")
    for trouble, of_files, of_data in (
        (BadImage("a.jpg", "empty"), ConfigError, ConfigError),
        (FileNotFoundError("not there"), ConfigError, ConfigError),
        (BadFile("cut short"), ConfigError, ConfigError),
        (PermissionError("not allowed"), MachineError, MachineError),
        (KeyError("a fault of ours"), KeyError, KeyError),
        (ValueError("no such augment"), ValueError, ConfigError),
    ):
        for telling, kind in ((file_errors, of_files), (data_errors, of_data)):
            with pytest.raises(kind) as raised, telling(dataset):
                raise trouble
            assert kind is not ValueError or raised.value is trouble


# ------------------------------------------------------------------ the page cache


UNCHECKED = (
    *IMAGES,
    *("dataset.check=none", "dataset.std=[0.2,0.2,0.2]", "dataset.holdout=0.2"),
    *("cluster.nodes=1", "cluster.ranks_per_node=2"),
)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system does not tell")
def test_the_start_row_has_the_share_of_files_in_the_cache_in_real_time_alone(here: Path) -> None:
    cats_and_dogs(here / "imgs", 80)

    def recorded(study: str, *words: str) -> float | None:
        assert run([*UNCHECKED, *words, f"study.name={study}"]) == 0
        (folder,) = (here / "results" / study).glob("*-s0-*")
        (start,) = [row for row in read_records(folder / "metrics.jsonl").rows if row["kind"] == "start"]
        return start.get("still_cached")

    assert recorded("virtual", "launcher=simulated", "cluster=ethernet_1g") is None
    assert recorded("warm", "launcher=local", "cluster=laptop") == 1
    for path in here.glob("imgs/*/*.png"):
        drop(path)
    # The check of the data set before a run reads some of the files again; not all of them are trained on.
    assert recorded("cold", "launcher=local", "cluster=laptop") == pytest.approx(SAMPLED / 160, abs=0.1)
