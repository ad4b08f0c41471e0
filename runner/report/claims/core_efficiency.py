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
from ..statistics.welch import Interval
from ..target import baseline_of
from . import recorded
from .arm_speedup import level_of, rated, rates
from .fairness import fairness, forbidding

FEWEST = 2  # runs; there is no mean of one
SLOWER = "the machine was busy, or its threads are in each other's way"


@dataclass(frozen=True, kw_only=True)
class Efficient:
    """An arm: samples a second, efficiency with its interval (None below 3 runs), shares of training time.

    `shares`: by `TIME_SHARES`, mean over the arm's runs; None where a run has not recorded them.
    """

    arm: Arm
    samples_per_s: float
    value: float
    interval: Interval | None
    shares: Mapping[str, float] | None

    @property
    def headroom(self) -> float:
        """Times as fast as this arm; never below 1: cores that help one another's caches are no bound."""
        return max(1.0, 1 / self.value)

    @property
    def headroom_limit(self) -> float | None:
        """The upper end of its interval."""
        ends = self.interval
        return None if ends is None or ends.low <= 0 else max(1.0, 1 / ends.low)


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
        above = next((line for line in self.lines if line.interval and line.interval.low > 1), None)
        if above is None:
            return ""
        return (
            f"{above.arm.label} gets {efficiency_words(above)} of what {self.cores} cores could do: "
            "the core was not alone, or did other work, and what is left to be gained is not known"
        )

    @property
    def sentence(self) -> str:
        """What the baseline leaves to be gained, and who is not in the matrix."""
        base, ends, most = self.baseline, self.baseline.interval, self.baseline.headroom_limit
        upper = "" if most is None else f" (at most {most:.3g})"
        left = f"nothing on these cores can be more than {base.headroom:.3g} times as fast{upper}"
        if ends is not None and ends.high * self.cores < 1:
            left = f"it is slower than one of them; {SLOWER}"
        could = f"of what {self.cores} cores could do, each as fast as one alone"
        said = self.no_headroom or f"{base.arm.label} gets {base.value:.1%} {could}: {left}"
        out = f" Not in the matrix: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"{said}.{out}"


def headroom(comparison: Comparison, comparator: Arm, floor: float) -> Bound:
    """What no arm can exceed: the comparator's headroom; where that is not known the number of cores.

    `floor`: the study's noise, m.
    """
    made = matrix(comparison)
    lines = made.lines if isinstance(made, Matrix) else []
    line = next((line for line in lines if line.arm is comparator), None)
    why = made.no_headroom if isinstance(made, Matrix) else made
    cores = cores_of(comparator)
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
    if baseline is None:
        return "no baseline (study.baseline)"
    if why := _unfit(baseline):
        return f"{baseline.label}: {why}"
    cores = cores_of(baseline)
    assert cores is not None, "else it is unfit"
    single = [arm for arm in comparison.arms if arm.runs[0].role == ONE_CORE]
    if not single:
        return "no run of one core (study.role=one_core)"
    if len(single) > 1:
        return f"several arms of one core ({'; '.join(arm.label for arm in single)}): keep one"
    (alone,) = single
    if len(rated(alone)) < FEWEST:
        return f"{alone.label}: fewer than {FEWEST} complete runs"
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


def _unfit(arm: Arm, cores: int | None = None) -> str:
    """Why an arm has no line in a matrix of so many cores; "" where it has."""
    if len(rated(arm)) < FEWEST:
        return f"fewer than {FEWEST} complete runs"
    own_cores = cores_of(arm)
    if own_cores is None:
        return "its cores are not recorded, or not the same in all runs"
    return "" if cores in (None, own_cores) else f"{own_cores} cores, the others {cores}"


def _other_work(baseline: Arm, alone: Arm, cores: int) -> list[str]:
    """In what the one core's work or machine is other than a core's part of the baseline's."""
    unequal = forbidding(fairness(baseline.runs, alone.runs))
    wrong = [row.wrong or f"{row.quantity} ({row.baseline}; {row.arm})" for row in unequal]
    hosts, own_hosts = (
        {host for run in rated(arm) for host in recorded.hosts(run)} for arm in (baseline, alone)
    )
    if hosts and not own_hosts <= hosts:
        wrong.append(f"nodes ({', '.join(sorted(hosts))}; {', '.join(sorted(own_hosts - hosts))})")
    # All runs of an arm have the same batch; without a configuration nothing is known of it.
    whole, part = (value_at(arm.runs[0].config, "train", "global_batch_size") for arm in (baseline, alone))
    known = isinstance(whole, int) and isinstance(part, int)
    if known and part not in (whole // cores, -(-whole // cores)):  # its part, rounded either way
        wrong.append(f"batch of a core ({whole} / {cores}; {part})")
    return wrong


def efficiency_words(line: Efficient) -> str:
    """`93.1 % [91.0, 95.2]`."""
    ends = line.interval
    interval = f" [{100 * ends.low:.1f}, {100 * ends.high:.1f}]" if ends else ""
    return f"{100 * line.value:.1f} %{interval}"


def _line(arm: Arm, alone: Arm, cores: int) -> Efficient:
    ratio = rates(alone, arm)
    return Efficient(
        arm=arm,
        samples_per_s=_rate(arm),
        value=_rate(arm) / _rate(alone) / cores,
        interval=ratio and Interval(ratio.low / cores, ratio.high / cores),
        shares=time_shares(rated(arm)),
    )


def _rate(arm: Arm) -> float:
    """Geometric mean of samples a second."""
    return 1 / over_runs(per_sample(rated(arm)).seconds)
