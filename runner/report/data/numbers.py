"""Numbers in records that nobody has checked."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """`value` where it is a finite number, else None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None
