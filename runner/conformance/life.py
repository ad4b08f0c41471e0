"""The contract on a run's life: it ends, and can be looked at, saved and stopped anywhere; one model is left."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...strategies.seeds import derive
from .comparison import require_agreement, require_equal, require_same_walk
from .course import Call, History
from .driver import drive, jittered
from .findings import Candidate, Failed, RanksOfNodes
from .runs import ENOUGH, OWN, STEPS, independent, places_of, plain, slow_last, some, uneven, when
from .trial import NETWORK, STEP_NS, course


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
        require_agreement(models, f"consensus {when(candidate, place)}", histories[0].names)
    if not histories[0].consensus:
        raise Failed("the ranks never meet: no model is ever to be had")


def no_trace(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """settle(), consensus(), state_dict() and snapshot() leave everything and the run's course as it was."""
    # No transfer takes time: looking may not change what comes after.
    left_alone = drive(course(candidate, ranks), step_time=STEP_NS)
    places = tuple(ENOUGH[:STEPS])
    looking = drive(
        course(candidate, ranks, consensus_after=ENOUGH, save_after=ENOUGH, copies_after=places),
        step_time=STEP_NS,
    )
    for looked, unlooked in zip(looking, left_alone, strict=True):
        for place, names in looked.disturbed.items():
            if names:
                raise Failed(f"rank {looked.rank}, {when(candidate, place)}: changed by a look: {names[0]}")
        require_same_walk(looked, unlooked, "a run that is looked at in each step")
        if looked.agreed != unlooked.agreed or looked.met != unlooked.met:
            raise Failed(f"rank {looked.rank}: agree() or meets() answer otherwise when looked at")


def drains(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """After finish() nothing is in flight and all ranks hold the same parameters, bit for bit."""
    for histories in (plain(candidate, ranks), uneven(candidate, ranks)):
        _require_drained(histories, "at the end")


def stops_anywhere(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Stopped after any step the run ends the same way, with the model that consensus() had just shown."""
    _stops(candidate, ranks, some(places_of(candidate, ranks), ranks))


def stops_here_and_there(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As `stops_anywhere`, at three places."""
    _stops(candidate, ranks, places_of(candidate, ranks)[4::6])


def _stops(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    for place in places:
        run = course(candidate, ranks, stop_after=place, consensus_after=[place])
        histories = drive(run, network=NETWORK, step_time=STEP_NS)
        where = f"stopped {when(candidate, place)}"
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
    _resumes(candidate, ranks, some(places_of(candidate, ranks)[:-1], ranks))


def resumes_here_and_there(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As `resumes`, at three places."""
    _resumes(candidate, ranks, places_of(candidate, ranks)[3:-1:6])


def _resumes(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    last = sum(ranks) - 1
    run = course(candidate, ranks, wish=lambda rank, step: (rank, step) == (last, STEPS // 2))
    timing = {"network": NETWORK, "step_time": STEP_NS}
    saving = drive(course(candidate, ranks, save_after=ENOUGH, wish=run.wish), **timing)
    for place in places:
        where = f"saved {when(candidate, place)} and resumed"
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
        where = f"the copy made {when(candidate, place)}"
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
