"""The arms of a study that is tuned, and the study file that `daso-bench tune` writes.

In that file every arm has its own settings in one row and the tuned ones in another, on the seeds that are
scored. The file needs no other words: it holds the choice of each group, every value, and the arms.
"""

import dataclasses
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError
from ..config.compose import Request
from ..config.groups import RUN_GROUPS as GROUPS
from ..config.overrides import in_grammar
from ..config.run_config import RunConfig
from ..config.typed import TARGET, plain
from ..records.trees import below, dump_yaml, flatten, nested
from ..report.claims import convergence_points, paper_claims

SUFFIX = "_tuned"
SEARCHED = ("strategy", "optimizer", "schedule")  # what arms without names may differ in
NOT_THE_ARM = ("seed", "run", "study", "hydra", "train.eval_phase")


@dataclass(frozen=True, kw_only=True)
class StudyArm:
    """One arm. `values`: its configuration by dotted key; `choices`: the file of each group.

    `config`: its run with the first seed, checked.
    """

    name: str
    values: dict[str, Any]
    choices: dict[str, str]
    config: RunConfig

    @property
    def role(self) -> str:
        return self.config.study.role


Settings = Mapping[str, Any]  # values by dotted key


def arms_of(requests: Sequence[Request]) -> list[StudyArm]:
    """The arms of a study's jobs, in their order, second baselines and the placebo included.

    Departures from what the study assumes (`study.assumption`) are left out. Raises ConfigError where no job
    can run, for several sizes, and for jobs that differ in more than what makes an arm: what is tuned at one
    place is not tuned at another.
    """
    jobs = [
        StudyArm(
            name=request.config.study.arm,
            values=flatten({key: value for key, value in plain(request.composed).items() if key != "hydra"}),
            choices={group: str(request.composed.hydra.runtime.choices[group]) for group in GROUPS},
            config=request.config,
        )
        for request in requests
        if request.composed is not None and request.config is not None
        if not request.config.study.assumption
    ]
    if not jobs:
        raise ConfigError(next((str(r.error) for r in requests if r.error is not None), "no run to tune"))
    _check_jobs(jobs)
    if not all(job.name for job in jobs):
        jobs = _named(jobs)
    arms: dict[str, StudyArm] = {}
    for job in jobs:
        first = arms.setdefault(job.name, job)
        if first.config.arm_id != job.config.arm_id:
            raise _not_one_arm(_differing([first.values, job.values]), [first.values, job.values])
    return list(arms.values())


