"""What came of one claim: the verdict, and what it was made of."""

from dataclasses import dataclass

from ..data.arms import Comparison
from ..statistics.ratio import Ratio
from ..statistics.verdict import Conditions, Verdict
from . import paper_claims as records
from .fairness import Ledger


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what one arm says of it; `arm` and `comparator` are labels. `measured`: in words.

    `ledger`: what both sides have in common, and what not. None with `verdict` "no verdict": nothing was
    compared. `ratio`, `conditions`: what the verdict was made of.
    """

    claim: records.Claim
    comparison: Comparison | None
    arm: str
    comparator: str
    measured: str
    verdict: Verdict
    ledger: Ledger | None = None
    ratio: Ratio | None = None
    conditions: Conditions | None = None
