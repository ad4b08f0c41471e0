"""Fairness table: whether two arms of a comparison differ in more than their strategies.

Everything that could favour one side is read from the records of both and compared. What a strategy may
change it declares itself (`Strategy.may_differ`), within a list that the project owns
(`MAY_DIFFER`); any other difference forbids a verdict. A quantity that no record holds is "not
recorded", which is not "equal"; one that one side alone has recorded is a difference.

Runs of one repetition are compared with each other: it may have nodes of its own, or its own phase of the
evaluations, as long as both arms have the same. Only runs that count are compared: one that failed and was
repeated is no part of the comparison. Loss scaling is fp16's alone, a part of `train.precision`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from ....strategies.errors import ConfigError
from ...machine.cores import QUEUE_LIMIT, in_each_second
from ...records.study_plan import check_fair, trial_seeds
from ...records.trees import below, flatten
from .. import words
from ..data.arms import settings, text
from ..data.load import Run, number, value_at
from .recorded import OF_ALL_WORK, QUANTITIES, REAL, VIRTUAL, Read, most_threads

NOT_RECORDED = "not recorded"
QUEUE_WORDS = "time that the threads of a rank stood ready without a core (busy machine)"
BRIEF = 48  # characters of a value in a sentence
ONE_SIDED = 0.9  # of all pairs of runs, one from each side: the most in which one side may come first
MAY_DIFFER: Mapping[str, str] = {
    "strategy": "the keys of the strategy are what is compared",
    "data.order": "ranks that draw samples by themselves share no order (lasgd)",
    "data.samples": "ranks that draw samples by themselves end at a step of their own (lasgd)",
    "data.local_batch": "shares of a batch may follow the speeds of the devices (heterogeneous)",
    "evaluation.mode": "a strategy that rarely or never synchronises is judged from copies",
    "evaluation.count": "a strategy that rarely or never synchronises is judged at its own sync points",
}
"""Everything that a strategy may declare in `may_differ`, with the reason. The project owns this list: a
strategy of one's own that declares more gets no verdict."""
_CORES = (
    *("cluster.ranks_per_node", "launcher.threads_per_rank"),
    *("threads.per_rank", "threads.affinity", "threads.fit", "data.local_batch"),
    *("cluster.device.tflops", "cluster.device.samples_per_second"),  # of a rank; see cluster.node_speed
)
BY_DESIGN: Mapping[str, tuple[str, ...]] = {
    "same_seeds": ("train.max_steps", "data.samples", "evaluation.count"),
    "fresh_seeds": ("seed", "model.initial", "data.order"),
    # A core's part of the same work, on one of the same machines.
    "one_core": (
        *("seed", "model.initial", "data.order", "data.samples", "data.left_out", "evaluation.count"),
        *("train.global_batch_size", "train.max_steps", "train.max_seconds"),
        *("cluster.nodes", "hardware.hosts", "hardware.queue", *_CORES),
    ),
    # Each has the best settings of its own search.
    "tuned": ("optimizer.lr", "optimizer.weight_decay", "schedule.warmup_epochs"),
    # A claim about efficiency: one process of many threads a node against many of one.
    "efficiency": _CORES,
}
"""What arms differ in by design, by `study.role` of the one that is no strategy's, or by the comparison."""
_LAUNCHER = """
wait submit timeout_min account qos array_parallelism max_requeues grace_s
start_s snapshot python timeline extrapolate on_invalid
"""
NOT_COMPARED = (*(f"launcher.{key}" for key in _LAUNCHER.split()), "cluster.validated_ranks")
"""How a launcher waits, what a job is called, what is known of the error of modelled times: no effect on a
clock or a model."""

Sides = Sequence[Sequence[Run]]  # the counted runs of the baseline and of the arm
Values = list[tuple[str, str | None]]  # repetition and value of each run of a side


