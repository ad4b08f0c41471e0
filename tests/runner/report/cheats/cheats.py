"""Thirty ways to make a report say something false, each a function that changes a copy of an honest study.

Every cheat is as consistent as a careful cheater makes it: run ids follow the configuration, both copies of a
summary agree, plans name the runs that are there, unless the cheat is about just that.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from study_folder import (
    FILE,
    Row,
    StudyFolder,
    change_json,
    change_rows,
    change_summary,
    configure,
    read_rows,
    renamed,
    tree_of,
    write_rows,
)

ALL = ("daso", "halfway")  # an arm that a paper makes a claim about, and one without


@dataclass(frozen=True)
class Cheat:
    """`name`: number and what is done. `of`: the study that it changes: "virtual", "real", "settings", ….

    says: pattern of the words that have to name the matter in a check that is not green; the honest study's
    checks have no such words. marked: arms whose ratios may not stand unmarked.
    """

    name: str
    says: str
    marked: tuple[str, ...] = ALL
    of: str = "virtual"
    do: Callable[[StudyFolder], None] = lambda study: None


def _in_one_arm(do: Callable[[StudyFolder, str], None], arm: str) -> Callable[[StudyFolder], None]:
    return lambda study: do(study, arm)


def _names_another_strategy(study: StudyFolder, arm: str) -> None:
    name = {"daso": "slowmo", "halfway": "hsgd"}[arm]
    for run in study.runs(arm):
        configure(run, study__arm=name)
    rows = study.plan
    for row in rows:
        row["arms"] = [name if each == arm else each for each in row["arms"]]
    write_rows(study.path / FILE, rows)


def _delete_a_seed(study: StudyFolder) -> None:
    for run in study.runs(seed=2):
        shutil.rmtree(run)


def _delete_a_seed_of(study: StudyFolder, arm: str) -> None:
    (run,) = study.runs(arm, seed=2)
    shutil.rmtree(run)


def _other_software(study: StudyFolder, arm: str) -> None:
    def change(facts: Row) -> None:
        facts.update(python="3.13.1", commit="f" * 40)
        facts["packages"]["torch"] = "2.99.0"

    for run in study.runs(arm):
        change_json(run / "environment.json", change)


def _other_host(study: StudyFolder, arm: str) -> None:
    def change(facts: Row) -> None:
        facts["hostname"] = "faster"
        for row in facts["ranks"]:
            row["host"] = "faster"

    for run in study.runs(arm):
        change_json(run / "environment.json", change)


def _shorten_times(study: StudyFolder, arm: str) -> None:
    """In metrics.jsonl alone."""

    def change(row: Row) -> None:
        for key in ("train_s", "wall_s", "to_target_train_s", "to_target_wall_s", "crossing_s"):
            if row.get(key) is not None:
                row[key] *= 0.6
        if row["kind"] == "summary":
            row["samples_per_s"] /= 0.6

    for run in study.runs(arm):
        change_rows(run / "metrics.jsonl", change)


def _better_accuracy(study: StudyFolder, arm: str) -> None:
    def change(row: Row) -> None:
        for key in ("accuracy", "final_accuracy", "best_accuracy"):
            if row.get(key) is not None:
                row[key] += 0.015

    for run in study.runs(arm):
        change_rows(run / "metrics.jsonl", lambda row: change(row) if row["kind"] == "evaluation" else None)
        change_summary(run, change)


def _warm_cache(study: StudyFolder, arm: str) -> None:
    warm = study.runs(arm)
    for run in study.runs():
        share = {"still_cached": 1.0 if run in warm else 0.0}

        def change(row: Row, share: Row = share) -> None:
            row.update(share if row["kind"] == "start" else {})

        for file in (run / "metrics.jsonl", run / "ranks" / "0.jsonl"):
            change_rows(file, change)


def _too_many_ranks(study: StudyFolder) -> None:
    reason = "more ranks than cores: 4 ranks on 2 cores"

    def fewer(facts: Row) -> None:
        facts["cores"] = 2
        for row in facts["ranks"]:
            row["cores"] = [row["rank"] % 2]

    for run in study.runs():
        change_json(run / "environment.json", fewer)
        change_json(run / "status.json", lambda row: row.update(timing={"valid": False, "reasons": [reason]}))
        change_summary(run, lambda row: row.update(run_queue_share=0.9))


def _hog_beside_the_baseline(study: StudyFolder) -> None:
    for run in study.runs("ddp"):
        change_summary(run, lambda row: row.update(run_queue_share=0.6))


def _baseline_first(study: StudyFolder) -> None:
    arms = {arm: place for place, arm in enumerate(("ddp", "fresh seeds", *ALL))}
    for run in study.runs():
        tree = tree_of(run)
        start = 1_750_000_000.0 + 1000 * arms[tree["study"]["arm"]] + 10 * (tree["seed"] % 10**6)

        def change(status: Row, start: float = start) -> None:
            status["attempts"][0].update(started_unix=start, ended_unix=start + 5)

        change_json(run / "status.json", change)


def _cut_records(study: StudyFolder, arm: str) -> None:
    for run in study.runs(arm):
        rows = read_rows(run / "metrics.jsonl")
        write_rows(run / "metrics.jsonl", rows[: len(rows) // 2])


def copy_a_folder(study: StudyFolder) -> None:
    run = study.runs("daso")[0]
    shutil.copytree(run, run.with_name(run.name + "_copy"))


def _under_seed(run: Path, seed: int) -> Path:
    """A copy of a run that says it had another seed."""
    copy = run.with_name(f"copy_{seed}")
    shutil.copytree(run, copy)
    configure(copy, seed=seed)
    return renamed(copy)


def _copy_under_new_seeds(study: StudyFolder) -> None:
    made = [_under_seed(run, tree_of(run)["seed"] + 5) for run in study.runs()]
    rows = study.plan
    rows[0]["seeds"] += [seed + 5 for seed in rows[0]["seeds"]]
    rows[0]["runs"] += [run.name for run in made]
    write_rows(study.path / FILE, rows)


def _one_run_as_five(study: StudyFolder, arm: str) -> None:
    first, *others = study.runs(arm)
    for run in others:
        seed = tree_of(run)["seed"]
        shutil.rmtree(run)
        assert _under_seed(first, seed).name == run.name


def _change_the_target(study: StudyFolder) -> None:
    """In all configurations, with everything in the records that follows from it."""
    ids: dict[str, str] = {}
    for run in study.runs():
        configure(run, train__target=0.9)

        def change(row: Row) -> None:
            if row.get("kind") == "evaluation":
                row["reached"] = row["correct"] >= 0.9 * row["count"]

        change_rows(run / "metrics.jsonl", change)
        rows = read_rows(run / "metrics.jsonl")
        judged = [row for row in rows if row["kind"] == "evaluation"]
        first = next(number for number, row in enumerate(judged) if row["reached"])
        before, met = judged[first - 1], judged[first]

        def retarget(row: Row, before: Row = before, met: Row = met) -> None:
            row.update(target=0.9, reached=True, crossing_s=(before["train_s"] * met["train_s"]) ** 0.5)
            row.update({f"to_target_{key}": met[key] for key in ("train_s", "wall_s", "samples")})

        change_summary(run, retarget)
        ids[run.name] = renamed(run).name
    study.plan_renamed(ids)  # the ids agree; what was planned of the target stands


def _no_plan(study: StudyFolder) -> None:
    (study.path / FILE).unlink()


def _failed_run(study: StudyFolder, arm: str) -> None:
    (run,) = study.runs(arm, seed=2)
    rows = read_rows(run / "metrics.jsonl")
    write_rows(run / "metrics.jsonl", rows[:10])
    for file in (run / "ranks").iterdir():
        write_rows(file, read_rows(file)[:20])
    shutil.rmtree(run / "checkpoints")

    def fail(status: Row) -> None:
        status.update(status="failed", reason="rank 3 died", summary=None)
        status["attempts"][0].update(status="failed", reason="rank 3 died")

    change_json(run / "status.json", fail)


def _called_slurm(study: StudyFolder) -> None:
    """The launcher's name alone: its other keys are those of virtual time."""
    for run in study.runs():
        configure(run, launcher__name="slurm")


