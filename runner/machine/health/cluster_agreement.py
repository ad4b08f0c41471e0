"""Rules on a job: things that must be the same on all hosts. Versions, the folder of results, the clock."""

from collections.abc import Iterator
from typing import Any

from .findings import Finding, merged, on
from .job_facts import Job
from .one_process import RANK_RULES

LARGEST_SKEW_S = 0.5
_SAME = {"python": "Python", "torch": "torch", "daso_bench": "daso-bench"}


def versions(job: Job) -> Iterator[Finding]:
    """Versions and source; a patch of Python may differ."""
    for key, name in _SAME.items():
        found = _values(job, lambda versions, key=key: versions[key])
        if len(found) > 1:
            patch = key == "python" and len({str(value).rpartition(".")[0] for value in found}) == 1
            yield _differ(job, name, found, patch)
    source = _values(job, lambda versions: _source(versions) if versions["commit"] else None)
    source.pop(None, None)
    if len(source) > 1:
        yield _differ(job, "the source", source, False)


def _values(job: Job, of: Any) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for row in job.by_rank:
        found.setdefault(of(row["versions"]), []).append(row["host"])
    return found


def _source(versions: Any) -> str:
    return versions["commit"][:10] + (f" with changes {versions['dirty'][:8]}" if versions["dirty"] else "")


def _differ(job: Job, name: str, found: dict[str | None, list[str]], patch: bool) -> Finding:
    seen = "; ".join(f"{value or 'none'} {on(hosts, len(job.hosts))}" for value, hosts in found.items())
    executables = sorted({row["executable"] for row in job.rows})
    return Finding(
        "note" if patch else "error",
        "versions",
        f"{name} differs: {seen}",
        "ranks compute with different code"
        + ("" if len(executables) == 1 else f" ({' and '.join(executables[:3])})"),
        "source PATH/bin/activate (one environment, on a file system of all nodes, in the batch script)",
    )


def results_folder(job: Job) -> Iterator[Finding]:
    """The file that rank 0 wrote is there on every host."""
    blind = [row for row in job.rows if row.get("sees_token") is False]
    if blind:
        path = blind[0]["folders"].get("results", {}).get("path", "results_dir")
        yield Finding(
            "error",
            "results",
            f"{on([row['host'] for row in blind], len(job.hosts))}: rank 0's file in {path} is not there",
            "it is another folder on these hosts: their records and checkpoints would be lost",
            "results_dir=PATH (on a file system of all nodes)",
        )


def clocks(job: Job) -> Iterator[Finding]:
    """Clocks of hosts that are apart."""
    offsets = {
        row["host"]: row["clock_offset_s"] for row in job.rows if row.get("clock_offset_s") is not None
    }
    if not offsets:
        return
    early, late = min(offsets, key=lambda host: offsets[host]), max(offsets, key=lambda host: offsets[host])
    apart = offsets[late] - offsets[early]
    if apart > LARGEST_SKEW_S:
        yield Finding(
            "warning",
            "clock",
            f"the clocks of {early} and {late} are {apart:.2f} s apart",
            "times in records and ages of files of different hosts cannot be compared",
            "chronyc makestep (on these hosts; ask the administrator)",
        )


def open_files(job: Job) -> Iterator[Finding]:
    """A rank holds connections to all others, in each of its groups."""
    needed = 64 + 6 * job.asked
    low = {
        row["host"]: row["open_files"]["soft"]
        for row in job.rows
        if row["open_files"]["soft"] is not None and row["open_files"]["soft"] < needed
    }
    if low:
        yield Finding(
            "warning",
            "limits",
            f"{on(low, len(job.hosts))}: a process may open {min(low.values())} files",
            f"{job.asked} ranks need about {needed}: each holds connections to all others, in several groups",
            f"ulimit -n {max(4096, needed)} (in the batch script)",
        )


def of_each_rank(job: Job) -> Iterator[Finding]:
    """The rules on one process, for every rank; the same trouble on several hosts is told once."""
    found: list[tuple[str, Finding]] = []
    for host, rows in job.hosts.items():
        per_host = dict.fromkeys(finding for row in rows for rule in RANK_RULES for finding in rule(row))
        found += [(host, finding) for finding in per_host]
    yield from merged(found, len(job.hosts))
