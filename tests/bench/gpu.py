"""`python tests/bench gpu [KEY=VALUE ...]` (make bench-gpu): our loop and all strategies on one GPU.

    loop        ResNet-50: images/s of our loop over those of a bare PyTorch loop, blocks in turn
    function    four ranks on two nodes share the device, joined by gloo: each strategy takes its steps, is
                stopped halfway and resumed
    nccl        NCCL in groups of this rank alone: DDP's hook, streams, and each strategy over them
    virtual     64 virtual ranks of `launcher=simulated` on the GPU, with their gradients

A line per figure, as of the other benches; exit 1 if one is short, 2 where there is nothing to measure on.
`device=cpu model=small_cnn image=8 batch=8 blocks=5 steps=4` tries all of it without a GPU.
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpu_nccl
import gpu_runs
import gpu_virtual
import torch
from figures import Figure
from gpu_options import Options, parse
from loop_overhead import gpu_loop

from daso_bench.runner.communication import gpus
from daso_bench.runner.machine import gpu_facts
from daso_bench.runner.machine.environment import commit_of, installed
from daso_bench.runner.records.json_lines import write_json
from daso_bench.strategies.errors import ConfigError

NO_GPU = (
    "bench-gpu: torch sees no GPU here; take a machine with one, or try the script on the CPU: "
    "device=cpu model=small_cnn image=8 batch=8 blocks=5 steps=4"
)
MEASURES: dict[str, Callable[[Options], Iterable[Figure]]] = {
    "loop": gpu_loop,
    "function": gpu_runs.function,
    "nccl": gpu_nccl.nccl,
    "virtual": gpu_virtual.virtual,
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
    about = _about(options)
    for figure in _figures(options):
        print(f"{figure.line()}  # {figure.detail}", flush=True)
        figures.append(figure)
        _write(options.json, about, figures, complete=False)
    _write(options.json, about, figures, complete=True)
    return 0 if all(figure.ok for figure in figures) else 1


def _figures(options: Options) -> Iterator[Figure]:
    """Of all parts; a part that cannot go on is one that is short, and the next begins."""
    for name, measure in MEASURES.items():
        if options.only not in ("", name):
            continue
        try:
            yield from measure(options)
        except Exception as error:  # whatever it is: the other parts' figures are not to be lost with it
            traceback.print_exc()
            reason = f"did not end: {gpu_runs.in_words(error)}"
            yield Figure(f"gpu_part_{name}", 0, 1, reason, at_least=True)


def _write(path: str, about: dict[str, Any], figures: Sequence[Figure], *, complete: bool) -> None:
    """All that is known by now, so that a machine that is taken away leaves what it measured."""
    if path:
        rows = [{**asdict(figure), "ok": figure.ok} for figure in figures]
        write_json(Path(path), {**about, "complete": complete, "figures": rows})


def _about(options: Options) -> dict[str, Any]:
    """The machine, the versions and the options that the figures belong to."""
    device = torch.device(options.device)
    commit, dirty = commit_of(Path(__file__).resolve().parents[2])
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": gpus.device_model(device),
        "gpu": gpu_facts.of_rank(device),
        "torch": torch.__version__,
        "daso_bench": installed("daso-bench"),
        "commit": commit,
        "dirty": dirty,
        "options": asdict(options),
    }
