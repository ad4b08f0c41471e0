"""The study that `daso-bench tune` leaves: a study's own settings beside equally tuned ones, on scored seeds.

The file says all by itself: the choice of each group, every value that differs from that choice's own, and
the arms. What was typed when tuning stands in it.
"""

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError
from ..config.compose import compose
from ..config.load import GROUPS
from ..config.overrides import quote
from ..config.schema import strategy_name
from ..config.typed import TARGET, plain
from ..records import plain_yaml
from ..records.nested_keys import below, flatten, nested
from ..report.claims import convergence_points, paper_claims
from .tuning_arms import StudyArm

SUFFIX = "_tuned"
SECOND = {"same_seeds": "same seeds", "fresh_seeds": "fresh seeds"}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OTHERS = ("null", "true", "false", "nan", "inf")  # words that are no text
_COMMON_STUDY = ("size", "same_seeds_share", "interval", "level")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tuning an arm came to: the winner's `settings` by dotted key, and the `study.*` keys that tell."""

    arm: StudyArm
    settings: Mapping[str, Any]
    study: Mapping[str, Any]


def tuned_name(arm: str) -> str:
    """The name of the tuned row of `arm`."""
    return f"{arm} tuned"


def write(
    folder: Path,
    arms: Sequence[StudyArm],
    tuned: Sequence[Tuned],
    *,
    seeds: Sequence[int],
    baseline: str,
    config_dir: Path | None,
) -> Path:
    """Write `folder`/study/<study>_tuned.yaml and return its path; the folder is for --config-dir.

    Files of the user's own folder are copied beside it, since only one such folder can be named.

    Args:
        arms: the rows with the study's own settings, second baselines and placebo included.
        tuned: the rows with tuned settings.
        seeds: of the scored runs.
        baseline: the arm whose tuned row the other tuned rows are held against; "" for none.

    Raises ConfigError where a tuned row would have the name of an arm.
    """
    if config_dir is not None and config_dir.resolve() != folder.resolve():
        _copy(config_dir, folder)
    first = arms[0].config.study
    body, own = _split(arms, config_dir)
    told = _told_of_all(tuned)
    rows = {arm.name: [*own[arm.name], *_words({"study.role": arm.role} if arm.role else {})] for arm in arms}
    for name, words in _tuned_rows(arms, tuned, own, baseline, told).items():
        if name in rows:
            raise ConfigError(f"study.arm={name}: is the name of a tuned row; call the study's arm otherwise")
        rows[name] = words
    common = {group: arms[0].choices[group] for group in GROUPS[1:] if _same(arms, group)}
    study = {key: getattr(first, key) for key in _COMMON_STUDY}
    name = f"{first.name}{SUFFIX}"
    # A baseline that was left out when tuning is none to hold the others against.
    named = next((arm.name for arm in arms if arm.name == first.baseline), "")
    tree = {
        "defaults": [{f"override /{group}": choice} for group, choice in common.items()],
        "study": {"name": name, "baseline": named, **study, **told},
        **nested(body),
        "hydra": {
            "mode": "MULTIRUN",
            "sweeper": {
                "params": {"seed": ",".join(map(str, seeds))},
                "sets": {"arm": {name: shlex.join(words) for name, words in rows.items()}},
            },
        },
    }
    file = folder / "study" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    head = f"The settings of +study={first.name} beside equally tuned ones; made by daso-bench tune"
    file.write_text(f"# @package _global_\n# {head}\n{plain_yaml.dump(tree)}", encoding="utf-8")
    return file


