"""The arms of a study that is to be tuned: what each was composed to be, apart from its seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...strategies.errors import ConfigError
from ..config.compose import Composed
from ..config.load import GROUPS
from ..config.schema import RunConfig, arm_id
from ..config.typed import plain
from ..records.nested_keys import below, flatten
from . import sweep

SEARCHED = ("strategy", "optimizer", "schedule")  # what arms without names may differ in
NOT_THE_ARM = ("seed", "run", "study", "hydra", "train.eval_phase")


@dataclass(frozen=True, kw_only=True)
class StudyArm:
    """One arm. `values`: its configuration by dotted key; `choices`: the file of each group.

    `config`: its run with the first seed, checked.
    """

    name: str
    values: dict[str, Any]
    choices: dict[str, str]
    config: RunConfig

    @property
    def role(self) -> str:
        return self.config.study.role


@dataclass(frozen=True)
class _Job:
    name: str
    values: dict[str, Any]
    choices: dict[str, str]
    config: RunConfig


def arms_of(composed: Sequence[Composed], requests: Sequence[sweep.Request]) -> list[StudyArm]:
    """The arms of a study's jobs, in their order, second baselines and the placebo included.

    Departures from what the study assumes (`study.assumption`) are left out. Raises ConfigError where no job
    can run, for several sizes, and for jobs that differ in more than what makes an arm: what is tuned at one
    place is not tuned at another.
    """
    jobs = [
        _Job(
            str(request.config.study.arm),
            flatten({key: value for key, value in plain(job.config).items() if key != "hydra"}),
            {group: str(job.config.hydra.runtime.choices[group]) for group in GROUPS},
            request.config,
        )
        for job, request in zip(composed, requests, strict=True)
        if job.config is not None and request.config is not None and not request.config.study.assumption
    ]
    if not jobs:
        raise ConfigError(next((str(r.error) for r in requests if r.error is not None), "no run to tune"))
    _check(jobs)
    if not all(job.name for job in jobs):
        jobs = _named(jobs)
    arms: dict[str, StudyArm] = {}
    ids: dict[str, str] = {}
    for job in jobs:
        first = arms.setdefault(
            job.name, StudyArm(name=job.name, values=job.values, choices=job.choices, config=job.config)
        )
        if ids.setdefault(job.name, arm_id(job.config)) != arm_id(job.config):
            raise _several(apart([first.values, job.values]), [first.values, job.values])
    return list(arms.values())


def apart(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys in which they differ, but for what names, places or repeats a run."""
    keys = dict.fromkeys(key for one in values for key in one if not below(key, NOT_THE_ARM))
    return [key for key in keys if any(one.get(key) != values[0].get(key) for one in values)]


def _check(jobs: Sequence[_Job]) -> None:
    sizes = list(dict.fromkeys(job.config.study.size for job in jobs))
    if len(sizes) > 1:
        raise ConfigError(
            f"study.size: the study has {', '.join(sizes)}; tune one: add study.size='{sizes[0]}'"
        )
    for job in jobs:
        if job.config.study.tuned:
            raise ConfigError(
                f"study.tuned={job.config.study.tuned}: is tuned already; tune the study it is from"
            )
        if job.config.run.arm not in ("", job.config.study.role):
            raise ConfigError(
                f"run.arm={job.config.run.arm}: tuned arms have names of their own; leave it empty"
            )


def _named(jobs: Sequence[_Job]) -> list[_Job]:
    """Jobs of a study that names none: by their strategy, and by what else sets them apart."""
    other = [key for key in apart([job.values for job in jobs]) if not below(key, SEARCHED)]
    if other:
        raise _several(other, [job.values for job in jobs])
    alike: dict[str, list[_Job]] = defaultdict(list)
    for job in jobs:
        alike[job.choices["strategy"]].append(job)
    named = []
    for job in jobs:
        keys = apart([one.values for one in alike[job.choices["strategy"]]])
        told = [f"{key.rpartition('.')[2]}={job.values.get(key)}" for key in keys]
        named.append(_Job(" ".join([job.choices["strategy"], *told]), job.values, job.choices, job.config))
    return named


def _several(keys: Sequence[str], values: Sequence[Mapping[str, Any]]) -> ConfigError:
    key = keys[0] if keys else "run.repeat"
    found = dict.fromkeys(str(one.get(key)) for one in values)
    return ConfigError(
        f"{key}: the study has {', '.join(found)} for one arm; tune one: add {key}={next(iter(found))}"
    )
