"""A study's folder on disk: real runs made in this process, and its records read and changed by hand."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asking import run_here

from daso_bench.runner.config import load
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.records.trees import dump_yaml, load_yaml
from daso_bench.runner.report.results import Results, results_of
from daso_bench.runner.studies.plan import FILE, declare, plan_of

Row = dict[str, Any]
NAME = "again"
PLAN_UNIX = 1_700_000_000.0  # before any run
SEEDS = "0,1,2,3,4"
ARMS: Mapping[str, str] = {
    "ddp": "strategy=ddp",
    "fresh seeds": "strategy=ddp study.role=fresh_seeds",
    "daso": "strategy=daso strategy.warmup_epochs=1 strategy.cooldown_epochs=1",
    "halfway": "strategy=halfway",
}
GROUPS = {"launcher": "simulated", "cluster": "ethernet_1g", "model": "mlp"}
SETTINGS: Row = {
    "defaults": [{f"override /{group}": name} for group, name in GROUPS.items()],
    "cluster": {"nodes": 2, "ranks_per_node": 2, "links": {"inter": {"latency_us": 1000}}},
    "optimizer": {"lr": 0.1},
    "train": {
        "epochs": 3,
        "global_batch_size": 128,
        "target": 0.85,
        "eval_every_samples": 300,
        "checkpoint_every_samples": None,
    },
    "study": {"name": NAME, "baseline": "ddp"},
}


@dataclass(frozen=True)
class StudyFolder:
    """`path`: the folder of the study. `config_dir`: strategies, studies and stored points of the user."""

    path: Path
    config_dir: Path

    def copy(self, root: Path) -> "StudyFolder":
        """The same in another place."""
        config_dir = root / "conf"
        shutil.copytree(self.config_dir, config_dir)
        shutil.copytree(self.path, root / NAME)
        return StudyFolder(root / NAME, config_dir)

    def runs(self, arm: str | None = None, seed: int | None = None) -> list[Path]:
        """The run directories, of one arm or seed, by the order of their seeds."""
        found = [(tree_of(folder), folder) for folder in self.path.iterdir() if folder.is_dir()]
        return [
            folder
            for tree, folder in sorted(found, key=lambda pair: (pair[0]["seed"], pair[1].name))
            if arm in (None, tree["study"]["arm"]) and seed in (None, tree["seed"] % 10**6)
        ]

    def results(self) -> Results:
        """What a report of it is made of."""
        return results_of(self.path, "report", self.config_dir)

    @property
    def plan(self) -> list[Row]:
        return read_rows(self.path / FILE)

    def plan_renamed(self, names: Mapping[str, str]) -> None:
        """Replaces the ids of runs in the plan."""
        rows = self.plan
        for row in rows:
            row["runs"] = [names.get(run, run) for run in row["runs"]]
        write_rows(self.path / FILE, rows)


def make_study(
    root: Path,
    arms: Mapping[str, str] = ARMS,
    words: Sequence[str] = (),
    seeds: str = SEEDS,
    reuse: Sequence[StudyFolder] = (),
) -> StudyFolder:
    """A study run below `root`: its plan by the front end's code, its runs by the trainer in virtual time.

    `words`: on top of SETTINGS. `reuse`: runs with the same ids are copied from there and not run again.
    """
    study = StudyFolder(root / NAME, root / "conf")
    write_configuration(study.config_dir, arms, seeds)
    add_runs(study, words, reuse=reuse)
    return study


def add_runs(
    study: StudyFolder,
    words: Sequence[str] = (),
    *,
    unix: float = PLAN_UNIX,
    reuse: Sequence[StudyFolder] = (),
) -> None:
    """Declares at `unix` and runs what the study has with `words` and was not run yet."""
    asked = [f"+study={NAME}", *words]
    place = f"results_dir={study.path.parent}"
    made = load.requests([*asked, place], sweep=True, cwd=study.path.parent, config_dir=study.config_dir)
    plan = plan_of(made)
    assert plan.refused == []
    declare(plan.runs, asked, unix=unix, commit=lambda: "0" * 40)
    for run in plan.runs:
        if run.state != "new":
            continue
        known = next((old for each in reuse if (old := each.path / run.path.name).is_dir()), None)
        if known is not None:
            shutil.copytree(known, run.path)
            (run.path / "config.yaml").write_text(dump_yaml(run.config.tree))
        else:
            assert run_here(RunDirectory.create(run.config.tree, run.config.results_dir)) == "finished"


def as_real(study: StudyFolder, root: Path) -> StudyFolder:
    """The study as if its runs had been made by real processes on a machine of four cores.

    Only what tells a world from another is changed, in all files alike; times stay what they were.
    """
    real = study.copy(root)
    local = load.run_config(["launcher=local"], cwd=root).tree["launcher"]
    ids: dict[str, str] = {}
    for run in real.runs():
        cluster = tree_of(run)["cluster"]
        described = {name: cluster[name] for name in ("nodes", "ranks_per_node")}
        configure(run, launcher=local, cluster=described)
        change_json(run / "environment.json", _on_four_cores)
        for file in (run / "metrics.jsonl", *(run / "ranks").iterdir()):
            change_rows(file, lambda row: row.update(world="local") if row["kind"] == "start" else None)
        change_summary(run, lambda row: row.update(run_queue_share=0.001, labels=[]))
        change_json(run / "status.json", lambda status: status.update(labels=[]))
        ids[run.name] = renamed(run).name
    real.plan_renamed(ids)
    return real


def _on_four_cores(facts: Row) -> None:
    facts.update(world="local", backend="gloo", cores=4, hostname="box")
    for row in facts["ranks"]:
        row.update(device="cpu", host="box", cores=[row["rank"]], interop_threads=1)


def write_configuration(config_dir: Path, arms: Mapping[str, str], seeds: str = SEEDS) -> None:
    """The study of these arms, and the strategies of its user."""
    sweep = {"params": {"seed": seeds}, "sets": {"arm": dict(arms)}}
    study = SETTINGS | {"hydra": {"mode": "MULTIRUN", "sweeper": sweep}}
    strategies = {"halfway": "Halfway", "permissive": "Permissive"}
    files = {f"study/{NAME}.yaml": "# @package _global_\n# Again\n" + dump_yaml(study)}
    for name, kind in strategies.items():
        files[f"strategy/{name}.yaml"] = f"# {kind}\n_target_: cheats_strategies.{kind}\nevery: 6\n"
    for place, text in files.items():
        file = config_dir / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def tree_of(run: Path) -> dict[str, Any]:
    """config.yaml of a run."""
    return load_yaml((run / "config.yaml").read_text())


def configure(run: Path, **values: Any) -> None:
    """Changes keys of config.yaml, dots written as two underscores, and leaves the run's id as it was."""
    tree = tree_of(run)
    for place, value in values.items():
        *groups, key = place.split("__")
        inner = tree
        for group in groups:
            inner = inner[group]
        inner[key] = value
    (run / "config.yaml").write_text(dump_yaml(tree))


def renamed(run: Path) -> Path:
    """The run under the id that its configuration has now: folder, status and configuration agree."""
    run_id = load.load(run / "config.yaml").run_id
    configure(run, run__id=run_id)
    change_json(run / "status.json", lambda status: status.update(run_id=run_id))
    return run.rename(run.with_name(run_id))


def change_json(file: Path, change: Callable[[Any], Any]) -> None:
    """Changes what a JSON file holds, in place."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def read_rows(file: Path) -> list[Row]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """Replaces a JSON Lines file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_rows(file: Path, change: Callable[[Row], None]) -> None:
    """Changes each row of a JSON Lines file, in place."""
    rows = read_rows(file)
    for row in rows:
        change(row)
    write_rows(file, rows)


def change_summary(run: Path, change: Callable[[Row], None]) -> None:
    """Changes the summary of a run in both places where it stands."""
    change_rows(run / "metrics.jsonl", lambda row: change(row) if row["kind"] == "summary" else None)
    change_json(run / "status.json", lambda status: change(status["summary"]))
