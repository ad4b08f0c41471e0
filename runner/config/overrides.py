"""What the user wrote, before Hydra reads it: `KEY=VALUE` words, and the YAML files of --config-dir.

Hydra's grammar reads `1e3` as a number and `a,b` as a sweep, and refuses `#`, `~`, a second `=` and letters
outside ASCII. The values of keys that hold text are quoted here, so that they stay text.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError

TEXT_KEYS = (
    *("run.name", "run.tag", "run.arm"),
    *("results_dir", "dataset.root", "dataset.prepared", "reader.path"),
    *("study.name", "study.arm", "study.assumption", "study.size"),
)

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_NO_TEXT = ("null", "true", "false", "nan", "inf")
_BASE_60 = re.compile(
    r"(?P<text>(?P<key>\w+):\s+(?P<value>[-+]?[1-9]\d*(:[0-5]?\d)+(\.\d*)?))\s*([,}#]|$)", re.ASCII
)
_WORD = re.compile(r"(?P<key>\+{0,2}[^=~]+)=(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*""", re.DOTALL)
_PIECE = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,])*""", re.DOTALL)


def quote_text(words: Iterable[str], *, sweep: bool) -> list[str]:
    """`words` with the values of `TEXT_KEYS` quoted for Hydra's parser.

    A value that is quoted already is left alone. With `sweep` an unquoted comma separates values.
    """
    return [_quote_word(word, sweep) for word in words]


def key_of(word: str) -> str:
    """The key of an override without its `+` or `~`."""
    return word.partition("=")[0].lstrip("+~").strip()


def escape(text: str) -> str:
    """`text` such that OmegaConf resolves it to `text` (its `${` begins no interpolation)."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def quote(text: str) -> str:
    """`text` as a quoted string of Hydra's grammar, resolved by OmegaConf to exactly `text`."""
    # Two readers in turn: Hydra unescapes \\\\ and \\' only before a quote, OmegaConf only before "${".
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", escape(text))
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def in_grammar(value: Any) -> str:
    """`value` in Hydra's override grammar."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT else quote(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{in_grammar(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(in_grammar, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, default=str)


def spelling(word: str) -> str:
    """How to type an override whose value the grammar refused, for a POSIX shell."""
    key, _, value = word.partition("=")
    plain = not re.search(r"""['"\\]|\$\{""", value)
    return shlex.quote(f'{key}="{value}"' if plain else f"{key}={quote(value)}")


def _quote_word(word: str, sweep: bool) -> str:
    match = _WORD.fullmatch(word)
    if match is None or key_of(word) not in TEXT_KEYS:
        return word
    value = match["value"]
    values = _split(value) if sweep else [value]
    return f"{match['key']}=" + ",".join(
        piece.strip() if _QUOTED.fullmatch(piece) else quote(piece) for piece in values
    )


def _split(value: str) -> list[str]:
    """`value` cut at the commas outside quotes; a quote that is never closed is an ordinary character."""
    pieces, start = [], 0
    while True:
        match = _PIECE.match(value, start)
        end = match.end() if match else len(value)
        pieces.append(value[start:end])
        if end == len(value):
            return pieces
        start = end + 1


def refuse_sexagesimal(folder: Path) -> None:
    """Raises ConfigError for the first unquoted `timeout_min: 30:00` in the *.yaml files below `folder`.

    PyYAML reads YAML 1.1, in which that is a number to the base 60, here 1800.
    """
    for path in sorted(Path(folder).rglob("*.yaml")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):  # reported by whatever loads the file
            continue
        for number, line in enumerate(lines, 1):
            if match := _BASE_60.search(line):
                raise ConfigError(
                    f"{path}, line {number}: {match['text']} without quotes is a number to the base 60; "
                    f'write {match["key"]}: "{match["value"]}"'
                )