@dataclass(frozen=True)
class FairnessRow:
    """One quantity on both sides. `equal`: None where neither side has recorded it.

    `own`: a difference in it is the strategy's own. `wrong`: why it forbids a verdict though both are alike.
    """

    key: str
    quantity: str
    baseline: str = NOT_RECORDED
    arm: str = NOT_RECORDED
    equal: bool | None = None
    own: bool = False
    wrong: str = ""

    @property
    def forbids(self) -> bool:
        """Whether there is no verdict because of it."""
        return bool(self.wrong) or (self.equal is False and not self.own)

    @property
    def sentence(self) -> str:
        """What is unequal: `other optimizer.lr: 0.1 instead of 0.05`."""
        name = self.quantity.partition(":")[0]
        if self.wrong:
            return f"{name}: {self.wrong}"
        if NOT_RECORDED in (self.arm, self.baseline):
            return f"{name}: recorded on one side alone"
        return f"other {name}: {_brief(self.arm, self.baseline)} instead of {_brief(self.baseline, self.arm)}"


def _brief(value: str, other: str = "") -> str:
    """`value` cut to its parts that `other` lacks, where one of both is long."""
    if max(len(value), len(other)) > BRIEF:
        ours, theirs = (
            one.translate({ord(mark): None for mark in '{}"'}).split(", ") for one in (value, other)
        )
        value = ", ".join(part for part in ours if part not in theirs) or ours[0]
    return value if len(value) <= BRIEF else f"{value[: BRIEF - 1]}…"


def forbidding(table: Iterable[FairnessRow]) -> list[FairnessRow]:
    """The rows that forbid a verdict, the worst first: settings, then samples, machine and versions."""
    return [row for row in table if row.forbids]


def in_words(table: Iterable[FairnessRow], most: int = 2) -> str:
    """`3 unequal things: …; …; and 1 more`, the `most` worst of a table; "" if nothing forbids a verdict."""
    rows = forbidding(table)
    more = [f"and {len(rows) - most} more"] if len(rows) > most else []
    sentences = "; ".join([*(row.sentence for row in rows[:most]), *more])
    return f"{words.count(len(rows), 'unequal thing')}: {sentences}" if rows else ""


def by_design(table: Iterable[FairnessRow], headline: str) -> list[FairnessRow]:
    """The table for a claim with that headline: what an efficiency differs in by design is the arm's own."""
    return [replace(row, own=True) if below(row.key, BY_DESIGN.get(headline, ())) else row for row in table]


def fairness(baseline: Sequence[Run], arm: Sequence[Run]) -> list[FairnessRow]:
    """The table of two arms of one comparison, in a fixed order of rows.

    baseline, arm: their runs; those that do not count (`Run.counted`) are left out.
    """
    sides = [[run for run in runs if run.counted] for runs in (baseline, arm)]
    counted = [run for side in sides for run in side]
    own = {"strategy", *(key for run in counted for key in _declared(run) if below(key, MAY_DIFFER))}
    designs = {run.role for run in counted} | ({"tuned"} if all(run.tuned for run in counted) else set())
    own.update(*(BY_DESIGN.get(design, ()) for design in designs))
    rows = [_seeds(sides), _row(sides, "strategy", "strategy", _strategy), *_settings(sides)]
    virtual = _virtual(counted)
    rows += [
        _row(sides, key, quantity, read)
        for key, (quantity, read) in QUANTITIES.items()
        if not below(key, REAL if virtual else VIRTUAL)
    ]
    if not virtual:
        cached = FairnessRow("data.cached", "share of the data set's files in the page cache at the start")
        queue = FairnessRow("hardware.queue", QUEUE_WORDS)
        rows += [
            _medians(cached, sides, lambda run: run.start.still_cached, shown="{:.0%}".format, apart=0.1),
            _medians(
                queue,
                sides,
                lambda run: run.summary.get("run_queue_share"),
                shown=in_each_second,
                apart=QUEUE_LIMIT,
                most=QUEUE_LIMIT,
            ),
            _order_of_execution(sides),
        ]
    wrong = {
        "strategy": _declared_too_much(counted),
        "tuning": _tuned_on(counted),
        "threads.fit": _too_many_threads(counted),
    }
    return [replace(row, own=below(row.key, own), wrong=row.wrong or wrong.get(row.key, "")) for row in rows]


