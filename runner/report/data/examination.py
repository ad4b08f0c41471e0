"""Examines the records of runs: whether they agree with each other. A run that fails gives no numbers.

One function per fact of a run, each with a sentence for every contradiction; `seeds_apart` and `tuning_shown`
look at several runs. They find changed, cut and copied records, not the intention behind them. Source:
docs/method.md, "Plan and records".
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...records.json_lines import read_json
from ...records.trees import flatten, id_of_tree
from .load import PARTS, Run, number, value_at

ROUNDING = 0.01  # docs/records.md: sums of parts and intervals agree within 1 %
WHOLE = ("finished", "diverged")  # an attempt that came to an end of its own wrote a summary
FEWEST_LOSSES = 3  # fewer can be equal by chance, or because nothing was learnt
CLOCKS = ("segments_s", "wall_s", "process_s")  # real clocks go on between the two writings of a summary


def examined(runs: Iterable[Run]) -> list[Run]:
    """The runs in their order, each with the reasons why its records cannot be believed."""
    runs = list(runs)
    reasons = {run.place: [sentence for fact in FACTS for sentence in fact(run)] for run in runs}
    for place, sentence in [*seeds_apart(runs), *tuning_shown(runs)]:
        reasons[place].append(sentence)
    return [replace(run, distrusted=tuple(reasons[run.place])) for run in runs]


# ------------------------------------------------------------------ one run


def identity(run: Run) -> Iterator[str]:
    """The run id of its configuration against its folder, its status and its own `run.id`."""
    trace = value_at(run.config, "cluster", "device", "trace")
    # A run id holds a hash of the trace of step times: without the file it cannot be computed.
    if not run.config or (trace is not None and not Path(str(trace)).is_file()):
        return
    recorded = {
        "folder": run.folder.resolve().name,
        "run.id": value_at(run.config, "run", "id"),
        "status.json": run.status.get("run_id"),
    }
    # Models, and strategies of one's own, are called what the run id says.
    _, *others = [*str(recorded["run.id"]).split("-"), "", "", ""][:3]
    try:
        wanted = id_of_tree(run.config, (run.built_in or run.strategy, *others))
    except (KeyError, TypeError, AttributeError, ValueError):
        yield "config.yaml is not complete: no run id follows from it"
        return
    wrong = [f"{where} {name}" for where, name in recorded.items() if name not in (None, wanted)]
    if wrong:
        yield f"config.yaml is that of run {wanted}, not of {', '.join(wrong)}"


def world(run: Run) -> Iterator[str]:
    """Where it ran: the launcher of the configuration against environment.json."""
    asked, made = value_at(run.config, "launcher", "name"), run.environment.get("world")
    if asked and made and asked != made:
        yield f"config.yaml has launcher={asked}, environment.json was written by {made}"


def strategy_named(run: Run) -> Iterator[str]:
    """The study's name of its arm against the strategy that ran."""
    for key, name in (("study.arm", run.arm_name), ("study.tuned", run.tuned)):
        first = name.replace(",", " ").split(" ")[0]
        if not run.may_be_called(first):
            yield f"{key}={name} is the name of another strategy, {run.built_in or run.strategy_class} ran"


def whole(run: Run) -> Iterator[str]:
    """Evaluations without gaps; of a finished run all steps, and a summary that status.json repeats."""
    rows = sorted(run.evaluations, key=_order)
    if [row.get("index") for row in rows] != list(range(len(rows))):
        yield "metrics.jsonl: evaluations are missing or doubled"
    for key in ("step", "samples", "train_s"):
        values = [number(row.get(key)) or 0.0 for row in rows]
        if any(later < earlier for earlier, later in pairwise(values)):
            yield f"metrics.jsonl: {key} goes back from one evaluation to the next"
    if run.state not in WHOLE:
        return
    summary, repeated = run.summary, run.status.get("summary")
    if summary.get("kind") != "summary":
        yield f"the run is {run.state}, and metrics.jsonl has no summary"
    elif not isinstance(repeated, Mapping):
        yield f"the run is {run.state}, and status.json has no summary"
    else:
        differ = [k for k, v in repeated.items() if k not in CLOCKS and not _same(v, summary.get(k))]
        if differ:
            yield f"status.json and the summary of metrics.jsonl differ in {', '.join(differ)}"
        if summary.get("evaluations") != len(rows):
            yield f"the summary counts {summary.get('evaluations')} evaluations, {len(rows)} are recorded"
        if run.state == "finished" and run.stop == "budget":
            yield from _all_steps(run)


def _all_steps(run: Run) -> Iterator[str]:
    """Of a run that did its whole schedule: its length against the configured one."""
    most, epochs = (value_at(run.config, "train", key) for key in ("max_steps", "epochs"))
    if most is None and run.summary.get("epochs") != epochs:
        yield f"the run is finished after {run.summary.get('epochs')} of {epochs} epochs"
    if most is not None and (number(run.summary.get("steps")) or 0) > most:
        yield f"the summary counts {run.summary.get('steps')} steps, train.max_steps={most}"


def scores(run: Run) -> Iterator[str]:
    """Each accuracy against its `correct` and `count`; the summary's final value against the last one's."""
    wrong = 0
    for row in run.evaluations:
        share, correct, count = (number(row.get(key)) for key in ("accuracy", "correct", "count"))
        # Half a sample is what rounding can hide.
        wrong += None not in (share, correct, count) and abs(share * count - correct) > 0.5  # type: ignore
    if wrong:
        yield f"accuracy is not correct / count in {wrong} of {len(run.evaluations)} evaluations"
    last = max(run.evaluations, key=_order, default={})
    for key in ("accuracy", "miou"):
        final = number(run.summary.get(f"final_{key}"))
        if final is not None and key in last and not _same(final, last[key]):
            yield f"final_{key} of the summary is not that of the last evaluation"


