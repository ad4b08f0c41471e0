"""Slurm's compressed node lists: `rack[1-2]n[01-02],login`."""

import itertools
import re
import subprocess

_PIECE = re.compile(r"\[(?P<group>[0-9,-]+)\]|(?P<plain>[A-Za-z0-9._-]+)", re.ASCII)
_RANGE = re.compile(r"(?P<low>[0-9]+)(-(?P<high>[0-9]+))?", re.ASCII)
_MOST = 65536  # names in one range; Slurm's own bound (MAX_RANGE in src/common/hostlist.c)
_TIMEOUT_S = 30


def expand(text: str) -> list[str]:
    """The names of a node list in its order: Slurm's own answer where there is one, else ours (`hosts`).

    Slurm guesses at an unbalanced bracket ("gpu[1" is "gpu]" to 22.05) and does not know a suffix behind one,
    so an answer that is no list of plain names is not taken. Raises ValueError like `hosts`.
    """
    command = ["scontrol", "show", "hostnames", text]
    try:
        # It exits with 0 whether it understood or not.
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return hosts(text)
    names = answer.stdout.split()
    if answer.returncode == 0 and names and all(_plain(name) for name in names):
        return names
    return hosts(text)


def hosts(text: str) -> list[str]:
    """The names of a node list without asking Slurm, but in its order.

    Of several groups the last counts fastest, then the first, the second and so on. Raises
    ValueError for every form it does not know for certain.
    """
    return [name for part in _split(text) for name in _names(part, text)]


def _plain(name: str) -> bool:
    match = _PIECE.fullmatch(name)
    return match is not None and match["plain"] is not None


def _split(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets."""
    return re.sub(r",(?![^\[\]]*\])", "\0", text.strip()).split("\0")


def _names(part: str, text: str) -> list[str]:
    pieces: list[list[str]] = []
    position = 0
    while position < len(part):
        match = _PIECE.match(part, position)
        if match is None:
            raise _unknown(text, part)
        pieces.append([match["plain"]] if match["plain"] else _numbers(match["group"], text))
        position = match.end()
    if not pieces or part[0] in "[-":
        raise _unknown(text, part)
    # Slurm counts the last group fastest and the others from the left.
    groups = [index for index, piece in enumerate(pieces) if len(piece) > 1]
    order = [*reversed(groups[:-1]), *groups[-1:]]
    found: list[str] = []
    for choice in itertools.product(*(pieces[index] for index in order)):
        chosen = dict(zip(order, choice, strict=True))
        found.append("".join(chosen.get(index, piece[0]) for index, piece in enumerate(pieces)))
    return found


def _numbers(group: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in group.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise _unknown(text, f"[{group}]")
        low, high = match["low"], match["high"] or match["low"]
        if not 0 <= int(high) - int(low) < _MOST:
            raise _unknown(text, f"[{group}]")
        numbers += [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)]
    return numbers


def _unknown(text: str, part: str) -> ValueError:
    return ValueError(f"node list {text!r}: {part!r} is no form of a node list known here")
