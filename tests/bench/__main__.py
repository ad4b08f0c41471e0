"""`python tests/bench [only=NAME] [json=FILE]`: a line per figure, exit code 1 if one is short (make bench).

`python tests/bench gpu [KEY=VALUE ...]` runs the benches for one GPU instead: see `gpu.py` (make bench-gpu).
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import gpu
import links
import loop_overhead
import readers
import shared_memory
import virtual_time
from figures import Figure

BENCHES: dict[str, Callable[[], list[Figure]]] = {
    "start": loop_overhead.start,
    "ddp_step": loop_overhead.ddp_step,
    "emulated_link": links.emulated_link,
    "modelled_network": links.modelled_network,
    "virtual_time": virtual_time.virtual_time,
    "shared_memory": shared_memory.shared_memory,
    "readers": readers.readers,
}


def main(arguments: list[str]) -> int:
    """Run the benches asked for; returns the exit code."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    only = options.get("only")
    if set(options) - {"only", "json"} or (only is not None and only not in BENCHES):
        print(f"usage: bench [only=NAME] [json=FILE]; NAME: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name, bench in BENCHES.items():
        if only in (None, name):
            for figure in bench():
                print(f"{figure.line()}  # {figure.detail}", flush=True)
                figures.append(figure)
    if "json" in options:
        rows = [{**asdict(figure), "ok": figure.ok} for figure in figures]
        Path(options["json"]).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(gpu.main(words[1:]) if words[:1] == ["gpu"] else main(words))
