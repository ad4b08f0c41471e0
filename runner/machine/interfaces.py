"""Network interfaces of this host, what its own name means, and which way leads to another host."""

import ipaddress
import socket
import threading
from contextlib import closing
from typing import Any

import psutil

RESOLVE_S = 1.5  # a name server that answers later would stall every start
_ANY_PORT = 9  # connecting a datagram socket sends nothing; a route is looked up all the same
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def interfaces() -> dict[str, dict[str, Any]]:
    """By name: `up`, `loopback`, `speed_mbit` (0: unknown) and `addresses` of each interface."""
    states = psutil.net_if_stats()
    found: dict[str, dict[str, Any]] = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address.partition("%")[0] for entry in entries if entry.family in _INTERNET]
        state = states.get(name)
        found[name] = {
            "up": bool(state and state.isup),
            "loopback": any(is_loopback(address) for address in addresses) or name == "lo",
            "speed_mbit": state.speed if state else 0,
            "addresses": addresses,
        }
    return found


def is_loopback(address: str) -> bool:
    """Whether only this host can be reached by `address`."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def interface_of(address: str) -> str | None:
    """The interface that has `address`; all of 127.0.0.0/8 is the loopback's."""
    known = interfaces()
    for name, interface in known.items():
        if address in interface["addresses"]:
            return name
    if is_loopback(address):
        return next((name for name, interface in known.items() if interface["loopback"]), None)
    return None


def route_to(host: str) -> tuple[str, str | None]:
    """The own address and interface by which this process reaches `host`; nothing is sent.

    Raises OSError if the name is unknown or no way leads there.
    """
    error: OSError = OSError(f"no address of {host}")
    for family, kind, _, _, target in _resolved(host, socket.SOCK_DGRAM):
        with closing(socket.socket(family, kind)) as probe:
            try:
                probe.connect(target)
            except OSError as refused:
                error = refused
                continue
            address = probe.getsockname()[0].partition("%")[0]
            return address, interface_of(address)
    raise error


def route(host: str) -> dict[str, str | None]:
    """`route_to` as a row: `to`, `address`, `interface`, and `error` where there is no way."""
    try:
        address, interface = route_to(host)
    except OSError as error:
        return {"to": host, "address": None, "interface": None, "error": error.strerror or str(error)}
    return {"to": host, "address": address, "interface": interface, "error": None}


def addresses_of(host: str) -> tuple[list[str], str | None]:
    """What `host` resolves to, and why it does not."""
    try:
        found = _resolved(host, socket.SOCK_STREAM)
    except OSError as error:
        return [], error.strerror or str(error)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)), None


def _resolved(host: str, kind: int) -> list[Any]:
    """`getaddrinfo` that gives up after RESOLVE_S. Raises OSError."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, _ANY_PORT, type=kind))
        except (OSError, UnicodeError) as error:
            answer.append(error if isinstance(error, OSError) else OSError(str(error)))

    asking = threading.Thread(target=ask, daemon=True, name="resolve")
    asking.start()
    asking.join(RESOLVE_S)
    if not answer:
        raise TimeoutError(f"no answer about {host} within {RESOLVE_S:g} s")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]
