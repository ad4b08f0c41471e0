"""What is wrong with files is told in a sentence, not by a traceback."""

from pathlib import Path

import pytest
from pictures import plain, put  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.datasets.pixels import BadImage
from daso_bench.runner.bad_data import files_told
from daso_bench.runner.cli import main, run
from daso_bench.strategies.errors import ConfigError, MachineError

RUN = (
    *("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8", "model=mlp"),
    *("launcher=simulated", "cluster=ethernet_1g", "cluster.nodes=2", "cluster.ranks_per_node=1"),
    *("train.global_batch_size=8", "train.epochs=1"),
)


def test_evaluate_names_a_bad_image_a_vanished_one_and_a_set_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for level, name in ((30, "cats"), (200, "dogs")):
        for n in range(12):
            put(tmp_path / "imgs" / name / f"{n}.png", plain(level + n, side=8))
    assert run(RUN) == 0
    (folder,) = (tmp_path / "results" / "runs").glob("*-s0-*")
    image = ImageFolder(root="imgs").load().test.path(0)  # pyright: ignore
    told = []
    for spoil in (
        lambda: Path(image).write_bytes(b""),
        Path(image).unlink,
        lambda: (tmp_path / "imgs").rename("elsewhere"),
    ):
        spoil()
        capsys.readouterr()
        assert code_of("evaluate", str(folder)) == 2
        told.append(capsys.readouterr().err)
    way = "daso-bench prepare dataset=imagefolder dataset.root="
    assert f"{image}: empty (0 bytes)" in told[0]
    assert f"{image}: No such file or directory" in told[1]
    assert "not prepared with these keys" in told[2]
    assert all(way in text and "Traceback" not in text for text in told)


def code_of(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_each_kind_of_trouble_has_its_error() -> None:
    dataset = ImageFolder(root="imgs")
    for trouble, told in (
        (BadImage("a.jpg", "empty"), ConfigError),
        (FileNotFoundError("not there"), ConfigError),
        (PermissionError("not allowed"), MachineError),
        (KeyError("a fault of ours"), KeyError),
    ):
        with pytest.raises(told), files_told(dataset):
            raise trouble
