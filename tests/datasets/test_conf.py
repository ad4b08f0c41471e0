"""The config files of the data sets show every field with its default, and the typed config accepts them."""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import daso_bench
from daso_bench.runner.config.typed import typed

FOLDER = Path(daso_bench.__file__).parent / "conf" / "dataset"
FILES = sorted(FOLDER.glob("*.yaml"))
OTHER_SIZES = {"imagenet_sized"}  # the same class with other numbers


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_keys_and_values_are_the_fields_and_defaults(path: Path) -> None:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    module, name = config.pop("_target_").rsplit(".", 1)
    dataset = getattr(importlib.import_module(module), name)
    made: Any = typed(dataset, {str(key): value for key, value in config.items()}, "dataset")
    assert config == json.loads(json.dumps(dataclasses.asdict(made)))
    assert (made == dataset()) == (path.stem not in OTHER_SIZES)
