"""Several arms: how often a printed number of runs decides, and how often equal arms get a gain or a loss.

`DASO_BENCH_STUDIES=2000 python -m pytest tests/runner/report/statistics/test_several_arms.py` simulates 2,000
studies a cell; by default there are fewer.
"""

import math
import os
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pytest
from sharing import there
from simulated_studies import draw_logs

from daso_bench.runner.report.statistics import quality
from daso_bench.runner.report.statistics.noise_floor import NoiseFloor
from daso_bench.runner.report.statistics.several_arms import Family
from daso_bench.runner.report.statistics.verdict import Conditions, Hypothesis, Verdict, ratio_verdict
from daso_bench.runner.report.statistics.welch import Estimate, Ratio, Times, welch

STUDIES = int(os.environ.get("DASO_BENCH_STUDIES", "0"))
ARMS = 7
CLAIM, DIRECTION = Hypothesis(value=1.5), Hypothesis()


def conditions(runs: int, floor: float = 0.02) -> Conditions:
    return Conditions(runs=runs, noise=NoiseFloor(clock=floor, fresh=floor))


def ratio_of(rng: np.random.Generator, gain: float, cv: float, runs: int) -> Ratio:
    """A study of log-normal times with a true ratio of `gain`."""
    base, arm = (tuple(np.exp(logs)) for logs in draw_logs(rng, (2, runs), cv))
    return there(welch(Times(base), Times(tuple(time / gain for time in arm))))


def time_of(claim: Hypothesis, ratio: Ratio, runs: int, verdicts: int = 1) -> Verdict:
    family = Family(own=ratio, verdicts=verdicts)
    return ratio_verdict(claim, ratio.interval, conditions(runs), family=family)


def repeats_decide(studies: Iterable[Callable[[int], Verdict]], runs: int) -> None:
    """Each inconclusive study of `runs` runs prints n, and is repeated with n: 4 of 5 decide.

    The repeat has the same true values and the same scatter as the first study.
    """
    decided: list[bool] = []
    for study in studies:
        needed = study(runs).smallest_n
        if needed is not None:
            decided.append(study(needed).word != "inconclusive")
    print(f"{len(decided)} studies printed n; it decided in {np.mean(decided):.1%}")
    assert len(decided) >= 15
    # 80 % less three points, and less what chance makes of so few studies.
    assert np.mean(decided) >= 0.77 - 2 * math.sqrt(0.8 * 0.2 / len(decided))


@pytest.mark.timeout(120 + STUDIES)
@pytest.mark.parametrize("runs", [5, 10])
@pytest.mark.parametrize(
    ("claim", "gains"),
    [(Hypothesis(value=1.1), (0.95, 1.2)), (CLAIM, (0.9, 1.8)), (DIRECTION, (0.85, 1.3))],
)
def test_the_printed_number_of_runs_decides_in_4_of_5_further_studies(
    claim: Hypothesis, gains: tuple[float, float], runs: int
) -> None:
    """True gains anywhere in `gains`, CV 3 to 10 %."""
    rng = np.random.default_rng([3, runs, round(100 * (claim.value or 0))])

    def study() -> Callable[[int], Verdict]:
        gain, cv = math.exp(rng.uniform(*np.log(gains))), float(rng.choice([0.03, 0.05, 0.10]))
        return lambda runs: time_of(claim, ratio_of(rng, gain, cv, runs), runs)

    count = STUDIES or (200 if claim.value == 1.1 else 500)  # of that claim most are inconclusive
    repeats_decide((study() for _ in range(count)), runs)


