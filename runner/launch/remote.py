"""Ranks that another program starts on any machine (srun, torchrun): they connect to the supervisor over TCP.

A rank finds its supervisor by `supervisor.json` in the run directory and sends `hello` (which rank it is,
where, on which cores). The answer is `welcome` (where all ranks meet, how many threads it has) or `refused`
(why). From then on the connection is that of any rank: see `rank_process.Link`.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...strategies.errors import MachineError
from ...strategies.topology import Topology
from ..config.launchers import ExternalConfig
from ..machine.cores import Room, apart, timing_reasons
from ..machine.facts import interfaces, is_loopback
from ..machine.job_rules import cluster_findings
from ..machine.signals import signal_name
from ..records.json_lines import write_json
from ..records.run_directory import RunDirectory
from .failures import LOST, Rank
from .supervisor import Ranks

if TYPE_CHECKING:
    from ..config.run_config import RunConfig  # loads torch, which no supervisor needs

ADDRESS = "supervisor.json"
WORKER = "daso_bench.runner.launch.worker"  # the program of a rank
HELLO_S = 10.0  # a caller that sends nothing for so long is no rank
FATE_S = 3.0  # from the end of a rank's line until its starter knows the exit code
_OF_TIME = ("affinity", "timing", "devices")  # topics of findings about timing
_log = logging.getLogger("daso_bench.supervisor")
Hello = dict[str, Any]


class Starter(Protocol):
    """The program that starts the ranks' processes."""

    def begin(self) -> None:
        """Start them. Raises MachineError."""
        ...

    def ended(self) -> str | None:
        """Why no more ranks will come, with the program's last lines; None while it runs."""
        ...

    def fate(self, rank: int) -> int | None:
        """The exit code of a rank (negative: a signal); None while the program has not reported it."""
        ...

    def words(self) -> str:
        """The last lines that the program wrote, "" for none."""
        ...

    def stop(self) -> None:
        """End the processes that are still running."""
        ...


class RemoteProcess:
    """A rank's process on another machine, known by its connection and by what its starter reports."""

    sentinel = -1

    def __init__(self, hello: Hello, line: socket.socket, fate: Callable[[int], int | None]) -> None:
        self.pid: int | None = hello["pid"]
        self.rank: Rank | None = None
        self._number = hello["rank"]
        self._line, self._fate = line, fate
        self._closed_s: float | None = None
        self._killed = False
        self.lost = False  # its connection closed, or fell silent, for an unknown reason

    @property
    def exitcode(self) -> int | None:
        if self._killed:
            return -9
        rank = self.rank
        if rank is None or rank.line_open:
            return None
        if rank.finish is not None:
            return 0
        self._closed_s = self._closed_s or time.monotonic()
        code = self._fate(self._number)
        if code is not None:
            return code
        if time.monotonic() - self._closed_s < FATE_S:
            return None
        self.lost = True
        return LOST

    def join(self, timeout: float | None = None) -> None:
        return

    def kill(self) -> None:
        self._killed = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # its thread then ends the process


