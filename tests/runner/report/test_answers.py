"""The sentences of page one: what is recommended, what was shown, and what could have been seen."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from sharing import Make, compared, there

from daso_bench.runner.report import answers, words
from daso_bench.runner.report.claims.arm_speedup import smallest_gain
from daso_bench.runner.report.claims.judge import judge
from daso_bench.runner.report.claims.paper_claims import load
from daso_bench.runner.report.claims.speedups import Check, Forbidden, Speedups, speedups_of
from daso_bench.runner.report.claims.study_checks import noise
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.plots.saving_lanes import lanes
from daso_bench.runner.report.plots.style import TOLERANCE
from daso_bench.runner.report.statistics.noise_floor import NoiseFloor
from daso_bench.runner.report.statistics.verdict import Verdict
from daso_bench.runner.report.statistics.welch import Times, welch

BASE = (96.0, 100.0, 104.0, 98.0, 102.0)  # T_train in seconds
EQUAL = (0.78, 0.781, 0.782, 0.779, 0.780)


FACTORS = {"ednncomm": 0.5, "hsgd": 0.4, "sgp": 0.97, "lasgd": 2.0, "daso": 0.45}  # of the baseline's time
FINALS = {"hsgd": (0.72, 0.721, 0.722, 0.719, 0.72), "daso": (0.80, 0.76, 0.81, 0.75, 0.78)}


@pytest.fixture(scope="module")
def study(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> Speedups:
    """ddp, its twins and five arms; hsgd loses 6 points of accuracy, and that of daso scatters."""
    root = tmp_path_factory.mktemp("answers")

    def run(strategy: str, seed: int, factor: float, role: str = "") -> None:
        final = FINALS.get(strategy, EQUAL)[seed % 10]
        place = {"arm": f"{strategy} {role}".strip(), "role": role}
        times = BASE[seed % 10] * factor / 4
        make_run(root, strategy, seed, (0.6, 0.7, 0.74, final), train_s=times, place=place, arm=role)

    for seed in range(5):
        run("ddp", seed, 1)
        run("ddp", seed, 1.002 - 0.001 * seed, "same_seeds")
        run("ddp", seed + 10, 1.001, "fresh_seeds")
        for strategy, factor in FACTORS.items():
            run(strategy, seed, factor)
    return there(speedups_of(compared(root)))


def of(study: Speedups, *arms: str) -> Speedups:
    return replace(study, lines=[line for line in study.lines if line.arm.label in arms])


def forbidding(study: Speedups, forbids: dict[str, str], exploratory: str = "") -> Speedups:
    each = tuple(Forbidden(label, reason, f"{label}: {reason}") for label, reason in forbids.items())
    check = Check(name="fair", level="red", sentence="", forbids=each, exploratory=exploratory)
    return replace(study, checks=(check,))


def test_the_fastest_arm_of_equal_accuracy_is_recommended_and_a_loss_is_named(study: Speedups) -> None:
    """hsgd and daso are faster than ednncomm; sgp's small gain does not show."""
    sentence = answers.recommendation(study)
    assert sentence.startswith(
        "On small_cnn/digits over 2×2 ranks, ednncomm is recommended: it saves 50 % [48, 52] of the"
        " baseline's time at equal accuracy"
    )
    assert "hsgd saves 60 % [58, 62] of the baseline's time but loses 6.0 points of accuracy" in sentence
    assert "time is saved by daso (55 % [53, 57]), but a loss of more than 0.5 points of accuracy" in sentence
    assert "slower than the baseline: lasgd; for sgp nothing is shown." in sentence
    order = ["hsgd", "daso", "ednncomm", "sgp", "lasgd"]
    assert [line.arm.label for line in answers.in_order(study)] == order


def test_a_forbidden_arm_is_never_recommended(study: Speedups) -> None:
    both = of(study, "ednncomm", "sgp")
    unfair = forbidding(both, {"ednncomm": "other learning rate"}, "No plan was filed.")
    sentence = answers.recommendation(unfair)
    assert sentence.startswith("Exploratory: on small_cnn/digits over 2×2 ranks, no arm is recommended")
    assert sentence.endswith("ednncomm may not be compared (other learning rate).")
    assert answers.in_order(unfair)[-1].arm.label == "ednncomm"
    nobody = answers.recommendation(forbidding(both, {"ddp": "weak baseline"}))
    assert nobody.endswith("no arm is recommended; ednncomm and sgp may not be compared (weak baseline).")


def test_without_an_equal_accuracy_nothing_is_recommended(study: Speedups) -> None:
    assert "no arm is recommended; hsgd saves 60 %" in answers.recommendation(of(study, "hsgd"))
    assert "no arm is recommended; time is saved by daso (55 %" in answers.recommendation(of(study, "daso"))
    found = of(study, "ednncomm")
    diverged = replace(found, lines=[replace(found.lines[0], diverged=True)])
    assert answers.recommendation(diverged).endswith("time, but one of its runs diverged.")


def test_without_a_noise_floor_nothing_is_shown(study: Speedups) -> None:
    unknown = NoiseFloor(clock=None, fresh=None)
    found = replace(of(study, "ednncomm"), fixed_floor=unknown, target_floor=unknown)
    assert answers.recommendation(found).endswith(
        "no arm is recommended; for ednncomm nothing is shown, because the noise of the baseline was not"
        " measured."
    )


