"""Writes the pages of docs/strategies.md from the code: docstring, keys and caveats of each strategy.

`python scripts/strategy_pages.py` (make docs) rewrites the file behind its marker; a test holds that it is up
to date.
"""

import ast
import re
import sys

from daso_bench.runner.config import groups

ROOT = groups.CONF.parent
FILE = ROOT / "docs" / "strategies.md"
MARKER = "<!-- Below: written by `make docs` from strategies/*.py and conf/strategy/*.yaml. -->"


def document(text: str) -> str:
    """`text` with everything behind the marker written anew: the baseline first, then by name."""
    head, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError(f"{FILE}: has lost its marker {MARKER}")
    names = list(groups.entries("strategy"))
    names.sort(key=lambda name: (name != "ddp", name))
    return f"{head}{MARKER}\n\n" + "\n".join(page(name) for name in names)


def page(name: str) -> str:
    """One strategy: what its module says, how to see it, its keys, what to know before believing it."""
    tree = ast.parse((ROOT / "strategies" / f"{name}.py").read_text(encoding="utf-8"))
    sections = [
        f"## {name}",
        ast.get_docstring(tree) or "",
        f"See it: `daso-bench strategy={name}`. Check its contract: `daso-bench check strategy={name}`.",
        _keys(name),
    ]
    caveats = _caveats(tree)
    if caveats:
        sections += ["Before you believe a number:", "\n".join(f"- {sentence}" for sentence in caveats)]
    return "\n\n".join(sections) + "\n"


def _keys(name: str) -> str:
    """A table of keys, defaults and meanings, from the YAML and its comments."""
    rows = ["| key | default | |", "|---|---|---|"]
    for line in (groups.CONF / "strategy" / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"([a-z]\w*):\s*(.*?)\s*(?:#\s*(.*))?", line)
        if found:
            key, value, comment = (text or "" for text in found.groups())
            rows.append(f"| `{key}` | {value} | {comment.replace(' | ', ', ')} |")
    return "\n".join(rows)


def _caveats(tree: ast.Module) -> list[str]:
    """The sentences of the class attribute `caveats`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "caveats" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return []


def main() -> int:
    """Rewrite the file."""
    FILE.write_text(document(FILE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
