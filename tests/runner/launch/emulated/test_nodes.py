"""Building nodes, what they are made of, and that nothing is left of them, whoever ends first."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from people import Person

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch.emulated import hold_nodes, holder
from daso_bench.runner.launch.emulated.ability import has_netem
from daso_bench.runner.launch.emulated.addresses import Batch
from daso_bench.runner.launch.emulated.nodes import Nodes
from daso_bench.strategies.errors import ConfigError, MachineError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
RATE = LinkConfig(rate_gbit=0.1)
GONE_S = 10.0


def in_node(nodes: Nodes, node: int, *command: str) -> str:
    entry = nodes.entries[node]
    entered = ["nsenter", "--preserve-credentials", f"--user={entry.user}", f"--net={entry.net}", *command]
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    return subprocess.run(entered, capture_output=True, text=True, check=True, env=environment).stdout


def test_each_node_has_its_addresses_large_frames_and_a_queue_with_its_rate():
    with Nodes((2, 1), RATE, (1.0, 0.5)) as nodes:
        assert [entry.address for entry in nodes.entries] == ["10.99.0.1", "10.99.0.2"]
        for node, rate in ((0, "101Mbit"), (1, "50Mbit")):
            links = {row["ifname"]: row for row in json.loads(in_node(nodes, node, "ip", "-json", "address"))}
            assert set(links) == {"lo", "e0", "f0"}
            for name in ("e0", "f0"):
                assert links[name]["mtu"] == 9000
                assert links[name]["operstate"] == "UP"
                (address,) = links[name]["addr_info"]  # no IPv6 one
                assert address["local"] == f"10.{99 if name == 'e0' else 98}.0.{node + 1}"
            assert "UP" in links["lo"]["flags"]
            queues = in_node(nodes, node, "tc", "qdisc", "show", "dev", "e0")
            assert "tbf" in queues
            assert rate in queues.replace("101106Kbit", "101Mbit").replace("50553Kbit", "50Mbit")
            assert "tbf" not in in_node(nodes, node, "tc", "qdisc", "show", "dev", "f0")
        assert "node 0: ip link set lo up" in nodes.commands
        assert sum(" tbf " in line for line in nodes.commands) == 4  # two ends of two nodes
        assert len(nodes.commands) < 60  # the many classes are told in one line


def test_the_connections_of_a_link_wait_in_turns_where_the_kernel_can():
    with Nodes((2, 2), RATE) as nodes:
        for node in range(2):
            shown = in_node(nodes, node, "tc", "-statistics", "class", "show", "dev", "e0")
            assert nodes.turns is (" htb " in shown)
            assert shown.count("class htb") == (64 if nodes.turns else 0)


def test_a_kernel_without_turns_is_told_in_the_record(monkeypatch: pytest.MonkeyPatch):
    real = holder._run

    def refuses(batch: Batch, program: str) -> None:
        if any(" htb " in line for line in batch.lines):
            raise holder.Failed("tc", "Specified qdisc kind is unknown.")
        real(batch, program)

    monkeypatch.setattr(holder, "_run", refuses)
    assert holder._has_turns("tc") is False


def test_without_a_rate_nothing_is_shaped():
    for rate in (None, float("inf")):
        with Nodes((1, 1), LinkConfig(rate_gbit=rate)) as nodes:
            assert not any("qdisc" in line for line in nodes.commands)


def test_the_holder_starts_without_torch_and_soon():
    took: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        with Nodes((1, 1), RATE) as nodes:
            took.append(time.monotonic() - began)
            assert "torch" not in Path(f"/proc/{nodes.holder_pid}/maps").read_text()
    assert min(took) < 0.5


def test_leaving_twice_and_entering_again_are_fine():
    nodes = Nodes((1, 1), RATE)
    with nodes:
        first = nodes.holder_pid
    nodes.__exit__(None, None, None)
    assert first is not None
    assert not Path(f"/proc/{first}").exists()
    with nodes:
        assert nodes.holder_pid != first


def test_a_command_that_fails_is_told_with_its_line_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake = tmp_path / "tc"
    fake.write_text(
        "#!/bin/sh\ncat >/dev/null\necho 'Error: no such luck.' >&2\necho 'Command failed -:1' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = children()
    with (
        pytest.raises(
            MachineError, match=r"tc qdisc add dev e0 .*: Error: no such luck\.; launcher\.network=modelled"
        ),
        Nodes((1, 1), RATE),
    ):
        pass
    assert children() == before


def test_a_holder_that_cannot_start_is_told_with_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'No module named nothing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(hold_nodes.sys, "executable", str(broken))
    with pytest.raises(MachineError, match="No module named nothing"), Nodes((1, 1), RATE):
        pass


def test_a_holder_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(hold_nodes.sys, "executable", str(silent))
    monkeypatch.setattr(hold_nodes, "ANSWER_S", 0.2)
    monkeypatch.setattr(hold_nodes, "ANSWER_S_PER_NODE", 0.0)
    before = children()
    with pytest.raises(MachineError, match=r"no answer within 0\.2 s"), Nodes((1, 1), RATE):
        pass
    assert children() == before


def test_more_nodes_than_a_bridge_has_ports_are_refused():
    with pytest.raises(ConfigError, match=r"cluster\.nodes=1024: .*1023 ports"):
        Nodes((1,) * 1024, RATE)


def test_a_latency_is_had_once_per_way_or_refused_with_both_ways_out():
    delayed = LinkConfig(rate_gbit=1.0, latency_us=20_000)
    if not has_netem():
        refusal = r"latency_us=20000: .*launcher\.network=modelled .*cluster\.links\.inter\.latency_us=0"
        with pytest.raises(MachineError, match=refusal), Nodes((1, 1), delayed):
            pass
        return
    with Nodes((1, 1), delayed) as nodes:
        program = (
            "import socket, time\n"
            "for _ in range(2):\n"  # the first one finds the neighbour
            "    began = time.monotonic()\n"
            f"    try: socket.create_connection(('{nodes.entries[1].address}', 9), timeout=5)\n"
            "    except ConnectionRefusedError: pass\n"
            "print(time.monotonic() - began)\n"
        )
        round_trip_s = float(in_node(nodes, 0, sys.executable, "-c", program))
        assert 0.040 <= round_trip_s < 0.060


@contextmanager
def held(person: Person, mode: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any], str]]:
    """`holds.py` once its ranks are in their nodes: the process, what it said, and the mark of all of it."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        person.command("holds.py", mode),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DASO_BENCH_TEST_MARK": mark},
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        alive = marked(mark)
        assert {said["holder"], *said["ranks"]} <= alive
        own = os.stat("/proc/self/ns/net").st_ino
        for pid, expected in zip(said["ranks"], said["namespaces"], strict=True):
            assert os.stat(f"/proc/{pid}/ns/net").st_ino == expected != own
        yield process, said, mark
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def marked(mark: str) -> set[int]:
    """The processes, zombies left out (their environment is gone), that were born of a test's program."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"DASO_BENCH_TEST_MARK={mark}".encode() in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def mounted_namespaces() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - nsfs " in line]


def named_namespaces() -> set[str]:
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def nothing_left(mark: str) -> None:
    """No process, so no namespace: these have no name, no mount, and no other process has them open."""
    until = time.monotonic() + GONE_S
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked(mark) == set()


@pytest.mark.parametrize("end", ["end", "raise", "supervisor killed", "holder killed"])
def test_nothing_is_left_behind_after(end: str, person: Person):
    before = links(), mounted_namespaces(), named_namespaces()
    with held(person, "raise" if end == "raise" else "end") as (process, said, mark):
        assert (links(), mounted_namespaces(), named_namespaces()) == before
        assert process.stdin is not None
        if end == "supervisor killed":
            os.kill(parent_of(said["holder"]), signal.SIGKILL)
        elif end == "holder killed":
            os.kill(said["holder"], signal.SIGKILL)
            wait_until_gone(said["holder"])
            assert set(said["ranks"]) <= marked(mark)  # they are told by the end of their work, not by this
        if end != "supervisor killed":
            process.stdin.write("go\n")
            process.stdin.flush()
        expected = {"end": 0, "raise": 1, "holder killed": 0}
        code = process.wait(20)
        assert code == expected[end] if end in expected else code != 0
        nothing_left(mark)
        for pid in (said["holder"], *said["ranks"]):
            wait_until_gone(pid)
    assert (links(), mounted_namespaces(), named_namespaces()) == before


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pid: int) -> None:
    """Gone, or a zombie that nobody has buried yet: that has no namespaces any more."""
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} lives")


def test_signals_that_are_the_supervisors_to_answer_leave_the_holder_alone():
    with Nodes((1, 1), RATE) as nodes:
        pid = nodes.holder_pid
        assert pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        time.sleep(0.2)
        assert stat.S_ISREG(os.stat(nodes.entries[0].net).st_mode)
