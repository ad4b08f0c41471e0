"""What a user can mend, said in one sentence: what was given, what is allowed, where."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """The request is wrong and the user can mend it (exit code 2)."""


class MachineError(RuntimeError):
    """The request is right, but this machine cannot do it (exit code 3)."""


class ExpectedEnd(RuntimeError):
    """The run fails because it was asked to (exit code 1); as for the others, no traceback is shown."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, or None when nothing is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown(key: str, name: str, names: Iterable[str]) -> ConfigError:
    """The error for a name that is not in `names`: lists them and the nearest."""
    names = list(names)
    near = nearest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    return ConfigError(f"{key}={name}: unknown{hint}; known: {', '.join(names)}")


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a `value` outside `allowed`."""
    allowed = list(allowed)
    if value not in allowed:
        raise unknown(key, str(value), allowed)


def at_least(key: str, value: float, low: float) -> None:
    """Refuse a number below `low` (NaN included)."""
    if not value >= low:
        raise ConfigError(f"{key}={value}: must be >= {low}")


def above(key: str, value: float, low: float) -> None:
    """Refuse a number not above `low` (NaN included)."""
    if not value > low:
        raise ConfigError(f"{key}={value}: must be > {low}")


def within(key: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside the closed interval [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{key}={value}: must be between {low} and {high}")
