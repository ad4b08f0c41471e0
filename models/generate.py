"""Writes conf/model/<name>.yaml for every torchvision classification model; the files are checked in.

    python -m daso_bench.models.generate

They are files, rather than names that are looked up, so that `daso-bench list models` needs no torch.
"""

import dataclasses
from pathlib import Path

from .torchvision_zoo import Torchvision

FOLDER = Path(__file__).parents[1] / "conf" / "model"
TARGET = f"_target_: daso_bench.models.torchvision_zoo.{Torchvision.__name__}"


def main() -> None:
    from torchvision import models

    for path in generated():
        path.unlink()
    for name in models.list_models(module=models):
        (FOLDER / f"{name}.yaml").write_text(text(name), encoding="utf-8")


def text(name: str) -> str:
    """The config file of torchvision model `name`: its target and every field."""
    fields = dataclasses.asdict(Torchvision(name=name))
    lines = ["# torchvision, untrained; written by models/generate.py", TARGET]
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in fields.items()}
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in values.items())]) + "\n"


def generated() -> list[Path]:
    """The files that an earlier run wrote."""
    return sorted(path for path in FOLDER.glob("*.yaml") if TARGET in path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
