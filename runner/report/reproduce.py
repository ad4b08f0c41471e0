"""The commands that repeat runs, from their resolved configurations."""

import shlex
from collections.abc import Sequence

from ..config.overrides import in_grammar
from ..records.trees import flatten
from .data.arms import GROUPS
from .data.load import Run

CHOSEN = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "launcher")
# Where results and data lie and what follows from the rest is the reader's own choice.
LEFT_OUT = ("results_dir", "run.id", "launcher.name", "launcher.port", "dataset.root", "reader.path")


def command_of(run: Run) -> str:
    """One line for a shell; every setting is spelled out, so that later defaults change nothing."""
    return shlex.join(["daso-bench", *_words(run)])


def script_of(arms: Sequence[Sequence[Run]]) -> str:
    """The commands of many runs as a script for bash: what all share, and what an arm shares, said once."""
    words = [[_words(run) for run in runs] for runs in arms]
    same = _shared([of_arm for arm in words for of_arm in arm])
    lines = ["same=(", *(f"  {shlex.quote(word)}" for word in same), ")"]
    for number, (runs, arm) in enumerate(zip(arms, words, strict=True), 1):
        known = set(same)
        of_arm = [word for word in _shared(arm) if word not in known]
        known.update(of_arm)
        lines += ["", f"arm_{number}=({shlex.join(of_arm)})"]
        for run, all_words in zip(runs, arm, strict=True):
            rest = [shlex.quote(word) for word in all_words if word not in known]
            name = " ".join(run.run_id.split())
            lines.append(" ".join([f'daso-bench "${{same[@]}}" "${{arm_{number}[@]}}"', *rest, f" # {name}"]))
    return "\n".join(lines)


def _shared(runs: Sequence[Sequence[str]]) -> list[str]:
    """The words that all `runs` have, in the order of the first."""
    everywhere = set(runs[0]).intersection(*runs[1:])
    return [word for word in runs[0] if word in everywhere]


def _words(run: Run) -> list[str]:
    """The arguments: choices, then every setting by its key."""
    words = [f"{group}={in_grammar(run.name(group))}" for group in CHOSEN if group in run.config]
    for key, value in flatten(run.config).items():
        # A key that names a whole group is that of an empty one.
        unset = key.startswith("run.") and not value
        if unset or key in (*LEFT_OUT, *GROUPS) or key.endswith("._target_"):
            continue
        # Text below `run` reaches the program as it is; everything else goes through Hydra's grammar.
        words.append(f"{key}={value if key.startswith('run.') else in_grammar(value)}")
    return words
