"""A strategy compared with its NumPy reference: parameters and buffers of every rank after every step."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy_models import Array, Part
from proof import Case, Slow
from torch import Tensor
from world import NoReference, Reference, Setting, World

from daso_bench.datasets.stream_seeds import stream_seed
from daso_bench.runner.conformance.checks import Failed, RanksOfNodes
from daso_bench.runner.conformance.driver import drive
from daso_bench.runner.conformance.scenario import History, Scenario
from daso_bench.strategies.base import Strategy

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True)
class Expected:
    """What a reference computes: θ [K+1, m] and buffers [K+1, F] of each rank after 0 … K steps.

    final, judged: θ [R, m] at the end, and the buffers [R, F] with which that model is evaluated.
    """

    theta: list[Array]
    buffers: list[Array]
    final: Array
    judged: Array


def reference_of(name: str) -> Reference:
    """The function that `references/<name>.py` names as its file.

    Raises:
        NoReference: there is no such file.
    """
    if find_spec(f"references.{name}") is None:
        raise NoReference(f"no reference for {name}")
    return getattr(import_module(f"references.{name}"), name)


def expected(name: str, keys: Mapping[str, Any], setting: Setting) -> Expected:
    """What the reference of strategy `name` computes in `setting`.

    Raises:
        NoReference: there is none for this strategy or these keys.
    """
    reference = reference_of(name)
    world = World(setting)
    theta = [[start.copy()] for start in world.theta]
    buffers = [[start.copy()] for start in world.buffers]
    for stepped in reference(world, **keys):
        for rank in range(world.ranks) if stepped is None else stepped:
            theta[rank].append(world.theta[rank].copy())
            buffers[rank].append(world.buffers[rank].copy())
    # References that weight ranks leave buffers equal; an evaluated model has one set of buffers in any case.
    world.mix_buffers("broadcast" if keys.get("buffers") == "broadcast" else "average")
    histories = [np.stack(rows) for rows in theta], [np.stack(rows) for rows in buffers]
    return Expected(*histories, world.theta, world.buffers)


def setting_of(case: Case, ranks: RanksOfNodes) -> Setting:
    """The case as references get it."""
    problem = case.problem(ranks)
    return Setting(
        model=problem.numpy_model,
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
    """The random factor with which PowerSGD begins on a matrix [n, m], as the product draws it."""
    generator = torch.Generator().manual_seed(stream_seed(0, "powersgd", draw, n, m))
    return torch.randn(m, rank, generator=generator, dtype=torch.float64).numpy()


def run(strategy_class: type[Strategy], config: Any, case: Case, ranks: RanksOfNodes) -> list[History]:
    """The strategy itself in the case: the ranks' histories."""
    scenario = Scenario(
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
    return drive(scenario, network=Slow(case.round_ns), step_time=case.step_ns)


def require(name: str, strategy_class: type[Strategy], config: Any, case: Case, ranks: RanksOfNodes) -> None:
    """Raise Failed where the strategy leaves the update rule of `name`.

    Raises:
        ConfigError: the strategy refuses.
        NoReference: the update rule with these keys is not written down.
    """
    histories = run(strategy_class, config, case, ranks)
    setting = setting_of(case, ranks)
    _compare(histories, expected(name, dataclasses.asdict(config), setting), setting.model.parts)


def _compare(histories: Sequence[History], reference: Expected, parts: Sequence[Part]) -> None:
    order, names, allowed = _order(histories[0].names, parts)
    differences: list[tuple[int, int, str]] = []
    for rank, (history, theta, buffers) in enumerate(
        zip(histories, reference.theta, reference.buffers, strict=True)
    ):
        steps = len(theta) - 1
        if history.steps != steps:
            raise Failed(f"rank {rank} takes {history.steps} steps, must take {steps}")
        sides = [
            (_stack(history.parameters, steps), theta[:, order], names, allowed, 0),
            (_stack(history.buffers, steps), buffers, _buffer_names(buffers), np.max(allowed), 0),
            (_row(history.final), reference.final[rank][order][None], names, allowed, steps + 1),
            (
                _row(history.given[len(history.final) :]),
                reference.judged[rank][None],
                _buffer_names(buffers),
                np.max(allowed),
                steps + 1,
            ),
        ]
        for got, must, elements, tolerance, first_step in sides:
            off = _first(got, must, elements, tolerance)
            if off is not None:
                differences.append((first_step + off[0], rank, off[1]))
    if differences:
        step, rank, what = min(differences)
        when = f"after step {step}" if step < max(len(theta) for theta in reference.theta) else "at the end"
        raise Failed(f"{when}, rank {rank}: {what}")


def _stack(of_step: Mapping[int, Tensor], steps: int) -> Array:
    return np.stack([of_step[step].double().numpy() for step in range(steps + 1)])


def _row(vector: Tensor) -> Array:
    return vector.double().numpy()[None]


def _buffer_names(buffers: Array) -> list[str]:
    return [f"buffers[{place}]" for place in range(buffers.shape[1])]


def _order(names: Sequence[tuple[str, int]], parts: Sequence[Part]) -> tuple[Any, list[str], Array]:
    """(places of the strategy's elements in the NumPy model's vector, their names, their tolerances)."""
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
