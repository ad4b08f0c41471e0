"""`daso-bench check launcher=slurm`: one short job that looks at the cluster before a training does.

The job's ranks run `doctor.ranks`; here the words become a job, its end is waited for, and what the ranks
found is told like what the doctor finds.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError, MachineError
from ..config.cluster import ClusterConfig
from ..config.compose import compose
from ..config.launchers import SlurmConfig
from ..config.load import from_composed, to_plain
from ..config.overrides import key_of
from ..config.schema import RunConfig
from ..config.typed import plain, typed
from ..conformance.candidates import candidates
from ..conformance.checks import Candidate
from ..conformance.real_processes import plain_of
from ..launch.slurm import slurm_status
from ..launch.slurm.job import ENTRY_FILE, Allocation, run_here
from ..launch.slurm.submit import submit
from ..launch.slurm.wait import last_words
from ..machine.health.findings import Finding, troubles, worst_first
from ..machine.health.job_rules import cluster_findings
from ..records import display
from ..records.json_lines import read_json, write_json
from ..records.run_directory import RunDirectory
from .doctor_command import show_findings
from .rank_checks import DOING, ENTRY, RESULT

OK, FAILED, FOUND = 0, 1, 3
STUDY = "check"
STRATEGIES = "ddp,daso"
TAKEN = ("strategy", "launcher", "cluster", "results_dir")
# A check that waits long or is repeated tells less than one that fails soon.
DEFAULTS = {"timeout_min": 15, "max_requeues": 0}
POLL_S = 1.0
SHOWN_RANKS, SHOWN_LINKS = 64, 24
_STYLES = {"ok": "green", "refuses": "yellow", "FAILED": "bold red"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be looked at: the job as that of a run, and the strategies whose contract is tried."""

    config: RunConfig
    strategies: tuple[Candidate, ...]


def check(words: Sequence[str], *, config_dir: Path | None, cwd: Path) -> int:
    """Look at the cluster that `words` describe, by a job on it; returns the exit code.

    0: nothing has to be mended; 1: the job failed; 3: something was found. Raises ConfigError for a wrong
    request, MachineError where nothing could be submitted.
    """
    console = display.make_console()
    asked = request(words, config_dir, cwd)
    launcher = asked.config.launcher
    assert isinstance(launcher, SlurmConfig)
    allocation = None if launcher.submit else Allocation.around()
    directory = made(asked)
    names = ", ".join(candidate.name for candidate in asked.strategies)
    display.say(console, f"check of {shape(asked.config)}: facts, links, sums; contract of {names}", "bold")
    if allocation is None:
        status = _submitted(directory, asked.config, console)
    else:
        run_here(directory, asked.config, allocation, _Here(console), ENTRY)
        status = directory.status()
    return tell(console, directory.path, asked.config, status)


def request(words: Sequence[str], config_dir: Path | None, cwd: Path) -> Request:
    """What `words` ask for. Raises ConfigError."""
    own, others = [], []
    for word in words:
        group = key_of(word).partition(".")[0].partition("/")[0]
        if "=" not in word or group not in TAKEN:
            raise ConfigError(
                f"{word}: check launcher=slurm takes {', '.join(f'{name}=...' for name in TAKEN)} and their "
                "keys; it trains nothing"
            )
        (own if group == "strategy" else others).append(word)
    given = {key_of(word) for word in words}
    if "strategy" not in given:
        own.insert(0, f"strategy={STRATEGIES}")
    strategies = tuple(candidate for candidate, _ in candidates(own, config_dir))
    # The strategy of the configuration is not run; synthetic data are there without a file.
    (composed,) = compose(["strategy=ddp", "dataset=synthetic", *others], sweep=False, config_dir=config_dir)
    if composed.config is None:
        raise composed.error or ConfigError("nothing to check")
    tree = plain(composed.config)
    if (name := tree["launcher"]["name"]) != "slurm":
        raise ConfigError(_other_launcher(str(name)))
    defaults = {key: value for key, value in DEFAULTS.items() if f"launcher.{key}" not in given}
    tree["launcher"] = {**tree["launcher"], **defaults}
    ranks = typed(ClusterConfig, tree["cluster"], "cluster").ranks
    for group, key in (("train", "global_batch_size"), ("dataset", "samples")):
        tree[group] = {**tree[group], key: max(ranks, tree[group][key])}  # a run has a sample for each rank
    return Request(config=from_composed(tree, cwd), strategies=strategies)


def _other_launcher(name: str) -> str:
    if name == "torchrun":
        return (
            "launcher=torchrun: check needs no job of its own there: every run looks at its ranks when they "
            "call, and `daso-bench doctor launcher=torchrun` at one machine"
        )
    return (
        f"launcher={name}: only launcher=slurm has a cluster to look at; `daso-bench check` without launcher "
        "tries strategies on this machine, `daso-bench doctor` looks at it"
    )


