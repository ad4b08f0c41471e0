"""Writes conf/model/NAME.yaml for every model of torchvision: `python scripts/model_configs.py`.

The files are checked in, so that `daso-bench list models` does not have to import torch.
"""

import dataclasses
from pathlib import Path

from torchvision import models

from daso_bench.models.torchvision_zoo import Torchvision, TorchvisionSegmentation
from daso_bench.runner.config import groups

FOLDER = groups.CONF / "model"
Kind = type[Torchvision] | type[TorchvisionSegmentation]
FIRST_LINES: dict[Kind, str] = {
    Torchvision: "# torchvision, untrained",
    TorchvisionSegmentation: "# segmentation: torchvision, untrained",
}


def write_configs() -> None:
    """Write all config files anew."""
    for path in generated():
        path.unlink()
    for kind, module in ((Torchvision, models), (TorchvisionSegmentation, models.segmentation)):
        for name in models.list_models(module=module):
            (FOLDER / f"{name}.yaml").write_text(text(name, kind), encoding="utf-8")


def text(name: str, kind: Kind) -> str:
    """The config file of torchvision model `name`: its target and every field."""
    fields = dataclasses.asdict(kind(name=name))
    lines = [FIRST_LINES[kind], _target(kind)]
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in fields.items()}
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in values.items())]) + "\n"


def generated() -> list[Path]:
    """The files that an earlier run wrote."""
    targets = {_target(kind) for kind in FIRST_LINES}
    return sorted(
        path
        for path in FOLDER.glob("*.yaml")
        if not targets.isdisjoint(path.read_text(encoding="utf-8").splitlines())
    )


def _target(kind: Kind) -> str:
    return f"_target_: daso_bench.models.torchvision_zoo.{kind.__name__}"


if __name__ == "__main__":
    write_configs()
