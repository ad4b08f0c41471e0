"""The config files of the models show every field, and the typed config accepts them."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import model_configs
import pytest
from omegaconf import OmegaConf
from torchvision import models

import daso_bench
from daso_bench.models.cifar_resnet import CifarResNet
from daso_bench.models.small import MLP, SmallCNN, SmallFCN
from daso_bench.models.torchvision_zoo import Torchvision

FOLDER = Path(daso_bench.__file__).parent / "conf" / "model"
OURS = {
    "mlp": MLP(),
    "wide_mlp": MLP(hidden=[512, 512]),
    "small_cnn": SmallCNN(),
    "small_cnn_bn": SmallCNN(norm="batch"),
    "small_fcn": SmallFCN(),
    "small_fcn_bn": SmallFCN(norm="batch"),
    "resnet20": CifarResNet(depth=20),
    "resnet56": CifarResNet(depth=56),
}
SIZED = ["billion", "hrnet_ocr_sized"]  # sizes alone, for clocks
REGISTRY = models.list_models(module=models)
SEGMENTATION = models.list_models(module=models.segmentation)


def test_there_is_one_file_for_each_model_of_ours_and_of_torchvision() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(
        [*OURS, *SIZED, *REGISTRY, *SEGMENTATION]
    )


@pytest.mark.parametrize("name", [*OURS, *SIZED])
def test_keys_are_the_fields_and_values_make_the_model_of_that_name(name: str) -> None:
    """Those of torchvision's models are what the generator writes."""
    config = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(config, dict)
    module, target = config.pop("_target_").rsplit(".", 1)
    kind = getattr(importlib.import_module(module), target)
    assert set(config) == {field.name for field in dataclasses.fields(kind)}
    model: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), config))
    assert isinstance(model, kind)
    assert model.name == ("mlp" if name == "wide_mlp" else name)
    assert name in SIZED or model == OURS[name]


def test_the_generator_writes_what_is_checked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_in = {path.name: path.read_text() for path in model_configs.generated()}
    monkeypatch.setattr(model_configs, "FOLDER", tmp_path)
    (tmp_path / "mlp.yaml").write_text("_target_: daso_bench.models.small.MLP\n")
    removed = model_configs.text("removed", Torchvision)  # of a model that torchvision had once
    (tmp_path / "removed.yaml").write_text(removed)
    model_configs.write_configs()
    written = {path.name: path.read_text() for path in tmp_path.glob("*.yaml")}
    assert written.pop("mlp.yaml") == "_target_: daso_bench.models.small.MLP\n"
    assert written == checked_in