def made(asked: Request) -> RunDirectory:
    """A new directory below results_dir/check, and what its ranks are to do. Raises ConfigError."""
    config = asked.config
    stem = f"{_short(config.cluster.ranks_of_nodes)}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = stem, 1
    while (config.results_dir / STUDY / name).exists():
        number += 1
        name = f"{stem}-{number}"
    tree = to_plain(config)
    tree["study"]["name"], tree["run"]["id"] = STUDY, name
    directory = RunDirectory.create(tree, config.results_dir)
    write_json(directory.path / ENTRY_FILE, entry(asked.strategies))
    return directory


def entry(strategies: Sequence[Candidate]) -> dict[str, Any]:
    """What the ranks are told to do."""
    named = [{"name": one.name, "builtin": one.builtin, "keys": plain_of(one)} for one in strategies]
    return {"entry": ENTRY, "strategies": named}


def shape(config: RunConfig) -> str:
    """`2 nodes x 2 ranks`."""
    nodes = config.cluster.ranks_of_nodes
    ranks = str(nodes[0]) if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} x {ranks} rank{'s' * (ranks != '1')}"


def _short(ranks_of_nodes: Sequence[int]) -> str:
    most = max(ranks_of_nodes)
    return f"{len(ranks_of_nodes)}x{most}" + ("" if set(ranks_of_nodes) == {most} else "-ragged")


# ------------------------------------------------------------------ the job


def _submitted(directory: RunDirectory, config: RunConfig, console: Console) -> Mapping[str, Any]:
    """Put it into the queue and see it to its end; Ctrl-C takes the job with it. Returns the last status."""
    done = submit([(directory, config)], lambda text: display.say(console, text))
    for why in done.refused.values():
        raise MachineError(f"not submitted: {why}")
    try:
        return _followed(directory, console)
    except KeyboardInterrupt:
        display.say(console, slurm_status.cancel(directory))
        raise


def _followed(directory: RunDirectory, console: Console) -> Mapping[str, Any]:
    said: set[str] = set()
    while True:
        jobs = slurm_status.jobs_of([directory.status()])
        status = directory.status()  # later than the queue: a job that is gone has had its last word
        told = slurm_status.with_queue(status, jobs.get(slurm_status.job_id(status) or ""))
        if told["status"] in slurm_status.ENDED and not slurm_status.is_last_word(status):
            told = slurm_status.with_queue(slurm_status.settle(directory), None)
        for line in _news(told, directory.path):
            if line not in said:
                display.say(console, f"  {line}")
                said.add(line)
        if told["status"] in slurm_status.ENDED:
            return told
        time.sleep(POLL_S)


def _news(status: Mapping[str, Any], path: Path) -> list[str]:
    """Where the job is and what its ranks are at."""
    word, reason = str(status["status"]), status.get("reason")
    if word == "queued":
        return [f"queued: {reason}" if reason else "queued"]
    if word != "running":
        return []
    nodes = (status.get("queue") or {}).get("nodes")
    try:
        doing = (path / DOING).read_text(encoding="utf-8")
    except OSError:
        doing = ""
    return [f"running on {nodes}" if nodes else "running", *([f"  {doing}"] if doing else [])]


