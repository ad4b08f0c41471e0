"""Runs in real processes for tests: start them, read what they trained, find their processes."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from runs import config, judged

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.local import venue_of
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.runner.training import checkpoint


def launch(
    cfg: RunConfig, directory: RunDirectory | None = None, **more: Any
) -> tuple[RunDirectory, Outcome]:
    """Run it as the command does, with this process as its supervisor."""
    directory = directory or RunDirectory.create(cfg.tree, cfg.results_dir)
    settings = {"threads": 1, "venue": venue_of(cfg), "stall_s": 60} | more
    return directory, local.launch(directory, ranks=cfg.cluster.ranks, **settings)


def finished(
    cfg: RunConfig, directory: RunDirectory | None = None, **more: Any
) -> tuple[RunDirectory, dict[str, Any]]:
    """As `launch`, of a run that has to finish: its directory and summary."""
    directory, outcome = launch(cfg, directory, **more)
    assert outcome.status == "finished", outcome.details
    return directory, outcome.summary


def entry(name: str, ranks: int, results: Path) -> Outcome:
    """Ranks on one node that run a function of a `gloo_entries` module in place of training."""
    return launch(config(ranks=[ranks], results=results), entry=name)[1]


def final_model(directory: RunDirectory) -> dict[str, torch.Tensor]:
    """What the run would give a user."""
    return checkpoint.read(directory.checkpoints / "final" / "model.pt")["model"]


def assert_close(
    model: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], tolerance: float
) -> None:
    """The models have the same names, and no two numbers differ by more."""
    assert list(model) == list(other)
    for name, value in model.items():
        assert (value - other[name]).abs().max() <= tolerance, name


def same_model(run: RunDirectory, other: RunDirectory) -> bool:
    """Whether two runs have the same bits."""
    mine, theirs = final_model(run), final_model(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def history(directory: RunDirectory) -> list[tuple[Any, ...]]:
    """All evaluations of a run, without their times."""
    return judged(read_records(directory.metrics).rows)


def alive(pid: int) -> bool:
    """Not gone, and no zombie that nobody has buried yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def members(session: int) -> set[int]:
    """The processes of a session: a supervisor, its forkserver, its ranks, the holder of its nodes."""
    pids: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(path.name)) == session and alive(int(path.name)):
                pids.add(int(path.name))
    return pids