class RemoteRanks(Ranks):
    """The ranks that `starter` starts. Entering opens the port to which they connect.

    key: of this attempt; a rank ignores an address with another one. grouped: whether the nodes that ranks
    report must be those of the topology. known: goes to environment.json as it is.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        starter: Starter,
        *,
        key: str,
        grouped: bool = True,
        known: dict[str, Any] | None = None,
    ) -> None:
        assert isinstance(config.launcher, ExternalConfig)
        self.directory, self.topology = directory, Topology.of(config.cluster.ranks_of_nodes)
        self._starter, self._launcher = starter, config.launcher
        self._key, self._grouped, self._known = key, grouped, known or {}
        self._on_cpus = "cpu" in config.cluster.device.kind
        self._share_gpus = config.launcher.may_share_gpus(config.cluster.device.kind)
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server(("", 0), backlog=1024)
        except OSError as error:
            raise MachineError(f"no port for the ranks to call at: {error}") from error
        self._listener.settimeout(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        (self.directory.path / ADDRESS).unlink(missing_ok=True)
        self._starter.stop()

    def start(self, started: list[Rank]) -> dict[str, Any]:
        publish(self.directory.path, self._key, self._listener.getsockname()[1], self._token)
        self._starter.begin()
        try:
            hellos = self._gather(started)
            self._check_places(hellos)
            workers = self._launcher.asked_workers
            threads = threads_of(hellos, self._launcher.threads_per_rank, workers)
            remarks = self._look(hellos, max(threads))
            wanted = [count + workers for count in threads]
            cores = cores_of(hellos, wanted) if self._launcher.pin else [()] * len(hellos)
            host = self._meeting_host(hellos)
        except MachineError as error:
            for rank in started:
                _answer(rank.line, {"kind": "refused", "reason": str(error)})
            raise
        reasons = timing_of(hellos, threads, workers) + remarks
        self.directory.update(timing={"valid": not reasons, "reasons": reasons})
        started.sort(key=lambda rank: rank.number)
        hosts, port = [hello["host"] for hello in hellos], hellos[0]["port"]
        welcome = {
            "kind": "welcome",
            "host": host,
            "port": port,
            "one_clock": len({hello["boot"] for hello in hellos}) == 1,
            "known": {"nodes": list(dict.fromkeys(hosts)), **self._known},
        }
        for rank, count, rank_cores in zip(started, threads, cores, strict=True):
            _answer(rank.line, {**welcome, "threads": count, "cores": rank_cores})
        pids = [hello["pid"] for hello in hellos]
        return {"ranks": len(pids), "threads": max(threads), "port": port, "pids": pids, "hosts": hosts}

    def _look(self, hellos: Sequence[Hello], threads: int) -> list[str]:
        """The doctor's short look at the ranks: errors end the start, warnings are logged.

        Returns those that make timings doubtful.
        """
        keys = ("rank", "local_rank", "node", "host")
        rows = [{**hello["facts"], **{key: hello[key] for key in keys}} for hello in hellos]
        findings = cluster_findings(rows, threads, share_gpus=self._share_gpus)
        if self._on_cpus:  # ranks on CPUs use none of the devices that they see
            findings = [finding for finding in findings if finding.topic != "devices"]
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise MachineError("\n".join(f"{error.what}: {error.cause}; {error.fix}" for error in errors))
        for finding in findings:
            _log.warning("%s; %s; %s", finding.what, finding.cause, finding.fix)
        return [finding.what for finding in findings if finding.topic in _OF_TIME]

    def _gather(self, started: list[Rank]) -> list[Hello]:
        """Read the hello of every rank. Raises MachineError with the ranks that did not connect."""
        hellos: dict[int, Hello] = {}
        deadline = time.monotonic() + self._launcher.start_s
        ranks = self.topology.ranks
        while len(hellos) < ranks:
            for line, hello in self._callers():
                number = hello["rank"]
                process = RemoteProcess(hello, line, self._starter.fate)
                log = self.directory.rank_log(number)
                rank = Rank(number=number, process=process, line=line, log=log, host=hello["host"])
                process.rank = rank
                started.append(rank)
                if hello["ranks"] != ranks or number in hellos or not 0 <= number < ranks:
                    raise MachineError(self._wrong_count(hello))
                hellos[number] = hello
            if len(hellos) < ranks:
                self._give_up_if_over(hellos, deadline)
        return [hellos[number] for number in range(ranks)]

    def _callers(self) -> Iterator[tuple[socket.socket, Hello]]:
        """The connections that have sent a rank's hello with our token by now."""
        try:
            line, _ = self._listener.accept()
        except TimeoutError:
            return
        hello = read_line(line, HELLO_S)
        if hello is None or hello.get("token") != self._token:
            line.close()
            return
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setblocking(False)
        yield line, hello

    def _give_up_if_over(self, hellos: dict[int, Hello], deadline: float) -> None:
        missing = [rank for rank in range(self.topology.ranks) if rank not in hellos]
        gone = self._starter.ended()
        for rank in missing:
            code = self._starter.fate(rank)
            if gone is None and code is not None:
                how = signal_name(-code) if code < 0 else f"exit code {code}"
                words = self._starter.words()
                gone = f"rank {rank} ended ({how}) before it called" + (f": {words}" if words else "")
        if gone is None and time.monotonic() < deadline:
            return
        nodes = sorted({self.topology.node_of_rank[rank] for rank in missing})
        who = (
            f"rank{'s' * (len(missing) != 1)} {_some(missing)} of {self.topology.ranks} "
            f"(on node{'s' * (len(nodes) != 1)} {_some(nodes)})"
        )
        if gone is not None:
            raise MachineError(f"{who} did not start: {gone}")
        raise MachineError(
            f"{who} did not call within {self._launcher.start_s:g} s (launcher.start_s); "
            f"asked for {self.topology.ranks} ranks, {len(hellos)} came"
        )

    def _wrong_count(self, hello: Hello) -> str:
        shape = list(self.topology.ranks_of_nodes)
        if hello["ranks"] == self.topology.ranks:
            return f"rank {hello['rank']} came twice, or is none of 0 to {self.topology.ranks - 1}"
        return (
            f"{hello['ranks']} processes were started, the run asks for {self.topology.ranks} ranks: "
            f"cluster.nodes={len(shape)} cluster.ranks_per_node={shape} and the starter's own numbers of "
            "nodes and processes (--nodes, --ntasks-per-node; --nnodes, --nproc-per-node) must agree"
        )

    def _check_places(self, hellos: Sequence[Hello]) -> None:
        """Refuse ranks on other nodes than in the topology: every figure of traffic would be wrong."""
        nodes = [hello["node"] for hello in hellos]
        order = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
        placed = tuple(order[node] for node in nodes)
        # Virtual nodes: all ranks are on one machine, and the starter knows no nodes of its own.
        virtual = not self._grouped and len({(hello["boot"], hello["node"]) for hello in hellos}) == 1
        if placed == self.topology.node_of_rank or virtual:
            return
        by_host: dict[str, list[int]] = {}
        for hello in hellos:
            by_host.setdefault(hello["host"], []).append(hello["rank"])
        started = ", ".join(f"{host}: ranks {_some(ranks)}" for host, ranks in by_host.items())
        shape = list(self.topology.ranks_of_nodes)
        raise MachineError(
            f"ranks are placed otherwise than asked: cluster.ranks_per_node={shape}, node by node; "
            f"started {started} (a block distribution puts them in that order)"
        )

    def _meeting_host(self, hellos: Sequence[Hello]) -> str:
        """The address at which the other ranks reach rank 0."""
        if len({hello["host"] for hello in hellos}) == 1:  # also with several torchrun on one machine
            return "127.0.0.1"
        zero = hellos[0]
        if zero["interface"] is not None:
            return zero["address"]
        if zero["host"] == socket.gethostname():  # this process is on its node, at the same address
            ways = [hello["reached"] for hello in hellos if hello["host"] != zero["host"]]
        else:
            ways = [zero["address"]]
        for way in ways:
            if not is_loopback(way):
                return way
        raise MachineError(
            f"rank 0 on {zero['host']} is known as {ways[0]}, which no other node reaches; give its name "
            "an address of the network, or name the interface with launcher.interface=NAME"
        )


