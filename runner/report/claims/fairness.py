"""Whether two arms of a comparison differ in more than their strategies: the fairness ledger.

Everything that could favour one side is read from the records of both and set side by side. What a strategy
may change it declares itself (`Strategy.may_differ`); any other difference forbids a verdict. What no record
holds is told as not recorded: that is not "equal", and what one side alone has recorded is a difference.

Runs of one repetition are compared with each other: it may have nodes of its own, or its own phase of the
evaluations, as long as both arms have the same. Only runs that count are looked at: one that failed and was
repeated is no part of the comparison. Loss scaling is fp16's alone, a part of `train.precision`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....strategies.errors import ConfigError
from ...records.seed_ranges import check_fair, trial_seeds
from ...records.trees import below
from ..data.arms import settings, text
from ..data.load import Run
from . import recorded
from .declared import may_differ
from .interleaving import order_of_execution

NOT_RECORDED = "not recorded"
NO_SUCH_KEY = "no such key"
BY_DESIGN: Mapping[str, tuple[str, ...]] = {
    # One process of many threads a node against many of one: that is the question. The machine is the same.
    "efficiency": (
        *("cluster.ranks_per_node", "launcher.threads_per_rank"),
        *("threads.per_rank", "threads.affinity", "data.local_batch"),
        *("cluster.device.tflops", "cluster.device.samples_per_second"),  # of a rank; see hardware.node_speed
    ),
}
"""By the headline of a claim: what its arms differ in because it asks for that."""
BY_ROLE: Mapping[str, tuple[str, ...]] = {
    "same_seeds": ("train.max_steps", "data.samples", "evaluation.count"),
    "fresh_seeds": ("seed", "model.initial", "data.order"),
    # Of the same work a core's part, on one of the same machines: `alone` asks for both.
    "one_core": (
        *("seed", "model.initial", "data.order", "data.samples", "data.local_batch", "data.left_out"),
        *("evaluation.count", "train.global_batch_size", "train.max_steps", "train.max_seconds"),
        *("cluster.nodes", "hardware.hosts"),
        *("launcher", "rules.clock"),  # whoever started its process; see `arms.compare`
    ),
}
"""By `study.role` of a second baseline, or of one core: what makes it that."""

BY_TUNING = ("optimizer.lr", "optimizer.weight_decay", "schedule.warmup_epochs")
"""What two equally tuned arms differ in: each has the best of its own search."""

# How a launcher waits and what a job is called: nothing that a clock or a model could notice.
WAITING = tuple(
    f"launcher.{key}"
    for key in (
        *("wait", "submit", "timeout_min", "account", "qos", "array_parallelism", "max_requeues", "grace_s"),
        *("start_s", "snapshot", "python", "timeline", "extrapolate", "on_invalid"),
    )
)
# What is known about modelled times changes none of them.
_ABOUT = (*WAITING, "cluster.validated_ranks")

# Of the configuration; a group is one line, and a line per key where its keys differ.
_SETTINGS = {
    "train.global_batch_size": "global batch",
    "dataset": "data set and augmentation",
    "train.short_batch": "what becomes of a short last batch",
    "model": "model",
    "train.precision": "precision",
    "train.clip_norm": "clipping",
    "optimizer": "optimizer, weight decay and its exclusions",
    "schedule": "schedule of the learning rate",
    "train.epochs": "length of the schedule, epochs",
    "train.max_steps": "budget, steps",
    "train.max_seconds": "budget, seconds",
    "train.stop": "what ends a run",
    "train.target": "target",
    "train.target_metric": "metric of the target",
    "train.eval_split": "split of the target",
    "train.eval_every_samples": "evaluation cadence, samples",
    "train.eval_phase": "phase of the evaluations",
    "train.eval_mode": "evaluation mode asked for",
    "cluster": "cluster: ranks, links, devices",
    "launcher": "launcher, emulation",
}


@dataclass(frozen=True)
class _Known:
    """A run, and what of its configuration is compared, dotted."""

    run: Run
    settings: Mapping[str, Any]


Read = Callable[[_Known], str | None]
Blocks = Mapping[str, tuple[str | None, ...]]  # by repetition: distinct values, None: not recorded


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity on both sides. `equal`: None where neither side has recorded it.

    `own`: a difference in it is the strategy's own. `wrong`: why it forbids a verdict though both are alike.
    """

    key: str
    quantity: str
    baseline: str
    arm: str
    equal: bool | None
    own: bool = False
    wrong: str = ""

    @property
    def forbids(self) -> bool:
        """Whether there is no verdict because of it."""
        return bool(self.wrong) or (self.equal is False and not self.own)


