"""`python -m daso_bench.runner.bench [only=NAME] [json=FILE]`: a line per figure, exit 1 if one is short."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import (
    asynchronous,
    ddp_step,
    emulated_link,
    hierarchical,
    loader,
    modelled_network,
    readers,
    shared_memory,
    start,
    virtual_time,
    webdataset,
)
from figures import Bench, Figure

BENCHES: dict[str, Bench] = {
    "start": start.measure,
    "hierarchical": hierarchical.measure,
    "virtual_time": virtual_time.measure,
    "shared_memory": shared_memory.measure,
    "asynchronous": asynchronous.measure,
    "ddp_step": ddp_step.measure,
    "emulated_link": emulated_link.measure,
    "modelled_network": modelled_network.measure,
    "loader": loader.measure,
    "readers": readers.measure,
    "webdataset": webdataset.measure,
}


def main(arguments: list[str]) -> int:
    """Run the benches asked for; returns the exit code."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    unknown = set(options) - {"only", "json"}
    only = options.get("only")
    if unknown or (only is not None and only not in BENCHES):
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
    sys.exit(main(sys.argv[1:]))
