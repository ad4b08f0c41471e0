"""Layer (a): the contract that every strategy must keep, whatever it computes.

All runs are the trial run (`trial.py`) in virtual time: 3 epochs of 7 steps on an awkward model.
"""

import dataclasses
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...strategies.seeds import derive
from . import trial
from .comparison import require_agreement, require_equal, require_same_walk
from .course import Call, Course, History
from .driver import drive, jittered
from .findings import Candidate, Check, Failed, RanksOfNodes
from .traffic import IN_STEP, Sizes, script
from .trial import NETWORK, STEP_NS, course
from .variants import VARIANTS, Keys

STEPS = trial.EPOCHS * trial.STEPS_PER_EPOCH
OWN = ("step", "epoch", "finish")  # when a strategy's own calls are made
ENOUGH = range(1, 10_000)


def checks(candidate: Candidate) -> list[Check]:
    """All of them apply to every strategy; of built-in ones further keys are tried (`variants.py`)."""
    further = [_variant(candidate, keys) for keys in VARIANTS.get(candidate.builtin or "", ())]
    return [
        Check("ends", ends.__doc__ or "", ends),
        Check("counts samples", counts_samples.__doc__ or "", counts_samples),
        Check("one model", one_model.__doc__ or "", one_model),
        Check("looks leave no trace", no_trace.__doc__ or "", no_trace),
        Check("drains", drains.__doc__ or "", drains),
        Check("stops anywhere", stops_anywhere.__doc__ or "", stops_anywhere),
        Check("resumes", resumes.__doc__ or "", resumes),
        Check("hears wishes", hears_wishes.__doc__ or "", hears_wishes),
        Check("calls in step", calls_in_step.__doc__ or "", calls_in_step),
        Check("traffic formula", traffic_formula.__doc__ or "", traffic_formula),
        Check("traffic by step", traffic_by_step.__doc__ or "", traffic_by_step),
        Check("time", time_kept.__doc__ or "", time_kept),
        Check("copies", copies.__doc__ or "", copies),
        Check("rest untouched", rest_untouched.__doc__ or "", rest_untouched),
        Check("reports", reports.__doc__ or "", reports),
        *further,
    ]


def _variant(candidate: Candidate, keys: Keys) -> Check:
    def run(candidate: Candidate, ranks: RanksOfNodes) -> None:
        config = dataclasses.replace(candidate.config, **keys)
        variant = dataclasses.replace(candidate, config=config)
        brief = (drains, one_model, traffic_formula, traffic_by_step, time_kept, calls_in_step, copies)
        for check in (*brief, resumes_here_and_there, stops_here_and_there):
            try:
                check(variant, ranks)
            except Failed as error:
                raise Failed(f"{check.__name__}: {error}") from error

    name = "with " + " ".join(f"{key}={value}" for key, value in keys.items())
    return Check(name, "The contract also holds with these keys, in short.", run, ((2, 2),))


def independent(candidate: Candidate) -> bool:
    """Whether ranks or nodes step at their own pace."""
    return candidate.strategy_class.sampling(candidate.config) != "global"