def test_an_arm_that_reaches_the_target_later_is_named_and_not_recommended(study: Speedups) -> None:
    found = of(study, "ednncomm")
    late = there(welch(Times(BASE), Times(tuple(1.5 * value for value in BASE))))
    line = replace(found.lines[0], to_target=late, holm_loss=(1.0, 0.001))
    told = answers.recommendation(replace(found, lines=[line]))
    assert "no arm is recommended; ednncomm saves 50 %" in told
    assert told.endswith("; slower to 75 % accuracy: ednncomm.")
    unsure = answers.recommendation(replace(found, lines=[replace(line, holm_loss=(1.0, 0.2))]))
    assert "ednncomm is recommended" in unsure


def test_a_gain_must_hold_for_all_arms_together(study: Speedups) -> None:
    found = of(study, "ednncomm")
    weak = replace(found, lines=[replace(found.lines[0], holm=(0.2, 0.2))])
    assert answers.recommendation(weak).endswith("no arm is recommended; for ednncomm nothing is shown.")


def test_the_smallest_gain_that_shows_is_named_by_the_check(study: Speedups) -> None:
    found = of(study, "ednncomm")
    ratio, floor = there(found.lines[0].fixed_work), there(found.fixed_floor.floor)
    least = smallest_gain(ratio, floor)
    assert least == pytest.approx(math.exp(ratio.estimate.detectable) * (1 + floor))
    assert f"a gain below {least:.2f}× in the time of all work" in noise(found).sentence


def test_a_target_is_a_percentage_unless_it_is_a_loss(
    study: Speedups, make_run: Make, tmp_path: Path
) -> None:
    assert answers.to_target_words(study) == "to 75 % accuracy"
    make_run(tmp_path, target=0.3, train={"target_metric": "loss"})
    assert answers.to_target_words(replace(study, comparison=compared(tmp_path))) == "to loss 0.3"


def test_a_paper_has_one_row_with_its_claims_and_its_verdict(study: Speedups) -> None:
    found = of(study, "daso", "lasgd")
    daso, lasgd = answers.paper_rows(found, judge(load(), [found]))
    assert (daso["paper"], lasgd["paper"]) == ("Coquelin 2022 (daso)", "Avidor 2022 (lasgd)")
    assert "34 % less time" in daso["claims"]
    assert daso["measured"].startswith("daso: 55 % [53, 57] of the time saved, 0.0 [−")
    lost = Verdict(word="contradicted", remarks=("quality lost",))
    (row,) = answers.paper_rows(found, [replace(judge(load(), [found])[0], verdict=lost)])
    assert row["verdict"] == "same epochs: contradicted (the final metric is worse)"
    unfair = forbidding(found, {"daso": "other learning rate"})
    first, second = answers.paper_rows(unfair, judge(load(), [unfair]))
    assert first["verdict"].endswith("no verdict (daso: other learning rate)")
    assert "other learning rate" not in second["verdict"]


def test_the_runs_of_an_arm_are_named(study: Speedups) -> None:
    assert answers.runs(study) == "5 runs an arm"
    short = [replace(line, arm=replace(line.arm, runs=line.arm.runs[:3])) for line in study.lines[:1]]
    assert answers.runs(replace(study, lines=[*short, *study.lines[1:]])) == "3 to 5 runs an arm"


def test_a_study_that_decides_no_claim_says_so_and_what_would(study: Speedups) -> None:
    found = of(study, "daso", "lasgd")
    judged = [one for one in judge(load(), [found]) if one.comparison is found.comparison]
    assert answers.undecided(found, judged) == "", "one is decided"
    open_ones = [
        replace(one, verdict=replace(one.verdict, word="inconclusive", smallest_n=runs))
        for runs, one in zip((40, 30), judged, strict=False)
    ]
    assert answers.undecided(found, open_ones) == (
        "No claim of a paper is decided here (inconclusive: 2). 30 runs an arm would decide one. "
        "A workload in which more time can be saved, or with more test samples, decides more."
    )
    hopeless = [replace(one, verdict=replace(one.verdict, smallest_n=None)) for one in open_ones]
    assert "No number of runs up to 100 would." in answers.undecided(found, hopeless)
    assert answers.undecided(found, []) == "", "no claim is about an arm of this study"


def test_the_figure_marks_the_tolerated_loss_of_accuracy(study: Speedups) -> None:
    with drawing("test"):
        figure = lanes(study)
    band = next(patch for patch in figure.axes[1].patches if to_hex(patch.get_facecolor()) == TOLERANCE)
    assert isinstance(band, Rectangle)
    assert (band.get_x(), band.get_width()) == (-0.5, 0.5)
    assert "tolerated loss: 0.5 points" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("base", "arm", "said", "factor"),
    [
        ((100.0, 102.0, 98.0), (50.0, 51.0, 49.0), "50 % [48, 52]", "2.0×"),
        ((100.0, 100.1, 99.9), (97.5, 97.6, 97.4), "2.5 % [2.3, 2.7]", "1.03×"),
        ((100.0, 101.0, 99.0), (200.0, 202.0, 198.0), "−100 % [−105, −96]", "0.50×"),
        ((100.0, 100.0, 100.0), (100.0, 100.0, 100.0), "0.0 % [0.0, 0.0]", "1.0×"),
    ],
)
def test_savings_have_two_significant_digits(
    base: tuple[float, ...], arm: tuple[float, ...], said: str, factor: str
) -> None:
    ratio = there(welch(Times(base), Times(arm)))
    assert words.saving(ratio) == said
    assert words.factor(ratio.point) == factor


def test_an_end_that_is_not_known_is_no_number() -> None:
    ratio = welch(Times((100.0, 101.0, 99.0)), Times((50.0, 51.0, 49.0), met=(True, True, False)))
    assert re.fullmatch(r"≤ 50 % \[−∞, \d\d\]", words.saving(ratio))
    assert words.saving(None) == "no ratio"
    assert (words.percent(0.047), words.two(1234.5)) == ("4.7 %", "1,234")
