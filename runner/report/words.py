"""Numbers as people read them. None prints as a dash, NaN as NaN: missing and not-a-number stay apart."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .statistics.welch import Ratio

MISSING = "–"
LINKS = {"intra": "inside nodes", "inter": "between nodes"}
WORLDS = {
    "local": "real processes",
    "local/modelled": "real processes, modelled network",
    "emulated/modelled": "emulated, modelled network",
    "emulated/kernel": "emulated, the kernel's network",
    "simulated": "simulated",
}


def seconds(value: float | None) -> str:
    """Seconds with four significant digits, microseconds below a millisecond."""
    return _number(value, lambda v: f"{significant(v * 1e6)} µs" if 0 < v < 1e-3 else f"{significant(v)} s")


def rate(value: float | None) -> str:
    """Samples per second, without decimals from 100 on."""
    return _number(value, significant)


def share(value: float | None) -> str:
    """An accuracy or another share, four decimals."""
    return _number(value, lambda v: f"{v:.4f}")


def ratio(value: float | None) -> str:
    """How many times as fast, three decimals."""
    return _number(value, lambda v: f"{v:.3f}")


def interval(ratio: "Ratio | None") -> str:
    """A ratio with its interval, `≥` or `≤` where only one end is known; or that there is none."""
    if ratio is None:
        return "no ratio"
    low = f"{ratio.low:.3f}" if ratio.low > 0 else "0"
    high = f"{ratio.high:.3f}" if math.isfinite(ratio.high) else "∞"
    return f"{ratio.side + ' ' if ratio.side else ''}{ratio.point:.3f} [{low}, {high}]"


def saving(ratio: "Ratio | None") -> str:
    """The share of the time that is saved, with its interval: `47 % [41, 52]`; negative if slower."""
    if ratio is None:
        return "no ratio"
    ends = [100 * saved(end) for end in (ratio.low, ratio.high)]
    point = 100 * saved(ratio.point)
    decimals = _decimals(point, max(abs(ends[0] - point), abs(ends[1] - point)))
    low, high = (f"{_minus(end, decimals)}" if math.isfinite(end) else "−∞" for end in ends)
    return f"{ratio.side + ' ' if ratio.side else ''}{_minus(point, decimals)} % [{low}, {high}]"


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
    return _minus(value, _decimals(value))


def signed(value: float) -> str:
    """A difference with its sign and one decimal: `+0.4`, `−0.6`, `0.0`."""
    text = _minus(value, 1)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"


def _decimals(value: float, spread: float = 0.0) -> int:
    """Decimals of two significant digits of `value`, or of one of a larger `spread`; at most 2."""
    size = max(abs(value), spread)
    return 0 if size >= 9.95 else 1 if size >= 0.995 or size == 0 else 2


def _minus(value: float, decimals: int) -> str:
    text = f"{abs(value):,.{decimals}f}"
    return f"−{text}" if value < 0 and float(text.replace(",", "")) else text


def size(value: float | None) -> str:
    """Bytes with a decimal prefix (1 kB = 1,000 B)."""

    def words(number: float) -> str:
        for unit in ("B", "kB", "MB", "GB", "TB"):
            if number < 999.5 or unit == "TB":
                return f"{number:.0f} B" if unit == "B" else f"{significant(number, 3)} {unit}"
            number /= 1000
        raise AssertionError("unreachable")

    return _number(value, words)


def significant(value: float, digits: int = 4) -> str:
    """`value` with so many significant digits, thousands separated, never in powers of ten."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *firsts, last = names
    return f"{', '.join(firsts)} and {last}" if firsts else last


def world(name: str) -> str:
    """The world of a run in short, for figures and titles."""
    return WORLDS.get(name, f"world {name}")


def printable(text: str) -> str:
    """`text` with the replacement character for what cannot be printed, ends of lines apart."""
    return "".join(s if s.isprintable() or s == "\n" else "\N{REPLACEMENT CHARACTER}" for s in text)


def _number(value: float | None, say: Callable[[float], str]) -> str:
    if value is None:
        return MISSING
    return say(value) if math.isfinite(value) else str(value).replace("nan", "NaN")
