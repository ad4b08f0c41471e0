"""`daso-bench check launcher=slurm`: one short job that checks the cluster before a training runs on it.

The ranks of the job run `rank_checks`. This module makes the job, waits for its end, and prints what the
ranks found in the way of `daso-bench doctor`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError, MachineError
from ..config.cluster import ClusterConfig
from ..config.compose import compose_one
from ..config.launchers import SlurmConfig
from ..config.load import from_composed
from ..config.overrides import key_of
from ..config.run_config import RunConfig
from ..config.typed import plain, typed
from ..conformance.check_command import candidates
from ..conformance.checks import Candidate
from ..conformance.real_processes import plain_of
from ..launch.launcher import ranks_in_words
from ..launch.slurm import slurm_status
from ..launch.slurm.job import ENTRY_FILE, Allocation, run_here
from ..launch.slurm.submit import submit
from ..machine.job_rules import cluster_findings
from ..machine.rules import Finding, worst_first
from ..records import display
from ..records.json_lines import read_json, write_json
from ..records.run_directory import RunDirectory
from .doctor_command import show_findings
from .rank_checks import ENTRY, PHASE_FILE, RESULT

OK, FAILED, FOUND = 0, 1, 3
STUDY = "check"
STRATEGIES = "ddp,daso"
TAKEN = ("strategy", "launcher", "cluster", "results_dir")
# A check should fail soon: it neither waits long nor is repeated.
DEFAULTS = {"timeout_min": 15, "max_requeues": 0}
SHOWN_RANKS, SHOWN_LINKS = 64, 24
_STYLES = {"ok": "green", "refuses": "yellow", "FAILED": "bold red"}


def check(words: Sequence[str], *, config_dir: Path | None, cwd: Path) -> int:
    """Check the cluster that `words` describe, by a job on it; returns the exit code.

    0: nothing has to be mended; 1: the job failed; 3: something was found. Raises ConfigError for a wrong
    request, MachineError where nothing could be submitted.
    """
    console = display.make_console()
    config, strategies = request(words, config_dir, cwd)
    assert isinstance(config.launcher, SlurmConfig)
    allocation = None if config.launcher.submit else Allocation.around()
    directory = create_directory(config, strategies)
    names = ", ".join(candidate.name for candidate in strategies)
    display.say(
        console, f"check of {ranks_in_words(config)}: facts, links, sums; contract of {names}", "bold"
    )
    if allocation is None:
        status = _submit(directory, config, console)
    else:

        def on_event(event: Mapping[str, Any]) -> None:
            if note := display.notice(event):
                display.say(console, f"  {note}")

        run_here(directory, config, allocation, on_event, ENTRY)
        status = directory.status()
    return conclude(console, directory.path, config, status)


def request(
    words: Sequence[str], config_dir: Path | None, cwd: Path
) -> tuple[RunConfig, tuple[Candidate, ...]]:
    """The job, described as that of a run, and the strategies to check on it. Raises ConfigError."""
    strategy_words, job_words = [], []
    for word in words:
        group = key_of(word).partition(".")[0].partition("/")[0]
        if "=" not in word or group not in TAKEN:
            raise ConfigError(
                f"{word}: check launcher=slurm takes {', '.join(f'{name}=...' for name in TAKEN)} and their "
                "keys; it trains nothing"
            )
        (strategy_words if group == "strategy" else job_words).append(word)
    given = {key_of(word) for word in words}
    if "strategy" not in given:
        strategy_words.insert(0, f"strategy={STRATEGIES}")
    strategies = tuple(candidate for candidate, _ in candidates(strategy_words, config_dir))
    # The configuration's own strategy and data are not used; synthetic data need no file.
    job_words = ["strategy=ddp", "dataset=synthetic", *job_words]
    tree = plain(compose_one(job_words, config_dir=config_dir))
    if (name := tree["launcher"]["name"]) != "slurm":
        raise ConfigError(
            f"launcher={name}: only launcher=slurm has a cluster to check; `daso-bench check` without it "
            "tries strategies on this machine, `daso-bench doctor` looks at it"
        )
    defaults = {key: value for key, value in DEFAULTS.items() if f"launcher.{key}" not in given}
    tree["launcher"] = {**tree["launcher"], **defaults}
    ranks = typed(ClusterConfig, tree["cluster"], "cluster").ranks
    for group, key in (("train", "global_batch_size"), ("dataset", "samples")):
        tree[group] = {**tree[group], key: max(ranks, tree[group][key])}  # a run has a sample for each rank
    return from_composed(tree, cwd), strategies


def create_directory(config: RunConfig, strategies: Sequence[Candidate]) -> RunDirectory:
    """A new directory below results_dir/check, with the task of its ranks. Raises ConfigError."""
    stem = name = time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while (config.results_dir / STUDY / name).exists():
        number += 1
        name = f"{stem}-{number}"
    tree = config.tree
    tree["study"]["name"], tree["run"]["id"] = STUDY, name
    directory = RunDirectory.create(tree, config.results_dir)
    write_json(directory.path / ENTRY_FILE, entry(strategies))
    return directory


def entry(strategies: Sequence[Candidate]) -> dict[str, Any]:
    """The task of the ranks: the function that they run, and the strategies to check."""
    named = [
        {"name": candidate.name, "builtin": candidate.builtin, "keys": plain_of(candidate)}
        for candidate in strategies
    ]
    return {"entry": ENTRY, "strategies": named}


# ------------------------------------------------------------------ the job


def _submit(directory: RunDirectory, config: RunConfig, console: Console) -> Mapping[str, Any]:
    """Submit the job and wait for its end; Ctrl-C cancels it. Returns the last status."""
    refused = submit([(directory, config)], lambda text: display.say(console, text))
    for reason in refused.values():
        raise MachineError(f"not submitted: {reason}")
    try:
        return _follow(directory, console)
    except KeyboardInterrupt:
        display.say(console, slurm_status.cancel(directory))
        raise


def _follow(directory: RunDirectory, console: Console) -> Mapping[str, Any]:
    printed: set[str] = set()
    status: Mapping[str, Any] = {}
    for _, status in slurm_status.watch([directory]):
        for line in _progress_lines(status, directory.path):
            if line not in printed:
                display.say(console, f"  {line}")
                printed.add(line)
    return status


def _progress_lines(status: Mapping[str, Any], path: Path) -> list[str]:
    """The place of the job in the queue, or the phase of its ranks."""
    word, reason = str(status["status"]), status.get("reason")
    if word == "queued":
        return [f"queued: {reason}" if reason else "queued"]
    if word != "running":
        return []
    nodes = (status.get("queue") or {}).get("nodes")
    try:
        phase = (path / PHASE_FILE).read_text(encoding="utf-8")
    except OSError:
        phase = ""
    return [f"running on {nodes}" if nodes else "running", *([f"  {phase}"] if phase else [])]


# ------------------------------------------------------------------ the result


def conclude(console: Console, path: Path, config: RunConfig, status: Mapping[str, Any]) -> int:
    """Print the result, the reason if the job failed, and what has to be mended; returns the exit code."""
    try:
        result = read_json(path / RESULT)
    except (OSError, ValueError):
        result = {}
    shared = config.launcher.share_gpus or "cpu" in config.cluster.device.kind  # ranks on CPUs need no GPU
    problems = findings(result, share_gpus=shared) if result else []
    if result:
        show(console, result)
        show_findings(console, problems)
        display.say(console, "")
    failed = status["status"] != "finished" or not result.get("complete")
    if failed:
        reason = status.get("reason") or f"it left no complete {RESULT}"
        word = "failed" if status["status"] == "finished" else status["status"]
        display.say(console, f"the job {word.replace('_', ' ')}: {reason}", "red")
        if log := slurm_status.last_words(path) or _end_of_log(path, status):
            display.say(console, log, "dim")
    count = len(problems)
    conclusion = f"{count} thing{'s' * (count != 1)} to mend." if count else "Nothing has to be mended."
    if result and (count or not failed):
        display.say(console, conclusion, "bold")
    display.say(console, f"all of it: {path / RESULT if result else path}")
    return FAILED if failed else FOUND if count else OK


def findings(result: Mapping[str, Any], *, share_gpus: bool = False) -> list[Finding]:
    """What is wrong, worst first: by the rules on a job, and contracts that are broken."""
    broken = [
        Finding(
            "error",
            "contract",
            f"strategy={contract['strategy']}: {contract['text']}",
            f"over {result['backend']} on this cluster it does not do what it does in virtual time",
            f"daso-bench check strategy={contract['strategy']} (the whole kit, on one machine)",
        )
        for contract in result["contracts"]
        if contract["status"] == "FAILED"
    ]
    rules = cluster_findings(
        result["rows"],
        result["threads"],
        pairs=result.get("pairs", ()),
        share_gpus=share_gpus,
    )
    return worst_first([*broken, *rules])


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print tables of ranks, links and sums, and a line for each contract."""
    versions = result["versions"]
    names = [("torch", "torch"), ("python", "Python"), ("nccl", "NCCL")]
    parts = [f"{name} {versions[key]}" for key, name in names if versions.get(key)]
    display.say(console, "")
    display.say(console, f"Ranks ({', '.join([result['backend'], *parts])})", "bold")
    rows, pairs = result["rows"], result.get("pairs") or []
    columns = ("rank", "node", "host", "cores", "threads", "device")
    _print_table(console, columns, map(_of_rank, rows[:SHOWN_RANKS]))
    _more(console, len(rows) - SHOWN_RANKS, "ranks")
    if pairs:
        remark = result.get("pairs_remark")
        title = "Links between nodes" + (f" ({remark}; slowest first)" if remark else "")
        display.say(console, title, "bold")
        if len(pairs) > SHOWN_LINKS:
            pairs = sorted(pairs, key=lambda pair: pair["rate_gbit"])
        columns = ("pair", "latency", "rate", "there, back", "backend")
        _print_table(console, columns, map(_of_link, pairs[:SHOWN_LINKS]))
        _more(console, len(pairs) - SHOWN_LINKS, "links")
    if result.get("collectives"):
        display.say(console, "all_reduce over all ranks", "bold")
        _print_table(console, ("size", "time", "bus bandwidth"), map(_of_sum, result["collectives"]))
    if result["contracts"]:
        display.say(console, "Contract: a small run over this network, as in virtual time", "bold")
    for contract in result["contracts"]:
        status, text = contract["status"], contract["text"]
        line = Text(f"{contract['strategy']}: ") + Text(status, style=_STYLES[status])
        line += Text((f": {text}" if text else "") + f" ({display.duration(contract['seconds'])})")
        console.print(line, soft_wrap=True)


