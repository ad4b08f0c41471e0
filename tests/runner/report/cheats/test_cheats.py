"""Thirty ways to make a report say something false: each is noticed, and no number stands unmarked.

The studies are real ones, small: plans by the front end's code, runs by the trainer in virtual time.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import geometric_mean

import pytest
import torch
from asking import run_here
from cheats import ALL, CHEATS, UNEQUAL, Cheat, copy_a_folder
from PIL import Image
from rich.console import Console
from study_folder import (
    ARMS,
    StudyFolder,
    add_runs,
    as_real,
    change_json,
    make_study,
    read_rows,
    write_configuration,
    write_rows,
)

from daso_bench.runner.config import load
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report import build
from daso_bench.runner.report.claims.convergence_points import Reference, workload_of, write
from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.results import Results
from daso_bench.runner.studies.plan import declare, plan_of
from daso_bench.runner.studies.prepare_data import Preparation
from daso_bench.runner.training import checkpoint
from daso_bench.strategies.errors import ConfigError

EXPECTED_AMBER = ("noise", "times")  # of the honest study in virtual time
Fixture = Callable[[str], StudyFolder]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        # One code for all runs, whatever is edited meanwhile.
        patch.setattr(environment, "commit_of", lambda source: ("0" * 40, None))
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def study_of(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """The study that a cheat begins with, by its name, each made once."""
    made: dict[str, StudyFolder] = {}

    def give(name: str) -> StudyFolder:
        if name not in made:
            honest = made.get("virtual") or give("virtual") if name != "virtual" else None
            made[name] = _make(name, tmp_path_factory.mktemp("cheats"), honest)
        return made[name]

    return give


def _make(name: str, root: Path, honest: StudyFolder | None) -> StudyFolder:
    if honest is None:
        study = make_study(root)
        _store_points(study, 1.0)
        return study
    three = "0,1,2"
    match name:
        case "real":
            return as_real(honest, root)
        case "settings":
            own = {
                f"{arm} {number}": f"{ARMS[arm]} {word}" for arm in ALL for number, word in UNEQUAL.items()
            }
            study = make_study(root, {"ddp": ARMS["ddp"], **own}, seeds=three, reuse=[honest])
        case "tuned":
            rates = {"ddp": 0.1, "daso": 0.15, "halfway": 0.12}
            label = "study.tuned={arm} study.tune_space=optimizer.lr optimizer.lr={rate}"
            arms = {arm: f"{ARMS[arm]} {label.format(arm=arm, rate=rate)}" for arm, rate in rates.items()}
            study = make_study(root, arms, seeds=three)
        case "images":
            return _replaced_images(root)
        case "permissive":
            own = "strategy=permissive optimizer.lr=0.2 cluster.links.inter.rate_gbit=25"
            study = make_study(root, {"ddp": ARMS["ddp"], "permissive": own}, seeds=three, reuse=[honest])
        case "more seeds":
            study = honest.copy(root)
            add_runs(study, ["seed=5,6"], unix=2e9)
            return study
        case "rate 0":
            study = make_study(root, words=["optimizer.lr=1e-9"])
        case "better known":
            study = honest.copy(root)
            _store_points(study, 1.2)
            return study
        case _:
            raise ValueError(name)
    shutil.copytree(honest.config_dir / "convergence", study.config_dir / "convergence")
    return study


def _store_points(study: StudyFolder, better: float) -> None:
    """What is known of the workload: ten runs with that many times fewer samples than ddp needs here."""
    runs = [run for run in study.results().runs if run.strategy == "ddp"]
    typical = geometric_mean([run.crossing.scored_samples for run in runs if run.crossing]) / better
    known = Reference(
        name="known",
        workload=workload_of(runs[0].config),
        samples=tuple(typical * (0.955 + 0.01 * number) for number in range(10)),
        missed=0,
        command="daso-bench pilot",
        date="2026-11-30",
    )
    write(study.config_dir / "convergence" / "known.yaml", known, "known")


def _replaced_images(root: Path) -> StudyFolder:
    """The arms' images are others than the baseline's, of the same names and sizes."""
    study = StudyFolder(root / "again", root / "conf")
    write_configuration(study.config_dir, {"ddp": ARMS["ddp"], "halfway": ARMS["halfway"]})
    words = ["dataset=imagefolder", f"dataset.root={root / 'images'}", "dataset.resize=8", "dataset.crop=8"]
    words += ["+study=again", "train.epochs=6", "train.eval_every_samples=64", "seed=0,1,2"]
    words += ["train.target=null", f"results_dir={root}"]
    _draw(root / "images", 0)
    asked = load.requests(words, sweep=True, cwd=root, config_dir=study.config_dir)
    plan = plan_of(asked)
    assert plan.refused == []
    declare(plan.runs, words, unix=0.0, commit=lambda: None)
    for arm in ("ddp", "halfway"):
        if arm == "halfway":
            _draw(root / "images", 100)
        ready = Preparation(Console(quiet=True))
        for run in plan.runs:
            if run.config.study.arm == arm:
                ready.check(run.config)
                directory = run.create_directory()
                ready.record(directory, run.config)
                assert run_here(directory) == "finished"
    return study


def _draw(folder: Path, level: int) -> None:
    """Two classes of 100 grey pictures; a bitmap's size does not depend on what it shows."""
    for name, offset in (("dark", 0), ("bright", 60)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(100):
            grey = level + offset + number % 40
            Image.new("RGB", (8, 8), (grey, grey, grey)).save(folder / name / f"{number}.bmp")


def words_of(results: Results) -> str:
    """What the checks that are not green say, line by line; and why runs count in nothing."""
    checks = [check for study in results.speedups for check in study.checks if check.level != "green"]
    lines = [
        (check.sentence, *check.details, *(each.sentence for each in check.forbids), check.exploratory)
        for check in checks
    ]
    lines += [run.distrusted for run in results.runs]  # where no run counts, there is no check
    return "\n".join(line for each in lines for line in each if line)


def names(cheat: Cheat, said: str) -> bool:
    return bool(re.search(cheat.says, said, re.IGNORECASE))


def unmarked(study: Speedups, label: str) -> bool:
    """Whether a ratio of that arm stands there as if nothing were wrong."""
    lines = [line for line in study.shown if line.arm.label == label]
    marked = any(study.not_comparable(line.arm) for line in lines) or study.exploratory
    return any(line.fixed_work or line.to_target for line in lines) and not marked


def holds(results: Results, label: str) -> list[str]:
    """Verdicts on that arm that stand without a remark."""
    return [
        judged.verdict.word
        for judged in results.judged
        if label in (judged.arm, judged.comparator)
        if judged.verdict.word not in ("no verdict", "not testable here")
        if not any("exploratory" in remark for remark in judged.verdict.remarks)
    ]


@pytest.fixture(scope="module")
def results_of_study(study_of: Fixture) -> Callable[[str], Results]:
    """What a report of a study is made of, before anything is changed in it; read once."""
    read: dict[str, Results] = {}

    def give(name: str) -> Results:
        if name not in read:
            read[name] = study_of(name).results()
        return read[name]

    return give


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda each: each.name)
def test_cheat_is_noticed(
    cheat: Cheat, study_of: Fixture, results_of_study: Callable[[str], Results], tmp_path: Path
) -> None:
    made_before = cheat.of not in ("virtual", "real")
    if made_before:
        results = results_of_study(cheat.of)
    else:
        study = study_of(cheat.of).copy(tmp_path)
        cheat.do(study)
        results = study.results()
        assert not names(cheat, words_of(results_of_study(cheat.of)))
    said = words_of(results)
    if cheat.of == "settings":  # twelve cheats in one study: each has to be named with its arm
        said = "\n".join(line for line in said.splitlines() if cheat.marked[0] in line)
    assert names(cheat, said), said
    for label in cheat.marked:
        assert holds(results, label) == []
        assert [each.comparison.study for each in results.speedups if unmarked(each, label)] == []


