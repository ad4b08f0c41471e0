"""What each built-in strategy must send, when, and how long it may take: written from its description.

Every script here is a second telling of a strategy, from its docstring and not from its code: an extra
barrier, a missing call, a byte too many or a wait too early is found by comparing the two.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...strategies.topology import LEADERS, NODE, WORLD, peers
from ..simulator import Network
from .course import Course
from .script import Launched, Script, StepNs


@dataclass(frozen=True)
class Sizes:
    """m trainable elements, F elements of floating-point buffers, bytes per element."""

    parameters: int
    buffers: int
    element: int = 4

    @property
    def gradients(self) -> int:
        """Bytes of all gradients with the one element that carries a wish."""
        return (self.parameters + 1) * self.element


def script(name: str, course: Course, sizes: Sizes, network: Network, step_ns: StepNs) -> Script | None:
    """The script of a built-in strategy's whole run; None where there is none (see `SCRIPTS`)."""
    if name not in SCRIPTS:
        return None
    written = Script(course.topology, network, step_ns)
    told = SCRIPTS[name](course, written, sizes)
    return written if told is not False else None


def ddp(course: Course, s: Script, sizes: Sizes) -> None:
    """One all-reduce of the gradients over the world in each step."""
    for _ in steps(course, s):
        s.compute()
        s.blocking("all_reduce", "gradients", WORLD, sizes.gradients)


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
        elements, chunk = numbytes // sizes.element, config.chunk_elements or numbytes
        pieces = [min(chunk, elements - begin) for begin in range(0, elements, chunk)]
        return q, [one for n in pieces for one in s.launch("all_reduce", "parameters", peers(q), n * width)]

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
    if getattr(config, "optimizer_state", "") == "average":
        s.blocking("all_reduce", "parameters", WORLD, sizes.parameters * sizes.element)


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
    "daso": daso,
}
"""By name of the strategy. A script returns False for keys that it does not know how to tell."""

__all__ = ["LEADERS", "SCRIPTS", "Sizes", "script"]
