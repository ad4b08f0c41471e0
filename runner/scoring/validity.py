"""Whether evaluations slow training down.

It looks at no result; what fails invalidates. Source: the measuring rules (time to accuracy), "validity,
fairness ledger, guard".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST_RUNS = 5  # at each cadence
VIRTUAL = 1e-9  # relative: on the virtual clock nothing but rounding may differ


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Whether an arm trains as fast whatever its evaluations' distance.

    `changes`: times their distance -> training time per sample over that at the study's own distance,
    geometric mean. `limit`: by how much they may differ from 1, as a share; None if not known. `why`: what is
    missing for a judgement; "" if there is one.
    """

    changes: Mapping[float, float]
    limit: float | None
    why: str = ""

    @property
    def judged(self) -> bool:
        return not self.why

    @property
    def largest(self) -> float:
        """The largest change up or down, as a share."""
        return max((math.expm1(abs(math.log(change))) for change in self.changes.values()), default=0.0)

    @property
    def fails(self) -> bool:
        """Whether evaluating is seen in the training time: then the arm gets no verdict in this mode."""
        return self.judged and self.limit is not None and self.largest > self.limit


def cadence(log_ratios: Mapping[float, Sequence[float]], *, virtual: bool, floor: float | None) -> Cadence:
    """From pairs of runs with one seed that differ in the distance of their evaluations alone.

    Args:
        log_ratios: times the distance of the evaluations (1/4, 4) -> for each seed the ln of training time
            per sample over that at the study's own distance.
        virtual: the virtual clock, which has no noise: equal means equal, and one run is enough.
        floor: m_clock of the study as a share, elsewhere the limit; None if it is not known.
    """
    known = {times: values for times, values in log_ratios.items() if values}
    changes = {times: math.exp(math.fsum(values) / len(values)) for times, values in sorted(known.items())}
    if virtual:
        worst = {times: max(values, key=abs) for times, values in known.items()}
        return Cadence(
            changes={times: math.exp(worst[times]) for times in changes},
            limit=VIRTUAL,
            why="" if changes else "no run at another distance",
        )
    fewest = min(map(len, known.values()), default=0)
    why = ""
    if fewest < FEWEST_RUNS:
        why = f"{fewest} pairs of runs at another distance of evaluations: must be {FEWEST_RUNS}"
    elif floor is None:
        why = "no clock floor to hold the change against (study.role=clock)"
    return Cadence(changes=changes, limit=floor, why=why)