def _of_rank(row: Mapping[str, Any]) -> tuple[str, ...]:
    device = row["device"] + (f" ({row['device_name']})" if row["device_name"] else "")
    numbers = str(row["rank"]), str(row["node"]), row["host"], str(len(row["cores"])), str(row["threads"])
    return *numbers, device


def _of_link(pair: Mapping[str, Any]) -> tuple[str, ...]:
    name, latency = f"{pair['a']} - {pair['b']}", f"{pair['latency_us']:.0f} µs"
    there, back = pair["rate_gbit_each_way"]
    return name, latency, f"{pair['rate_gbit']:.3g} Gbit/s", f"{there:.3g}, {back:.3g}", pair["backend"]


def _of_sum(row: Mapping[str, Any]) -> tuple[str, ...]:
    bus = f"{row['bus_gbit']:.3g} Gbit/s"
    return display.size(row["bytes"]), f"{1e3 * row['seconds']:.3g} ms", bus


def _print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _more(console: Console, count: int, what: str) -> None:
    if count > 0:
        display.say(console, f"... and {count} more {what}, in {RESULT}", "dim")


def _end_of_log(path: Path, status: Mapping[str, Any]) -> str:
    """The last lines of srun and its ranks, else of the output of the batch job."""
    name = (status.get("job") or {}).get("name")
    batch = sorted((path.parent / ".slurm" / name).glob("*.out")) if name else []
    for log in (path / "logs" / "srun.log", *batch[-1:]):
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        lines = [line for line in lines if line.strip() and not line.startswith("submitit INFO")]
        if lines:
            return "\n".join([f"{log}:", *lines[-15:]])
    return ""
