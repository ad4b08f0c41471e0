"""`daso-bench check launcher=slurm`: one short job that checks the cluster before a training runs on it.

The ranks of the job run `rank_checks`. This module makes the job, waits for its end, and prints what the
ranks found in the way of `daso-bench doctor`.
"""

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
SHOWN_ROWS = 32
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
        with display.progress(console, "check") as on_event:
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
    tree = config.tree
    tree["study"]["name"], tree["run"]["id"] = STUDY, f"{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
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
    printed = ""
    status: Mapping[str, Any] = {}
    for _, status in slurm_status.watch([directory]):
        line = _progress(status, directory.path)
        if line and line != printed:
            display.say(console, f"  {line}")
            printed = line
    return status


def _progress(status: Mapping[str, Any], path: Path) -> str:
    """The place of the job in the queue, or the phase of its ranks; "" at its end."""
    if status["status"] == "queued":
        return f"queued: {status['reason']}" if status.get("reason") else "queued"
    if status["status"] != "running":
        return ""
    return f"running on {(status.get('queue') or {}).get('nodes') or 'its nodes'}{_phase(path)}"


def _phase(path: Path) -> str:
    """The last phase of the ranks after a colon; "" before the first one."""
    with suppress(OSError):
        return f": {(path / PHASE_FILE).read_text(encoding='utf-8')}"
    return ""


# ------------------------------------------------------------------ the result


def conclude(console: Console, path: Path, config: RunConfig, status: Mapping[str, Any]) -> int:
    """Print the result, the reason if the job failed, and what has to be mended; returns the exit code."""
    result, problems = None, []
    with suppress(OSError, ValueError):
        result = read_json(path / RESULT)
    if result is not None:
        kinds = config.cluster.device.kind
        may_share = config.launcher.may_share_gpus(kinds) or "cpu" in kinds  # ranks on CPUs need no GPU
        problems = findings(result, share_gpus=may_share)
        show(console, result)
        show_findings(console, problems)
        display.say(console, "")
    failed = status["status"] != "finished" or result is None or not result["complete"]
    if failed:
        reason = status.get("reason") or f"it left no complete {RESULT}"
        word = "failed" if status["status"] == "finished" else status["status"]
        display.say(console, f"the job {word.replace('_', ' ')}{_phase(path)}: {reason}", "red")
        if log := slurm_status.last_words(path) or _end_of_log(path, status):
            display.say(console, log, "dim")
    if problems:
        display.say(console, f"To be mended: {len(problems)}.", "bold")
    elif not failed:
        display.say(console, "Nothing has to be mended.", "bold")
    display.say(console, f"all of it: {path if result is None else path / RESULT}")
    return FAILED if failed else FOUND if problems else OK


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
    rows, pairs = result["rows"], result.get("pairs", ())
    threads = min(row["threads"] for row in rows)  # with `auto`, a rank has its share of the cores
    rules = cluster_findings(rows, threads, pairs=pairs, share_gpus=share_gpus)
    return worst_first([*broken, *rules])


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print tables of ranks, links (slowest first) and sums, and a line for each contract."""
    versions = result["versions"]
    names = [("torch", "torch"), ("python", "Python"), ("nccl", "NCCL")]
    parts = [f"{name} {versions[key]}" for key, name in names if versions.get(key)]
    ranks = [
        (row["rank"], row["node"], row["host"], len(row["cores"]), row["threads"], row["device"])
        for row in result["rows"]
    ]
    links = [
        (
            f"{pair['a']} - {pair['b']}",
            f"{pair['latency_us']:.0f} µs",
            f"{pair['rate_gbit']:.3g} Gbit/s",
            ", ".join(f"{rate:.3g}" for rate in pair["rate_gbit_each_way"]),
        )
        for pair in sorted(result.get("pairs", ()), key=lambda pair: pair["rate_gbit"])
    ]
    sums = [
        (display.size(row["bytes"]), f"{1e3 * row['seconds']:.3g} ms", f"{row['bus_gbit']:.3g} Gbit/s")
        for row in result.get("collectives", ())
    ]
    display.say(console, "")
    title = f"Ranks ({', '.join([result['backend'], *parts])})"
    _print_table(console, title, ("rank", "node", "host", "cores", "threads", "device"), ranks)
    nodes = len(result["ranks_of_nodes"])
    title = f"Links between nodes ({len(links)} of {nodes * (nodes - 1) // 2}, slowest first)"
    _print_table(console, title, ("pair", "latency", "rate", "there, back"), links)
    _print_table(console, "all_reduce over all ranks", ("size", "time", "bus bandwidth"), sums)
    if result["contracts"]:
        display.say(console, "Contract: a small run over this network, as in virtual time", "bold")
    for contract in result["contracts"]:
        status, text = contract["status"], f": {contract['text']}" if contract["text"] else ""
        line = f"{contract['strategy']}: {status}{text} ({display.duration(contract['seconds'])})"
        display.say(console, line, _STYLES[status])


def _print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]
) -> None:
    """Print the first rows under a title; nothing of an empty table."""
    if not rows:
        return
    display.say(console, title, "bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*map(str, row))
    console.print(table)
    if len(rows) > SHOWN_ROWS:
        display.say(console, f"... and {len(rows) - SHOWN_ROWS} more, in {RESULT}", "dim")


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
