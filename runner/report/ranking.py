"""Which arms are faster than which, as far as no assumption changes it: a ranking in tiers, and its words."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from . import words

MARGIN = 1.01  # times as long: below it two arms are equally fast
AS_CONFIGURED = ""  # the point that departs from no assumption

# Seconds by arm, then by assumption; all arms have the same assumptions, AS_CONFIGURED among them.
Times = Mapping[str, Mapping[str, float]]


def tiers(times: Times) -> list[list[str]]:
    """The arms, fastest first, cut where all before are faster than all behind under every assumption."""
    arms = _by_base(times)
    ranked: list[list[str]] = []
    for place, arm in enumerate(arms):
        cut = all(always_faster(times, first, second) for first in arms[:place] for second in arms[place:])
        if cut:
            ranked.append([arm])
        else:
            ranked[-1].append(arm)
    return ranked


def always_faster(times: Times, first: str, second: str) -> bool:
    """Whether `first` is faster than `second` by the margin under every assumption and without one."""
    return all(_faster(times, first, second, assumption) for assumption in times[first])


def ranking_words(times: Times) -> str:
    """The tiers, fastest first, and why arms that share one have no order."""
    ranked = tiers(times)
    if not ranked:
        return "no ranking: no arm has a time under every assumption"
    if len(times) == 1:
        return f"no ranking: only {ranked[0][0]} has a time under every assumption"
    if len(ranked) == 1:
        return f"no ranking: between {words.listed(ranked[0])} {_why(times, ranked[0])}"
    return ", then ".join(tier[0] if len(tier) == 1 else _unordered(times, tier) for tier in ranked)


def lasting_words(sizes: Mapping[str, Times]) -> str:
    """The pairs of arms whose order is the same at all `sizes` and under all assumptions there."""
    every = [arm for arm in _by_base(next(iter(sizes.values()))) if all(arm in t for t in sizes.values())]
    sentences = []
    for first in every:
        slower = [
            second
            for second in every
            if second != first and all(always_faster(times, first, second) for times in sizes.values())
        ]
        if slower:
            sentences.append(f"{first} is faster than {words.listed(slower)}")
    names = [size for size in sizes if size]
    start = f"At {words.listed(names)}, under" if names else "Under"
    orders = "; ".join(sentences) or "no two arms keep their order"
    return f"{start} every assumption: {orders}."


def at(preposition: str, assumptions: Sequence[str]) -> str:
    """`as configured and with 'a' and 'b'`, where "with" is the preposition."""
    names = [f"'{assumption}'" for assumption in assumptions if assumption != AS_CONFIGURED]
    points = ["as configured"] if len(names) < len(assumptions) else []
    return " and ".join([*points, *([f"{preposition} {words.listed(names)}"] if names else [])])


def _by_base(times: Times) -> list[str]:
    return sorted(times, key=lambda arm: (times[arm][AS_CONFIGURED], arm))


def _faster(times: Times, first: str, second: str, assumption: str) -> bool:
    return times[second][assumption] >= MARGIN * times[first][assumption]


def _unordered(times: Times, tier: Sequence[str]) -> str:
    return f"(no order between {words.listed(tier)}: {_why(times, tier)})"


def _why(times: Times, tier: Sequence[str]) -> str:
    """What turns the order of some two arms of `tier`, and what closes the gap between them."""
    pairs = list(combinations(tier, 2))
    turns, closes = [], []
    for assumption in times[tier[0]]:
        if any(_faster(times, second, first, assumption) for first, second in pairs):
            turns.append(assumption)
        elif not all(_faster(times, first, second, assumption) for first, second in pairs):
            closes.append(assumption)
    apart = "they are" if len(tier) == 2 else "two of them are"
    reasons = [f"it turns {at('with', turns)}"] if turns else []
    reasons += [f"{apart} less than 1 % apart {at('with', closes)}"] if closes else []
    return "; ".join(reasons)
