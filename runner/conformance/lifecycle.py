"""Contract checks on the course of a run: it ends, resumes, stops anywhere, and leaves one model."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.stream_seeds import stream_seed
from .checks import (
    Candidate,
    Failed,
    RanksOfNodes,
    require_agreement,
    require_equal,
    require_same_walk,
)
from .driver import drive
from .scenario import History
from .trial import (
    NETWORK,
    STEP_NS,
    STEPS,
    STRATEGY_CALLS,
    demanding,
    independent,
    looked_at,
    one_stop_request,
    places_of,
    plain,
    saved,
    slow_last,
    some,
    trial_scenario,
    uneven,
    when,
)

FURTHER = 5  # steps after most resumes: longer than the periods of the trial


def ends(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """The run ends with all steps done, for any step times of the ranks and with ranks that start late."""
    run = trial_scenario(candidate, ranks, begin_ns=lambda rank: (rank * 7 % 3) * STEP_NS)
    slow = slow_last(run)
    uneasy = drive(run, network=NETWORK, step_time=lambda rank, samples: slow[rank])
    for histories in (plain(candidate, ranks), uneven(candidate, ranks), uneasy):
        (_require_budget if independent(candidate) else _require_equal_steps)(histories)


def _require_budget(histories: Sequence[History]) -> None:
    """Raise Failed unless ranks end with the schedule's samples, and count the same at sync points."""
    last = [history.samples[history.steps] for history in histories]
    budget = histories[0].budget
    if min(last) < budget or len(set(last)) > 1:
        raise Failed(f"ranks end at {last} global samples, the run has {budget}")
    meetings = [[history.samples[k] for k, met in history.met.items() if met] for history in histories]
    if any(samples != meetings[0] for samples in meetings):
        raise Failed(f"ranks meet at different global samples: {meetings}")


def _require_equal_steps(histories: Sequence[History]) -> None:
    for history in histories:
        if history.steps != STEPS:
            raise Failed(f"rank {history.rank} ends after {history.steps} of {STEPS} steps")
        if history.met != histories[0].met:
            raise Failed(f"is_sync_point() answers otherwise on rank {history.rank} than on rank 0")
        if history.sizes != histories[0].sizes:
            raise Failed(f"rank {history.rank} and rank 0 split the global batches differently")