@dataclass(frozen=True)
class Ledger:
    """All rows, in a fixed order."""

    rows: tuple[Row, ...]

    @property
    def forbidding(self) -> list[Row]:
        """The rows that forbid a verdict."""
        return [row for row in self.rows if row.forbids]

    @property
    def not_recorded(self) -> list[Row]:
        """The rows of which nothing is known: shown, and not taken for equal."""
        return [row for row in self.rows if row.equal is None]


def fairness(baseline: Sequence[Run], arm: Sequence[Run], *, headline: str = "") -> Ledger:
    """The ledger of two arms of one comparison.

    Args:
        baseline, arm: their runs; those that do not count (`Run.counted`) are left out.
        headline: of the claim that is judged; `BY_DESIGN` says what it allows.
    """
    sides = [[_Known(run, _compared(run)) for run in runs if run.counted] for runs in (baseline, arm)]
    counted = [known.run for side in sides for known in side]
    own = {"strategy", *BY_DESIGN.get(headline, ())}
    own.update(*(may_differ(target) for target in {_target(run) for run in counted}))
    own.update(*(BY_ROLE.get(role, ()) for role in {run.role for run in counted}))
    own.update(BY_TUNING if counted and all(run.tuned for run in counted) else ())
    pair = _Pair(sides[0], sides[1], frozenset(own))
    return Ledger(tuple(_rows(pair)))


@dataclass(frozen=True)
class _Pair:
    """The counted runs of both sides, and the keys (or their beginnings) that may differ."""

    baseline: list[_Known]
    arm: list[_Known]
    own: frozenset[str]

    @property
    def all(self) -> list[_Known]:
        return [*self.baseline, *self.arm]

    @property
    def virtual(self) -> bool:
        """Whether all clocks are virtual: then no machine can favour a side."""
        return all(known.run.world == "simulated" for known in self.all)

    def is_own(self, key: str) -> bool:
        return any(key == name or key.startswith(f"{name}.") for name in self.own)

    def row(self, key: str, quantity: str, read: Read, *, complete: bool = False) -> Row:
        """Both sides of a quantity, repetition by repetition. `complete`: of runs that did all their work."""
        sides = [
            _by_block((known for known in side if not complete or recorded.complete(known.run)), read)
            for side in (self.baseline, self.arm)
        ]
        equal = _equal(*sides)
        shown = [_shown(side) for side in sides]
        return Row(
            key=key, quantity=quantity, baseline=shown[0], arm=shown[1], equal=equal, own=self.is_own(key)
        )


def _rows(pair: _Pair) -> Iterable[Row]:
    yield _seeds(pair)
    yield pair.row("strategy", "strategy", lambda known: _group_text(known, "strategy"))
    for key, quantity in _SETTINGS.items():
        yield from _setting(pair, key, quantity)
    yield from _other_settings(pair)
    for one in recorded.QUANTITIES:
        if one.real and pair.virtual:
            continue
        row = _recorded_row(pair, one)
        yield replace(row, wrong=_tuned_on(pair)) if one.key == "tuning" else row
    if not pair.virtual:
        yield _threads(pair)
        order = order_of_execution(*([known.run for known in side] for side in (pair.baseline, pair.arm)))
        yield Row(
            key="execution.order",
            quantity="order of execution: places in time",
            baseline=order.baseline or NOT_RECORDED,
            arm=order.arm or NOT_RECORDED,
            equal=None if not (order.baseline and order.arm) else True,
            wrong=order.wrong,
        )


def _recorded_row(pair: _Pair, one: recorded.Quantity) -> Row:
    return pair.row(one.key, one.words, lambda known: one.read(known.run), complete=one.complete)


def _tuned_on(pair: _Pair) -> str:
    """Why the tuning was unfair though both sides had the same: a scored run has a seed that was tuned on."""
    tuned = [known.run for known in pair.all if known.run.tuned]
    counts = {run.arm_name: int(run.config["study"]["tune_trials"]) for run in tuned}
    tried = [seed for count in set(counts.values()) for seed in trial_seeds(count)]
    try:
        check_fair(counts, tried, [run.seed for run in tuned])
    except ConfigError as error:
        return str(error)
    return ""


