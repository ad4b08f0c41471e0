"""The command that repeats a run, from its resolved configuration."""

import json
import re
import shlex
from typing import Any

from .arms import GROUPS, flatten
from .load import Run

CHOSEN = ("strategy", "model", "dataset", "optimizer", "schedule", "launcher")
# Where results and data lie and what follows from the rest is the reader's own choice.
LEFT_OUT = ("results_dir", "run.id", "launcher.name", "launcher.port", "dataset.root")
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_WORDS = ("null", "true", "false", "nan", "inf")


def command_of(run: Run) -> str:
    """One line for a shell; every setting is spelled out, so that later defaults change nothing."""
    words = ["daso-bench"]
    words += [f"{group}={_value(run.name(group))}" for group in CHOSEN if group in run.config]
    for key, value in flatten(run.config).items():
        empty_group = key in GROUPS
        if (
            key in LEFT_OUT
            or key.endswith("._target_")
            or empty_group
            or (key.startswith("run.") and not value)
        ):
            continue
        # Text below `run` reaches the program as it is; everything else goes through Hydra's grammar.
        words.append(f"{key}={value if key.startswith('run.') else _value(value)}")
    return shlex.join(words)


def _value(value: Any) -> str:
    """`value` in Hydra's override grammar."""
    if isinstance(value, list):
        return "[" + ",".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
