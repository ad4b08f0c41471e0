"""Runs that are given to Slurm, for tests: composed as the command line does, or made without it."""

import dataclasses
from pathlib import Path
from typing import Any

import runs

from daso_bench.runner.config.launchers import SlurmConfig
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.run_directory import RunDirectory


def composed(*words: str) -> RunConfig:
    """The checked run that `words` ask for. Raises ConfigError."""
    (request,) = requests(words, sweep=False, cwd=Path.cwd())
    if request.config is None:
        assert request.error is not None
        raise request.error
    return request.config


def config(*, ranks: tuple[int, ...] = (2, 2), seed: int = 0, results: Path, **launcher: Any) -> RunConfig:
    """A small run that asks for one CPU a rank and no GPU, unless told otherwise."""
    base = runs.config(seed=seed, ranks=list(ranks), results=results)
    asked: dict[str, Any] = {"cpus_per_rank": 1, "gpus_per_rank": 0, "timeout_min": 10} | launcher
    return dataclasses.replace(base, launcher=SlurmConfig(**asked))


def a_run(results: Path, **keys: Any) -> tuple[RunDirectory, RunConfig]:
    """A run with its folder, as the front end makes it."""
    made = config(results=results, **keys)
    return RunDirectory.create(made.tree, made.results_dir), made


def job_of(run: RunDirectory) -> str | None:
    """The job that its status.json names."""
    return (run.status().get("job") or {}).get("id")
