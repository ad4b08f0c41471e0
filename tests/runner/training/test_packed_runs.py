"""Whole runs that read: their models are those of runs by index, also when interrupted; how they fail."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from real_runs import assert_close, finished, launch, same_model
from runs import Blobs, Dies, Raises, config, dies_after, simulated
from torch import Tensor

from daso_bench.datasets.data import Data, Split
from daso_bench.datasets.dataset import Dataset
from daso_bench.datasets.sampler import Sampler
from daso_bench.datasets.stream_seeds import stream_seed
from daso_bench.runner.config.reader_config import Block, ChunkedShuffle, NodeBatch, PackedReader, Strided
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json, read_records
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation import simulated_world
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.packed_set import write_set

READERS: list[PackedReader] = [
    Strided(),
    Block(),
    NodeBatch(),
    ChunkedShuffle(chunk_mib=500 / 2**20, window_chunks=2),
]


@dataclass(frozen=True, kw_only=True)
class InOrder(Dataset):
    """Blobs whose training samples lie in the order in which a run by index with this seed takes them."""

    seed: int = 0
    name: ClassVar[str] = "blobs_in_order"

    def load(self) -> Data:
        data = Blobs().load()
        assert isinstance(data.train, Split)
        order = Sampler(96, 96, 1, stream_seed(self.seed, "data")).piece(0, 0, 0)
        train = replace(data.train, images=data.train.images[order], labels=data.train.labels[order])
        return replace(data, name=self.name, train=train)


def with_reader(cfg: RunConfig, reader: PackedReader, folder: Path) -> RunConfig:
    """The run with this reader, whose file is made."""
    reader = replace(reader, path=str(folder / f"{cfg.dataset.name}{reader.shuffle_seed}.packed"))
    write_set(cfg.dataset, reader, cfg.dataset.load(), lambda done, total: None)
    return replace(cfg, reader=reader)


def test_processes_that_read_sequential_order_learn_what_processes_learn_by_index(tmp_path: Path) -> None:
    plain = config(ranks=[2, 1], results=tmp_path / "plain", epochs=1)
    directory, _ = finished(plain)
    reading = with_reader(
        config(ranks=[2, 1], results=tmp_path / "reading", epochs=1, dataset=InOrder()),
        NodeBatch(shuffle_seed=None, cold=True),
        tmp_path,
    )
    read, _ = finished(reading)
    assert same_model(read, directory)
    _assert_recorded(read)


def _assert_recorded(directory: RunDirectory) -> None:
    """Six steps of a run each on two nodes, each a jump but where a node's run begins the file's."""
    rows = read_records(directory.metrics).rows
    summary = next(row for row in rows if row["kind"] == "summary")
    counted = summary["reader"]
    assert counted["requested_bytes"] == counted["useful_bytes"] == 96 * 64
    assert (counted["reads"], counted["jumps"]) == (12, 12)
    assert counted["waited_s"] > 0
    assert any(
        label.startswith("reader node_batch: the order of the file, in the") for label in summary["labels"]
    )
    assert next(row for row in rows if row["kind"] == "epoch")["reader"]["useful_bytes"] == 36 * 64
    start = next(row for row in rows if row["kind"] == "start")
    assert start["still_cached"] == 0
    assert not [label for label in summary["labels"] if "reader.cold" in label]


def in_virtual_time(cfg: RunConfig, **keys: Any) -> dict[str, Tensor]:
    run = simulated(cfg, **keys)
    return run.contexts[0].replica.model.state_dict()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("step", [9, 6], ids=["inside an epoch", "between two"])
def test_a_run_that_reads_and_is_interrupted_ends_with_the_model_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: PackedReader, step: int
) -> None:
    # Where each node has one rank, no rank waits for another one's use of what is read.
    monkeypatch.setattr(simulated_world, "READS", True)
    cfg = with_reader(
        config(ranks=[1, 1], dataset=Blobs(augment="flip"), checkpoint_every_samples=16 * 3), reader, tmp_path
    )
    expected = in_virtual_time(cfg, checkpoints=tmp_path / "whole")
    monkeypatch.setattr(simulated_world, "READS", False)
    assert_close(in_virtual_time(cfg), expected, 0)
    monkeypatch.setattr(simulated_world, "READS", True)
    with pytest.raises(Dies):
        in_virtual_time(cfg, checkpoints=tmp_path / "cut", loop=dies_after(step + 1))
    assert checkpoint.complete(tmp_path / "cut")[0].name == f"step_{step:010d}"
    assert_close(in_virtual_time(cfg, checkpoints=tmp_path / "cut"), expected, 0)


def test_processes_that_share_a_reader_go_on_inside_an_epoch(tmp_path: Path) -> None:
    def run(fails_on: int) -> RunConfig:
        cfg = config(
            ranks=[2],
            results=tmp_path,
            model=Raises(rank=fails_on),
            epochs=2,
            eval_every_samples=1000,
            checkpoint_every_samples=16 * 7,
        )
        return with_reader(cfg, READERS[3], tmp_path)

    whole, _ = finished(run(fails_on=99))
    cut, outcome = launch(run(fails_on=1))
    assert "this model does not like me" in str(outcome.reason)
    assert [path.name for path in checkpoint.complete(cut.path / "checkpoints")] == ["step_0000000007"]
    cut.renew(run(fails_on=1).tree)
    finished(run(fails_on=1), cut)
    assert same_model(cut, whole)


def test_in_virtual_time_a_reader_gives_the_order_and_reads_nothing(tmp_path: Path) -> None:
    cfg = with_reader(config(epochs=2), NodeBatch(), tmp_path)
    summary = simulated(cfg).results[0].summary
    assert "reader" not in summary
    assert (
        "reader node_batch: its order alone: samples come from memory, and cluster.device says what data cost"
        in (summary["labels"])
    )
    by_index = simulated(config(epochs=2)).results[0].summary
    assert summary["digests"]["first_batches"] != by_index["digests"]["first_batches"]


def test_a_damaged_record_ends_the_run_with_its_name_on_all_ranks(tmp_path: Path) -> None:
    cfg = with_reader(config(ranks=[2], results=tmp_path), NodeBatch(), tmp_path)
    path = Path(cfg.reader.path)  # pyright: ignore[reportAttributeAccessIssue] (a PackedReader)
    content = bytearray(path.read_bytes())
    content[64 * 50] ^= 1
    path.write_bytes(content)
    directory, outcome = launch(cfg)
    assert outcome.status == "failed"
    sentence = "record 50, byte 3200: checksum is wrong; make the file again"
    assert sentence in str(outcome.reason)
    assert read_json(directory.path / "status.json")["status"] == "failed"
    for rank in (0, 1):
        (log,) = directory.path.glob(f"**/*rank*{rank}*.log")
        assert sentence in log.read_text()
