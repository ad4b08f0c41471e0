"""Layer (b): after every step every rank holds what the update rule says, worked out in NumPy float64."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...strategies.base import Strategy
from ...strategies.seeds import derive
from .cases import CASES, Case, Slow, skewed
from .checks import Candidate, Check, Failed, RanksOfNodes
from .driver import drive
from .references import REFERENCES, NoReference, Setting, World
from .scenario import Course, History
from .twins import Array, Part

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True)
class Walk:
    """What a reference says: θ [K+1, m] and buffers [K+1, F] of each rank after 0 … K steps.

    final, judged: θ [R, m] at the end, and the buffers [R, F] with which that model is judged.
    """

    theta: list[Array]
    buffers: list[Array]
    final: Array
    judged: Array


def wanted(name: str, keys: Mapping[str, Any], setting: Setting) -> Walk:
    """Let the reference of strategy `name` walk through `setting`.

    Raises:
        NoReference: there is none for this strategy or these keys.
    """
    if name not in REFERENCES:
        raise NoReference(f"no reference for {name}")
    world = World(setting)
    theta = [[start.copy()] for start in world.theta]
    buffers = [[start.copy()] for start in world.buffers]
    for stepped in REFERENCES[name](world, **keys):
        for rank in range(world.ranks) if stepped is None else stepped:
            theta[rank].append(world.theta[rank].copy())
            buffers[rank].append(world.buffers[rank].copy())
    # References that weigh ranks have left them equal; a model to be judged has one set in any case.
    world.mix_buffers("broadcast" if keys.get("buffers") == "broadcast" else "average")
    walked = [np.stack(rows) for rows in theta], [np.stack(rows) for rows in buffers]
    return Walk(*walked, world.theta, world.buffers)


def setting_of(case: Case, ranks: RanksOfNodes) -> Setting:
    """The case as references see it."""
    problem = case.problem(ranks)
    return Setting(
        twin=problem.twin,
        piece=problem.samples.piece,
        recipe=problem.recipe,
        ranks_of_nodes=ranks,
        steps_per_epoch=case.steps_per_epoch,
        epochs=case.epochs,
        rate=case.rate,
        clip_norm=case.clip_norm,
        losses=case.losses,
        step_time=case.step_ns,
        round_time=case.round_ns if len(ranks) > 1 else None,
        factor=first_factor,
    )


def first_factor(draw: int, n: int, m: int, rank: int) -> Array:
    """The random numbers with which PowerSGD begins on a matrix [n, m]: no part of its update rule."""
    generator = torch.Generator().manual_seed(derive(0, "powersgd", draw, n, m))
    return torch.randn(m, rank, generator=generator, dtype=torch.float64).numpy()


def follow(strategy_class: type[Strategy], config: Any, case: Case, ranks: RanksOfNodes) -> list[History]:
    """Let the strategy itself walk through the case."""
    course = Course(
        strategy_class=strategy_class,
        config=config,
        ranks_of_nodes=ranks,
        problem=case.problem(ranks),
        steps_per_epoch=case.steps_per_epoch,
        epochs=case.epochs,
        rate=case.rate,
        clip_norm=case.clip_norm,
        losses=case.losses,
    )
    return drive(course, network=Slow(case.round_ns), step_time=case.step_ns)


def checks(candidate: Candidate) -> list[Check]:
    """The candidate's own keys on the ranks asked for, then every case of its strategy."""
    name = candidate.builtin
    if name not in REFERENCES:
        return []
    says = "after each step every rank holds what the update rule says"
    found = [Check("as configured", says, _own)]
    return found + [Check(case.name, f"{says}: {case.name}", _try(case), case.ranks) for case in CASES[name]]


