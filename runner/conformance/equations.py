"""Layer (b): after every step every rank holds what the update rule says, worked out in NumPy float64."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...strategies.base import Strategy
from ...strategies.seeds import derive
from .cases import CASES, EPOCHS, STEPS_PER_EPOCH, Case, Slow, skewed
from .course import Course, History
from .driver import drive
from .findings import Candidate, Check, Failed, RanksOfNodes
from .references import REFERENCES, NoReference, Setting, World
from .twins import Array, Part

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True)
class Walk:
    """What a reference says: θ [K+1, m] and buffers [K+1, F] of each rank after 0 … K steps, θ at the end."""

    theta: list[Array]
    buffers: list[Array]
    final: Array


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
    return Walk([np.stack(rows) for rows in theta], [np.stack(rows) for rows in buffers], world.theta)


def setting_of(case: Case, ranks: RanksOfNodes) -> Setting:
    """The case as references see it."""
    problem = case.problem(ranks)
    return Setting(
        twin=problem.twin,
        piece=problem.samples.piece,
        recipe=problem.recipe,
        ranks_of_nodes=ranks,
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=EPOCHS,
        rate=case.rate,
        losses=case.losses,
        step_time=case.step_ns,
        round_time=case.round_ns,
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
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=EPOCHS,
        rate=case.rate,
        losses=case.losses,
    )
    return drive(course, network=Slow(case.round_ns), step_time=case.step_ns)


def checks(candidate: Candidate) -> list[Check]:
    """The candidate's own keys on the ranks asked for, then every case of its strategy."""
    name = candidate.builtin
    if name not in REFERENCES:
        return []
    says = f"every rank holds what the update rule says after each of {STEPS_PER_EPOCH * EPOCHS} steps"
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
        require(
            candidate.builtin or "", strategy_class, strategy_class.Config(**case.keys), case, ranks
        )

    return run


def require(
    name: str, strategy_class: type[Strategy], config: Any, case: Case, ranks: RanksOfNodes
) -> None:
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
    order, names, tolerance = _order(histories[0].names, parts)
    firsts = []
    for history, theta, buffers in zip(histories, walk.theta, walk.buffers, strict=True):
        if history.steps != len(theta) - 1:
            raise Failed(f"rank {history.rank} takes {history.steps} steps, must take {len(theta) - 1}")
        got = np.stack([history.parameters[step].double().numpy() for step in range(len(theta))])
        firsts.append(_first(got, theta[:, order], names, tolerance, history.rank))
        kept = np.stack([history.buffers[step].double().numpy() for step in range(len(theta))])
        loose = np.full(kept.shape[1], tolerance.max())
        firsts.append(_first(kept, buffers, [f"buffers[{i}]" for i in range(len(loose))], loose, history.rank))
        end = _first(
            history.final.double().numpy()[None], walk.final[history.rank][None, order], names, tolerance, history.rank
        )
        if end is not None:
            firsts.append((len(theta), end[1].replace("after step 0", "at the end")))
    found = [first for first in firsts if first is not None]
    if found:
        raise Failed(min(found)[1])


def _order(names: Sequence[tuple[str, int]], parts: Sequence[Part]) -> tuple[Array, list[str], Array]:
    """(places of the strategy's elements in the twin's vector, their names, their tolerances)."""
    at, begin = {}, 0
    for part in parts:
        at[part.name] = (begin, part)
        begin += part.numel
    places, elements, tolerance = [], [], []
    for name, numel in names:
        offset, part = at[name]
        places += [offset + i for i in range(numel)]
        elements += [f"{name}[{i}]" if numel > 1 else name for i in range(numel)]
        tolerance += [TOLERANCE[part.dtype]] * numel
    return np.array(places, dtype=int), elements, np.array(tolerance)


def _first(
    got: Array, must: Array, names: Sequence[str], tolerance: Array, rank: int
) -> tuple[int, str] | None:
    """(step, sentence) of the first element of [K+1, m] that is too far off."""
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(got - must) <= tolerance)
    if not far.any():
        return None
    step, place = (int(i) for i in np.argwhere(far)[0])
    value, right = got[step, place], must[step, place]
    return step, (
        f"after step {step}, rank {rank}: {names[place]} is {value:.12g}, must be {right:.12g} "
        f"(off by {abs(value - right):.1e}, allowed {tolerance[place]:.0e})"
    )
