"""Whether nodes can be emulated here, by trying it; and if not, which switch forbids it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .addresses import Shape
from .hold_nodes import Holder

WAY_OUT = "launcher.network=modelled needs none of this"
# Which value forbids, and one that allows.
SWITCHES = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "10000"),
    "user.max_net_namespaces": ("0", "10000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}


def impossible() -> str | None:
    """Why no nodes can be had here and what would help, None if they can. Takes about 0.2 s: it makes one."""
    if sys.platform != "linux":
        return f"emulated nodes are network namespaces, which are Linux's; this is {sys.platform}; {WAY_OUT}"
    answer = _tried(Shape(bytes_per_s=1e6))
    return explain(answer, switches()) if "error" in answer else None


def has_netem() -> bool:
    """Whether this kernel can delay packets; False too where no nodes can be had."""
    return sys.platform == "linux" and "error" not in _tried(Shape(latency_us=2.0))


def explain(answer: Mapping[str, Any], found: Mapping[str, str]) -> str:
    """A holder's failure in words. `found`: the values of those switches that this kernel has."""
    error, cause = answer["error"], answer["cause"]
    if cause == "missing":
        return f"emulated nodes: {error}; install iproute2 (package iproute2 or iproute); {WAY_OUT}"
    refused = cause in ("unshare", "map") or "not permitted" in error or "denied" in error
    if not refused:
        return f"emulated nodes: {error}; {WAY_OUT}"
    for name, (forbidding, allowing) in SWITCHES.items():
        if found.get(name) == forbidding:
            return (
                f"emulated nodes: user namespaces are forbidden ({error}): {name} is {forbidding}; "
                f"`sysctl -w {name}={allowing}` as root allows them; {WAY_OUT}"
            )
    return (
        f"emulated nodes: user namespaces are forbidden ({error}), and by no sysctl: a container forbids "
        "them by its seccomp profile or keeps capabilities back (Docker: --security-opt seccomp=unconfined, "
        f"or --privileged); {WAY_OUT}"
    )


def switches() -> dict[str, str]:
    """The values of `SWITCHES` here; a kernel without one is left out."""
    found: dict[str, str] = {}
    for name in SWITCHES:
        try:
            found[name] = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
    return found


def _tried(shape: Shape) -> dict[str, Any]:
    holder = Holder([shape])
    holder.end()
    return holder.answer
