"""All checks of a study, in the order of the strip on page one."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..claims.speedups import Speedups
from . import baseline_strength, fair, modelled_time, noise, planned_runs, record_integrity
from .check import Check

CHECKS: tuple[Callable[[Speedups], Check], ...] = (
    record_integrity.check,  # first: a run that counts in no number makes its arm unequal too
    fair.check,
    planned_runs.check,
    baseline_strength.check,
    noise.check,
    modelled_time.check,
)


def checked(studies: Iterable[Speedups]) -> list[Speedups]:
    """Each study with what its checks say."""
    return [replace(study, checks=tuple(check(study) for check in CHECKS)) for study in studies]
