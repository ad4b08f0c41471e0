"""What a run with a reader is, and what is refused before a process starts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.datasets.shapes import Shapes
from daso_bench.models.small import SmallFCN
from daso_bench.runner.config.launchers import LauncherConfig, LocalConfig, SimulatedConfig
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.reader_config import ChunkedShuffle, NodeBatch, NoReader, PackedReader
from daso_bench.runner.config.run_config import RunConfig, check_reader
from daso_bench.strategies.errors import ConfigError

HERE = NodeBatch(path="/here.packed")


def with_reader(reader: PackedReader = HERE, strategy: str = "ddp", **keys: Any) -> Any:
    return replace(config(strategy, **keys), reader=reader)


def unchecked(reader: PackedReader, launcher: LauncherConfig) -> RunConfig:
    run = config()
    object.__setattr__(run, "reader", reader)
    object.__setattr__(run, "launcher", launcher)
    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "lasgd"}, "gives all ranks equal steps .* at its own pace; take reader=none"),
        ({"strategy": "placebo"}, "deals the pieces of a batch by itself, .*; take reader=none"),
        ({"launcher": {"prefetch_batches": 9}}, r"reads ahead .*launcher\.prefetch_batches=2, not 9"),
        ({"launcher": {"loader_workers": 2}}, r"reads ahead by itself .*launcher\.loader_workers=0, not 2"),
        (
            {"dataset": Shapes(), "model": SmallFCN(), "target_metric": "miou"},
            "has one label an image, and the data set is for segmentation",
        ),
        ({"reader": NodeBatch()}, r"blobs has no folder of its own .*: reader\.path=FILE"),
    ],
)
def test_what_a_reader_cannot_feed_is_refused_in_one_sentence(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^reader=node_batch: .*{message}"):
        with_reader(**arguments)


def test_where_nothing_is_read_no_cache_is_cold() -> None:
    cold, warm = replace(HERE, cold=True), replace(HERE, warm=True)
    modelled, virtual = LocalConfig(network="modelled"), SimulatedConfig()
    for reader, launcher, words in (
        (cold, virtual, "cold=true: nothing is read with launcher=simulated"),
        (warm, virtual, "warm=true: nothing is read with launcher=simulated"),
        (cold, modelled, "cold=true: nothing is read with launcher=local"),
    ):
        with pytest.raises(ConfigError, match=rf"^reader\.{words}"):
            check_reader(unchecked(reader, launcher))
    for reader in (cold, warm):
        check_reader(unchecked(reader, LocalConfig()))
    with pytest.raises(ConfigError, match=r"^reader\.cold=true, reader\.warm=true: .*take one$"):
        replace(cold, warm=True)
    with pytest.raises(ConfigError, match=r"^reader=node_batch: launcher\.timing_only=true has no samples"):
        check_reader(unchecked(HERE, SimulatedConfig(timing_only=True)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefetch_batches", 0),
        ("prefetch_batches", 10**9),
        ("shuffle_seed", -1),
        ("chunk_mib", 0),
        ("chunk_mib", math.inf),
        ("window_chunks", 0),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^reader\.{key}={value}: must be "):
        ChunkedShuffle(**{key: value})


def test_an_id_holds_what_decides_and_not_where_the_file_lies() -> None:
    here, elsewhere = with_reader(HERE), with_reader(replace(HERE, path="/elsewhere.packed"))
    assert here.run_id == elsewhere.run_id
    for keys in ({"shuffle_seed": 1}, {"prefetch_batches": 3}, {"cold": True}, {"warm": True}):
        assert with_reader(replace(HERE, **keys)).run_id != here.run_id, keys


def identity(*words: str) -> str:
    """The id of the run that is typed so."""
    given = ["dataset=fashion_mnist", "dataset.root=/data", *words]
    (request,) = requests(given, sweep=False, cwd=Path("/"))
    assert request.config is not None, request.error
    return request.config.run_id


def test_an_id_holds_nothing_of_how_a_reader_reads_where_it_gives_its_order_alone() -> None:
    other = "reader.prefetch_batches=9"
    virtual = ("launcher=simulated", "cluster=slow_link")
    assert identity("reader=strided", *virtual) == identity("reader=strided", *virtual, other)
    assert identity("reader=strided") != identity("reader=strided", other)
    shuffled = ("reader=chunked_shuffle", *virtual)
    assert identity(*shuffled) != identity(*shuffled, "reader.window_chunks=9"), "it decides the order"


def test_a_run_without_one_says_so() -> None:
    plain = config()
    assert plain.reader == NoReader()
    assert plain.tree["reader"] == {"_target_": "daso_bench.runner.config.reader_config.NoReader"}
    assert plain.run_id != with_reader().run_id