def _own(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    case = Case(step_ns=skewed, round_ns=2900)
    try:
        require(candidate.builtin or "", candidate.strategy_class, candidate.config, case, ranks)
    except NoReference as missing:
        return str(missing)
    return None


def _try(case: Case) -> Callable[[Candidate, RanksOfNodes], None]:
    def run(candidate: Candidate, ranks: RanksOfNodes) -> None:
        strategy_class = candidate.strategy_class
        require(candidate.builtin or "", strategy_class, strategy_class.Config(**case.keys), case, ranks)

    return run


def require(name: str, strategy_class: type[Strategy], config: Any, case: Case, ranks: RanksOfNodes) -> None:
    """Raise Failed where the strategy leaves the update rule of `name`.

    Raises:
        ConfigError: the strategy refuses.
        NoReference: the update rule with these keys is not written down.
    """
    histories = follow(strategy_class, config, case, ranks)
    setting = setting_of(case, ranks)
    require_walk(histories, wanted(name, dataclasses.asdict(config), setting), setting.twin.parts)


def require_walk(histories: Sequence[History], walk: Walk, parts: Sequence[Part]) -> None:
    """Raise Failed at the first step, rank and parameter at which the strategy leaves its update rule."""
    order, names, allowed = _order(histories[0].names, parts)
    found: list[tuple[int, int, str]] = []
    for rank, (history, theta, buffers) in enumerate(zip(histories, walk.theta, walk.buffers, strict=True)):
        steps = len(theta) - 1
        if history.steps != steps:
            raise Failed(f"rank {rank} takes {history.steps} steps, must take {steps}")
        sides = [
            (_stack(history.parameters, steps), theta[:, order], names, allowed, 0),
            (_stack(history.buffers, steps), buffers, _buffer_names(buffers), np.max(allowed), 0),
            (_row(history.final), walk.final[rank][order][None], names, allowed, steps + 1),
            (
                _row(history.given[len(history.final) :]),
                walk.judged[rank][None],
                _buffer_names(buffers),
                np.max(allowed),
                steps + 1,
            ),
        ]
        for got, must, elements, tolerance, first_step in sides:
            off = _first(got, must, elements, tolerance)
            if off is not None:
                found.append((first_step + off[0], rank, off[1]))
    if found:
        step, rank, what = min(found)
        when = f"after step {step}" if step < max(len(theta) for theta in walk.theta) else "at the end"
        raise Failed(f"{when}, rank {rank}: {what}")


def _stack(of_step: Mapping[int, Tensor], steps: int) -> Array:
    return np.stack([of_step[step].double().numpy() for step in range(steps + 1)])


def _row(vector: Tensor) -> Array:
    return vector.double().numpy()[None]


def _buffer_names(buffers: Array) -> list[str]:
    return [f"buffers[{place}]" for place in range(buffers.shape[1])]


def _order(names: Sequence[tuple[str, int]], parts: Sequence[Part]) -> tuple[Any, list[str], Array]:
    """(places of the strategy's elements in the twin's vector, their names, their tolerances)."""
    known, begin = {}, 0
    for part in parts:
        known[part.name] = (begin, part)
        begin += part.numel
    places, elements, tolerance = [], [], []
    for name, numel in names:
        offset, part = known[name]
        places += range(offset, offset + numel)
        elements += [f"{name}[{place}]" if numel > 1 else name for place in range(numel)]
        tolerance += [TOLERANCE[part.dtype]] * numel
    return np.array(places, dtype=int), elements, np.array(tolerance)


def _first(got: Array, must: Array, names: Sequence[str], tolerance: Any) -> tuple[int, str] | None:
    """(row, sentence) of the first element of [K, m] that is too far off."""
    tolerance = np.broadcast_to(tolerance, got.shape[1:])
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(got - must) <= tolerance)
    if not far.any():
        return None
    row, place = (int(i) for i in np.argwhere(far)[0])
    value, right = got[row, place], must[row, place]
    return row, (
        f"{names[place]} is {value:.12g}, must be {right:.12g} "
        f"(off by {abs(value - right):.1e}, allowed {tolerance[place]:.0e})"
    )
