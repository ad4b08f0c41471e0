"""What a run with a reader is, and what is refused before a process starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import config

from daso_bench.datasets.shapes import Shapes
from daso_bench.models.small_fcn import SmallFCN
from daso_bench.runner.launcher_config import LauncherConfig, LocalConfig
from daso_bench.runner.listing import CONF
from daso_bench.runner.readers.base import PackedReader
from daso_bench.runner.readers.choice import check
from daso_bench.runner.readers.chunked_shuffle import ChunkedShuffle
from daso_bench.runner.readers.node_batch import NodeBatch
from daso_bench.runner.readers.none import NoReader
from daso_bench.runner.schema import dump, load, run_id, to_plain
from daso_bench.runner.typed import locate_target, typed
from daso_bench.strategies.errors import ConfigError

HERE = NodeBatch(path="/here.packed")


def with_reader(reader: PackedReader = HERE, strategy: str = "ddp", **keys: Any) -> Any:
    return replace(config(strategy, **keys), reader=reader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "lasgd"}, "gives all ranks equal steps .* at its own pace; take reader=none"),
        ({"strategy": "placebo"}, "deals the pieces of a batch by itself, .*; take reader=none"),
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
    cold, plain = replace(HERE, cold=True), config()
    others = plain.strategy_class, plain.strategy
    with pytest.raises(ConfigError, match=r"^reader\.cold=true: nothing is read with launcher=simulated"):
        check(cold, *others, LauncherConfig(name="simulated"), plain.dataset)
    with pytest.raises(ConfigError, match=r"^reader\.cold=true: nothing is read with launcher=local"):
        check(cold, *others, LocalConfig(network="modelled"), plain.dataset)
    check(cold, *others, LocalConfig(), plain.dataset)
    with pytest.raises(ConfigError, match=r"^reader=node_batch: launcher\.timing_only=true has no samples"):
        check(HERE, *others, LauncherConfig(name="simulated", timing_only=True), plain.dataset)


@pytest.mark.parametrize("keys", [{"prefetch_batches": 0}, {"shuffle_seed": -1}])
def test_values_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    (key,) = keys
    with pytest.raises(ConfigError, match=rf"^reader\.{key}="):
        NodeBatch(**keys)
    with pytest.raises(ConfigError, match=r"^reader\.chunk_mib=0: must be > 0"):
        ChunkedShuffle(chunk_mib=0)
    with pytest.raises(ConfigError, match=r"^reader\.window_chunks=0: must be >= 1"):
        ChunkedShuffle(window_chunks=0)


def test_a_run_with_a_reader_comes_back_from_its_file(tmp_path: Path) -> None:
    made = with_reader(ChunkedShuffle(path="/x.packed", chunk_mib=0.5))
    (tmp_path / "config.yaml").write_text(dump(made))
    again = load(tmp_path / "config.yaml")
    assert (again.reader, run_id(again)) == (made.reader, run_id(made))
    other = replace(made, reader=ChunkedShuffle(path="/x.packed", chunk_mib=1.0))
    assert run_id(made) != run_id(other)


def test_a_run_without_one_is_what_it_was_before_there_were_readers() -> None:
    plain = config()
    assert plain.reader == NoReader()
    assert "reader" not in to_plain(plain)
    assert run_id(plain) != run_id(with_reader())


@pytest.mark.parametrize("path", sorted((CONF / "reader").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_default_of_the_yaml_is_the_default_of_the_class(path: Path) -> None:
    values = yaml.safe_load(path.read_text("utf-8"))
    kind = locate_target(values, "reader")
    assert typed(kind, values, "reader") == kind()
    assert kind.name == path.stem
