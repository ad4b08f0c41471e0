"""The config files of the data sets show every field with its default, and the typed config accepts them."""

import dataclasses
import importlib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import daso_bench

FOLDER = Path(daso_bench.__file__).parent / "conf" / "dataset"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_three() -> None:
    assert [path.stem for path in FILES] == ["digits", "fashion_mnist", "synthetic"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_keys_and_values_are_the_fields_and_defaults(path: Path) -> None:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    module, name = config.pop("_target_").rsplit(".", 1)
    dataset = getattr(importlib.import_module(module), name)
    assert config == dataclasses.asdict(dataset())
    assert OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(dataset), config)) == dataset()