def _differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys in which configurations differ, but for those that name, place or repeat a run."""
    keys = dict.fromkeys(key for tree in values for key in tree if not below(key, NOT_THE_ARM))
    return [key for key in keys if any(tree.get(key) != values[0].get(key) for tree in values)]


def _check_jobs(jobs: Sequence[StudyArm]) -> None:
    sizes = list(dict.fromkeys(job.config.study.size for job in jobs))
    if len(sizes) > 1:
        raise ConfigError(
            f"study.size: the study has {', '.join(sizes)}; tune one: add study.size='{sizes[0]}'"
        )
    for job in jobs:
        if job.config.study.tuned:
            raise ConfigError(
                f"study.tuned={job.config.study.tuned}: is tuned already; tune the study it is from"
            )
        if job.config.run.arm not in ("", job.role):
            raise ConfigError(
                f"run.arm={job.config.run.arm}: tuned arms have names of their own; leave it empty"
            )


def _named(jobs: Sequence[StudyArm]) -> list[StudyArm]:
    """Jobs of a study without arm names, named by their strategy and by the keys that differ within it."""
    unsearched = [key for key in _differing([job.values for job in jobs]) if not below(key, SEARCHED)]
    if unsearched:
        raise _not_one_arm(unsearched, [job.values for job in jobs])
    values: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for job in jobs:
        values[job.choices["strategy"]].append(job.values)
    named = []
    for job in jobs:
        strategy = job.choices["strategy"]
        words = [f"{key.rpartition('.')[2]}={job.values.get(key)}" for key in _differing(values[strategy])]
        named.append(dataclasses.replace(job, name=" ".join([strategy, *words])))
    return named


def _not_one_arm(keys: Sequence[str], values: Sequence[Mapping[str, Any]]) -> ConfigError:
    key = keys[0] if keys else "run.repeat"
    given = dict.fromkeys(str(tree.get(key)) for tree in values)
    return ConfigError(
        f"{key}: the study has {', '.join(given)} for one arm; tune one: add {key}={next(iter(given))}"
    )


def tuned_name(arm: str) -> str:
    """The name of the tuned row of `arm`."""
    return f"{arm} tuned"


def write_study(
    folder: Path,
    arms: Sequence[StudyArm],
    settings: Mapping[str, Settings],
    study_keys: Mapping[str, Settings],
    *,
    seeds: Sequence[int],
    baseline: str,
    config_dir: Path | None,
) -> Path:
    """Write `folder`/study/<study>_tuned.yaml and return its path; the folder is for --config-dir.

    Files of the user's own folder are copied into it, since --config-dir names only one folder.

    Args:
        arms: the rows with the study's own settings, second baselines and placebo included.
        settings: by arm the settings of its tuned row.
        study_keys: by arm the `study.*` keys of its tuned row.
        seeds: of the scored runs.
        baseline: the arm whose tuned row the other tuned rows are compared with; "" for none.

    Raises ConfigError where a tuned row would have the name of an arm.
    """
    if config_dir is not None and config_dir.resolve() != folder.resolve():
        _copy(config_dir, folder)
    first = arms[0].config.study
    same_groups = [group for group in GROUPS[1:] if len({arm.choices[group] for arm in arms}) == 1]
    common_values, arm_words = _split(arms, same_groups)
    common_keys = _common(study_keys.values())
    rows = {arm.name: arm_words[arm.name] + [f"study.role={arm.role}"] * bool(arm.role) for arm in arms}
    for arm in (arm for arm in arms if arm.name in settings):
        own_keys = {key: value for key, value in study_keys[arm.name].items() if key not in common_keys}
        tuned = _tuned_rows(arms, arm, settings[arm.name], own_keys, arm_words[arm.name], baseline)
        if clash := next((name for name in tuned if name in rows), None):
            raise ConfigError(
                f"study.arm={clash}: is the name of a tuned row; call the study's arm otherwise"
            )
        rows |= tuned
    # Where the study's baseline was left out when tuning, the new study names none.
    own_baseline = first.baseline if first.baseline in [arm.name for arm in arms] else ""
    name = f"{first.name}{SUFFIX}"
    study = {key: getattr(first, key) for key in ("size", "same_seeds_share", "level", "samples_per_s")}
    tree = {
        "defaults": [{f"override /{group}": arms[0].choices[group]} for group in same_groups],
        "study": {"name": name, "baseline": own_baseline, **study, **common_keys},
        **nested(common_values),
        "hydra": {
            "mode": "MULTIRUN",
            "sweeper": {
                "params": {"seed": ",".join(map(str, seeds))},
                "sets": {"arm": {arm: shlex.join(words) for arm, words in rows.items()}},
            },
        },
    }
    title = f"The settings of +study={first.name} and equally tuned ones; made by daso-bench tune"
    file = folder / "study" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# @package _global_\n# {title}\n{dump_yaml(tree)}", encoding="utf-8")
    return file


def _tuned_rows(
    arms: Sequence[StudyArm],
    arm: StudyArm,
    settings: Settings,
    study_keys: Settings,
    own_words: Sequence[str],
    baseline: str,
) -> dict[str, list[str]]:
    """The words of an arm's tuned row; of the baseline's also of its second baselines and its placebo."""
    study = {"study.tuned": arm.name, **({"study.baseline": tuned_name(baseline)} if baseline else {})}
    study |= {f"study.{key}": value for key, value in study_keys.items()}
    words = [word for word in own_words if word.partition("=")[0] not in settings] + _words(settings)
    rows = {tuned_name(arm.name): [*words, *_words(study)]}
    if arm.name != baseline:
        return rows
    for role in ("same_seeds", "fresh_seeds"):
        name = f"{tuned_name(arm.name)}, {role.replace('_', ' ')}"
        rows[name] = [*words, *_words({**study, "study.role": role})]
    placebo = next((arm for arm in arms if arm.role == "placebo"), None)
    if placebo is not None and arm.config.strategy_name == "ddp":
        rows[tuned_name(placebo.name)] = [
            f"strategy={placebo.choices['strategy']}",
            *(word for word in words if not word.startswith("strategy=")),
            *_words({**study, "study.role": "placebo"}),
        ]
    return rows


def _split(
    arms: Sequence[StudyArm], same_groups: Sequence[str]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(the values that all arms share, the words of each arm: its other choices and values).

    `same_groups`: the groups of which all arms have the same choice. The strategy's values are words always.
    """
    values = {
        arm.name: {
            key: value
            for key, value in arm.values.items()
            if not below(key, ("seed", "run", "study")) and key.rpartition(".")[2] != TARGET
        }
        for arm in arms
    }
    common = {
        key: value
        for key, value in _common(values.values()).items()
        if key.split(".")[0] not in GROUPS or key.split(".")[0] in same_groups
    }
    words = {
        arm.name: [
            *(f"{group}={arm.choices[group]}" for group in GROUPS if group not in same_groups),
            *_words({key: value for key, value in values[arm.name].items() if key not in common}),
        ]
        for arm in arms
    }
    return common, words


def _common(of_arms: Iterable[Settings]) -> dict[str, Any]:
    """The keys that have the same value in all arms."""
    first, *others = of_arms
    return {key: v for key, v in first.items() if all(key in other and other[key] == v for other in others)}


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={in_grammar(value)}" for key, value in values.items()]


def _copy(config_dir: Path, folder: Path) -> None:
    for group in (*GROUPS, "study", paper_claims.FOLDER, convergence_points.FOLDER):
        for file in sorted((config_dir / group).rglob("*.yaml")):
            target = folder / file.relative_to(config_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
