"""Numbers and names as people read them. None is a dash, NaN is NaN: missing and not-a-number differ."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .statistics.welch import Ratio

MISSING = "–"
WORLDS = {
    "local": "real processes",
    "local/modelled": "real processes, modelled network",
    "emulated/modelled": "emulated, modelled network",
    "emulated/kernel": "emulated, the kernel's network",
    "simulated": "simulated",
}


def number(value: float | None, decimals: int | None = None) -> str:
    """`value` with so many decimals, or with four significant digits."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    return significant(value) if decimals is None else f"{value:.{decimals}f}"


def seconds(value: float | None) -> str:
    """Seconds with four significant digits, microseconds below a millisecond."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{significant(value * 1e6)} µs" if 0 < value < 1e-3 else f"{significant(value)} s"


def significant(value: float, digits: int = 4) -> str:
    """`value` with so many significant digits, thousands separated, never in powers of ten."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def interval(ratio: "Ratio | None") -> str:
    """A ratio with its interval, `≥` or `≤` where only one end is known; or that there is none."""
    if ratio is None:
        return "no ratio"
    low = f"{ratio.low:.3f}" if ratio.low > 0 else "0"
    high = f"{ratio.high:.3f}" if math.isfinite(ratio.high) else "∞"
    return f"{ratio.side} {ratio.point:.3f} [{low}, {high}]".strip()


def saving(ratio: "Ratio | None") -> str:
    """The share of the time that is saved, with its interval: `47 % [41, 52]`; negative if slower."""
    if ratio is None:
        return "no ratio"
    point, *ends = (100 * saved(value) for value in (ratio.point, ratio.low, ratio.high))
    decimals = _decimals(point, max(abs(end - point) for end in ends))
    low, high = (_fixed(end, decimals) if math.isfinite(end) else "−∞" for end in ends)
    return f"{ratio.side} {_fixed(point, decimals)} % [{low}, {high}]".strip()


def saved(ratio: float) -> float:
    """The share of the time that is saved at `ratio` times as fast: 0.5 at 2, minus infinity at 0."""
    return 1 - 1 / ratio if ratio > 0 else -math.inf


def percent(share: float) -> str:
    """A share in percent, two significant digits: `47 %`, `4.7 %`."""
    return f"{two(100 * share)} %"


def factor(ratio: float) -> str:
    """`1.9×`: two significant digits, and of a factor below 2 two of what it is above 1."""
    return f"{ratio:.{max(1, _decimals(ratio - 1))}f}×"


def two(value: float) -> str:
    """Two significant digits, all digits before the point."""
    return _fixed(value, _decimals(value))


def signed(value: float) -> str:
    """A difference with its sign and one decimal: `+0.4`, `−0.6`, `0.0`."""
    text = _fixed(value, 1)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"


def _decimals(value: float, spread: float = 0.0) -> int:
    """Decimals of two significant digits of `value`, or of one of a larger `spread`; at most 2."""
    size = max(abs(value), spread)
    return 0 if size >= 9.95 else 1 if size >= 0.995 or size == 0 else 2


def _fixed(value: float, decimals: int) -> str:
    """So many decimals and a minus sign, which zero has not."""
    text = f"{abs(value):,.{decimals}f}"
    return f"−{text}" if value < 0 and float(text.replace(",", "")) else text


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *firsts, last = names
    return f"{', '.join(firsts)} and {last}" if firsts else last


def world(name: str, size: str = "", device: str = "") -> str:
    """The world of a run in short, what computed (`computed_on`), and the size of its study; for figures."""
    return ", ".join(filter(None, (f"{WORLDS.get(name, f'world {name}')} {device}".strip(), size)))


def printable(text: str) -> str:
    """`text` with the replacement character for what cannot be printed, ends of lines apart."""
    return "".join(s if s.isprintable() or s == "\n" else "\N{REPLACEMENT CHARACTER}" for s in text)
