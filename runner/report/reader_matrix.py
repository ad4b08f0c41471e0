"""What readers of a packed file read and what that cost, arm by arm; and their gain over the record size.

Reads, jumps and seconds are those of training's own readers (docs/packed.md), of all ranks together. A gain
is training's, in samples per second over the study's baseline: reading that nobody waits for gains nothing.
Source: HSGD, the experiments on contiguous access.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .data.arms import Arm, Comparison, per_sample
from .data.load import Run
from .split import PARTS, shares
from .statistics import ratio
from .statistics.ratio import Ratio
from .target import baseline_of, study_of

COUNTS = ("reads", "jumps", "requested_bytes", "useful_bytes", "read_s", "checked_s", "waited_s")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An arm that read a packed file: arithmetic means over its complete runs of what was counted.

    `counts`: by `COUNTS`; `cached`: share of the file's pages that were in the system's cache when training
    began, None where they were left as they were; `samples_per_s`: geometric mean; `shares`: by
    `split.PARTS`; `gain`: samples per second over the baseline's, None for the baseline and below 3 runs.
    """

    arm: Arm
    runs: int
    counts: Mapping[str, float]
    cached: float | None
    samples_per_s: float
    shares: Mapping[str, float] | None
    gain: Ratio | None


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All arms of a comparison that read a packed file; `record_bytes`: useful bytes of a sample."""

    comparison: Comparison
    record_bytes: float
    level: float
    baseline: Arm | None
    lines: list[Reading]

    @property
    def cold(self) -> bool:
        """Whether the file was dropped from the system's cache before training."""
        return any(line.cached is not None for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class RecordSizes:
    """A study whose sizes differ in the bytes of a record, ascending; at least two of them."""

    members: list[Readings]

    @property
    def world(self) -> str:
        return self.members[0].comparison.world

    @property
    def comparisons(self) -> list[Comparison]:
        return [one.comparison for one in self.members]

    @property
    def baseline(self) -> str:
        """The arm whose rate is 1."""
        baseline = self.members[0].baseline
        return baseline.label if baseline else "the baseline"

    @property
    def arms(self) -> dict[str, int]:
        """Label and index of the look of each arm that has a gain somewhere."""
        lines = [line for one in self.members for line in one.lines if line.gain]
        return {line.arm.label: line.arm.index for line in lines}

    def gains(self, label: str) -> dict[float, Ratio]:
        """Those of an arm, by bytes of a record."""
        return {
            one.record_bytes: line.gain
            for one in self.members
            for line in one.lines
            if line.gain and line.arm.label == label
        }


def readings(comparisons: Iterable[Comparison]) -> list[Readings]:
    """Of all comparisons in which an arm read a packed file."""
    found = [_readings(comparison) for comparison in comparisons if not comparison.assumption]
    return [one for one in found if one is not None]


def record_sizes(found: Iterable[Readings]) -> list[RecordSizes]:
    """One for each study, model, world and state of the cache that has several sizes of records."""
    groups: dict[tuple[str, str, str, bool, bool], dict[float, Readings]] = {}
    for one in found:
        c = one.comparison
        members = groups.setdefault((c.study, c.model, c.world, c.tuned, one.cold), {})
        members.setdefault(one.record_bytes, one)
    sorted_members = [[group[size] for size in sorted(group)] for group in groups.values()]
    made = [RecordSizes(members=members) for members in sorted_members if len(members) > 1]
    return [one for one in made if one.arms]


def reader_rows(found: Iterable[Readings]) -> list[dict[str, Any]]:
    """One row per arm, for `readers.csv`."""
    return [
        {
            **one.comparison.place,
            "arm": line.arm.label,
            "runs": line.runs,
            "record_bytes": one.record_bytes,
            "still_cached": line.cached,
            **{name: line.counts[name] for name in COUNTS},
            "samples_per_s": line.samples_per_s,
            "baseline": one.baseline.label if one.baseline else None,
            "times_as_fast": line.gain.point if line.gain else None,
            "times_as_fast_low": line.gain.low if line.gain else None,
            "times_as_fast_high": line.gain.high if line.gain else None,
            "level": one.level,
            **{
                f"share_{part.replace(' ', '_')}": line.shares[part] if line.shares else None
                for part in PARTS
            },
        }
        for one in found
        for line in one.lines
    ]


def _readings(comparison: Comparison) -> Readings | None:
    read = [(arm, runs) for arm in comparison.arms if (runs := _runs(arm)) and not arm.runs[0].role]
    if not read:
        return None
    baseline = baseline_of(comparison)
    level = float(study_of(read[0][1][0], "level", 0.95))
    return Readings(
        comparison=comparison,
        record_bytes=_record_bytes([run for _, runs in read for run in runs]),
        level=level,
        baseline=baseline,
        lines=[_line(arm, runs, baseline, level) for arm, runs in read],
    )


def _line(arm: Arm, runs: Sequence[Run], baseline: Arm | None, level: float) -> Reading:
    counted = [run.summary["reader"] for run in runs]
    cached = [run.start["still_cached"] for run in runs if run.start.get("still_cached") is not None]
    gain = None
    if baseline is not None and arm is not baseline:
        gain = ratio.welch(per_sample(baseline.complete), per_sample(runs), level=level)
    return Reading(
        arm=arm,
        runs=len(runs),
        counts={name: fmean(float(each.get(name, 0)) for each in counted) for name in COUNTS},
        cached=fmean(cached) if cached else None,
        samples_per_s=math.exp(-fmean(per_sample(runs).logs)),
        shares=shares(runs),
        gain=gain,
    )


def _runs(arm: Arm) -> list[Run]:
    """The complete ones that counted what they read."""
    return [run for run in arm.complete if isinstance(run.summary.get("reader"), dict) and run.samples_per_s]


def _record_bytes(runs: Sequence[Run]) -> float:
    """Useful bytes of a sample, to three digits: the size of encoded images is a mean."""
    each = [run.summary["reader"]["useful_bytes"] / run.summary["samples"] for run in runs]
    return float(f"{fmean(each):.3g}")
