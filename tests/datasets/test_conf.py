"""The config files of the data sets show every field with its default, and the typed config accepts them."""

import dataclasses
import importlib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import daso_bench

FOLDER = Path(daso_bench.__file__).parent / "conf" / "dataset"
FILES = sorted(FOLDER.glob("*.yaml"))


OTHER_SIZES = {"imagenet_sized"}  # the same class with other numbers


def test_there_are_four() -> None:
    assert [path.stem for path in FILES] == ["digits", "fashion_mnist", "imagenet_sized", "synthetic"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_keys_and_values_are_the_fields_and_defaults(path: Path) -> None:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    module, name = config.pop("_target_").rsplit(".", 1)
    dataset = getattr(importlib.import_module(module), name)
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(dataset), config))
    assert config == dataclasses.asdict(made)  # pyright: ignore[reportArgumentType] (a dataclass)
    assert (made == dataset()) == (path.stem not in OTHER_SIZES)