class _Here:
    """Tells what the ranks of this allocation are at, from their supervisor's events."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        doing = str((event.get("progress") or {}).get("phase") or "") if event.get("rank") == 0 else ""
        note = display.notice(event) or (doing if doing != self._last else "")
        if note:
            self._last = doing or self._last
            display.say(self._console, f"    {note}")


# ------------------------------------------------------------------ what was found


def tell(console: Console, path: Path, config: RunConfig, status: Mapping[str, Any]) -> int:
    """Print what the ranks found, how the job ended if it failed, and what is to be mended."""
    try:
        found = read_json(path / RESULT)
    except (OSError, ValueError):
        found = {}
    shared = config.launcher.share_gpus or "cpu" in config.cluster.device.kind  # told, they take no GPU
    what = findings(found, share_gpus=shared) if found else []
    if found:
        show(console, found)
        show_findings(console, what)
        display.say(console, "")
    failed = status["status"] != "finished" or not found.get("complete")
    if failed:
        reason = status.get("reason") or f"it left no complete {RESULT}"
        word = "failed" if status["status"] == "finished" else status["status"]
        display.say(console, f"the job {word.replace('_', ' ')}: {reason}", "red")
        if words := last_words(path) or _end_of_log(path, status):
            display.say(console, words, "dim")
    bad = len(troubles(what))
    verdict = f"{bad} thing{'s' * (bad != 1)} to mend." if bad else "Nothing has to be mended."
    if found and not (failed and not bad):
        display.say(console, verdict, "bold")
    display.say(console, f"all of it: {path / RESULT if found else path}")
    return FAILED if failed else FOUND if bad else OK


def findings(found: Mapping[str, Any], *, share_gpus: bool = False) -> list[Finding]:
    """What is wrong, worst first: the rules on the job, and contracts that are not kept."""
    broken = [
        Finding(
            "error",
            "contract",
            f"strategy={one['strategy']}: {one['text']}",
            f"over {found['backend']} on this cluster it does not do what it does in virtual time",
            f"daso-bench check strategy={one['strategy']} (the whole kit, on one machine)",
        )
        for one in found["contracts"]
        if one["status"] == "FAILED"
    ]
    rules = cluster_findings(
        found["rows"],
        found["ranks_of_nodes"],
        found["threads"],
        pairs=found.get("pairs", ()),
        share_gpus=share_gpus,
    )
    return worst_first([*broken, *rules])


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Tables of ranks, links and sums, and a line per contract."""
    versions = found["versions"]
    known = [("torch", "torch"), ("python", "Python"), ("nccl", "NCCL")]
    parts = [f"{name} {versions[key]}" for key, name in known if versions.get(key)]
    display.say(console, "")
    display.say(console, f"Ranks ({', '.join([found['backend'], *parts])})", "bold")
    console.print(_ranks(found["rows"]))
    _more(console, len(found["rows"]) - SHOWN_RANKS, "ranks")
    if found.get("pairs"):
        remark = found.get("pairs_remark")
        display.say(
            console, "Links between nodes" + (f" ({remark}; slowest first)" if remark else ""), "bold"
        )
        console.print(_links(found["pairs"]))
        _more(console, len(found["pairs"]) - SHOWN_LINKS, "links")
    if found.get("collectives"):
        display.say(console, "all_reduce over all ranks", "bold")
        console.print(_sums(found["collectives"]))
        display.say(console, f"barrier on the control channel: {found['control_barrier_us']:.0f} µs")
    if found["contracts"]:
        display.say(console, "Contract: a small run over this network, as in virtual time", "bold")
    for one in found["contracts"]:
        line = Text(f"{one['strategy']}: ") + Text(one["status"], style=_STYLES[one["status"]])
        line += Text((f": {one['text']}" if one["text"] else "") + f" ({display.duration(one['seconds'])})")
        console.print(line, soft_wrap=True)


def _ranks(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("rank", "node", "host", "cores", "threads", "device", "clock", "sees rank 0's file")
    for row in rows[:SHOWN_RANKS]:
        after_s = row["token_after_s"]
        table.add_row(
            str(row["rank"]),
            str(row["node"]),
            row["host"],
            f"{len(row['cores'])}: {ranges(row['cores'])}",
            str(row["threads"]),
            row["device"] + (f" ({row['device_name']})" if row["device_name"] else ""),
            f"{1e3 * row['clock_offset_s']:+.1f} ms" if row["rank"] else "",
            "no" if after_s is None else "at once" if after_s < 0.1 else f"after {after_s:.1f} s",
        )
    return table


def _links(pairs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("pair", "latency", "rate", "there, back", "backend")
    if len(pairs) > SHOWN_LINKS:
        pairs = sorted(pairs, key=lambda pair: pair["rate_gbit"])[:SHOWN_LINKS]
    for pair in pairs:
        there, back = pair["rate_gbit_each_way"]
        table.add_row(
            f"{pair['a']} - {pair['b']}",
            f"{pair['latency_us']:.0f} µs",
            f"{pair['rate_gbit']:.3g} Gbit/s",
            f"{there:.3g}, {back:.3g}",
            pair["backend"],
        )
    return table


def _sums(collectives: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("size", "time", "bus bandwidth", "backend")
    for one in collectives:
        took, bus = f"{1e3 * one['seconds']:.3g} ms", f"{one['bus_gbit']:.3g} Gbit/s"
        table.add_row(display.size(one["bytes"]), took, bus, one["backend"])
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _more(console: Console, count: int, what: str) -> None:
    if count > 0:
        display.say(console, f"... and {count} more {what}, in {RESULT}", "dim")


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,8` of 0, 1, 2, 3, 8."""
    blocks: list[list[int]] = []
    for number in sorted(numbers):
        if blocks and number == blocks[-1][-1] + 1:
            blocks[-1].append(number)
        else:
            blocks.append([number])
    return ",".join(f"{block[0]}-{block[-1]}" if len(block) > 1 else f"{block[0]}" for block in blocks)


def _end_of_log(path: Path, status: Mapping[str, Any]) -> str:
    """The last lines of what srun and its ranks have said, else of the batch job's own output."""
    name = (status.get("job") or {}).get("name")
    batch = sorted((path.parent / ".slurm" / name).glob("*.out")) if name else []
    for log in (path / "logs" / "srun.log", *batch[-1:]):
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        if said := [line for line in lines if line.strip() and not line.startswith("submitit INFO")]:
            return "\n".join([f"{log}:", *said[-15:]])
    return ""