def spread(runs: Iterable[Run]) -> list[str]:
    """What of the machine and the code differs between the runs of one arm, a sentence for each quantity."""
    counted, sentences = [run for run in runs if run.counted], list[str]()
    for key, (quantity, read) in QUANTITIES.items():
        of_machine = below(key, ("hardware", "transport", "versions", "code", "rules", *VIRTUAL))
        if of_machine and not below(key, REAL if _virtual(counted) else VIRTUAL):
            values = Counter(read(run) or NOT_RECORDED for run in counted)
            shown = [f"{_brief(value)} ({words.count(n, 'run')})" for value, n in values.items()]
            sentences += [f"{quantity}: {', '.join(shown)}"] if len(values) > 1 else []
    return sentences


def _virtual(runs: Iterable[Run]) -> bool:
    """Whether all clocks are virtual: no machine can favour a side."""
    return all(run.world == "simulated" for run in runs)


def _row(sides: Sides, key: str, quantity: str, read: Read) -> FairnessRow:
    """Both sides of a quantity, repetition by repetition."""
    if key in OF_ALL_WORK:
        sides = [[run for run in side if run.state == "finished" and run.stop == "budget"] for side in sides]
    values = [[(text(run.block), read(run)) for run in side] for side in sides]
    base, arm = (
        "; ".join(dict.fromkeys(NOT_RECORDED if value is None else value for _, value in side)) or "no run"
        for side in values
    )
    return FairnessRow(key, quantity, base, arm, _equal(*values))


def _equal(base: Values, arm: Values) -> bool | None:
    """Whether the repetitions that both sides have agree; where they share none, whether all values do.

    None where there is nothing to compare: no run on a side, or nothing recorded on either.
    """
    common = dict(base).keys() & dict(arm).keys()
    ours, theirs = (
        {(block if common else "", value) for block, value in side if not common or block in common}
        for side in (base, arm)
    )
    unknown = not ours or not theirs or (ours == theirs and any(value is None for _, value in ours))
    return None if unknown else ours == theirs


def _medians(
    row: FairnessRow,
    sides: Sides,
    read: Callable[[Run], Any],
    *,
    shown: Callable[[float], str],
    apart: float,
    most: float = math.inf,
) -> FairnessRow:
    """`row` filled in from a measured number of each run: a machine does not give the same one twice.

    The sides differ where their medians are more than `apart` from each other; one above `most` is wrong.
    """
    values = [[value for run in side if (value := number(read(run))) is not None] for side in sides]
    known = [median(side) for side in values if side]
    base, arm = (shown(median(side)) if side else NOT_RECORDED for side in values)
    equal = len(known) == 2 and abs(known[0] - known[1]) <= apart if known and all(sides) else None
    much = max(known, default=0.0) > most
    wrong = f"{shown(max(known))}, at most {shown(most)}" if much else ""
    return replace(row, baseline=base, arm=arm, equal=equal, wrong=wrong)


def _order_of_execution(sides: Sides) -> FairnessRow:
    """In which order the runs were made: a machine that warms up or gets busy favours one side.

    The places of each side's runs in time (`1, 4`), from the starts and ends of their attempts. Of all pairs
    of a run of each, in no more than `ONE_SIDED` one side's may come first; pairs at the same time count
    half. Of one run each, one has to be first.
    """
    row = FairnessRow("execution.order", "order of execution: places in time")
    spans = [sorted(span for run in side if (span := _span(run))) for side in sides]
    if not all(spans) or [len(side) for side in spans] != [len(side) for side in sides]:
        return row
    times = sorted(span for side in spans for span in side)
    base, arm = (", ".join(str(1 + times.index(span)) for span in side) for side in spans)
    row = replace(row, baseline=base, arm=arm, equal=True)
    first = fmean((one[1] <= two[0]) + (two[1] > one[0]) for one in spans[0] for two in spans[1]) / 2
    if min(map(len, spans)) < 2 or max(first, 1 - first) <= ONE_SIDED:
        return row
    whose = "the baseline's" if first > ONE_SIDED else "the arm's"
    wrong = f"in more than 9 of 10 pairs {whose} run came first: interleave them (one sweep does)"
    return replace(row, wrong=wrong)


