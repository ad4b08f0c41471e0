"""Rules about names, interfaces and ports of one process."""

from collections.abc import Iterator

from ..interfaces import is_loopback
from .findings import Facts, Finding


def host_name(facts: Facts) -> Iterator[Finding]:
    """The own name means this host only. Said only where another host may have to reach it."""
    addresses, name = facts["host_addresses"], facts["host"]
    if not _several_hosts(facts) or facts["variables"].get("GLOO_SOCKET_IFNAME"):
        return
    if addresses and all(is_loopback(address) for address in addresses):
        yield Finding(
            "note",
            "network",
            f"the own host name {name} resolves to {', '.join(addresses)}",
            "other hosts cannot reach that; gloo left to itself binds to it and waits for ever",
            f"export GLOO_SOCKET_IFNAME={outward(facts) or 'NAME'} (or mend {name} in /etc/hosts)",
        )
    elif not addresses:
        yield Finding(
            "note",
            "network",
            f"the own host name {name} does not resolve: {facts['host_error']}",
            "gloo looks its address up by that name",
            f"export GLOO_SOCKET_IFNAME={outward(facts) or 'NAME'} (or add {name} to /etc/hosts)",
        )


def gloo_interface(facts: Facts) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME: a name, or names with commas; no prefix and no exclusion as NCCL's."""
    value = facts["variables"].get("GLOO_SOCKET_IFNAME", "")
    if not value.strip():
        return
    known = facts["interfaces"]
    fix = f"export GLOO_SOCKET_IFNAME={outward(facts) or 'lo'}"
    if value.lstrip()[0] in "^=":
        cause = f"{value.lstrip()[0]} is NCCL's syntax; gloo takes the name of an interface"
        yield Finding("error", "network", f"GLOO_SOCKET_IFNAME={value}", cause, fix)
        return
    for name in (part.strip() for part in value.split(",")):
        if name not in known:
            cause = f"there is no interface {name or '(empty)'} here; there are {_names(known)}"
        elif not known[name]["up"]:
            cause = f"the interface {name} is down"
        elif not known[name]["addresses"]:
            cause = f"the interface {name} has no IP address"
        else:
            continue
        yield Finding("error", "network", f"GLOO_SOCKET_IFNAME={value}", cause, fix)


def nccl_interface(facts: Facts) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME: prefixes with commas; `=` exact names, `^` all but these."""
    value = facts["variables"].get("NCCL_SOCKET_IFNAME", "").strip()
    if not value or nccl_choice(value, facts["interfaces"]):
        return
    uses_nccl = bool(facts["device_files"])
    yield Finding(
        "error" if uses_nccl else "note",
        "network",
        f"NCCL_SOCKET_IFNAME={value}, interfaces {_names(facts['interfaces'])}",
        "it leaves no interface that is up"
        + ("" if uses_nccl else "; of no matter without GPUs, as NCCL is not used"),
        f"export NCCL_SOCKET_IFNAME={outward(facts) or 'NAME'}",
    )


def nccl_choice(value: str, known: Facts) -> list[str]:
    """The interfaces that are up and that NCCL would choose from for a value of NCCL_SOCKET_IFNAME."""
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = [part for part in value.lstrip("^=").split(",") if part]

    def named(name: str) -> bool:
        return any(name == part if exact else name.startswith(part) for part in parts)

    return [name for name, entry in known.items() if entry["up"] and named(name) != exclude]


def gloo_off_route(facts: Facts) -> Iterator[Finding]:
    """gloo is told another interface than the one by which rank 0 is reached."""
    value, route = facts["variables"].get("GLOO_SOCKET_IFNAME", ""), facts.get("route") or {}
    way = route.get("interface")
    known = facts["interfaces"]
    if not (value in known and way in known):
        return
    if value != way and not known[way]["loopback"] and not known[value]["loopback"]:
        yield Finding(
            "note",
            "network",
            f"GLOO_SOCKET_IFNAME={value}, the route to {route['to']} leaves by {way}",
            "right if that is the faster network and all hosts have it; measure the links",
            f"export GLOO_SOCKET_IFNAME={way}",
        )


def port(facts: Facts) -> Iterator[Finding]:
    """The port asked for is taken, or not ours to have."""
    if facts.get("port_error"):
        yield Finding(
            "error",
            "network",
            f"launcher.port={facts['wanted']['port']}: {facts['port_error']}",
            "another program, perhaps another run, listens there; ranks could join the wrong run",
            "launcher.port=null (a free port for every run)",
        )


def outward(facts: Facts) -> str | None:
    """The interface by which others are reached: that of the route, else the first that is up."""
    known = facts["interfaces"]
    way = (facts.get("route") or {}).get("interface")
    if way in known and not known[way]["loopback"]:
        return way
    usable = (
        name for name, entry in known.items() if entry["up"] and not entry["loopback"] and entry["addresses"]
    )
    return next(usable, None)


def _several_hosts(facts: Facts) -> bool:
    variables = facts["variables"]
    master = variables.get("MASTER_ADDR", "localhost")
    return variables.get("SLURM_NNODES", "1") != "1" or not (master == "localhost" or is_loopback(master))


def _names(known: Facts) -> str:
    return ", ".join(known) or "none"
