"""The rules on arrays: the same as on single intervals, and which printed statements are false."""

import numpy as np
import pytest

from daso_bench.runner.report.statistics import decision_rules
from daso_bench.runner.report.statistics.decision_rules import (
    CONTRADICTED,
    INCONCLUSIVE,
    PARTLY,
    REPRODUCED,
    TOO_NOISY,
)


def test_the_bands_of_a_claim_of_half_as_fast_again() -> None:
    assert decision_rules.bands(1.5) == (1.25, 1.375, 1.625)
    assert decision_rules.bands(1.515) == pytest.approx((1.258, 1.386, 1.644), abs=1e-3)


def test_arrays_of_studies_get_the_rules_that_single_ones_get() -> None:
    rng = np.random.default_rng(0)
    ends = np.sort(rng.uniform(0.8, 1.8, (500, 2)), axis=1)
    floors = rng.uniform(0, 0.3, 500)
    together = decision_rules.number_rule(ends[:, 0], ends[:, 1], floors, 1.5)
    alone = [
        int(decision_rules.number_rule(low, high, m, 1.5))
        for (low, high), m in zip(ends, floors, strict=True)
    ]
    assert together.tolist() == alone
    assert set(alone) == {TOO_NOISY, REPRODUCED, CONTRADICTED, PARTLY, INCONCLUSIVE}


@pytest.mark.parametrize(
    ("rule", "low", "gain", "false"),
    [
        (REPRODUCED, 1.4, 1.375, False),
        (REPRODUCED, 1.4, 1.37, True),
        (REPRODUCED, 1.63, 1.63, False),
        (REPRODUCED, 1.63, 1.625, True),  # "exceeded" says more than d
        (REPRODUCED, 1.62, 1.5, False),
        (CONTRADICTED, 0.9, 1.249, False),
        (CONTRADICTED, 0.9, 1.25, True),
        (CONTRADICTED, 1.1, 1.0, True),  # "a gain"
        (CONTRADICTED, 0.9, 1.0, False),
        (PARTLY, 1.1, 1.2, False),
        (PARTLY, 1.1, 1.5, True),
        (PARTLY, 1.1, 1.0, True),
        (INCONCLUSIVE, 1.1, 1.0, True),
        (INCONCLUSIVE, 1.1, 1.1, False),
        (INCONCLUSIVE, 0.9, 1.0, False),
        (TOO_NOISY, 1.3, 0.5, False),
    ],
)
def test_a_printed_statement_is_wrong_where_it_is_false_of_the_true_gain(
    rule: int, low: float, gain: float, false: bool
) -> None:
    assert bool(decision_rules.wrong(rule, low, 0.02, 1.5, gain)) == false
    assert decision_rules.wrong(np.array([rule]), np.array([low]), np.array([0.02]), 1.5, gain).tolist() == [
        false
    ]