def _span(run: Run) -> tuple[float, float] | None:
    """Start of the first attempt and end of the last, s since 1970; None if the start is not recorded."""
    starts = run.stamps("started_unix")
    return (min(starts), max(starts + run.stamps("ended_unix"))) if starts else None


def _declared(run: Run) -> list[str]:
    """What the run's strategy declares its own; nothing where that is not recorded."""
    keys = run.start.may_differ
    return [str(key) for key in keys] if isinstance(keys, list) else []


def _declared_too_much(runs: Sequence[Run]) -> str:
    more = {run.strategy_class: [key for key in _declared(run) if not below(key, MAY_DIFFER)] for run in runs}
    return "; ".join(
        f"{name} declares that {words.listed(keys)} may differ" for name, keys in sorted(more.items()) if keys
    )


def _tuned_on(runs: Sequence[Run]) -> str:
    """Why the tuning was unfair though both sides had the same: a scored run has a seed that was tuned on."""
    tuned = [run for run in runs if run.tuned]
    counts = {run.arm_name: int(run.config["study"]["tune_trials"]) for run in tuned}
    tried = [seed for count in set(counts.values()) for seed in trial_seeds(count)]
    try:
        check_fair(counts, tried, [run.seed for run in tuned])
    except ConfigError as error:
        return str(error)
    return ""


def _too_many_threads(runs: Sequence[Run]) -> str:
    loads = {pair for run in runs if (pair := most_threads(run)) and pair[0] > pair[1]}
    return "; ".join(f"{threads} threads on {cores} cores" for threads, cores in sorted(loads))


def _seeds(sides: Sides) -> FairnessRow:
    base, arm = seeds = [[text(run.seed) for run in side] for side in sides]
    twice = dict.fromkeys(seed for side in seeds for seed in side if side.count(seed) > 1)
    wrong = f"twice in an arm: {', '.join(twice)}" if twice else ""
    if not all(seeds):
        wrong = "no run counts"
    equal, shown = Counter(base) == Counter(arm), [", ".join(side) or "no run" for side in seeds]
    return FairnessRow("seed", "seeds: initial weights, order of the data", *shown, equal=equal, wrong=wrong)


def _strategy(run: Run) -> str | None:
    """`daso: sync_every=4, …`; None where the configuration is lost."""
    if not run.config:
        return None
    keys = sorted(flatten(run.config.get("strategy") or {}).items())
    shown = [f"{key}={text(value)}" for key, value in keys if key not in ("_target_", "name")]
    return ": ".join(part for part in (run.strategy, ", ".join(shown)) if part)


def _settings(sides: Sides) -> list[FairnessRow]:
    """A row for each key of the configuration in which the sides differ, and one for all the others."""
    compared = {id(run): _compared(run) for side in sides for run in side}

    def reader(name: str) -> Read:
        return lambda run: text(compared[id(run)].get(name, "not set")) if run.config else None

    names = sorted({name for keys in compared.values() for name in keys if not below(name, ["strategy"])})
    rows = [_row(sides, name, name, reader(name)) for name in names]
    rest = [row.equal for row in rows if row.equal is not False]
    keys, equal = f"{len(rest)} keys", None if None in rest else True
    others = FairnessRow("configuration", "configuration", keys, keys, equal)
    return [*(row for row in rows if row.equal is False), others]


def _compared(run: Run) -> dict[str, Any]:
    """The dotted configuration without what names, places or watches a run."""
    compared = {key: value for key, value in settings(run).items() if not below(key, NOT_COMPARED)}
    # Drawn for each repetition, so no part of what makes an arm; but the arms of a repetition share it.
    phase = value_at(run.config, "train", "eval_phase")
    return compared if phase is None else compared | {"train.eval_phase": phase}
