"""One check of a study: a line in the strip on page one, and the arms that it forbids to compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["green", "amber", "red"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check of a comparison says.

    name: in the strip: "fair", "plan complete", "records intact", "baseline strong", "noise", "model error".
    sentence: what was found, one line. details: further sentences, shown folded.
    forbids: label of an arm -> why no ratio of it may be read, in at most four words; such an arm is grey and
        gets no verdict. The baseline's label stands for all arms.
    exploratory: why the verdicts of the study are exploratory, in one sentence; "" if they are not.
    """

    name: str
    level: Level
    sentence: str
    details: tuple[str, ...] = ()
    forbids: Mapping[str, str] = field(default_factory=dict)
    exploratory: str = ""
