"""Rules on a job of several hosts: can they reach each other, by the right way, and as fast as their like."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ..interfaces import is_loopback
from .findings import Finding, Severity, on
from .job_facts import Job
from .rules_network import outward

SLOW_SHARE = 0.4  # of the median of its like: far outside what neighbours differ by on a quiet network
SLOW_TIMES, SLOW_LATENCY_US = 5.0, 500.0
FLOOR_GBIT = 0.2
FEWEST_PAIRS = 3  # below, there is no median to be far from


def host_names(job: Job) -> Iterator[Finding]:
    """Hosts whose own name means loopback, and gloo is not told an interface.

    Only a note where the way to rank 0 is known: the launchers then tell gloo that interface.
    """
    wrong = {
        row["host"]: row
        for row in job.rows
        if not row["variables"].get("GLOO_SOCKET_IFNAME") and all(map(is_loopback, row["host_addresses"]))
    }
    if not job.spread or not wrong:
        return
    row = next(iter(wrong.values()))
    known = all((row.get("route") or {}).get("interface") is not None for row in wrong.values())
    means = ", ".join(row["host_addresses"]) or f"nothing ({row['host_error']})"
    yield Finding(
        "note" if known else "warning",
        "network",
        f"{on(wrong, len(job.hosts))}: the own host name {row['host']} resolves to {means}",
        "gloo left to itself binds to it, and other hosts wait for ever",
        f"export GLOO_SOCKET_IFNAME={outward(row) or 'NAME'} (or mend /etc/hosts)",
    )


def routes(job: Job) -> Iterator[Finding]:
    """Hosts with no way to rank 0, or one that ends on themselves."""
    if not job.spread:
        return
    none: dict[str, Any] = {}
    loops: dict[str, Any] = {}
    for row in job.rows:
        route = row.get("route")
        if route is not None and route["address"] is None:
            none.setdefault(row["host"], row)
        elif route is not None and is_loopback(route["address"]):
            loops.setdefault(row["host"], row)
    if none:
        row = next(iter(none.values()))
        yield Finding(
            "error",
            "network",
            f"{on(none, len(job.hosts))}: no route to {row['route']['to']}: {row['route']['error']}",
            "the host of rank 0 cannot be reached by that name",
            "export MASTER_ADDR=ADDRESS (of rank 0's host, an address that all hosts reach)",
        )
    if loops:
        row = next(iter(loops.values()))
        to, address = row["route"]["to"], row["route"]["address"]
        yield Finding(
            "error",
            "network",
            f"{on(loops, len(job.hosts))}: the route to {to} is loopback ({address})",
            "the name of rank 0's host means this host itself: its ranks would wait for themselves",
            "export MASTER_ADDR=ADDRESS (of rank 0's host, an address that all hosts reach; mend /etc/hosts)",
        )


def loopback_interface(job: Job) -> Iterator[Finding]:
    """gloo is told the loopback, and ranks are on several hosts."""
    wrong: dict[str, Any] = {}
    for row in job.rows:
        value = row["variables"].get("GLOO_SOCKET_IFNAME", "")
        if row["interfaces"].get(value, {}).get("loopback"):
            wrong.setdefault(row["host"], row)
    if job.spread and wrong:
        row = next(iter(wrong.values()))
        yield Finding(
            "error",
            "network",
            f"{on(wrong, len(job.hosts))}: GLOO_SOCKET_IFNAME={row['variables']['GLOO_SOCKET_IFNAME']}",
            f"that is the loopback; the ranks are on {len(job.hosts)} hosts",
            f"export GLOO_SOCKET_IFNAME={outward(row) or 'NAME'}",
        )


def links(job: Job) -> Iterator[Finding]:
    """Measured links that are far slower than the others, or slower than any network for training."""
    backends = list(dict.fromkeys(pair.get("backend") for pair in job.pairs))
    for backend in backends:
        yield from _links(job, [pair for pair in job.pairs if pair.get("backend") == backend], backend)


def _links(job: Job, pairs: Sequence[Mapping[str, Any]], backend: Any) -> Iterator[Finding]:
    by = "" if backend is None else f" ({backend})"
    rates = [pair["rate_gbit"] for pair in pairs if pair.get("rate_gbit") is not None]
    delays = [pair["latency_us"] for pair in pairs if pair.get("latency_us") is not None]
    usual = median(rates) if len(rates) >= FEWEST_PAIRS else None
    usual_us = median(delays) if len(delays) >= FEWEST_PAIRS else None
    below = [
        pair for pair in pairs if pair.get("rate_gbit") is not None and pair["rate_gbit"] < job.floor_gbit
    ]
    slow = [
        pair
        for pair in pairs
        if usual is not None and (pair.get("rate_gbit") or usual) < SLOW_SHARE * usual and pair not in below
    ]
    late = [
        pair
        for pair in pairs
        if usual_us is not None
        and (pair.get("latency_us") or 0) > max(SLOW_LATENCY_US, SLOW_TIMES * usual_us)
    ]
    kinds: tuple[tuple[Severity, list[Mapping[str, Any]], str], ...] = (
        ("error", below, f"below {job.floor_gbit:g} Gbit/s"),
        ("warning", slow, f"median of {len(rates)} pairs {usual or 0:.3g} Gbit/s"),
    )
    for severity, found, limit in kinds:
        if found:
            worst = min(found, key=lambda pair: pair["rate_gbit"])
            seen = f"{worst['a']} - {worst['b']}: {worst['rate_gbit']:.3g} Gbit/s{by}, {limit}"
            yield Finding(severity, "links", seen + _more(found), _why(found), _mend(job, found))
    if late:
        worst = max(late, key=lambda pair: pair["latency_us"])
        seen = f"{worst['a']} - {worst['b']}: {worst['latency_us']:.0f} µs{by}, median {usual_us:.0f} µs"
        yield Finding("warning", "links", seen + _more(late), _why(late), _mend(job, late))


def _more(found: Sequence[Mapping[str, Any]]) -> str:
    return f"; {len(found) - 1} more like it" if len(found) > 1 else ""


def _common(found: Sequence[Mapping[str, Any]]) -> str | None:
    """The host that all slow pairs have in common, if several pairs have one."""
    shared = set.intersection(*({pair["a"], pair["b"]} for pair in found))
    return next(iter(shared)) if len(found) > 1 and len(shared) == 1 else None


def _why(found: Sequence[Mapping[str, Any]]) -> str:
    host = _common(found)
    who = f"{host} is in all of them: its card or cable, or the interface it uses" if host else "a slow way"
    return f"{who}; a wrong interface, another rack, a busy network; all wait for the slowest"


def _mend(job: Job, found: Sequence[Mapping[str, Any]]) -> str:
    """Another interface if the host in question has one, else without that host."""
    host = _common(found) or found[0]["b"]
    row = next(iter(job.hosts.get(host, ())), None)
    used = (
        None
        if row is None
        else row["variables"].get("GLOO_SOCKET_IFNAME") or (row.get("route") or {}).get("interface")
    )
    known = {} if row is None else row["interfaces"]
    others = [
        name
        for name, entry in known.items()
        if entry["up"] and entry["addresses"] and not entry["loopback"] and name != used
    ]
    others.sort(key=lambda name: -known[name]["speed_mbit"])
    if others:
        return f"export GLOO_SOCKET_IFNAME={others[0]} ({host} uses {used}, and has also {', '.join(others)})"
    return f"sbatch --exclude={host}" if job.under_slurm else "cluster.nodes=N (without the slow host)"
