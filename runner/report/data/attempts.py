"""What all attempts of a run recorded of their machine, as one; what differs between them is told as such."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def merged(values: Sequence[Any]) -> Any:
    """`values`, one per attempt in their order, as one; equal ones as they are.

    Mappings by key and lists of equal length item by item; else each answer once: "1a2b, then 3c4d". What an
    attempt lacks is "nothing".
    """
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merged([value.get(key) for value in values]) for key in keys}
    lists = [value for value in values if isinstance(value, list)]
    rows = len(lists) == len(values) and len({len(value) for value in lists}) == 1
    if rows and all(isinstance(item, Mapping) for value in lists for item in value):
        return [merged(items) for items in zip(*lists, strict=True)]
    return ", then ".join(dict.fromkeys(_text(value) for value in values))


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
