"""The study of the readers: the same training in every arm, from a cold and a warm cache."""

from pathlib import Path

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.reader_config import PackedReader


def test_arms_differ_in_the_reader_alone_and_sizes_in_the_cache(tmp_path: Path) -> None:
    wanted = requests(["+study=paper_hsgd_readers", "seed=0"], sweep=True, cwd=tmp_path)
    runs = [request.config for request in wanted if request.config is not None]
    assert len(runs) == len(wanted) == 8
    for run in runs:
        assert isinstance(run.reader, PackedReader)
        assert run.reader.cold == (run.study.size == "cold")
        assert run.study.arm.startswith(run.reader.name)
    assert len({(run.strategy, repr(run.model), run.dataset, run.train, run.launcher) for run in runs}) == 1
    assert len({run.reader.name for run in runs}) == 4


def test_sizes_of_records_differ_in_the_image_alone_and_the_file_has_the_same_bytes(tmp_path: Path) -> None:
    wanted = requests(["+study=paper_hsgd_record_sizes", "seed=0"], sweep=True, cwd=tmp_path)
    runs = [request.config for request in wanted if request.config is not None]
    assert len(runs) == len(wanted) == 12
    record = {}
    for run in runs:
        assert isinstance(run.reader, PackedReader)
        assert run.reader.cold
        data = run.dataset
        assert isinstance(data, Synthetic)
        record[run.study.size] = 4 * data.channels * data.height * data.width
        assert 200e6 < data.samples * record[run.study.size] < 210e6
    assert record == {"4 KiB": 4096, "16 KiB": 16_384, "100 KiB": 102_400}
    places = {(run.study.size, run.reader.path) for run in runs if isinstance(run.reader, PackedReader)}
    assert len(places) == 3