def _for_each(
    number: str,
    what: str,
    do: Callable[[StudyFolder, str], None],
    says: str,
    of: str = "virtual",
    arms: tuple[str, ...] = ALL,
) -> list[Cheat]:
    """The cheat in an arm with a paper's claim, and in one without."""
    return [Cheat(f"{number} {what}, {arm}", says, (arm,), of, _in_one_arm(do, arm)) for arm in arms]


def _unequal(number: str, what: str, says: str) -> list[Cheat]:
    """A setting that was made unequal before the runs: arms of the study "settings"."""
    return [Cheat(f"{number} {what}, {arm}", says, (f"{arm} {number}",), "settings") for arm in ALL]


UNEQUAL = {
    "07": "train.eval_every_samples=150",
    "08": "train.target=0.8",
    "09": "optimizer.lr=0.2",
    "10": "train.stop=first",
    "11a": "cluster.links.inter.rate_gbit=25 cluster.links.inter.latency_us=10",
    "11b": "cluster.device.tflops=120",
}
"""What the arms of the study "settings" have of their own, by number of the cheat."""

CHEATS = [
    *_for_each("01", "named as another strategy", _names_another_strategy, r"\b(slowmo|hsgd)\b"),
    Cheat("02 a seed deleted in all arms", r"\b4 of 20 planned runs\b", do=_delete_a_seed),
    *_for_each("03", "a seed deleted", _delete_a_seed_of, r"\b1 of 20 planned runs\b"),
    *_for_each("04", "other software", _other_software, r"\b(python|packages?|commits?)\b", "real"),
    *_for_each("04", "other host", _other_host, r"\b(hosts?|nodes|machines?)\b", "real"),
    *_for_each("05", "times shortened in one file", _shorten_times, r"\b(training time|train_s|intervals)\b"),
    *_for_each("06", "accuracy raised", _better_accuracy, r"\b(correct|hits)\b"),
    *_unequal("07", "evaluations", r"(eval_every_samples|evaluation)"),
    *_unequal("08", "target", r"\btarget\b"),
    *_unequal("09", "learning rate", r"(optimizer\.lr|learning rate)"),
    *_unequal("10", "stop", r"\bstop"),
    *_unequal("11a", "link", r"(rate_gbit|link|Gbit)"),
    *_unequal("11b", "device", r"(tflops|device|speed)"),
    Cheat("12 tuning labels without trials", r"(tune\.json|\btrials?\b)", of="tuned"),
    *_for_each("13", "warm page cache", _warm_cache, r"cache", "real"),
    Cheat("14 images replaced", r"\b(data set|images)\b", ("halfway",), "images"),
    Cheat("15 more ranks than cores", r"\b(ranks than cores|threads)\b", of="real", do=_too_many_ranks),
    Cheat("16 a hog beside the baseline", r"\b(busy|core)\b", of="real", do=_hog_beside_the_baseline),
    Cheat("17 all baseline runs first", r"\b(came first|order)\b", of="real", do=_baseline_first),
    *_for_each("19", "records cut at half", _cut_records, r"\b(summary|steps|cut|ended)\b"),
    Cheat(
        "21 all runs copied under new seeds",
        r"\b(same|equal|identical|copy|copies)\b",
        do=_copy_under_new_seeds,
    ),
    *_for_each("22", "one run as five seeds", _one_run_as_five, r"\b(same|equal|identical|copy|copies)\b"),
    Cheat("23 a plug-in that may change all", r"(may_differ|declares)", ("permissive",), "permissive"),
    Cheat("24 the target changed afterwards", r"target", do=_change_the_target),
    Cheat("25 seeds added after a look", r"\b(added|later|after)\b", of="more seeds"),
    Cheat("26 no plan", r"no plan", do=_no_plan),
    *_for_each("27", "a failed run not repeated", _failed_run, r"\b1 of 20 planned runs\b"),
    Cheat(
        "28 nothing learns",
        r"\b(missed (its|the) target|reached (its|the) target|learnt|chance)\b",
        of="rate 0",
    ),
    Cheat(
        "29 virtual time called slurm",
        r"launcher=slurm, environment.json was written by simulated",
        (),
        do=_called_slurm,
    ),
    Cheat("30 a baseline 1.2 times worse", r"\b(weak|worse|more samples)\b", of="better known"),
]
"""All but 18, which ends in an error of `resume`, and 20, which changes no number: see test_cheats.py."""