@pytest.mark.timeout(120 + STUDIES)
def test_it_decides_on_time_and_quality_together_where_a_claim_needs_both() -> None:
    rng = np.random.default_rng(9)

    def verdict(gain: float, loss: float, runs: int) -> Verdict:
        base, arm = (rng.standard_normal((2, runs)) * 0.4 + [[90.0], [90.0 - loss]]).tolist()
        found, ratio = there(quality.difference(base, arm)), ratio_of(rng, gain, 0.08, runs)
        kept = quality.no_loss(CLAIM, found.interval, conditions(runs), family=Family(own=found, verdicts=2))
        return quality.join(time_of(CLAIM, ratio, runs, verdicts=2), kept, quantifier="typical")

    def study() -> Callable[[int], Verdict]:
        gain, loss = math.exp(rng.uniform(*np.log((0.9, 1.8)))), rng.uniform(-0.5, 1.0)
        return lambda runs: verdict(gain, loss, runs)

    repeats_decide((study() for _ in range(STUDIES or 200)), 5)


Words = Callable[[np.random.Generator, int], list[str]]
LOST = ("contradicted", "smaller here")
GAINED = ("supported", "reproduced", "partly")


def of_all_arms(estimates: list[Ratio] | list[Estimate], judge: Callable[[Family], Verdict]) -> list[str]:
    """The word of each arm, corrected for all of them."""
    return [
        judge(Family(own=own, others=[other for other in estimates if other is not own])).word
        for own in estimates
    ]


def times(claim: Hypothesis, gain: float) -> Words:
    """The words on the times of seven arms with the same true gain over one baseline."""

    def words(rng: np.random.Generator, runs: int) -> list[str]:
        base, *arms = np.exp(draw_logs(rng, (ARMS + 1, runs), 0.05))
        ratios = [there(welch(Times(tuple(base)), Times(tuple(arm / gain)))) for arm in arms]
        return of_all_arms(
            ratios,
            lambda family: ratio_verdict(claim, family.own.interval, conditions(runs, 0.0), family=family),
        )

    return words


def points(kind: str, loss: float = 0.0) -> Words:
    """The words on the final accuracy of seven arms that lose `loss` points against one baseline."""
    judge: Callable[..., Verdict] = quality.no_loss
    if kind == "better":
        judge = partial(quality.better, fresh_difference=0.0)

    def words(rng: np.random.Generator, runs: int) -> list[str]:
        base, *arms = rng.standard_normal((ARMS + 1, runs)) * 0.3 + 90
        found = [there(quality.difference(base.tolist(), (arm - loss).tolist())) for arm in arms]
        return of_all_arms(
            found, lambda family: judge(DIRECTION, family.own.interval, conditions(runs), family=family)
        )

    return words


@pytest.mark.parametrize("runs", [5, 10])
@pytest.mark.parametrize(
    ("words", "false"),
    [
        (times(DIRECTION, 1.0), LOST),
        (times(DIRECTION, 1.0), GAINED),
        (times(Hypothesis(value=1.5, quantifier="up_to"), 1.25), LOST),
        (points("better"), LOST),
        (points("better"), GAINED),
        (points("no loss", loss=0.5), LOST),
    ],
    ids=["slower", "faster", "smaller here", "worse", "better", "quality lost"],
)
def test_of_seven_arms_without_a_difference_hardly_one_gets_a_loss_or_a_gain(
    words: Words, false: tuple[str, ...], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false statement on some arm in at most 5 of 100 studies; without noise floor, which forbids more."""
    monkeypatch.setattr(Family, "smallest_n", lambda *_: None)
    rng = np.random.default_rng([5, runs])
    studies = STUDIES or 250
    wrong = sum(any(word in false for word in words(rng, runs)) for _ in range(studies)) / studies
    print(f"{wrong:.1%} of {studies} studies")
    assert wrong <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)


def test_without_correction_seven_arms_would_get_far_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Family, "smallest_n", lambda *_: None)
    monkeypatch.setattr(Family, "p_of_loss", lambda *_: 0.0)
    rng = np.random.default_rng(5)
    words = times(DIRECTION, 1.0)
    assert np.mean([any(word in LOST for word in words(rng, 5)) for _ in range(300)]) > 0.07
