"""A data set of a user's own needs `load` alone; what is no data set is refused in a sentence."""

import sys
from pathlib import Path

import pytest
import torch

from daso_bench.datasets.data import Data, Split
from daso_bench.datasets.dataset import Dataset, DatasetInfo
from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import dataset_of
from daso_bench.strategies.errors import ConfigError


class Least(Dataset):
    """No more than has to be written."""

    def load(self) -> Data:
        split = Split(images=torch.zeros(4, 1, 2, 2), labels=torch.arange(4) % 2, mean=(0.0,), std=(1.0,))
        return Data(name=self.name, classes=2, shape=(1, 2, 2), train=split, validation=split, test=split)


def test_all_but_load_has_a_default() -> None:
    least = Least()
    least.prepare(lambda done, total: pytest.fail("it has no files"))
    assert (least.name, least.task, least.info()) == (
        "test_dataset",
        "classification",
        DatasetInfo(shape=None, classes=None, samples=None),
    )
    assert (least.about(), least.folder(), least.beside()) == (None, None, None)
    assert least.downloading() is least


class NoDataset:
    def load(self) -> None: ...


class Unfinished(Dataset):
    pass


@pytest.mark.parametrize("name", ["NoDataset", "Unfinished"])
def test_what_is_no_data_set_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    says = rf"^dataset\._target_=.*{name}: must be a subclass of daso_bench\.datasets\.dataset\.Dataset "
    with pytest.raises(ConfigError, match=says):
        dataset_of({"dataset": {"_target_": f"mine.{name}"}}, tmp_path)


MINE = '''"""Mine."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from daso_bench.datasets.data import Data, Split
from daso_bench.datasets.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Mine(Dataset):
    samples: int = 64

    def __post_init__(self):
        if self.samples < 1:
            raise ValueError(f"dataset.samples={self.samples}: must be >= 1")

    def load(self):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(self.samples, 1, 4, 4, generator=generator)
        split = Split(images=images, labels=torch.arange(self.samples) % 2, mean=(0.0,), std=(1.0,))
        return Data(name=self.name, classes=2, shape=(1, 4, 4), train=split, validation=split, test=split)
'''


def test_a_data_set_outside_of_the_repository_is_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_data.py").write_text(MINE)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "mine.yaml").write_text("# mine\n_target_: my_data.Mine\nsamples: 64\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--config-dir", f"{tmp_path}/conf", "dataset=mine", "model=mlp", "launcher=simulated"]
    words += ["cluster=ethernet_1g", "cluster.nodes=2", "cluster.ranks_per_node=1", "train.epochs=1"]
    words += ["train.global_batch_size=16", f"results_dir={tmp_path}/results"]
    with pytest.raises(ConfigError, match=r"^dataset\.samples=0: must be >= 1$"):
        run([*words, "dataset.samples=0"])
    assert run(words) == 0
    (run_directory,) = (tmp_path / "results" / "runs").iterdir()
    assert run_directory.name.startswith("ddp-mlp-my_data-s0-")


def a_split(images: torch.Tensor | None = None, mean: tuple[float, ...] = (4.0, 0.0)) -> Split:
    images = torch.arange(24, dtype=torch.uint8).view(3, 2, 2, 2) if images is None else images
    return Split(images=images, labels=torch.tensor([7, 8, 9]), mean=mean, std=(2.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_is_gathered_and_normalised_by_channel(dtype: torch.dtype) -> None:
    split = a_split(torch.arange(24).view(3, 2, 2, 2).to(dtype))
    images, labels = split.batch(torch.tensor([2, 0]))
    assert images.dtype == torch.float32
    assert labels.tolist() == [9, 7]
    assert images[0, 0].flatten().tolist() == [(value - 4) / 2 for value in (16, 17, 18, 19)]
    assert images[1, 1].flatten().tolist() == [4, 5, 6, 7]
    assert len(split) == 3


def test_images_and_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^images torch\.int64"):
        a_split(torch.zeros(3, 2, 2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels torch.int64 \[3\]: must be int64 \[4\]"):
        a_split(torch.zeros(4, 2, 2, 2))
    with pytest.raises(ValueError, match="2 numbers"):
        a_split(mean=(1.0,))
