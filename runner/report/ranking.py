"""Which arms are faster than which under every assumption: a ranking in tiers, and its words."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from . import words
from .section import MARGIN

AS_CONFIGURED = ""  # the point that departs from no assumption

Times = Mapping[str, Mapping[str, float]]
"""Seconds by arm, then by assumption; all arms have the same assumptions, AS_CONFIGURED among them."""


def tiers(times: Times) -> list[list[str]]:
    """The arms, fastest first, cut where all before are faster than all behind under every assumption."""
    arms = sorted(times, key=lambda arm: (times[arm][AS_CONFIGURED], arm))
    ranked: list[list[str]] = []
    for place, arm in enumerate(arms):
        pairs = [(first, second) for first in arms[:place] for second in arms[place:]]
        if all(_faster(times, *pair, assumption) for pair in pairs for assumption in times[arm]):
            ranked.append([arm])
        else:
            ranked[-1].append(arm)
    return ranked


def _faster(times: Times, first: str, second: str, assumption: str) -> bool:
    return times[second][assumption] >= MARGIN * times[first][assumption]


def ranking_words(times: Times) -> str:
    """The tiers, fastest first, and where arms that share one have no order."""
    ranked = [
        tier[0] if len(tier) == 1 else f"no order between {words.listed(tier)}: {_why(times, tier)}"
        for tier in tiers(times)
    ]
    if len(times) < 2:
        return f"no ranking: {'only ' + ranked[0] if ranked else 'no arm'} has a time under every assumption"
    return f"no ranking: {ranked[0]}" if len(ranked) == 1 else ", then ".join(ranked)


def _why(times: Times, tier: Sequence[str]) -> str:
    """Where two arms of `tier` are not in the order in which they stand there."""
    pairs = list(combinations(tier, 2))
    points = [a for a in times[tier[0]] if not all(_faster(times, *pair, a) for pair in pairs)]
    return f"it turns, or they are less than 1 % apart, {_at(points)}"


def _at(assumptions: Sequence[str]) -> str:
    """`as configured and under 'a' and 'b'`."""
    names = [f"'{assumption}'" for assumption in assumptions if assumption != AS_CONFIGURED]
    points = ["as configured"] if len(names) < len(assumptions) else []
    return " and ".join([*points, *([f"under {words.listed(names)}"] if names else [])])
