"""`python -m daso_bench.runner.bench.gpu [KEY=VALUE ...]`: what a GPU is for, in ten minutes on one of them.

    loop        ResNet-50: images/s of our loop over those of a bare PyTorch loop, blocks in turn
    function    two ranks on one device, joined by gloo: each strategy takes its steps
    mixed       one rank on the GPU, one on the CPU: the shares of `heterogeneous` follow the speeds

A line per figure, as of the other benches; exit 1 if one is short, 2 where there is nothing to measure on.
`device=cpu model=small_cnn image=8 batch=8 blocks=6 steps=3` tries all of it without a GPU.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ...strategies.errors import ConfigError
from . import gpu_loop, gpu_runs
from .figures import Figure
from .gpu_options import Options, parse

NO_GPU = (
    "bench-gpu: torch sees no GPU here; take a machine with one, or try the script on the CPU: "
    "device=cpu model=small_cnn image=8 batch=8 blocks=6 steps=3"
)
MEASURES: dict[str, Callable[[Options], list[Figure]]] = {
    "loop": gpu_loop.loop,
    "function": gpu_runs.function,
    "mixed": gpu_runs.mixed,
}


def main(arguments: Sequence[str]) -> int:
    """Measure what was asked for; returns the exit code."""
    try:
        options = parse(arguments)
    except ConfigError as error:
        print(f"bench-gpu: {error}", file=sys.stderr)
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name, measure in MEASURES.items():
        if options.only in ("", name):
            for figure in measure(options):
                print(f"{figure.line()}  # {figure.detail}", flush=True)
                figures.append(figure)
    if options.json:
        rows = [{**asdict(figure), "ok": figure.ok} for figure in figures]
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
