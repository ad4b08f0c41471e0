"""The commands that repeat runs, as a script for bash, from their resolved configurations."""

import shlex
from collections.abc import Iterable, Sequence

from ..config.overrides import in_grammar
from ..records.trees import flatten
from .data.arms import GROUPS, Arm
from .data.load import Run

CHOSEN = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "launcher")
# Where results and data lie and what follows from the rest is the reader's own choice.
LEFT_OUT = ("results_dir", "run.id", "launcher.name", "launcher.port", "dataset.root", "reader.path")


def script_of(arms: Iterable[Arm]) -> str:
    """What all runs share, what each arm has of its own, and a command for every run with the rest.

    Every setting is spelled out, so that later defaults change nothing.
    """
    runs_of_arm = [(arm, [(run, arguments_of(run)) for run in arm.runs]) for arm in arms]
    same = _shared([words for _, runs in runs_of_arm for _, words in runs])
    lines = ["same=(", *(f"  {shlex.quote(word)}" for word in same), ")"]
    for number, (arm, runs) in enumerate(runs_of_arm, 1):
        of_arm = [word for word in _shared([words for _, words in runs]) if word not in same]
        known = {*same, *of_arm}
        lines += ["", f"# {_one_line(arm.label)}", f"arm_{number}=({shlex.join(of_arm)})"]
        for run, words in runs:
            rest = shlex.join(word for word in words if word not in known)
            of_run = f"{rest}  # {_one_line(run.run_id)}"
            lines.append(f'daso-bench "${{same[@]}}" "${{arm_{number}[@]}}" {of_run}')
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shared(runs: Sequence[Sequence[str]]) -> list[str]:
    """The words that all `runs` have, in the order of the first."""
    everywhere = set(runs[0]).intersection(*runs[1:])
    return [word for word in runs[0] if word in everywhere]


def arguments_of(run: Run) -> list[str]:
    """The arguments of the command that repeats `run`: choices, then every setting by its key."""
    words = [f"{group}={in_grammar(run.name(group))}" for group in CHOSEN if group in run.config]
    for key, value in flatten(run.config).items():
        # A key that names a whole group is that of an empty one.
        unset = key.startswith("run.") and not value
        if unset or key in (*LEFT_OUT, *GROUPS) or key.endswith("._target_"):
            continue
        # Text below `run` reaches the program as it is; everything else goes through Hydra's grammar.
        words.append(f"{key}={value if key.startswith('run.') else in_grammar(value)}")
    return words
