"""Results of many runs from few: `python many_runs.py SOURCE TARGET COUNT` copies run directories.

A copy gets a seed, a run id and an accuracy of its own, so that medians and bands have a width; what it cost
stays the source's. For measuring the report, and for nothing else: the numbers mean nothing.
"""

import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path


def copies(source: Path, target: Path, count: int) -> Iterator[Path]:
    """`count` run directories below `target`, the sources below `source` taken in turn."""
    sources = sorted(path.parent for path in source.rglob("status.json"))
    for number, path in enumerate(islice(cycle(sources), count)):
        yield _copy(path, target, number)


def _copy(source: Path, target: Path, number: int) -> Path:
    old, seed = source.name, 1000 + number
    new = f"{'-'.join(old.split('-')[:3])}-s{seed}-{number:08x}"
    path = target / source.parent.name / new
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("checkpoints", "logs", ".lock"))
    config = re.sub(r"(?m)^seed: .*$", f"seed: {seed}", (path / "config.yaml").read_text()).replace(old, new)
    (path / "config.yaml").write_text(config)
    (path / "status.json").write_text((path / "status.json").read_text().replace(old, new))
    shift, lines = random.Random(number).uniform(0.97, 1.0), []
    for line in (path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if isinstance(row.get("accuracy"), float):
            row |= {"accuracy": row["accuracy"] * shift, "correct": None}
        lines.append(json.dumps(row) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    return path


if __name__ == "__main__":
    print(len(list(copies(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))), "runs")
