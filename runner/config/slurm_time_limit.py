"""Time limits: every spelling that Slurm knows in minutes, and minutes in words.

`man sbatch`, --time: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours",
"days-hours:minutes" and "days-hours:minutes:seconds"; seconds are rounded up to the next minute.
"""

import math
import re

from ...strategies.errors import ConfigError

_SPELLINGS = (
    'a whole number is minutes; as text "30" (minutes), "30:00" (minutes:seconds), "12:30:00", "1-12" '
    '(days-hours), "1-12:30" and "1-00:00:00"'
)
_WITH_DAYS = re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?", re.ASCII)
_WITHOUT = re.compile(r"((?P<h>\d+):(?=\d+:))?(?P<m>\d+)(:(?P<s>\d+))?", re.ASCII)


def minutes(value: int | str, key: str) -> int:
    """The time limit `value` of the option `key` in whole minutes, rounded up, at least 1.

    Parts behind the first may not overflow ("1-36" and "5:75" are refused, though Slurm would count on).
    Raises ConfigError for anything that is not one of the six spellings, nought and UNLIMITED included.
    """
    seconds = value * 60 if isinstance(value, int) and not isinstance(value, bool) else _seconds(value)
    if seconds is None or seconds <= 0:
        raise ConfigError(f"{key}={value}: not a time limit of one minute or more; {_SPELLINGS}")
    return math.ceil(seconds / 60)


def for_people(minutes: int) -> str:
    """The limit as people read it: "1 d 2 h 30 min"."""
    hours, rest = divmod(minutes, 60)
    parts = zip((*divmod(hours, 24), rest), ("d", "h", "min"), strict=True)
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 min"


def seconds_left(text: str) -> float | None:
    """What squeue's %L says: "1:23" or "2-03:04:05" in seconds, infinity for UNLIMITED.

    None where Slurm does not know: INVALID (over the limit), NOT_SET (no limit yet), or anything else.
    """
    if text == "UNLIMITED":
        return math.inf
    return _seconds(text) if ":" in text else None


def _seconds(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    match = _WITH_DAYS.fullmatch(text.strip()) or _WITHOUT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match.groupdict().get(name) or 0) for name in "dhms")
    if seconds > 59 or (minutes > 59 and match["h"] is not None) or (hours > 23 and match.re is _WITH_DAYS):
        return None
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
