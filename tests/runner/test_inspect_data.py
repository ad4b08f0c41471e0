"""`daso-bench inspect` of every data set that the project has: what is seen, or how to come by the files."""

import json
from pathlib import Path

import pytest

from daso_bench.runner.cli import run
from daso_bench.strategies.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf" / "dataset"
SMALL = ("samples=40", "validation_samples=20", "test_samples=20", "classes=3", "height=8", "width=8")
IN_MEMORY = {"digits": (), "shapes": (), "synthetic": SMALL, "imagenet_sized": SMALL}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_every_data_set_is_seen_or_its_files_are_asked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("daso_bench.datasets.fashion_mnist.DEBIAN_FOLDER", tmp_path / "debian")
    words = ["inspect", f"dataset={name}"]
    if name not in IN_MEMORY:
        with pytest.raises(ConfigError, match=r"is not in|no such folder|no folders?"):
            run(words)
        return
    keys = [f"dataset.{key}" for key in IN_MEMORY[name]]
    code = run([*words, *keys, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["ok"] else 3)
    assert not found["bad"]
    for split, samples in found["samples"].items():
        labels = sum(each[split] for each in found["classes"])
        if "unlabelled_pixels" in found:  # a label for each of 32 x 32
            labels = (labels + found["unlabelled_pixels"][split]) // 1024
        assert labels == samples > 0
    assert run([*words, *keys]) == code
    assert capsys.readouterr().out.splitlines()[0] == found["name"]