def publish(run_dir: Path, key: str, port: int, token: str) -> None:
    """Write where the supervisor listens: its host's name first, then its addresses."""
    known = [
        address
        for interface in interfaces().values()
        if interface["up"] and not interface["loopback"]
        for address in interface["addresses"]
        if ":" not in address
    ]
    hosts = [socket.gethostname(), *known, "127.0.0.1"]
    write_json(run_dir / ADDRESS, {"key": key, "hosts": hosts, "port": port, "token": token})
    (run_dir / ADDRESS).chmod(0o600)  # with the token a process can pose as a rank


def read_line(line: socket.socket, patience_s: float) -> dict[str, Any] | None:
    """One JSON object from the line, byte for byte no more; None if none comes in time."""
    line.settimeout(patience_s)
    data = b""
    try:
        while not data.endswith(b"\n"):
            piece = line.recv(1)
            if not piece or len(data) > 1 << 20:
                return None
            data += piece
        message = json.loads(data)
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def threads_of(hellos: Sequence[Hello], setting: int | str, workers: int = 0) -> list[int]:
    """Threads of each rank: the setting, or else its share of the cores that it was started on.

    A core is left to each of the rank's `workers`.
    """
    if isinstance(setting, int):
        return [setting] * len(hellos)
    threads = []
    for hello in hellos:
        mates = [mate for mate in hellos if mate["node"] == hello["node"]]
        cores = set(hello["cores"])
        sharing = sum(bool(cores & set(mate["cores"])) for mate in mates)
        threads.append(max(1, min(len(cores), hello["usable"]) // sharing - workers))
    return threads


def cores_of(hellos: Sequence[Hello], wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """Cores of each rank that no other has, of those that it was started on, machine by machine.

    Raises MachineError if they do not fit.
    """
    cores: dict[int, tuple[int, ...]] = {}
    rooms = [
        Room(cores=hello["cores"], usable=hello["usable"], wanted=want, host=hello["host"])
        for hello, want in zip(hellos, wanted, strict=True)
    ]
    for ranks in _ranks_of_machines(hellos):
        cores |= dict(zip(ranks, apart([rooms[rank] for rank in ranks]), strict=True))
    return [cores[rank] for rank in range(len(hellos))]


def timing_of(hellos: Sequence[Hello], threads: Sequence[int], workers: int = 0) -> list[str]:
    """Why timing is invalid: machines whose cores are fewer than their ranks' threads and `workers`."""
    reasons: list[str] = []
    for ranks in _ranks_of_machines(hellos):
        cores = {core for rank in ranks for core in hellos[rank]["cores"]}
        if sum(threads[rank] + workers for rank in ranks) > len(cores):
            reasons += timing_reasons(len(ranks), threads[ranks[0]], len(cores), workers)
    return list(dict.fromkeys(reasons))


def _ranks_of_machines(hellos: Sequence[Hello]) -> list[list[int]]:
    """The ranks on each machine: two nodes may be one machine's."""
    machines: dict[str, list[int]] = {}
    for rank, hello in enumerate(hellos):
        machines.setdefault(hello["boot"], []).append(rank)
    return list(machines.values())


def _answer(line: socket.socket, message: dict[str, Any]) -> None:
    line.settimeout(1.0)
    with suppress(OSError):  # the supervisor sees that a rank has died meanwhile
        line.sendall(json.dumps(message).encode() + b"\n")
    line.setblocking(False)


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ... ({len(numbers)})"
