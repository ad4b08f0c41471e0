"""A run of image files records how much of them was in the page cache before training."""

import os
from pathlib import Path

import pytest
from pictures import cats_and_dogs  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.datasets.verification import SAMPLED
from daso_bench.runner.cli.main import run
from daso_bench.runner.machine.page_cache import drop
from daso_bench.runner.records.json_lines import read_records

RUN = (
    *("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8", "model=mlp"),
    *("dataset.check=none", "dataset.std=[0.2,0.2,0.2]", "dataset.holdout=0.2"),
    *("cluster.nodes=1", "cluster.ranks_per_node=2", "train.global_batch_size=8", "train.epochs=1"),
)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system does not tell")
def test_the_start_row_has_the_share_of_files_in_the_cache_in_real_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cats_and_dogs(tmp_path / "imgs", 80)

    def recorded(study: str, *words: str) -> float | None:
        assert run([*RUN, *words, f"study.name={study}"]) == 0
        (folder,) = (tmp_path / "results" / study).glob("*-s0-*")
        (start,) = [row for row in read_records(folder / "metrics.jsonl").rows if row["kind"] == "start"]
        return start.get("still_cached")

    assert recorded("virtual", "launcher=simulated", "cluster=ethernet_1g") is None
    assert recorded("warm", "launcher=local", "cluster=laptop") == 1
    for path in tmp_path.glob("imgs/*/*.png"):
        drop(path)
    # The check of the data set before a run reads some of the files again; not all of them are trained on.
    assert recorded("cold", "launcher=local", "cluster=laptop") == pytest.approx(SAMPLED / 160, abs=0.1)
