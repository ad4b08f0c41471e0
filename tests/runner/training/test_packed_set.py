"""The file of a data set is written whole and once, and another is refused; `prepare`, and the studies."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import plain, put  # pyright: ignore[reportMissingImports] (another folder of tests)
from runs import Blobs

from daso_bench.datasets.atomic_files import TEMPORARY
from daso_bench.datasets.dataset import silent
from daso_bench.datasets.fashion_mnist import FashionMNIST
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.reader_config import NodeBatch, PackedReader
from daso_bench.runner.records.display import make_console
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.studies.prepare_data import Preparation
from daso_bench.runner.training.packed_set import file_of, open_set, write_set
from daso_bench.strategies.errors import ConfigError


@pytest.fixture
def reader(tmp_path: Path) -> NodeBatch:
    """A reader of a file that is of `Blobs()`."""
    made = NodeBatch(path=str(tmp_path / "blobs.packed"))
    assert write_set(Blobs(), made, Blobs().load(), silent)
    return made


def test_the_file_holds_each_sample_in_the_order_that_the_seed_says(reader: NodeBatch) -> None:
    data = Blobs().load()
    opened = open_set(Blobs(), reader, data)
    order = opened.order
    assert sorted(order.tolist()) == list(range(96))
    assert order.tolist() != list(range(96))
    content = bytearray(opened.packed.size_of(0, 96))
    opened.packed.read(0, 96, memoryview(content))
    images = torch.from_numpy(np.frombuffer(content, dtype=np.float32).copy()).view(96, 1, 4, 4)
    expected, labels = data.train.batch(order)
    assert torch.equal(images, expected), "of blobs mean and std are 0 and 1"
    assert opened.packed.labels.tolist() == labels.tolist()
    about = opened.about()
    opened.packed.close()
    assert (about["records"], about["bytes"], about["encoding"]) == (96, 96 * 64, "float32")


def test_a_file_that_is_there_is_left_alone_and_what_a_killed_process_left_is_removed(
    reader: NodeBatch, tmp_path: Path
) -> None:
    path = Path(reader.path)
    before = path.stat().st_mtime_ns
    assert not write_set(Blobs(), reader, Blobs().load(), silent)
    assert path.stat().st_mtime_ns == before
    path.unlink()
    (tmp_path / f"{TEMPORARY}x").write_bytes(b"half of it")
    assert write_set(Blobs(), reader, Blobs().load(), silent)
    assert [entry.name for entry in tmp_path.iterdir() if "lock" not in entry.name] == ["blobs.packed"]


class OtherBlobs(Blobs):
    name = "other"


AGAIN = r"daso-bench prepare dataset=blobs reader=node_batch reader\.path=.*blobs\.packed"


def test_no_file_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    missing = NodeBatch(path=str(tmp_path / "no.packed"), shuffle_seed=3)
    with pytest.raises(
        ConfigError, match=r"^reader=node_batch: there is no file .*no\.packed; make it: "
    ) as e:
        open_set(Blobs(), missing, Blobs().load())
    assert str(e.value).endswith("reader.shuffle_seed=3 (and the run's other dataset keys)")


@pytest.mark.parametrize(
    ("dataset", "keys", "difference", "replaced"),
    [
        (OtherBlobs(), {}, "its name is blobs, and must be other", False),
        (Blobs(samples=80), {}, "its number of samples is 96, and must be 80", True),
        (Blobs(), {"shuffle_seed": 1}, "its shuffle_seed is 0, and must be 1", False),
        (Blobs(), {"shuffle_seed": None}, "its shuffle_seed is 0, and must be None", False),
    ],
    ids=["set", "size", "order", "unshuffled"],
)
def test_the_file_of_another_set_or_order_is_refused_and_not_written_over(
    reader: NodeBatch, dataset: Blobs, keys: dict[str, Any], difference: str, replaced: bool
) -> None:
    other, path = replace(reader, **keys), re.escape(reader.path)
    with pytest.raises(ConfigError, match=rf"^{path}: {difference}; make the file again: daso"):
        open_set(dataset, other, dataset.load())
    if replaced:  # a new file of the same set and order replaces it
        return
    before = Path(reader.path).read_bytes()
    held = "is the packed file of blobs, shuffle_seed 0"
    with pytest.raises(ConfigError, match=rf"^{path}: {held}; delete it or take another reader"):
        write_set(dataset, other, dataset.load(), silent)
    assert Path(reader.path).read_bytes() == before


def test_the_file_of_samples_that_have_changed_is_refused_and_written_anew(reader: NodeBatch) -> None:
    data = Blobs().load()
    data.train.images[17] += 1  # pyright: ignore[reportAttributeAccessIssue] (a Split)
    with pytest.raises(ConfigError, match=rf"its digest of the samples is .*{AGAIN}"):
        open_set(Blobs(), reader, data)
    assert write_set(Blobs(), reader, data, silent)
    open_set(Blobs(), reader, data).packed.close()


def test_a_damaged_file_is_named_with_the_command_that_makes_it_again(reader: NodeBatch) -> None:
    path = Path(reader.path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"is no packed file, or cut short; .*{AGAIN}"):
        open_set(Blobs(), reader, Blobs().load())


def test_a_file_with_a_damaged_record_is_written_anew(reader: NodeBatch) -> None:
    path = Path(reader.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"?" + whole[101:])
    open_set(Blobs(), reader, Blobs().load()).packed.close()  # nothing was read of it yet
    assert write_set(Blobs(), reader, Blobs().load(), silent)
    assert path.read_bytes() == whole


def test_what_is_no_packed_file_is_not_written_over_and_an_empty_file_is(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("notes")
    with pytest.raises(
        ConfigError, match=r"precious\.txt: is no packed file, or cut short; delete it or take another"
    ):
        write_set(Blobs(), NodeBatch(path=str(path)), Blobs().load(), silent)
    assert path.read_text() == "notes"
    for name, make in (("folder", os.mkdir), ("pipe", os.mkfifo)):
        make(tmp_path / name)
        taken = NodeBatch(path=str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"{name}: is no regular file; delete it or take another"):
            write_set(Blobs(), taken, Blobs().load(), silent)
    (tmp_path / "empty").touch()
    assert write_set(Blobs(), NodeBatch(path=str(tmp_path / "empty")), Blobs().load(), silent)


def test_the_file_lies_with_the_data_one_for_each_order(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    folder = tmp_path / "data" / ".daso-bench"
    assert file_of(FashionMNIST(root=root), NodeBatch()) == folder / "fashion_mnist-shuffled0.packed"
    unshuffled = NodeBatch(shuffle_seed=None)
    assert file_of(FashionMNIST(root=root), unshuffled) == folder / "fashion_mnist-unshuffled.packed"
    images = ImageFolder(root=root)
    assert file_of(images, NodeBatch()) == folder / f"{images.manifest_file.stem}-shuffled0.packed"
    elsewhere = ImageFolder(root=root, prepared=str(tmp_path / "kept"))
    assert file_of(elsewhere, NodeBatch()).parent == tmp_path / "kept"
    assert file_of(Blobs(), NodeBatch(path="/x")) == Path("/x")
    with pytest.raises(ConfigError, match=r"^reader=node_batch: blobs has no folder .*: reader\.path=FILE$"):
        NodeBatch().check_place(Blobs())


# ------------------------------------------------------------------ `prepare` with a reader


FOLDER = ("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8")
BATCH = "train.global_batch_size=8"


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


# ------------------------------------------------------------------ the studies of readers


def test_arms_differ_in_the_reader_alone_and_sizes_in_the_cache(tmp_path: Path) -> None:
    wanted = requests(["+study=paper_hsgd_readers", "seed=0"], sweep=True, cwd=tmp_path)
    configs = [request.config for request in wanted if request.config is not None]
    assert len(configs) == len(wanted) == 8
    for cfg in configs:
        assert isinstance(cfg.reader, PackedReader)
        assert cfg.reader.cold == (cfg.study.size == "cold")
        assert cfg.study.arm.startswith(cfg.reader.name)
    assert (
        len({(cfg.strategy, repr(cfg.model), cfg.dataset, cfg.train, cfg.launcher) for cfg in configs}) == 1
    )
    assert len({cfg.reader.name for cfg in configs}) == 4
