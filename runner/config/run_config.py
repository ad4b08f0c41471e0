"""`RunConfig`: one checked run, all its keys as typed values."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .checks import check
from .parts import RunInfo, RunParts
from .run_id import derive_run_id, tree_of


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunParts):
    """One run that has passed all of `checks.CHECKS`; so has every copy made by `dataclasses.replace`."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def path(self) -> Path:
        """Its run directory, absolute."""
        return self.results_dir / self.study.name / self.run_id

    @property
    def title(self) -> str:
        return self.run_id + (f" ({self.run.name})" if self.run.name else "")

    @property
    def tree(self) -> dict[str, Any]:
        """What `config.yaml` holds: builtin values only, `_target_` of each part, and `run.id`."""
        tree = tree_of(self)
        tree["run"]["id"] = self.run_id
        return tree

    @cached_property
    def run_id(self) -> str:
        """See `run_id.derive_run_id`; computed once, since a sweep needs it often."""
        return derive_run_id(self)

    @cached_property
    def arm_id(self) -> str:
        """The run id without what tells repetitions of an arm apart: seed, evaluation phase, repeat."""
        train = dataclasses.replace(self.train, eval_phase=0.0)
        return dataclasses.replace(self, seed=0, train=train, run=RunInfo(arm=self.run.arm)).run_id
