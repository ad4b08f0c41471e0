"""The rules that turn an interval into a verdict, on numbers or on arrays of simulated studies: written once.

Source: docs/method.md, "Verdict on a claim". Rule numbers are those of its table; rule 1 (not
testable here) does not look at an interval and is in `claim_verdicts.py`.
"""

from typing import Any, NamedTuple

import numpy as np

TOO_NOISY, REPRODUCED, CONTRADICTED, PARTLY, INCONCLUSIVE = 2, 3, 4, 5, 6


class Bands(NamedTuple):
    """Edges as shares of the claimed gain: a at half of it, b at three quarters, d at one and a quarter."""

    a: float
    b: float
    d: float


def bands(value: float) -> Bands:
    """The edges for a claim of `value` times as fast."""
    gain = value - 1
    return Bands(1 + 0.5 * gain, 1 + 0.75 * gain, 1 + 1.25 * gain)


def number_rule(low: Any, high: Any, floor: Any, value: float) -> Any:
    """Which of rules 2 to 6 decides: the first that holds for [low, high] and the noise floor `floor`."""
    a, b, _ = bands(value)
    least = np.asarray(1 + floor)
    return np.select(
        [least >= a, low > b, high < a, (low > least) & (high < value)],
        [TOO_NOISY, REPRODUCED, CONTRADICTED, PARTLY],
        INCONCLUSIVE,
    )


def gain_shown(low: Any, floor: Any) -> Any:
    """Whether the interval lies above 1 + noise floor: the remark "a gain" of rules 4 and 6."""
    return low > 1 + floor


def exceeded(low: Any, value: float) -> Any:
    """Whether it lies above d: the remark "exceeded" of rule 3."""
    return low > bands(value).d


def wrong(rule: Any, low: Any, floor: Any, value: float, gain: float) -> Any:
    """Whether a printed statement, remarks included, is false at the true gain `gain`.

    Rule 3 says gain >= b and, exceeded, gain > d; 4 says gain < a; 5 says 1 < gain < value; "a gain" of rules
    4 and 6 says gain > 1; rule 2 says nothing. The `typical` reading: for `up_to` "smaller here" says
    nothing else of the configuration.
    """
    a, b, d = bands(value)
    remarked = np.isin(rule, (CONTRADICTED, INCONCLUSIVE)) & gain_shown(low, floor)
    return np.select(
        [rule == REPRODUCED, rule == CONTRADICTED, rule == PARTLY],
        [
            (gain < b) | (exceeded(low, value) & (gain <= d)),
            (gain >= a) | (remarked & (gain <= 1)),
            np.asarray(not 1 < gain < value),
        ],
        remarked & (gain <= 1),
    )
