"""Network interfaces of this host, and routes to other hosts."""

import ipaddress
import socket
import threading
from contextlib import closing
from typing import Any

import psutil

RESOLVE_S = 1.5  # a name server that answers later would delay every start
_ANY_PORT = 9  # connecting a datagram socket sends nothing, but looks up a route
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def interfaces() -> dict[str, dict[str, Any]]:
    """By name: `up`, `loopback`, `speed_mbit` (0: unknown) and `addresses` of each interface."""
    states = psutil.net_if_stats()
    known: dict[str, dict[str, Any]] = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address.partition("%")[0] for entry in entries if entry.family in _INTERNET]
        state = states.get(name)
        known[name] = {
            "up": bool(state and state.isup),
            "loopback": any(is_loopback(address) for address in addresses) or name == "lo",
            "speed_mbit": state.speed if state else 0,
            "addresses": addresses,
        }
    return known


def is_loopback(address: str) -> bool:
    """Whether `address` is one of the loopback interface."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def interface_of(address: str) -> str | None:
    """The interface that has `address`; the loopback has all of 127.0.0.0/8."""
    known = interfaces()
    for name, interface in known.items():
        if address in interface["addresses"]:
            return name
    if is_loopback(address):
        return next((name for name, interface in known.items() if interface["loopback"]), None)
    return None


def route_to(host: str) -> str | None:
    """The interface by which this process reaches `host`; nothing is sent.

    Raises OSError if the name is unknown or there is no route.
    """
    error: OSError = OSError(f"no address of {host}")
    for family, kind, _, _, target in _resolved(host):
        with closing(socket.socket(family, kind)) as probe:
            try:
                probe.connect(target)
            except OSError as refused:
                error = refused
                continue
            return interface_of(probe.getsockname()[0].partition("%")[0])
    raise error


def _resolved(host: str) -> list[Any]:
    """`getaddrinfo` for datagrams that gives up after RESOLVE_S. Raises OSError."""
    results: list[Any] = []

    def resolve() -> None:
        try:
            results.append(socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM))
        except (OSError, UnicodeError) as error:
            results.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=resolve, daemon=True, name="resolve")
    thread.start()
    thread.join(RESOLVE_S)
    if not results:
        raise TimeoutError(f"no answer about {host} within {RESOLVE_S:g} s")
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]