def _seeds(pair: _Pair) -> Row:
    sides = [
        sorted((text(known.run.seed) for known in side), key=_natural) for side in (pair.baseline, pair.arm)
    ]
    twice = sorted({seed for side in sides for seed in side if side.count(seed) > 1}, key=_natural)
    return Row(
        key="seed",
        quantity="seeds: initial weights, order of the data",
        baseline=", ".join(sides[0]) or "no run",
        arm=", ".join(sides[1]) or "no run",
        equal=sides[0] == sides[1],
        own=pair.is_own("seed"),
        wrong="no run counts" if not all(sides) else f"twice in an arm: {', '.join(twice)}" if twice else "",
    )


def _setting(pair: _Pair, key: str, quantity: str) -> Iterable[Row]:
    """One line for a key, and for a group whose keys all agree; else one for each key that does not."""
    keys = sorted({name for known in pair.all for name in known.settings if below(name, [key])})
    if keys == [key] or not keys:
        yield _key_row(pair, key, quantity)
        return
    apart = [row for name in keys if (row := _key_row(pair, name, f"{quantity}: {name}")).equal is False]
    yield from apart or [pair.row(key, quantity, lambda known: _group_text(known, key))]


def _other_settings(pair: _Pair) -> Iterable[Row]:
    """Keys that no line above has, if they differ: a new key is compared until somebody says why not."""
    known = ("strategy", *_SETTINGS)
    for name in sorted({name for known in pair.all for name in known.settings}):
        if not below(name, known):
            row = _key_row(pair, name, name)
            if row.equal is False:
                yield row


def _key_row(pair: _Pair, key: str, quantity: str) -> Row:
    return pair.row(key, quantity, lambda known: _setting_text(known, key))


def _setting_text(known: _Known, key: str) -> str | None:
    if not known.run.config:
        return None
    return text(known.settings[key]) if key in known.settings else NO_SUCH_KEY


def _group_text(known: _Known, group: str) -> str | None:
    """`sgd: lr=0.05, momentum=0.9`; None where the configuration is lost."""
    if not known.run.config:
        return None
    keys = {key: value for key, value in sorted(known.settings.items()) if below(key, [group])}
    words = [
        f"{key.removeprefix(f'{group}.')}={text(value)}"
        for key, value in keys.items()
        if not key.endswith(("._target_", f"{group}.name"))
    ]
    name = known.run.name(group) if f"{group}._target_" in keys or f"{group}.name" in keys else ""
    return ": ".join(part for part in (name, ", ".join(words)) if part) or NO_SUCH_KEY


def _compared(run: Run) -> dict[str, Any]:
    """The dotted configuration without what names, places or watches a run."""
    found = {key: value for key, value in settings(run).items() if not below(key, _ABOUT)}
    # Drawn for each repetition, so no part of what makes an arm; but the arms of a repetition share it.
    phase = (run.config.get("train") or {}).get("eval_phase")
    return found if phase is None else found | {"train.eval_phase": phase}


def _threads(pair: _Pair) -> Row:
    row = _recorded_row(pair, recorded.THREADS_ON_CORES)
    short = sorted({why for known in pair.all if (why := recorded.too_many_threads(known.run))})
    # Where ranks and threads differ by design, so does their quotient; the cores are the machine's.
    return replace(row, own=pair.is_own("threads.per_rank"), wrong="; ".join(short))


def _equal(one: Blocks, other: Blocks) -> bool | None:
    """Whether the repetitions that both sides have agree; where they share none, whether all values do.

    None where there is nothing to compare: no run on a side, or nothing recorded on either.
    """
    if not one or not other:
        return None
    common = one.keys() & other.keys()
    if common:
        one, other = ({name: side[name] for name in common} for side in (one, other))
    equal = one == other if common else _values(one) == _values(other)
    return None if equal and None in _values(one) else equal


def _by_block(side: Iterable[_Known], read: Read) -> Blocks:
    """The distinct values of each repetition's runs, in a fixed order; `_seeds` says how many runs it has."""
    found: dict[str, set[str | None]] = defaultdict(set)
    for known in side:
        found[text(known.run.block)].add(read(known))
    return {name: tuple(sorted(values, key=lambda v: (v is None, v or ""))) for name, values in found.items()}


def _values(side: Blocks) -> set[str | None]:
    return {value for values in side.values() for value in values}


def _shown(side: Blocks) -> str:
    """The distinct values, in the order of the repetitions."""
    values = dict.fromkeys(
        NOT_RECORDED if value is None else value
        for repetition in sorted(side, key=_natural)
        for value in side[repetition]
    )
    return "; ".join(values) or "no run"


def _natural(seed: str) -> tuple[int, str]:
    return len(seed), seed


def _target(run: Run) -> str:
    node = run.config.get("strategy")
    return str(node.get("_target_") or "") if isinstance(node, Mapping) else ""
