"""Computing efficiency E = X / (cores · x₁), all cores together over one core alone.

X are an arm's samples per second, x₁ those of one process of one thread while the other cores idle
(`study.role=one_core`). 1 / E of the baseline is its headroom: how many times as fast anything on the same
cores could be. x₁ is measured on the same nodes, model and precision with batch B_global / cores. Source:
HSGD, the four-arm efficiency matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..data.arms import ONE_CORE, Arm, Comparison, per_sample
from ..data.load import value_at
from ..data.means import over_runs, time_shares
from ..statistics.verdict import Bound
from ..statistics.welch import FEWEST_RUNS, Interval
from ..target import baseline_of
from . import recorded
from .arm_speedup import level_of, rated, rates
from .fairness import fairness, forbidding

UNKNOWN_CORES = "its cores are not recorded, or not the same in all runs"
SLOWER = "the machine was busy, or its threads are in each other's way"


@dataclass(frozen=True, kw_only=True)
class Efficient:
    """An arm: samples a second, efficiency with its interval, shares of training time.

    `shares`: by `TIME_SHARES`, mean over the arm's runs; None where a run has not recorded them.
    """

    arm: Arm
    samples_per_s: float
    value: float
    interval: Interval
    shares: Mapping[str, float] | None

    @property
    def headroom(self) -> float:
        """Times as fast as this arm; never below 1: cores that help one another's caches are no bound."""
        return max(1.0, 1 / self.value)

    @property
    def headroom_limit(self) -> float:
        """The upper end of its interval."""
        return max(1.0, 1 / self.interval.low)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All arms of a comparison, the baseline among them; `alone`: samples a second of one core.

    `left_out`: arms that have no line, and why.
    """

    comparison: Comparison
    cores: int
    alone: float
    level: float
    lines: list[Efficient]
    baseline: Efficient
    left_out: tuple[str, ...] = ()

    @property
    def no_headroom(self) -> str:
        """Why nobody's headroom is known; "" where it is: no arm may be shown to do more than all cores."""
        above = next((line for line in self.lines if line.interval.low > 1), None)
        if above is None:
            return ""
        return (
            f"{above.arm.label} gets {efficiency_words(above)} of what {self.cores} cores could do: "
            "the core was not alone, or did other work, and what is left to be gained is not known"
        )

    @property
    def sentence(self) -> str:
        """What the baseline leaves to be gained, and who is not in the matrix."""
        base, cores = self.baseline, self.cores
        left = f"nothing on these cores can be more than {base.headroom:.3g} times as fast"
        left += f" (at most {base.headroom_limit:.3g})"
        if base.interval.high * cores < 1:
            left = f"it is slower than one of them; {SLOWER}"
        could = f"of what {cores} cores could do, each as fast as one alone"
        found = self.no_headroom or f"{base.arm.label} gets {base.value:.1%} {could}: {left}"
        out = f" Not in the matrix: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"{found}.{out}"


def headroom(comparison: Comparison, comparator: Arm, floor: float) -> Bound:
    """What no arm can exceed: the comparator's headroom; where that is not known the number of cores.

    `floor`: the study's noise, m.
    """
    made, cores = matrix(comparison), cores_of(comparator)
    lines, why = (made.lines, made.no_headroom) if isinstance(made, Matrix) else ([], made)
    line = next((line for line in lines if line.arm is comparator), None)
    if line is None or cores is None or why:
        unknown = f"headroom not known: {why or f'no line of {comparator.label}'}"
        return Bound(value=None if cores is None else float(cores), of="cores", unknown=unknown)
    slower = f"{comparator.label} on {cores} cores is slower than one core alone: {SLOWER}"
    impossible = slower if line.headroom > cores * (1 + floor) else ""
    return Bound(value=line.headroom, limit=line.headroom_limit, of="cores", impossible=impossible)


def cores_of(arm: Arm) -> int | None:
    """Cores that all complete runs of an arm could use; None where they differ, or one is not known."""
    counts = {recorded.cores(run) for run in rated(arm)}
    return counts.pop() if len(counts) == 1 else None


def matrix(comparison: Comparison) -> Matrix | str:
    """The matrix of a comparison, or why there is none."""
    baseline = baseline_of(comparison)
    single = [arm for arm in comparison.arms if arm.runs[0].role == ONE_CORE]
    if baseline is None:
        return "no baseline (study.baseline)"
    if len(single) != 1:
        return f"{len(single)} arms of one core (study.role=one_core), must be 1"
    (alone,) = single
    cores = cores_of(baseline)
    if cores is None:
        return f"{baseline.label}: {UNKNOWN_CORES}"
    if few := [arm.label for arm in (baseline, alone) if len(rated(arm)) < FEWEST_RUNS]:
        return f"{few[0]}: fewer than {FEWEST_RUNS} complete runs"
    if wrong := _other_work(baseline, alone, cores):
        return f"{alone.label} is no core of {baseline.label}'s: not equal: {'; '.join(wrong)}"
    arms = [(arm, _unfit(arm, cores)) for arm in comparison.arms if not arm.runs[0].role]
    lines = [_line(arm, alone, cores) for arm, why in arms if not why]
    return Matrix(
        comparison=comparison,
        cores=cores,
        alone=_rate(alone),
        level=level_of(alone),
        lines=lines,
        baseline=next(line for line in lines if line.arm is baseline),
        left_out=tuple(f"{arm.label} ({why})" for arm, why in arms if why),
    )


def _unfit(arm: Arm, cores: int) -> str:
    """Why an arm has no line in a matrix of so many cores; "" where it has."""
    if len(rated(arm)) < FEWEST_RUNS:
        return f"fewer than {FEWEST_RUNS} complete runs"
    own_cores = cores_of(arm)
    if own_cores is None:
        return UNKNOWN_CORES
    return "" if own_cores == cores else f"{own_cores} cores, the baseline {cores}"


def _other_work(baseline: Arm, alone: Arm, cores: int) -> list[str]:
    """In what the one core's work or machine is other than a core's part of the baseline's."""
    wrong = [row.sentence for row in forbidding(fairness(baseline.runs, alone.runs))]
    hosts, own_hosts = (
        {host for run in rated(arm) for host in recorded.hosts(run)} for arm in (baseline, alone)
    )
    if hosts and not own_hosts <= hosts:
        wrong.append(f"other nodes: {', '.join(sorted(own_hosts - hosts))}")
    configs = (arm.runs[0].config for arm in (baseline, alone))
    batch, part = (value_at(config, "train", "global_batch_size") for config in configs)
    # Its part, rounded either way.
    if isinstance(batch, int) and part not in (batch // cores, -(-batch // cores)):
        wrong.append(f"batch of a core: {part} instead of {batch} / {cores}")
    return wrong


def efficiency_words(line: Efficient) -> str:
    """`93.1 % [91.0, 95.2]`."""
    ends = line.interval
    return f"{100 * line.value:.1f} % [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"


def _line(arm: Arm, alone: Arm, cores: int) -> Efficient:
    ratio = rates(alone, arm)
    assert ratio is not None, "both have runs enough"
    return Efficient(
        arm=arm,
        samples_per_s=_rate(arm),
        value=ratio.point / cores,
        interval=Interval(ratio.low / cores, ratio.high / cores),
        shares=time_shares(rated(arm)),
    )


def _rate(arm: Arm) -> float:
    """Geometric mean of samples a second."""
    return 1 / over_runs(per_sample(rated(arm)).seconds)
