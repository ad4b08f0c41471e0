"""The user's `KEY=VALUE` words before Hydra's grammar sees them: text stays text, and hints that work.

The grammar reads `1e3` as a number, `a,b` as a sweep, and refuses `#`, `~`, a second `=` and letters outside
ASCII. For the keys whose value is text by nature that is never meant, so their values are quoted here.
"""

import re
import shlex
from collections.abc import Iterable

STUDY = ("study.name", "study.arm", "study.assumption", "study.size")
PATHS = ("results_dir", "dataset.root", "dataset.prepared", "reader.path")
TEXT_KEYS = ("run.name", "run.tag", "run.arm", *PATHS, *STUDY)

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


def quote(text: str) -> str:
    """`text` as a quoted string of Hydra's grammar, resolved by OmegaConf to exactly `text`."""
    # Two readers in turn: Hydra unescapes \\\\ and \\' only before a quote, OmegaConf only before "${".
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", literal)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


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