def counts_samples(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """global_samples() is the samples of all steps so far; with independent sampling never more than that."""
    histories = uneven(candidate, ranks)
    trained = sorted(
        (history.clock_ns[k], history.sizes[k][history.rank]) for history in histories for k in history.sizes
    )
    times, sums = [time for time, _ in trained], [0, *accumulate(samples for _, samples in trained)]
    for history in histories:
        before = 0
        for step, known in history.known.items():
            where = f"rank {history.rank}, before step {step + 1}: global_samples() is {known}"
            if known < before:
                raise Failed(f"{where}, one step earlier it was {before}")
            before = known
            if not independent(candidate):
                there = sum(sum(history.sizes[k]) for k in range(1, step + 1))
            else:
                there = sums[bisect_right(times, history.clock_ns[step])]
            if known > there or (known < there and not independent(candidate)):
                raise Failed(f"{where}, there are {there}")


def one_model(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Inside averaged_model() all ranks hold the same parameters and floating-point buffers, bit for bit."""
    histories = looked_at(candidate, ranks)
    if not histories[0].averaged_model:
        raise Failed("there is no sync point, so no model can be evaluated")
    for place in histories[0].averaged_model:
        models = [history.averaged_model[place] for history in histories]
        require_agreement(models, f"averaged_model() {when(candidate, place)}", histories[0].names)


def no_trace(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """wait_pending(), averaged_model(), state_dict() and snapshot() change nothing in the run."""
    # No transfer takes time, else ranks at their own pace would rightly train otherwise when they wait.
    left_alone = drive(demanding(candidate, ranks), step_time=STEP_NS)
    for looked, unlooked in zip(looked_at(candidate, ranks), left_alone, strict=True):
        for place, names in looked.disturbed.items():
            if names:
                raise Failed(f"rank {looked.rank}, {when(candidate, place)}: changed by a look: {names[0]}")
        require_same_walk(looked, unlooked, "a run that is looked at in each step")
        if looked.agreed != unlooked.agreed or looked.met != unlooked.met:
            raise Failed(f"rank {looked.rank}: stop_agreed() or is_sync_point() differ when looked at")


def drains(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """After finalize() nothing is in flight and all ranks hold the same parameters, bit for bit."""
    for histories in (plain(candidate, ranks), uneven(candidate, ranks)):
        require_drained(histories, "at the end")


def stops_anywhere(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Stopped after any step the run ends the same way, with the model of averaged_model()."""
    require_stops(candidate, ranks, some(places_of(candidate, ranks), ranks))


def require_stops(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    """Raise Failed unless `stops_anywhere` holds at each of `places`."""
    for number, place in enumerate(places):
        run = demanding(candidate, ranks, stop_after=place, consensus_after=[place])
        # Some from the start; most from what was saved one step before, to be quick.
        before = None if number % 4 == 0 else [h.saved[place - 1] for h in saved(candidate, ranks)]
        histories = drive(run, network=NETWORK, step_time=STEP_NS, resume=before)
        where = f"stopped {when(candidate, place)}"
        shown = [history.averaged_model[place] for history in histories]
        require_agreement(shown, f"{where}, inside averaged_model()", histories[0].names)
        require_drained(histories, where)
        for history, model in zip(histories, shown, strict=True):
            what = f"{where}: rank {history.rank}: the final model is not the one averaged_model() showed"
            require_equal(history.final, model[: len(history.final)], what, history.names, tolerance=2e-5)


def require_drained(histories: Sequence[History], where: str) -> None:
    """Raise Failed where an operation was not waited for, or ranks hold different models."""
    for history in histories:
        if history.unwaited:
            count = history.unwaited
            raise Failed(f"{where}: rank {history.rank} launched {count} operations it never waits for")
    names = histories[0].names
    require_agreement([h.final for h in histories], f"{where}, after finalize()", names)
    require_agreement([h.given for h in histories], f"{where}, averaged_model() after finalize()", names)


# ------------------------------------------------------------------ saving


def resumes(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Saved after any step and resumed with fresh objects, the run goes on as if unbroken, bit for bit."""
    require_resumes(candidate, ranks, some(places_of(candidate, ranks)[:-1], ranks))


def require_resumes(candidate: Candidate, ranks: RanksOfNodes, places: Sequence[int]) -> None:
    """Raise Failed unless `resumes` holds at each of `places`."""
    before, last = saved(candidate, ranks), places_of(candidate, ranks)[-1]
    for number, place in enumerate(places):
        where = f"saved {when(candidate, place)} and resumed"
        # Some to the end of the run; most for a few steps, to be quick.
        stop = last if number % 4 == 0 else min(place + FURTHER, last)
        run = demanding(candidate, ranks, stop_request=one_stop_request(ranks), stop_after=stop)
        state = [history.saved[place] for history in before]
        for new, old in zip(
            drive(run, resume=state, network=NETWORK, step_time=STEP_NS), before, strict=True
        ):
            _require_continued(new, old, where, complete=stop == last)


def _require_continued(new: History, old: History, where: str, *, complete: bool) -> None:
    """Raise Failed unless `new` equals the rest of `old`, or the next steps of it."""
    for step, value in new.parameters.items():
        at = f"{where}: rank {new.rank}, after step {step}"
        require_equal(value, old.parameters[step], at, new.names)
        require_equal(new.buffers[step], old.buffers[step], f"{at}, floating-point buffers")
        if step in new.agreed and new.agreed[step] != old.agreed[step]:
            raise Failed(f"{at}: stop_agreed() answers {new.agreed[step]}")
    if complete:
        at = f"{where}: rank {new.rank}, at the end"
        require_equal(new.final, old.final, at, new.names)
        require_equal(new.given, old.given, f"{at}, averaged_model()", new.names)
        summary, unbroken = _without_times(new.summary), _without_times(old.summary)
        for key in summary:
            if summary[key] != unbroken.get(key):
                raise Failed(f"{at}: summary() has {key}={summary[key]}, unbroken {unbroken.get(key)}")
    first, end = min(new.parameters), max(new.parameters)
    kinds = STRATEGY_CALLS if complete else ("step", "epoch")
    ours, theirs = (
        [call for call in history.calls if call.during in kinds and first <= call.step < end]
        for history in (new, old)
    )
    for call, must in zip(ours, theirs, strict=False):
        if call != must:
            raise Failed(f"{where}: rank {new.rank}, step {call.step + 1}: calls {call}, must call {must}")
    if len(ours) != len(theirs):
        raise Failed(f"{where}: rank {new.rank} makes {len(ours)} calls, must make {len(theirs)}")


def _without_times(value: Any) -> Any:
    """A summary without its floats, which are times: clocks do not continue after a resume."""
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not isinstance(item, float)}
    if isinstance(value, list | tuple):
        return [_without_times(item) for item in value if not isinstance(item, float)]
    return value


# ------------------------------------------------------------------ the rest


def copies(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """snapshot() takes no call and no time, and its result gives one model on all ranks.

    It is the model of averaged_model(); with independent sampling the mean after an earlier step.
    """
    places = (1, 2, 3) if independent(candidate) else (1, 2, 5, 6)
    run = trial_scenario(candidate, ranks, copies_after=places, consensus_after=places, stop_after=places[-1])
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
        if len(models[0]) != len(histories[0].averaged_model[place]):
            raise Failed(f"{where} lacks parameters or buffers: {len(models[0])} elements")
        if not independent(candidate):
            require_equal(
                models[0],
                histories[0].averaged_model[place],
                f"{where} is not the model of averaged_model()",
                histories[0].names,
                tolerance=2e-5,
            )
        else:  # a copy may lack a round that is in flight
            parameters, buffers = _as_means(histories, place, models[0])
            if not parameters:
                return "copies are no mean of the ranks' models"
            if not parameters & buffers:
                raise Failed(f"{where}: its buffers are not the mean over ranks, as its parameters are")
    return None


def _as_means(histories: Sequence[History], place: int, copy: Tensor) -> tuple[set[int], set[int]]:
    """The steps, up to sync point `place`, after which the mean over ranks is `copy`: parameters, buffers."""
    m = len(histories[0].final)
    parameters, buffers = set[int](), set[int]()
    meetings = accumulate(int(met) for met in histories[0].met.values())
    met = list(meetings).index(place) + 1
    for step in range(met + 1):  # ranks are equally fast
        models = torch.stack([torch.cat([h.parameters[step], h.buffers[step]]) for h in histories])
        for steps, part in ((parameters, slice(None, m)), (buffers, slice(m, None))):
            off = torch.linalg.vector_norm(copy[part] - models[:, part].mean(0))
            # In 16 bits a mean is not exact, but nearer than ranks are to each other.
            apart = torch.linalg.vector_norm(models[:, part].amax(0) - models[:, part].amin(0))
            if off <= 1e-4 + 0.1 * apart:
                steps.add(step)
    return parameters, buffers


def rest_untouched(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """Frozen parameters, integer buffers, tied weights, shapes and types stay as the model made them."""
    run = trial_scenario(candidate, ranks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(run.seed, "init"))
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