@lru_cache(maxsize=8)
def plain(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run as it is: equal ranks, the trial's network. Many checks read it, none may change it."""
    return drive(course(candidate, ranks), network=NETWORK, step_time=STEP_NS)


@lru_cache(maxsize=8)
def uneven(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run with step times that vary at random."""
    return drive(course(candidate, ranks), network=NETWORK, step_time=jittered(STEP_NS, 3))


def some(places: Sequence[int], ranks: RanksOfNodes) -> list[int]:
    """All places on several nodes of several ranks; elsewhere a third of them, the last two included."""
    if len(ranks) > 1 and min(ranks) > 1:
        return list(places)
    return sorted({*places[::4], *places[-2:]})


def slow_last(run: Course) -> tuple[int, ...]:
    """Step times of ranks of which the last takes four times as long."""
    return (*(STEP_NS for _ in range(run.topology.ranks - 1)), 4 * STEP_NS)


# ------------------------------------------------------------------ running, agreeing, ending


def ends(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """The run ends with all steps done, whatever the ranks' step times are and whoever starts late."""
    run = course(candidate, ranks, begin_ns=lambda rank: (rank * 7 % 3) * STEP_NS)
    slow = slow_last(run)
    for took in (STEP_NS, jittered(STEP_NS, 1), jittered(STEP_NS, 2, 5.0), lambda rank, n: slow[rank]):
        histories = drive(run, network=NETWORK, step_time=took)
        last = [history.samples[history.steps] for history in histories]
        if independent(candidate):
            budget = STEPS * run.global_batch_size
            if min(last) < budget or len(set(last)) > 1:
                raise Failed(f"ranks end at {last} global samples, the run has {budget}")
            meetings = [
                [history.samples[k] for k, met in history.met.items() if met] for history in histories
            ]
            if any(samples != meetings[0] for samples in meetings):
                raise Failed(f"ranks meet at different global samples: {meetings}")
            continue
        for history in histories:
            if history.met != histories[0].met:
                raise Failed(f"meets() answers otherwise on rank {history.rank} than on rank 0")
            if history.steps != STEPS:
                raise Failed(f"rank {history.rank} ends after {history.steps} of {STEPS} steps")
            if history.sizes != histories[0].sizes:
                raise Failed(f"rank {history.rank} and rank 0 split the global batches differently")


def counts_samples(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """global_samples() tells the samples of all steps so far; at one's own pace never more than there are."""
    histories = uneven(candidate, ranks)
    trained = sorted(
        (history.clock_ns[k], history.sizes[k][history.rank]) for history in histories for k in history.sizes
    )
    times, sums = [time for time, _ in trained], [0, *accumulate(samples for _, samples in trained)]
    for history in histories:
        before = 0
        for step, known in history.known.items():
            where = f"rank {history.rank}, before step {step + 1}: global_samples() tells {known}"
            if known < before:
                raise Failed(f"{where}, one step earlier it told {before}")
            before = known
            if not independent(candidate):
                there = sum(sum(history.sizes[k]) for k in range(1, step + 1))
            else:
                there = sums[bisect_right(times, history.clock_ns[step])]
            if known > there or (known < there and not independent(candidate)):
                raise Failed(f"{where}, there are {there}")


def one_model(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Inside consensus() all ranks hold the same parameters and floating-point buffers, bit for bit."""
    histories = drive(course(candidate, ranks, consensus_after=ENOUGH), network=NETWORK, step_time=STEP_NS)
    for place in histories[0].consensus:
        models = [history.consensus[place] for history in histories]
        require_agreement(models, f"consensus {_when(candidate, place)}", histories[0].names)
    if not histories[0].consensus:
        raise Failed("the ranks never meet: no model is ever to be had")


def no_trace(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """settle(), consensus(), state_dict() and snapshot() leave everything and the run's course as it was."""
    free = {"step_time": STEP_NS}  # no transfer takes time: looking may not change what comes after
    left_alone = drive(course(candidate, ranks), **free)
    places = tuple(ENOUGH[:STEPS])
    looking = drive(
        course(candidate, ranks, consensus_after=ENOUGH, save_after=ENOUGH, copies_after=places), **free
    )
    for looked, unlooked in zip(looking, left_alone, strict=True):
        for place, names in looked.disturbed.items():
            if names:
                raise Failed(f"rank {looked.rank}, {_when(candidate, place)}: changed by a look: {names[0]}")
        require_same_walk(looked, unlooked, "a run that is looked at in each step")
        if looked.agreed != unlooked.agreed or looked.met != unlooked.met:
            raise Failed(f"rank {looked.rank}: agree() or meets() answer otherwise when looked at")


def drains(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """After finish() nothing is in flight and all ranks hold the same parameters, bit for bit."""
    for histories in (plain(candidate, ranks), uneven(candidate, ranks)):
        _require_drained(histories, "at the end")


def stops_anywhere(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Stopped after any step the run ends the same way, with the model that consensus() had just shown."""
    _stops(candidate, ranks, some(_places(candidate, ranks), ranks))


def stops_here_and_there(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As `stops_anywhere`, at three places."""
    _stops(candidate, ranks, _places(candidate, ranks)[4::6])


def _places(candidate: Candidate, ranks: RanksOfNodes) -> range:
    meetings = sum(plain(candidate, ranks)[0].met.values())
    return range(1, (meetings if independent(candidate) else STEPS) + 1)


def _stops(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    for place in places:
        run = course(candidate, ranks, stop_after=place, consensus_after=[place])
        histories = drive(run, network=NETWORK, step_time=STEP_NS)
        where = f"stopped {_when(candidate, place)}"
        _require_drained(histories, where)
        for history in histories:
            shown = history.consensus[place][: len(history.final)]
            what = f"{where}: rank {history.rank}: the final model is not the one consensus() showed"
            require_equal(history.final, shown, what, history.names, tolerance=2e-5)


def _require_drained(histories: Sequence[History], where: str) -> None:
    for history in histories:
        if history.unwaited:
            count = history.unwaited
            raise Failed(f"{where}: rank {history.rank} launched {count} operations it never waits for")
    names = histories[0].names
    require_agreement([h.final for h in histories], f"{where}, after finish()", names)
    require_agreement([h.given for h in histories], f"{where}, consensus() after finish()", names)


# ------------------------------------------------------------------ saving


def resumes(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Saved after any step and resumed with fresh objects, the run goes on as if unbroken, bit for bit."""
    _resumes(candidate, ranks, some(_places(candidate, ranks)[:-1], ranks))


def resumes_here_and_there(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As `resumes`, at three places."""
    _resumes(candidate, ranks, _places(candidate, ranks)[3:-1:6])


def _resumes(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    last = sum(ranks) - 1
    run = course(candidate, ranks, wish=lambda rank, step: (rank, step) == (last, STEPS // 2))
    timing = {"network": NETWORK, "step_time": STEP_NS}
    saving = drive(course(candidate, ranks, save_after=ENOUGH, wish=run.wish), **timing)
    for place in places:
        where = f"saved {_when(candidate, place)} and resumed"
        resumed = drive(run, resume=[history.saved[place] for history in saving], **timing)
        for new, old in zip(resumed, saving, strict=True):
            require_same_walk(new, old, where)
            require_equal(
                new.given, old.given, f"{where}: rank {new.rank}, consensus() at the end", new.names
            )
            for step, agreed in new.agreed.items():
                if agreed != old.agreed[step]:
                    raise Failed(f"{where}: rank {new.rank}, step {step}: agree() answers {agreed}")
            _require_same_calls(_from(new, min(new.parameters)), _from(old, min(new.parameters)), where, new)


def _from(history: History, step: int) -> list[Call]:
    return [call for call in history.calls if call.during in OWN and call.step >= step]


def _require_same_calls(got: list[Call], wanted: list[Call], where: str, history: History) -> None:
    for one, other in zip(got, wanted, strict=False):
        if one != other:
            raise Failed(f"{where}: rank {history.rank}, step {one.step + 1}: calls {one}, must call {other}")
    if len(got) != len(wanted):
        raise Failed(f"{where}: rank {history.rank} makes {len(got)} calls, must make {len(wanted)}")


# ------------------------------------------------------------------ wishes


def hears_wishes(candidate: Candidate, ranks: RanksOfNodes) -> str:
    """A wish of one rank is told by agree() to all ranks at one and the same step, at no extra call."""
    total = sum(ranks)
    quiet = plain(candidate, ranks)
    for history in quiet:
        if any(history.agreed.values()):
            raise Failed(f"rank {history.rank}: agree() tells of a wish that nobody has")
    delays = [0]
    begins = some((0, 1, STEPS // 3 + 1, STEPS // 2), ranks)
    for wishing in range(total):
        for begin in begins if wishing in (0, total - 1) else begins[:1]:
            run = course(candidate, ranks, wish=lambda r, s, w=wishing, b=begin: r == w and s >= b)
            histories = drive(run, network=NETWORK, step_time=STEP_NS)
            what = f"a wish of rank {wishing} in step {begin + 1}"
            if not any(met for step, met in histories[0].met.items() if begin < step < STEPS):
                return f"not tried: after step {begin + 1} the ranks meet only at the end"
            delays.append(_require_heard(candidate, histories, what, begin, wishing))
            for history, other in zip(histories, quiet, strict=True):
                if not independent(candidate) and history.verbs() != other.verbs():
                    extra = history.verbs() - other.verbs() or other.verbs() - history.verbs()
                    raise Failed(f"{what} changes the calls of rank {history.rank}: {dict(extra)}")
    bound = wish_bound(candidate, total)
    if bound is not None and max(delays) > bound:
        raise Failed(f"a wish is heard {max(delays)} steps later, must be within {bound}")
    return f"within {max(delays)} steps" if max(delays) else "at once"


def _require_heard(
    candidate: Candidate, histories: Sequence[History], what: str, begin: int, wishing: int
) -> int:
    """Steps of the wishing rank from the wish to its answer."""
    first = [next((step for step, heard in h.agreed.items() if heard), None) for h in histories]
    for history, step in zip(histories, first, strict=True):
        if step is None:
            raise Failed(f"{what} is never told to rank {history.rank} by agree()")
    if independent(candidate):
        met = [
            sum(h.met[k] for k in h.met if k <= (step or 0)) for h, step in zip(histories, first, strict=True)
        ]
        if len(set(met)) > 1:
            raise Failed(f"{what} is told to the ranks at their meetings {met}, not at one")
    else:
        for history in histories:
            different = [k for k in history.agreed if history.agreed[k] != histories[0].agreed[k]]
            if different:
                raise Failed(
                    f"{what}: after step {different[0]} agree() tells rank {history.rank} "
                    f"{history.agreed[different[0]]} and rank 0 {histories[0].agreed[different[0]]}"
                )
    heard = first[wishing]
    assert heard is not None
    return heard - 1 - begin


def wish_bound(candidate: Candidate, ranks: int) -> int | None:
    """Steps within which a built-in strategy promises that a wish is heard; None: no promise."""
    config, name = candidate.config, candidate.builtin
    if name in ("ddp", "placebo", "hsgd", "heterogeneous"):
        return 0
    if name == "daso":
        # A wish just after a start travels with the next one, which is merged W batches later; a start that
        # the epoch's end would overwrite is left to the epoch's last average, which comes no later.
        return config.sync_every - 1 + config.wait_batches
    if name in ("local_sgd", "post_local_sgd", "diloco", "slowmo", "ednncomm"):
        fixed = isinstance(config.sync_every, int) and getattr(config, "period_rule", "constant") != "qsr"
        return config.sync_every - 1 if fixed else None
    if name == "sgp":
        return config.reach(ranks) if ranks > 1 else 0
    return None


# ------------------------------------------------------------------ traffic and time


def calls_in_step(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """All members of a group make the same calls on it, in the same order, with the same number of bytes."""
    histories = uneven(candidate, ranks)
    orders: dict[tuple[str, tuple[int, ...]], dict[int, list[Call]]] = {}
    for history in histories:
        for call in history.calls:
            if call.verb != "send":
                orders.setdefault((call.channel, call.members), {}).setdefault(history.rank, []).append(call)
    for (channel, members), calls in orders.items():
        first = calls.get(members[0], [])
        for member in members:
            mine = calls.get(member, [])
            where = f"rank {member} on {channel} over ranks {list(members)}"
            for number, (one, other) in enumerate(zip(mine, first, strict=False), 1):
                if (one.verb, one.numbytes) != (other.verb, other.numbytes):
                    raise Failed(f"{where}: call {number} is {one}, rank {members[0]} calls {other}")
            if len(mine) != len(first):
                raise Failed(f"{where} makes {len(mine)} calls, rank {members[0]} {len(first)}")


def traffic_formula(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Counted calls and bytes of each verb equal the strategy's own `expected_traffic`."""
    run = course(candidate, ranks)
    for history in plain(candidate, ranks):
        replica = history.replica
        expected = candidate.strategy_class.expected_traffic(
            candidate.config, run.plan, history.rank, replica.numel, replica.buffers.numel
        )
        if expected is None:
            return "no formula"
        counted: dict[str, tuple[int, int]] = {}
        for call in history.calls:
            if call.during in OWN:
                key = f"{call.channel}.{call.verb}"
                calls, numbytes = counted.get(key, (0, 0))
                counted[key] = (calls + 1, numbytes + call.numbytes)
        for key in sorted(counted.keys() | expected.keys()):
            got, must = counted.get(key, (0, 0)), expected.get(key, (0, 0))
            if got != must:
                raise Failed(
                    f"rank {history.rank}: {got[0]} calls of {key} with {got[1]} bytes, "
                    f"expected_traffic says {must[0]} with {must[1]}"
                )
    return None


def traffic_by_step(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Each rank makes in each step just the calls that the strategy's description asks for."""
    run, histories = course(candidate, ranks), plain(candidate, ranks)
    wanted = _script(candidate, run, histories[0])
    if wanted is None:
        return "no description of its own in the kit"
    for history in histories:
        require_calls(history, wanted.calls[history.rank])
    return None


def require_calls(history: History, wanted: Sequence[Call]) -> None:
    """Raise Failed at the first step in which a rank's own calls are not the `wanted` ones, in any order."""
    ours = {(call.step, call.during): Counter[Call]() for call in [*history.calls, *wanted]}
    must = {key: Counter[Call]() for key in ours}
    for call in history.calls:
        ours[call.step, call.during][call] += 1
    for call in wanted:
        must[call.step, call.during][call] += 1
    for key in sorted(key for key in ours if key[1] in OWN):
        where = f"rank {history.rank}, step {key[0] + 1}" + ("" if key[1] == "step" else f" ({key[1]})")
        for call in ours[key] - must[key]:
            raise Failed(f"{where}: one call too many: {call}")
        for call in must[key] - ours[key]:
            raise Failed(f"{where}: a call is missing: {call}")


def time_kept(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """In virtual time the run takes as long as its description says, and blocks nowhere else."""
    run = course(candidate, ranks)
    slow = slow_last(run)
    for name, took in (("equal ranks", (STEP_NS,) * len(slow)), ("a slow rank", slow)):
        even, times = took is not slow, lambda rank, samples, took=took: took[rank]
        histories = plain(candidate, ranks) if even else drive(run, network=NETWORK, step_time=times)
        wanted = _script(candidate, run, histories[0], took)
        if took is slow and candidate.builtin in IN_STEP:
            wanted = None
        _require_no_wait(candidate, histories)
        for history in histories:
            if wanted is None:
                _require_bounded(candidate, histories, history, took)
            elif history.end_ns != wanted.clock[history.rank]:
                raise Failed(
                    f"{name}: rank {history.rank} takes {history.end_ns / 1e6:.3f} ms of virtual time, "
                    f"must take {wanted.clock[history.rank] / 1e6:.3f} ms"
                )
        if wanted is None:
            return f"{name}: upper bound only"
    return None


def _require_no_wait(candidate: Candidate, histories: Sequence[History]) -> None:
    """LASGD by ranks, its staleness unbounded, never stands still between its first step and its last."""
    config = candidate.config
    if candidate.builtin != "lasgd" or config.unit != "rank" or config.warmup_samples:
        return
    if config.mode == "async" and config.max_staleness_steps is None:
        for history in histories:
            if history.blocked_ns:
                raise Failed(
                    f"rank {history.rank} stands still for {history.blocked_ns / 1e6:.3f} ms while it trains"
                )


def _require_bounded(
    candidate: Candidate, histories: Sequence[History], history: History, took: Sequence[int]
) -> None:
    """Not longer than all calls of all ranks one after the other, and not shorter than the own steps."""
    topology = history.traffic.topology
    transfers = sum(
        NETWORK.duration_ns(call.verb, call.members, call.numbytes, topology.spans_nodes(call.members))
        for each in histories
        for call in each.calls
        if each.rank == min(call.members) or call.verb == "send"
    )
    slowest = max(each.steps * took[each.rank] + each.sharing_ns for each in histories)
    own = history.steps * took[history.rank]
    if not own <= history.end_ns <= slowest + transfers:
        raise Failed(
            f"rank {history.rank} takes {history.end_ns / 1e6:.3f} ms of virtual time, must be between "
            f"{own / 1e6:.3f} ms (its steps) and {(slowest + transfers) / 1e6:.3f} ms (and all transfers)"
        )


def _script(candidate: Candidate, run: Course, history: History, took: Sequence[int] | None = None):
    if candidate.builtin is None:
        return None
    sizes = Sizes(history.replica.numel, history.replica.buffers.numel)
    step_ns = (lambda rank: STEP_NS) if took is None else (lambda rank: took[rank])
    return script(candidate.builtin, run, sizes, NETWORK, step_ns)


# ------------------------------------------------------------------ the rest


def copies(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """A model set aside by snapshot() costs no call and no time, and assemble() makes it one on all ranks."""
    places = (1, 2, 5, 9)
    run = course(candidate, ranks, copies_after=places, consensus_after=places)
    histories = drive(run, network=NETWORK, step_time=STEP_NS)
    for history in histories:
        for call in history.calls:
            if call.during == "snapshot":
                raise Failed(f"rank {history.rank}, step {call.step + 1}: snapshot() calls {call}")
        if history.snapshot_ns:
            raise Failed(f"rank {history.rank}: snapshot() takes {history.snapshot_ns} ns of virtual time")
    for place in histories[0].copies:
        models = [history.copies[place] for history in histories]
        where = f"the copy made {_when(candidate, place)}"
        require_agreement(models, where, histories[0].names)
        if not independent(candidate):  # at one's own pace a copy may lack what is still in flight
            require_equal(
                models[0],
                histories[0].consensus[place],
                f"{where} is not the model of consensus()",
                histories[0].names,
                tolerance=2e-5,
            )


def rest_untouched(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Frozen parameters, integer buffers, tied weights, shapes and types stay as the model made them."""
    run = course(candidate, ranks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(run.seed, "init"))
        fresh = run.problem.model()
    kinds = {name: (value.shape, value.dtype) for name, value in fresh.state_dict().items()}
    for history in plain(candidate, ranks):
        model = history.replica.model
        state: dict[str, Tensor] = model.state_dict()
        where = f"rank {history.rank}"
        if {name: (value.shape, value.dtype) for name, value in state.items()} != kinds:
            raise Failed(f"{where}: names, shapes or types of the model have changed")
        require_equal(_frozen(model), _frozen(fresh), f"{where}: frozen parameters")
        if model.again.weight is not model.tied.weight:
            raise Failed(f"{where}: tied weights have come apart")
        counted = int(state["norm.num_batches_tracked"])
        seen = sum(sizes[history.rank] > 0 for sizes in history.sizes.values())
        if counted != seen:
            raise Failed(f"{where}: batch norm counts {counted} batches, {seen} were seen")


def _frozen(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if not p.requires_grad])


def reports(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """record(), summary() and labels() can be written as JSON."""
    for history in plain(candidate, ranks):
        for what, value in (
            ("record", history.records),
            ("summary", history.summary),
            ("labels", history.labels),
        ):
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise Failed(f"rank {history.rank}: {what}() is not JSON: {error}") from error


def _when(candidate: Candidate, place: int) -> str:
    return f"at meeting {place}" if independent(candidate) else f"after step {place}"
