"""What forbids nodes, found by trying; and what is said of it."""

import os
import platform
import subprocess
import sys

import pytest

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch.emulated import ability, holder
from daso_bench.runner.launch.emulated.ability import SWITCHES, explain, has_netem, impossible, switches
from daso_bench.runner.launch.emulated.namespaces import NodeEntry, enter
from daso_bench.runner.launch.emulated.nodes import Nodes
from daso_bench.strategies.errors import MachineError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
REFUSED = {"error": "[Errno 1] unshare: Operation not permitted", "cause": "unshare"}
ASK = "from daso_bench.runner.launch.emulated.ability import impossible; print(impossible())"
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


def asked(*before: str, program: str = ASK) -> str:
    command = [*before, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_nodes_can_be_had_here_and_trying_leaves_no_process():
    children = f"/proc/self/task/{os.getpid()}/children"
    with open(children) as before_file:
        before = before_file.read()
    assert impossible() is None
    assert has_netem() in (True, False)
    with open(children) as after_file:
        assert after_file.read() == before


def test_the_sysctl_that_forbids_them_is_named_with_the_way_out():
    # The limit of a user namespace of the test's own.
    shell = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    said = asked("unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh")
    assert "user.max_user_namespaces is 0" in said
    assert "`sysctl -w user.max_user_namespaces=10000`" in said
    assert "launcher.network=modelled" in said


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the system call's number")
def test_a_container_that_forbids_them_is_named():
    number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
    said = asked(program=FORBID.format(number=number) + ASK)
    assert "Operation not permitted" in said
    assert "seccomp" in said
    assert "launcher.network=modelled" in said


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_is_named_if_it_forbids_and_only_then(switch: str):
    forbidding, allowing = SWITCHES[switch]
    assert f"{switch} is {forbidding}" in explain(REFUSED, {switch: forbidding})
    assert switch not in explain(REFUSED, {switch: allowing})
    assert "seccomp" in explain(REFUSED, {switch: allowing})
    # AppArmor lets `unshare` succeed and refuses what comes after it.
    late = {"error": "ip link add b0 type bridge: RTNETLINK answers: Operation not permitted", "cause": "ip"}
    assert f"{switch} is {forbidding}" in explain(late, {switch: forbidding})


def test_a_failure_that_is_no_refusal_blames_no_switch():
    said = explain({"error": "tc qdisc add: Error: no", "cause": "tc"}, {"user.max_user_namespaces": "0"})
    assert said == "emulated nodes: tc qdisc add: Error: no; launcher.network=modelled needs none of this"


def test_switches_of_this_kernel_are_numbers():
    assert all(value.isdecimal() for value in switches().values())
    assert "user.max_user_namespaces" in switches()


def test_a_missing_command_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(holder, "SEARCHED", "/nowhere")
    with pytest.raises(holder.Failed, match="no command ip and tc") as failed:
        holder.build([])
    said = explain({"error": str(failed.value), "cause": failed.value.cause}, {})
    assert "no command ip and tc on the PATH; install iproute2" in said


def test_elsewhere_than_on_linux_the_reason_is_the_system(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "this is darwin; launcher.network=modelled" in str(impossible())
    assert ability.has_netem() is False
    with pytest.raises(MachineError, match="this is darwin"), Nodes((1, 1), LinkConfig()):
        pass
    with pytest.raises(MachineError, match="this is darwin"):
        enter(NodeEntry("u", "n", "10.99.0.1", "e0", "f0"))