@pytest.mark.parametrize("world", ["virtual", "real"])
def test_honest_study_raises_no_alarm(world: str, results_of_study: Callable[[str], Results]) -> None:
    (study,) = results_of_study(world).speedups
    assert [line.arm.label for line in study.lines] == list(ALL)
    assert [study.not_comparable(line.arm) for line in study.lines] == ["", ""]
    assert study.exploratory == ""
    levels = {check.name: check.level for check in study.checks}
    allowed = {name: "amber" if name in EXPECTED_AMBER else "green" for name in levels}
    assert {name for name in levels if levels[name] not in ("green", allowed[name])} == set()


def test_checkpoint_of_another_run_is_refused(
    study_of: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run gets the checkpoint of a run that learnt for longer, with another seed."""
    monkeypatch.setattr(checkpoint, "drop_resume_states", lambda folder: None)
    study = StudyFolder(tmp_path / "again", study_of("virtual").config_dir)
    add_runs(study, ["seed=0,1", "study.arm=ddp", "train.checkpoint_every_samples=600"])
    interrupted, other = study.runs("ddp")
    rows = read_rows(interrupted / "metrics.jsonl")
    write_rows(interrupted / "metrics.jsonl", [row for row in rows if row["step"] <= 10])
    change_json(
        interrupted / "status.json",
        lambda status: status.update(status="failed", reason="killed", summary=None),
    )
    shutil.rmtree(interrupted / "checkpoints")
    shutil.copytree(other / "checkpoints", interrupted / "checkpoints")
    with pytest.raises(ConfigError, match=other.name):
        run_here(RunDirectory(interrupted))


def test_copied_folder_is_said_once(
    study_of: Fixture, results_of_study: Callable[[str], Results], tmp_path: Path
) -> None:
    (honest,) = results_of_study("virtual").speedups
    study = study_of("virtual").copy(tmp_path)
    copy_a_folder(study)
    (copied,) = study.results().speedups
    said = [line for check in copied.checks for line in (check.sentence, *check.details) if "copy" in line]
    assert len(said) == 1
    name = study.runs("daso")[0].name
    assert said[0] == f"{name} was found twice and counts once: {name}, {name}_copy"
    # It counts once, and nothing else is said of it.
    assert [line.fixed_work for line in copied.lines] == [line.fixed_work for line in honest.lines]
    assert [check.sentence for check in copied.checks] == [check.sentence for check in honest.checks]


SHOWN = ("04 other host", "05 times", "26 no plan", "28 nothing", "29")


def unquoted(page: str) -> str:
    return page.replace("&#39;", "'").replace("&#34;", '"').replace("&quot;", '"')


@pytest.mark.parametrize(
    "cheat",
    [
        pytest.param(each, id=each.name)
        for each in CHEATS
        if each.name.startswith(SHOWN) and "halfway" not in each.name
    ],
)
def test_first_page_says_it(
    cheat: Cheat, study_of: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "picture", lambda plot, output: replace(plot, failure="left out"))
    study = study_of(cheat.of).copy(tmp_path)
    cheat.do(study)
    page = build.report(study.path, tmp_path / "report", study.config_dir).read_text()
    results = study.results()
    said = {check.sentence for each in results.speedups for check in each.checks if check.level != "green"}
    said = said or {line for run in results.runs for line in run.distrusted}
    assert said
    assert [
        sentence for sentence in sorted(said) if escape(sentence, quote=False) not in unquoted(page)
    ] == []