def _tuned_rows(
    arms: Sequence[StudyArm],
    tuned: Sequence[Tuned],
    own: Mapping[str, list[str]],
    baseline: str,
    told: Mapping[str, Any],
) -> dict[str, list[str]]:
    """The words of each tuned row: the arms, and second baselines and the placebo of the tuned baseline."""
    rows: dict[str, list[str]] = {}
    against = {"study.baseline": tuned_name(baseline)} if baseline else {}
    for one in tuned:
        about = {f"study.{key}": value for key, value in one.study.items() if key not in told}
        study = {"study.tuned": one.arm.name, **against, **about}
        words = [*_without(own[one.arm.name], one.settings), *_words(one.settings)]
        rows[tuned_name(one.arm.name)] = [*words, *_words(study)]
        if one.arm.name != baseline:
            continue
        for role, said in SECOND.items():
            label = f"{tuned_name(baseline)}, {said}"
            rows[label] = [*words, *_words({**study, "study.role": role})]
        placebo = next((arm for arm in arms if arm.role == "placebo"), None)
        if placebo is not None and strategy_name(one.arm.config) == "ddp":
            strategy = {k: v for k, v in one.arm.values.items() if below(k, ["strategy"]) and not _target(k)}
            others = [word for word in words if not word.startswith(("strategy=", "strategy."))]
            settings = {**strategy, **{k: v for k, v in one.settings.items() if below(k, ["strategy"])}}
            choice = f"strategy={placebo.choices['strategy']}"
            role = {**study, "study.role": "placebo"}
            rows[tuned_name(placebo.name)] = [choice, *others, *_words(settings), *_words(role)]
    return rows


def _told_of_all(tuned: Sequence[Tuned]) -> dict[str, Any]:
    """The `study.*` keys that are the same for all tuned rows."""
    first = tuned[0].study
    return {key: value for key, value in first.items() if all(one.study[key] == value for one in tuned)}


def _split(arms: Sequence[StudyArm], config_dir: Path | None) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(values that all arms have beyond their choices, words of each arm: its choices, the other values)."""
    plains = _plain_choices(arms, config_dir)
    changes = {
        arm.name: {
            key: value
            for key, value in arm.values.items()
            if not below(key, ("seed", "run", "study")) and not _target(key)
            if key not in (usual := plains[_place(arm)]) or usual[key] != value
        }
        for arm in arms
    }
    first = changes[arms[0].name]
    common = {
        key: value
        for key, value in first.items()
        if all(key in own and own[key] == value for own in changes.values())
        and not below(key, ["strategy"])
        and (key.split(".")[0] not in GROUPS or _same(arms, key.split(".")[0]))
    }
    words = {
        arm.name: [
            *(
                f"{group}={arm.choices[group]}"
                for group in GROUPS
                if group == "strategy" or not _same(arms, group)
            ),
            *_words({key: value for key, value in changes[arm.name].items() if key not in common}),
        ]
        for arm in arms
    }
    return common, words


def _plain_choices(
    arms: Sequence[StudyArm], config_dir: Path | None
) -> dict[tuple[str, ...], dict[str, Any]]:
    """What the choices of each arm hold by themselves, by dotted key."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    rest: dict[tuple[str, ...], dict[str, None]] = {}
    for arm in arms:
        strategy, *others = _place(arm)
        rest.setdefault(tuple(others), {})[strategy] = None
    for others, strategies in rest.items():
        chosen = [f"{group}={choice}" for group, choice in zip(GROUPS[1:], others, strict=True)]
        jobs = compose([f"strategy={','.join(strategies)}", *chosen], sweep=True, config_dir=config_dir)
        for strategy, job in zip(strategies, jobs, strict=True):
            if job.config is None:
                raise job.error or ConfigError(f"strategy={strategy}: does not compose by itself")
            found[strategy, *others] = flatten(plain(job.config))
    return found


def _place(arm: StudyArm) -> tuple[str, ...]:
    return tuple(arm.choices[group] for group in GROUPS)


def _same(arms: Sequence[StudyArm], group: str) -> bool:
    return len({arm.choices[group] for arm in arms}) == 1


def _target(key: str) -> bool:
    return key.rpartition(".")[2] == TARGET


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_typed(value)}" for key, value in values.items()]


def _without(words: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    return [word for word in words if word.partition("=")[0] not in settings]


def _typed(value: Any) -> str:
    """`value` in Hydra's grammar."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _OTHERS else quote(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_typed(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_typed(entry) for entry in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _copy(config_dir: Path, folder: Path) -> None:
    for group in (*GROUPS, "study", paper_claims.FOLDER, convergence_points.FOLDER):
        for file in sorted((config_dir / group).rglob("*.yaml")):
            target = folder / file.relative_to(config_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
