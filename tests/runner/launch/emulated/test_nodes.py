"""Nodes: what they are made of, how ranks enter them, what forbids them, and that nothing is left of them."""

import json
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from links import KIB, MIB, achieved

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch.emulated import namespaces, nodes
from daso_bench.runner.launch.emulated.namespaces import NodeEntry, enter
from daso_bench.runner.launch.emulated.nodes import SWITCHES, Nodes, explain, has_netem, impossible, switches
from daso_bench.strategies.errors import ConfigError, MachineError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
Program = Callable[[str, str], Path]
RATE = LinkConfig(rate_gbit=0.1)
REFUSED = {"error": "[Errno 1] unshare: Operation not permitted", "cause": "unshare"}
ASK = "from daso_bench.runner.launch.emulated.nodes import impossible; print(impossible())"
# A user namespace of its own whose limit is that no more can be made.
WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    *('echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"', "sh"),
)
# Has the kernel refuse `unshare` to this process and its children, as a container's profile does.
FORBID = """
import ctypes, struct
number = {number}
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code), ctypes.addressof(packed))), 0, 0) == 0
"""


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


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
            classes = in_node(nodes, node, "tc", "class", "show", "dev", "e0")
            assert classes.count("class htb") == 64, "connections of a link have equal turns"
        assert "node 0: ip link set lo up" in nodes.commands
        assert sum(" tbf " in line for line in nodes.commands) == 4  # two ends of two nodes
        assert len(nodes.commands) < 60  # the many classes are told in one line


def test_a_command_that_fails_is_told_with_its_line_and_the_way_out(program: Program):
    program("tc", "cat >/dev/null; echo 'Error: no such luck.' >&2; echo 'Command failed -:1' >&2; exit 1")
    before = children()
    with (
        pytest.raises(
            MachineError, match=r"tc qdisc add dev e0 .*: Error: no such luck\.; launcher\.network=modelled"
        ),
        Nodes((1, 1), RATE),
    ):
        pass
    assert children() == before


def test_the_holder_is_light_heeds_no_signal_of_the_supervisor_and_can_be_made_again():
    nodes = Nodes((1, 1), LinkConfig(rate_gbit=float("inf")))
    with nodes:
        assert nodes._process is not None
        first = nodes._process.pid
        assert not any("qdisc" in line for line in nodes.commands), "without a rate nothing is shaped"
        assert "torch" not in Path(f"/proc/{first}/maps").read_text()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(first, number)
        time.sleep(0.2)
        assert stat.S_ISREG(os.stat(nodes.entries[0].net).st_mode)
    nodes.__exit__(None, None, None)
    assert not Path(f"/proc/{first}").exists()
    with nodes:
        assert nodes._process is not None
        assert nodes._process.pid != first


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'No module named nothing' >&2; exit 1", "No module named nothing"),
        ("exec sleep 60", r"no answer within 0\.5 s"),
    ],
)
def test_a_holder_that_does_not_start_or_answer_is_given_up(
    program: Program, monkeypatch: pytest.MonkeyPatch, script: str, message: str
):
    monkeypatch.setattr(nodes.sys, "executable", str(program("python", script)))
    monkeypatch.setattr(nodes, "ANSWER_S", 0.5)
    monkeypatch.setattr(nodes, "ANSWER_S_PER_NODE", 0.0)
    before = children()
    with pytest.raises(MachineError, match=message), Nodes((1, 1), RATE):
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


def test_a_node_that_is_gone_is_told_with_its_path():
    gone = NodeEntry("/proc/1/ns/nothing", "/proc/1/fd/nothing", "10.99.0.1")
    with pytest.raises(MachineError, match=r"/proc/1/ns/nothing: .*No such file.*ended"):
        enter(gone)


def asked(*before: str, program: str = ASK) -> str:
    command = [*before, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_nodes_can_be_had_here_and_trying_leaves_no_process():
    before = children()
    assert impossible() is None
    assert children() == before


def test_a_limit_of_no_namespaces_is_named_with_the_way_out():
    said = asked(*WITHOUT_NAMESPACES)
    assert "user.max_user_namespaces is 0; `sysctl -w user.max_user_namespaces=10000`" in said
    assert "launcher.network=modelled needs none of this" in said


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the system call's number")
def test_a_container_that_forbids_them_is_named():
    number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
    said = asked(program=FORBID.format(number=number) + ASK)
    assert "Operation not permitted" in said
    assert "seccomp" in said
    assert "launcher.network=modelled" in said


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_is_named_if_it_forbids_and_only_then(switch: str):
    assert all(value.isdecimal() for value in switches().values())
    forbidding, allowing = SWITCHES[switch]
    assert f"{switch} is {forbidding}" in explain(REFUSED, {switch: forbidding})
    assert switch not in explain(REFUSED, {switch: allowing})
    assert "seccomp" in explain(REFUSED, {switch: allowing})
    # AppArmor lets `unshare` succeed and refuses what comes after it.
    late = {"error": "ip link add b0 type bridge: RTNETLINK answers: Operation not permitted", "cause": "ip"}
    assert f"{switch} is {forbidding}" in explain(late, {switch: forbidding})


def test_a_missing_command_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(namespaces, "SEARCHED", "/nowhere")
    with pytest.raises(namespaces.StepFailed, match="no command ip and tc") as failed:
        namespaces.build([])
    said = explain({"error": str(failed.value), "cause": failed.value.cause}, {})
    assert "no command ip and tc on the PATH; install iproute2" in said


def test_elsewhere_than_on_linux_the_reason_is_the_system(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "which are Linux's; launcher.network=modelled" in str(impossible())
    assert not nodes.has_netem()
    with pytest.raises(MachineError, match="are Linux's"), Nodes((1, 1), LinkConfig()):
        pass
    with pytest.raises(MachineError, match="are Linux's"):
        enter(NodeEntry("u", "n", "10.99.0.1"))


def test_a_link_achieves_what_was_asked_after_a_pause_too():
    """`make bench` has strict limits."""
    links = achieved((1, 1), 0.05, "kernel", sizes=(256 * KIB, 2 * MIB), pauses_ms=(20,), repeats=3)
    short, long = (message.over_asked for message in links)
    assert short <= 1.15
    assert 0.85 <= long <= 1.15
