"""A claim of "up to" over a grid of configurations: one of them is said to reach it, so all must be asked.

Source: the measuring rules (time to accuracy), "verdict on a claim", `up_to`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...strategies.errors import ConfigError
from .claims import Claim, Conditions, Verdict, beyond_bound
from .decide import verdict
from .estimate import LEVEL, Interval
from .quality import join
from .ratio import Ratio

ENOUGH_CONFIGURATIONS = 6  # fewer never contradict a claim of "up to"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One configuration of the grid: `interval` at 95 %, `strict` at `strict_level(k)` of all k.

    `kept`: the verdict on quality, where the headline joins both (`fixed_work`): a gain with a loss of
    quality reaches nothing. None where time alone is judged.
    """

    name: str
    interval: Interval | None
    strict: Interval | None
    conditions: Conditions
    kept: Verdict | None = None


def strict_level(configurations: int) -> float:
    """The level at which one of k configurations must be reproduced: 1 - 0.05 / k."""
    return 1 - (1 - LEVEL) / configurations


def configuration(
    name: str,
    ratio: Ratio | None,
    conditions: Conditions,
    configurations: int,
    *,
    kept: Verdict | None = None,
) -> Configuration:
    """A configuration from its ratio, one of `configurations`."""
    strict = None if ratio is None else ratio.at(strict_level(configurations))
    interval = None if ratio is None else ratio.at(LEVEL)
    return Configuration(name=name, interval=interval, strict=strict, conditions=conditions, kept=kept)


def grid_verdict(claim: Claim, grid: Sequence[Configuration], *, declared: bool, spans: bool) -> Verdict:
    """The verdict on a claim of "up to" over the whole grid.

    `declared`: the grid was fixed before the first scored run. `spans`: it spans the communication share and
    holds the most favourable configuration. The bound is asked of the grid as a whole, not of each
    configuration: not testable if all bounds are known, lie below the claim, and no configuration is the
    claim's own. Raises ConfigError for an empty grid, two configurations of one name, or a claim that is not
    "up_to" a number.
    """
    if claim.value is None or claim.quantifier != "up_to":
        raise ConfigError(f"quantifier={claim.quantifier}, value={claim.value}: a grid judges up_to a number")
    names = [each.name for each in grid]
    if not grid or len(set(names)) != len(names):
        raise ConfigError(f"configurations={names}: must be one or more, each name once")
    single = {each.name: _without_bound(claim, each, each.interval) for each in grid}
    judged = [each for each in grid if single[each.name].word not in ("no verdict", "not testable here")]
    if not judged:
        return _none_judged(grid, list(single.values()))
    if _all_bounds_below(claim.value, grid):
        widest = max(grid, key=lambda each: each.conditions.bound or 1.0).conditions
        reason = beyond_bound(widest.bound or 1.0, claim.value, widest)
        return Verdict(word="not testable here", reasons=(reason,))
    strict = {each.name: _without_bound(claim, each, each.strict) for each in judged}
    remarks = ("provisional",) if any(each.conditions.biased for each in judged) else ()
    for each in judged:
        if strict[each.name].word == "reproduced":
            return replace(
                strict[each.name], reasons=(f"reproduced in {each.name}", *strict[each.name].reasons)
            )
    beyond = [each.name for each in judged if single[each.name].word == "contradicted"]
    if beyond:
        return Verdict(
            word="contradicted", remarks=remarks, reasons=(f"the bound rules it out in {beyond[0]}",)
        )
    lacking = _lacking(
        claim.value, grid, [single[name].word for name in names], declared=declared, spans=spans
    )
    if not lacking:
        return Verdict(
            word="contradicted", remarks=remarks, reasons=(f"smaller in all {len(grid)} configurations",)
        )
    best = max(judged, key=lambda each: each.interval.low if each.interval else 0.0)
    return Verdict(
        word="inconclusive", remarks=remarks, reasons=(f"best configuration: {best.name}", *lacking)
    )


def _without_bound(claim: Claim, each: Configuration, interval: Interval | None) -> Verdict:
    found = verdict(claim, interval, replace(each.conditions, bound=None))
    return found if each.kept is None else join(found, each.kept, quantifier=claim.quantifier)


def _all_bounds_below(value: float, grid: Sequence[Configuration]) -> bool:
    return all(
        each.conditions.bound is not None
        and each.conditions.bound < value
        and not each.conditions.own_conditions
        for each in grid
    )


def _none_judged(grid: Sequence[Configuration], found: Sequence[Verdict]) -> Verdict:
    """No configuration may be judged; if some only lack a verdict, so does the grid."""
    reasons = [f"{each.name}: {why}" for each, one in zip(grid, found, strict=True) for why in one.reasons]
    lacking = any(one.word == "no verdict" for one in found)
    return Verdict(word="no verdict" if lacking else "not testable here", reasons=tuple(reasons))


def _lacking(
    value: float, grid: Sequence[Configuration], words: Sequence[str], *, declared: bool, spans: bool
) -> list[str]:
    """What is missing for the grid to contradict the claim."""
    found: list[str] = []
    if len(grid) < ENOUGH_CONFIGURATIONS:
        found.append(f"{len(grid)} configurations: a contradiction needs {ENOUGH_CONFIGURATIONS}")
    if not declared:
        found.append("not declared before the first scored run")
    if not spans:
        found.append("does not span the communication share with the most favourable configuration")
    if not any(each.conditions.bound is not None and each.conditions.bound >= value for each in grid):
        found.append("no configuration is known to leave room for the claim")
    others = [each.name for each, word in zip(grid, words, strict=True) if word != "smaller here"]
    if others:
        found.append(f"not smaller in {', '.join(others)}")
    return found
