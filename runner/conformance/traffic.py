"""What each built-in strategy must send, when, and how long it may take: written from its description.

Every script here is a second telling of a strategy, from its docstring and not from its code: an extra
barrier, a missing call, a byte too many or a wait too early is found by comparing the two.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...strategies.topology import LEADERS, NODE, WORLD, peers
from ..communication.link_costs import Network
from .scenario import Course
from .script import Launched, Script, StepNs


@dataclass(frozen=True)
class Sizes:
    """m trainable elements, F elements of floating-point buffers, bytes per element."""

    parameters: int
    buffers: int
    element: int = 4

    @property
    def gradients(self) -> int:
        """Bytes of all gradients with the one element that carries a stop request."""
        return (self.parameters + 1) * self.element


def script(name: str, course: Course, sizes: Sizes, network: Network, step_ns: StepNs) -> Script | None:
    """The script of a built-in strategy's whole run; None where there is none (see `SCRIPTS`)."""
    if name not in SCRIPTS:
        return None
    written = Script(course.topology, network, step_ns)
    told = SCRIPTS[name](course, written, sizes)
    return written if told is not False else None


def ddp(course: Course, s: Script, sizes: Sizes) -> bool | None:
    """One sum of the gradients over the world in each step, in one level or in two, in 32 or in 16 bits."""
    config, algorithm = course.config, course.config.algorithm
    if config.hook == "powersgd":
        return False
    elements, width = sizes.parameters + 1, sizes.element if config.hook == "none" else 2
    two_levels = 1 < course.topology.nodes < course.topology.ranks
    ranks = course.topology.ranks_of_nodes[0]
    slice_bytes = -(-elements // ranks) * width

    def add_up(s: Script, algorithm: str) -> None:
        if not two_levels or algorithm == "flat":
            s.blocking("all_reduce", "gradients", WORLD, elements * width)
        elif algorithm == "hierarchical":
            s.blocking("reduce", "gradients", NODE, elements * width)
            s.blocking("all_reduce", "gradients", LEADERS, elements * width)
            s.blocking("broadcast", "gradients", NODE, elements * width)
        else:
            s.blocking("reduce_scatter", "gradients", NODE, slice_bytes * ranks)
            launched = [s.launch("all_reduce", "gradients", peers(q), slice_bytes) for q in range(ranks)]
            for one in [one for group in launched for one in group]:
                s.wait(one)
            s.blocking("all_gather", "gradients", NODE, slice_bytes)

    def nanoseconds(algorithm: str) -> int:
        alone = Script(course.topology, s.network, s.step_ns)
        add_up(alone, algorithm)
        return max(alone.clock)

    if algorithm == "best":
        algorithm = min("flat", "hierarchical", key=nanoseconds)
    for _ in steps(course, s):
        s.compute()
        add_up(s, algorithm)
    return None


def daso(course: Course, s: Script, sizes: Sizes) -> None:
    """Gradients in the node in each step; S, M, A and the epoch's end as in its description."""
    config, nodes = course.config, course.topology.nodes
    auto = max(1, round(4 / 90 * course.epochs))
    warmup = auto if config.warmup_epochs == "auto" else config.warmup_epochs
    cooldown = auto if config.cooldown_epochs == "auto" else config.cooldown_epochs
    period, wait, last = config.sync_every, config.wait_batches, course.steps_per_epoch - 1
    whole = sizes.gradients
    turn, pending = 0, list[tuple[int, int, list[Launched]]]()

    def cycling(epoch: int) -> bool:
        return warmup <= epoch < course.epochs - cooldown

    def over_nodes(numbytes: int, narrow: bool = False) -> tuple[int, list[Launched]]:
        nonlocal turn
        q, turn = turn, (turn + 1) % course.topology.ranks_of_nodes[0]
        width = 2 if narrow else sizes.element
        return q, s.launch("all_reduce", "parameters", peers(q), numbytes // sizes.element * width)

    def spread(q: int, launched: list[Launched]) -> None:
        for one in launched:
            s.wait(one)
        s.blocking("broadcast", "parameters", NODE, whole)

    for epoch, batch in steps(course, s):
        s.compute()
        s.blocking("all_reduce", "gradients", NODE, whole)
        if nodes > 1:
            narrow = config.transport_dtype is not None and not cycling(epoch)
            of_parameters = config.blocking == "parameters"
            if not cycling(epoch) and not of_parameters:
                spread(*over_nodes(whole))
            if batch == last or (not cycling(epoch) and of_parameters):
                spread(*over_nodes(whole, narrow))
            elif cycling(epoch) and wait == 0 and batch % period == 0:
                spread(*over_nodes(whole))
            elif cycling(epoch) and wait:
                if batch % period == 0 and batch + wait < last:
                    pending.append((batch + wait, *over_nodes(whole)))
                if pending and pending[0][0] == batch:
                    _, q, launched = pending.pop(0)
                    spread(q, launched)
        if batch == last:
            if nodes > 1:
                _daso_epoch_end(config, s, sizes)
            loop_asks_for_the_epoch_loss(s)
            s.during = "epoch"
            if epoch + 1 < course.epochs and cycling(epoch + 1):
                s.blocking("broadcast", "control", WORLD, 4 * 8)


def _daso_epoch_end(config: object, s: Script, sizes: Sizes) -> None:
    verb = {"average": "all_reduce", "broadcast": "broadcast"}.get(getattr(config, "buffers", ""))
    if verb is not None and sizes.buffers:
        s.blocking(verb, "parameters", WORLD, sizes.buffers * sizes.element)


def local_sgd(course: Course, s: Script, sizes: Sizes) -> None:
    """An average over the world after every H steps; under qsr H follows the falling rate.

    A round in which the rate rises has `sync_every` steps.
    """
    config, alpha, rate = course.config, getattr(course.config, "qsr_alpha", None), course.rate

    def period(first: int, step: int) -> int:
        if alpha is None or rate is None or rate(step) > rate(first):
            return config.sync_every
        return max(config.sync_every, math.floor((alpha / rate(first)) ** 2))

    since = 0
    for _ in steps(course, s):
        s.compute()
        since += 1
        if since >= period(s.step - since + 1, s.step):
            average(config, s, sizes)
            average_state(config, s, sizes)
            since = 0
    finish_round(since, config, s, sizes)


def post_local_sgd(course: Course, s: Script, sizes: Sizes) -> None:
    """Gradients over the world up to the switch, then local SGD by ranks or by nodes."""
    config, since = course.config, 0
    by_node = config.unit == "node"
    budget = course.samples_before(course.epochs * course.steps_per_epoch)
    switch = budget // 2 if config.switch_samples == "auto" else config.switch_samples
    for _ in steps(course, s):
        s.compute()
        if course.samples_before(s.step) < switch:
            s.blocking("all_reduce", "gradients", WORLD, sizes.gradients)
            continue
        if by_node:
            s.blocking("all_reduce", "gradients", NODE, sizes.gradients)
        since += not (by_node and course.topology.nodes == 1)
        if since == config.sync_every:
            average(config, s, sizes, "leader" if by_node else "world")
            average_state(config, s, sizes)
            since = 0
    finish_round(since, config, s, sizes, "leader" if by_node else "world")


def ednncomm(course: Course, s: Script, sizes: Sizes) -> None:
    """Gradients in the node in each step, an exchange between nodes every K steps and at epoch ends."""
    config, since, last = course.config, 0, course.steps_per_epoch - 1
    period = course.steps_per_epoch if config.sync_every == "auto" else config.sync_every
    for _, batch in steps(course, s):
        s.compute()
        s.blocking("all_reduce", "gradients", NODE, sizes.gradients)
        since += course.topology.nodes > 1
        if since and (since == period or (config.sync_at_epoch_end and batch == last)):
            average(config, s, sizes, config.exchange, buffers_ride=False)
            average_state(config, s, sizes)
            since = 0
    finish_round(since, config, s, sizes, config.exchange, buffers_ride=False)


def sgp(course: Course, s: Script, sizes: Sizes) -> None:
    """A message to each peer of the step and one from each; sums over the world at the end."""
    config, ranks = course.config, course.topology.ranks
    p, whole = config.num_peers, (sizes.parameters + 1 + (config.send_weight == "true")) * sizes.element
    bases = [1]
    while config.graph == "exponential" and bases[-1] * (p + 1) <= ranks - 1:
        bases.append(bases[-1] * (p + 1))
    for _ in steps(course, s):
        s.compute()
        base, most = bases[s.step % len(bases)], ranks - 1 if config.graph == "complete" else p
        hops = {j * base % ranks for j in range(1, most + 1)} - {0}
        if config.direction == "push_pull":
            hops |= {-hop % ranks for hop in hops}
        s.messages([(rank, (rank + hop) % ranks) for rank in range(ranks) for hop in hops], whole)
    s.during = "finalize"
    s.blocking("all_reduce", "parameters", WORLD, (sizes.parameters + sizes.buffers + 1) * sizes.element)


def heterogeneous(course: Course, s: Script, sizes: Sizes) -> bool | None:
    """ddp behind a calibration: timed steps of three sizes, times and a digest gathered, medians by epoch."""
    config, number = course.config, 8
    if config.balancing == "dynamic":
        return False
    s.during = "shares"
    if config.balancing == "static" and course.topology.ranks > 1:
        for _ in range(3):
            s.blocking("barrier", "control", WORLD, 0)
            s.advance(lambda rank: (3 + 10) * s.step_ns(rank))
        s.blocking("all_gather", "control", WORLD, 3 * 10 * number)
    s.blocking("all_gather", "control", WORLD, number)
    for _, batch in steps(course, s):
        s.compute()
        s.blocking("all_reduce", "gradients", WORLD, sizes.gradients)
        if batch == course.steps_per_epoch - 1:
            s.during = "epoch"
            s.blocking("all_gather", "control", WORLD, 2 * number)
    return None


def hsgd(course: Course, s: Script, sizes: Sizes) -> bool | None:
    """Barriers 1, 2 and 4 in each node, 3 and the leaders' sum where there are several nodes."""
    config, several = course.config, course.topology.nodes > 1
    if config.partition != "column" or config.level2_algorithm != "all_reduce":
        return False
    in_memory = config.level1 != "collective"

    for _ in steps(course, s):
        s.compute()
        if not in_memory:
            s.blocking("reduce", "parameters", NODE, sizes.gradients)
            s.blocking("all_reduce", "parameters", LEADERS, sizes.gradients)
            s.blocking("broadcast", "parameters", NODE, sizes.gradients)
            continue
        s.memory_barrier(NODE)
        s.memory_barrier(NODE)
        if several:
            s.blocking("all_reduce", "parameters", LEADERS, sizes.gradients)
            s.memory_barrier(NODE)
        s.memory_barrier(NODE)
    return None


def lasgd(course: Course, s: Script, sizes: Sizes) -> bool | None:
    """Ranks of one speed: a round's two sums are launched as a step begins and applied where one ends.

    The run ends with the first applied round whose snapshots hold all samples; then counts are compared and
    parameters and buffers averaged.
    """
    config = course.config
    if config.optimizer_state != "keep" or course.topology.ranks == 1:
        return False
    steps_of_run, step, since = course.epochs * course.steps_per_epoch, 0, 0
    flight: list[Launched] = []
    counted = 0  # steps in the snapshots of the round in flight
    while True:
        s.step, s.during = step, "step"
        if since >= config.sync_every and not flight:
            for numbytes in (sizes.parameters * sizes.element, 4 * 8):
                flight += s.launch("all_reduce", "parameters", WORLD, numbytes)
            counted, since = step, 0
        s.compute()
        step += 1
        since += 1
        if flight and max(one.end for one in flight) <= s.clock[0]:
            flight = []
            if counted >= steps_of_run:
                break
    s.during = "finalize"
    s.blocking("all_gather", "control", WORLD, 3 * 8)
    for elements in (sizes.parameters, sizes.buffers):
        s.blocking("all_reduce", "parameters", WORLD, elements * sizes.element)
    return None


# ------------------------------------------------------------------ what several have in common


def average(
    config: Any, s: Script, sizes: Sizes, how: str = "world", *, buffers_ride: bool | None = None
) -> None:
    """The end of a round: parameters, a stop flag and buffers, if they ride along; else buffers behind."""
    riding = how == "world" and config.buffers == "average" if buffers_ride is None else buffers_ride
    elements = sizes.parameters + 1 + sizes.buffers * riding
    if how == "world":
        s.blocking("all_reduce", "parameters", WORLD, elements * sizes.element)
    elif how == "leader":
        s.blocking("all_reduce", "parameters", LEADERS, elements * sizes.element)
        s.blocking("broadcast", "parameters", NODE, elements * sizes.element)
    else:
        ranks = s.topology.ranks_of_nodes[0]
        slice_bytes = -(-elements // ranks) * sizes.element
        launched = [
            one for q in range(ranks) for one in s.launch("all_reduce", "parameters", peers(q), slice_bytes)
        ]
        for one in launched:
            s.wait(one)
        s.blocking("all_gather", "parameters", NODE, slice_bytes)
    verb = {"average": "all_reduce", "broadcast": "broadcast"}.get(config.buffers)
    if verb is not None and sizes.buffers and not riding:
        s.blocking(verb, "parameters", WORLD, sizes.buffers * sizes.element)


def average_state(config: Any, s: Script, sizes: Sizes) -> None:
    """One momentum per parameter element, where a strategy averages them."""
    if config.optimizer_state == "average":
        s.blocking("all_reduce", "parameters", WORLD, sizes.parameters * sizes.element)


def finish_round(
    since: int, config: Any, s: Script, sizes: Sizes, how: str = "world", *, buffers_ride: bool | None = None
) -> None:
    """A last round that was cut short ends with an average, without any state."""
    if since:
        s.during = "finalize"
        average(config, s, sizes, how, buffers_ride=buffers_ride)


def steps(course: Course, s: Script) -> Iterator[tuple[int, int]]:
    """(epoch, batch) of every step, and the script told where it is."""
    for epoch in range(course.epochs):
        for batch in range(course.steps_per_epoch):
            s.step, s.during = epoch * course.steps_per_epoch + batch, "step"
            yield epoch, batch


def loop_asks_for_the_epoch_loss(s: Script) -> None:
    """Two float64 numbers over the world, for strategies that read the epoch's loss."""
    s.during = "loop"
    s.blocking("all_reduce", "control", WORLD, 2 * 8)


SCRIPTS: dict[str, Callable[[Course, Script, Sizes], bool | None]] = {
    "ddp": ddp,
    "placebo": ddp,
    "daso": daso,
    "local_sgd": local_sgd,
    "diloco": local_sgd,
    "slowmo": local_sgd,
    "post_local_sgd": post_local_sgd,
    "ednncomm": ednncomm,
    "sgp": sgp,
    "heterogeneous": heterogeneous,
    "hsgd": hsgd,
    "lasgd": lasgd,
}
"""By name of the strategy. A script returns False for keys that it does not know how to tell."""

IN_STEP = frozenset({"sgp", "lasgd"})
"""Strategies whose times are told for ranks of one speed only: their ranks never wait for all others."""