def times(run: Run) -> Iterator[str]:
    """Training time and its parts: the summary against the sums of the ranks' intervals.

    T_train is the sum of each interval's slowest rank, a part the sum of each interval's mean over ranks.
    """
    summary_s = number(run.summary.get("train_s"))
    if summary_s is None:
        return
    ranks = {rank for rank, _ in run.rank_rows}
    expected = sum(run.start.ranks_of_nodes or []) or len(run.environment.get("ranks") or [])
    if not ranks or len(ranks) < expected:
        yield f"records of {len(ranks)} of {expected or 'all'} ranks are there"
        return
    train_s, parts = _interval_sums(run, len(ranks))
    if abs(train_s - summary_s) > ROUNDING * min(train_s, summary_s):
        yield f"training time is {summary_s:.4g} s in metrics.jsonl, {train_s:.4g} s by the ranks' records"
        return
    for name, value in run.parts_s.items():
        if name in parts and abs(parts[name] - value) > ROUNDING * summary_s:
            yield f"part {name} is {value:.4g} s in metrics.jsonl, {parts[name]:.4g} s by the ranks' records"
    last = max((number(row.get("train_s")) or 0.0 for row in run.evaluations), default=0.0)
    made = sum(number(row.get("make_model_s")) or 0.0 for row in run.evaluations)
    if last > (1 + ROUNDING) * summary_s + made:
        yield f"an evaluation is stamped {last:.4g} s, the run trained {summary_s:.4g} s"


def _interval_sums(run: Run, ranks: int) -> tuple[float, dict[str, float]]:
    """Seconds of T_train and of its parts, from the intervals of the work that survived on so many ranks.

    An attempt counts its intervals on from its checkpoint: it replaces what earlier ones had from there.
    """
    first: dict[int, int] = {}
    for _, row in run.rank_rows:
        first[row.attempt] = min(row.index, first.get(row.attempt, row.index))
    slowest: dict[int, float] = defaultdict(float)
    sums: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for _, row in run.rank_rows:
        if any(later > row.attempt and row.index >= begin for later, begin in first.items()):
            continue
        slowest[row.index] = max(slowest[row.index], number(row.train_s) or 0.0)
        for name, value in (row.parts_s or {}).items():
            sums[name] = sums.get(name, 0.0) + (number(value) or 0.0)
    return sum(slowest.values()), {name: value / ranks for name, value in sums.items()}


FACTS: tuple[Callable[[Run], Iterator[str]], ...] = (identity, world, strategy_named, whole, scores, times)


def _order(evaluation: Mapping[str, Any]) -> float:
    return number(evaluation.get("index")) or 0.0


def _same(first: Any, second: Any) -> bool:
    """Whether two values from JSON are equal, NaN included."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


# ------------------------------------------------------------------ several runs


def seeds_apart(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """(place, sentence) of runs under different seeds that have equal weights, batches or losses.

    A second baseline with the same seeds, and the placebo, have the same seeds as the baseline, and may.
    Where only clocks ran, weights are no result.
    """
    for words, read in (
        ("initial weights", lambda run: value_at(run.summary, "digests", "initial_weights")),
        ("first batches", _first_batches),
        ("losses", _losses),
    ):
        alike: dict[tuple[str, Any], list[Run]] = defaultdict(list)
        for run in runs:
            if run.state in WHOLE and not run.timing_only and (value := read(run)):
                alike[run.study, value].append(run)
        for same in alike.values():
            seeds = sorted({str(run.seed) for run in same})
            if len(seeds) > 1:
                yield from ((run.place, f"equal {words} under seeds {', '.join(seeds)}") for run in same)


def _first_batches(run: Run) -> str | None:
    """Their digest; None with a packed file, whose order most readers keep to under every seed."""
    drawn = run.name("reader") in ("none", "unknown")
    return value_at(run.summary, "digests", "first_batches") if drawn else None


def _losses(run: Run) -> tuple[Any, ...] | None:
    """All losses of the evaluations; None of few, or where they do not change."""
    losses = tuple(number(row.get("loss")) for row in run.evaluations)
    return losses if None not in losses and len(set(losses)) >= FEWEST_LOSSES else None


def tuning_shown(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """(place, sentence) of runs that are called tuned without a tune.json and trials that show it."""
    for run in runs:
        if not run.tuned:
            continue
        tunings = _tunings(run.folder.resolve().parent.parent).get(run.tuned, [])
        settings, wrong = flatten(run.config), ""
        if not tunings:
            wrong = "no tune.json next to the study has it"
        elif all(not _same({key: settings.get(key) for key in won}, won) for won, _ in tunings):
            wrong = "its settings are not those that won in tune.json"
        elif not all(on_disk for _, on_disk in tunings):
            wrong = "trials of tune.json are not on disk"
        if wrong:
            yield run.place, f"study.tuned={run.tuned}: {wrong}"


@cache
def _tunings(results: Path) -> dict[str, list[tuple[dict[str, Any], bool]]]:
    """By arm, of each tune.json: the settings that won, and whether the runs of the trials are on disk."""
    tunings: dict[str, list[tuple[dict[str, Any], bool]]] = defaultdict(list)
    for file in sorted(results.glob("*/tune.json")):
        try:
            for name, arm in read_json(file)["arms"].items():
                trials = [trial["run"] for trial in arm["trials"] if trial["run"] and trial["train_s"]]
                on_disk = [(file.parent / trial / "metrics.jsonl").is_file() for trial in trials]
                tunings[name].append((arm["settings"], bool(trials) and all(on_disk)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a file that cannot be read shows nothing
    return tunings
