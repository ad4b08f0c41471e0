"""Ranks that another program starts: how they find their supervisor, and how a run ends without them."""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import runs
from process_entries import make
from real_runs import alive

from daso_bench.runner.config.launchers import TorchrunConfig
from daso_bench.runner.launch import remote, worker
from daso_bench.runner.launch.failures import Rank
from daso_bench.runner.launch.remote import ADDRESS, RemoteRanks, threads_of, timing_of
from daso_bench.runner.launch.supervisor import run_attempt
from daso_bench.runner.machine.rules import Finding
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.errors import MachineError

HERE = Path(__file__).parents[1]
LIMIT_S = 15.0  # of a run with a failure in it; the promise is 10 s, the imports come on top
KEY = "slurm-7-0-0"


class Tasks:
    """A starter as srun is: one process per rank, which learns from SLURM_* who it is."""

    def __init__(
        self, directory: RunDirectory, nodes: list[int], entry: str, *, left_out: int = -1, told: bool = True
    ) -> None:
        self.directory, self.nodes, self.entry = directory, nodes, entry
        self.left_out, self.told = left_out, told
        self.tasks: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        local: dict[int, int] = {}
        command = [sys.executable, "-m", "daso_bench.runner.launch.worker", str(self.directory.path)]
        command += ["--key", KEY, "--entry", f"process_entries:{self.entry}"]
        for rank, node in enumerate(self.nodes):
            variables = {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(len(self.nodes)),
                "SLURM_NODEID": str(node),
                "SLURM_LOCALID": str(local.get(node, 0)),
                "PYTHONPATH": str(HERE),
            }
            local[node] = local.get(node, 0) + 1
            if rank != self.left_out:
                environ = {**os.environ, **variables}
                self.tasks[rank] = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)

    def ended(self) -> str | None:
        over = all(task.poll() is not None for task in self.tasks.values())
        return "all tasks have ended" if self.tasks and over else None

    def fate(self, rank: int) -> int | None:
        return self.tasks[rank].poll() if self.told and rank in self.tasks else None

    def words(self) -> str:
        return ""

    def stop(self) -> None:
        for task in self.tasks.values():
            try:
                task.wait(5)
            except subprocess.TimeoutExpired:
                task.kill()
                task.wait()


def ranks_of(directory: RunDirectory, tasks: Tasks, shape: list[int], **settings: Any) -> RemoteRanks:
    launcher = TorchrunConfig(start_s=settings.pop("start_s", 60.0), threads_per_rank=1)
    config = dataclasses.replace(runs.config(ranks=shape), launcher=launcher)
    return RemoteRanks(directory, config, tasks, **{"key": KEY, "grouped": False} | settings)


def run(
    directory: RunDirectory, entry: str, shape: list[int], *, on_event: Any = None, told: bool = True
) -> tuple[Outcome, Tasks, list[dict[str, Any]]]:
    """Run to the end within the limit; no process may be left."""
    tasks = Tasks(directory, [0] * sum(shape), entry, told=told)
    events: list[dict[str, Any]] = []

    def listen(event: dict[str, Any]) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event, tasks)

    begin = time.monotonic()
    outcome = run_attempt(directory, ranks_of(directory, tasks, shape), stall_s=60, on_event=listen)
    assert time.monotonic() - begin < LIMIT_S
    assert not any(alive(task.pid) for task in tasks.tasks.values())
    return outcome, tasks, events


def test_ranks_that_others_start_find_each_other_and_finish(tmp_path: Path):
    directory = make(tmp_path)
    outcome, tasks, events = run(directory, "works", [2, 1])
    assert (outcome.status, outcome.exit_code) == ("finished", 0)
    assert [task.returncode for task in tasks.tasks.values()] == [0, 0, 0]
    seen = [json.loads((directory.path / f"seen_{rank}.json").read_text()) for rank in range(3)]
    assert [one["rank"] for one in seen] == [0, 1, 2]
    assert [one["listens"] for one in seen] == [True, False, False]
    assert len({one["port"] for one in seen}) == 1
    assert events[0]["hosts"] == [socket.gethostname()] * 3
    assert not (directory.path / ADDRESS).exists()
    assert directory.status()["status"] == "finished"


SIGKILL = "killed by SIGKILL; by hand, or by the kernel for want of memory"


@pytest.mark.parametrize(("told", "reason"), [(True, SIGKILL), (False, "for an unknown reason")])
def test_a_killed_rank_is_named_with_what_its_starter_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, reason: str
):
    monkeypatch.setattr(remote, "FATE_S", 0.3)
    killed: list[int] = []

    def kill(event: dict[str, Any], tasks: Tasks) -> None:
        if event["kind"] == "progress" and event["rank"] == 1 and not killed:
            killed.append(1)
            os.kill(tasks.tasks[1].pid, signal.SIGKILL)

    directory = make(tmp_path, steps=100)
    outcome, _, _ = run(directory, "works", [2], on_event=kill, told=told)
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert outcome.reason.startswith("rank 1: ")
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("nodes", "shape", "left_out", "settings", "reason"),
    [
        (
            *([0, 0, 1], [2, 1], 2, {"start_s": 6.0}),
            r"rank 2 of 3 \(on node 1\) did not call within 6 s .*2 came",
        ),
        ([0, 1, 0, 1], [2, 2], -1, {"grouped": True}, r"cluster\.ranks_per_node=\[2, 2\], node by node"),
    ],
    ids=["missing", "cyclic"],
)
def test_ranks_that_are_not_as_asked_end_the_start(
    tmp_path: Path, nodes: list[int], shape: list[int], left_out: int, settings: dict[str, Any], reason: str
):
    directory = make(tmp_path)
    tasks = Tasks(directory, nodes, "works", left_out=left_out)
    begin = time.monotonic()
    with pytest.raises(MachineError, match=reason):
        run_attempt(directory, ranks_of(directory, tasks, shape, **settings), stall_s=60)
    assert time.monotonic() - begin < LIMIT_S
    assert not any(alive(task.pid) for task in tasks.tasks.values())
    status = directory.status()
    assert status["status"] == "failed"
    assert re.search(reason, status["reason"])


def test_a_signal_to_the_ranks_stops_them_in_good_order_and_is_told(tmp_path: Path):
    """Meanwhile strangers call, who do not have the token."""
    directory = make(tmp_path)

    class Bothered(Tasks):
        def begin(self) -> None:
            address = json.loads((self.directory.path / ADDRESS).read_text())
            for words in (b'{"kind": "hello", "rank": 0, "token": "wrong"}\n', b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", address["port"])) as stranger:
                    stranger.sendall(words)
            super().begin()

    tasks = Bothered(directory, [0, 0], "stops_when_asked")
    ranks = ranks_of(directory, tasks, [2])
    all_ranks: list[Rank] = []
    start = ranks.start
    ranks.start = lambda started: (start(started), all_ranks.extend(started))[0]
    sent: list[int] = []

    def signal_all(event: dict[str, Any]) -> None:
        if event["kind"] == "progress" and not sent:
            sent.extend(task.pid for task in tasks.tasks.values())
            for pid in sent:
                os.kill(pid, signal.SIGUSR2)

    outcome = run_attempt(directory, ranks, stall_s=60, on_event=signal_all)
    assert outcome.status == "cancelled"
    assert [rank.signals for rank in all_ranks] == [["SIGUSR2"], ["SIGUSR2"]]


def test_an_address_of_an_earlier_attempt_is_not_taken(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as old:
        remote.publish(tmp_path, "slurm-6-0-0", old.getsockname()[1], "token")
        with pytest.raises(LookupError, match=r"of another attempt \(slurm-6-0-0, not slurm-7-0-0\)"):
            worker.find(tmp_path, KEY, patience_s=0.5)
        assert (tmp_path / ADDRESS).stat().st_mode & 0o77 == 0


def hello(rank: int, **fields: Any) -> dict[str, Any]:
    first = {"rank": rank, "node": rank // 2, "host": f"n{rank // 2 + 1}", "boot": "one", "usable": 8}
    return first | {"cores": list(range(8)), "reached": "10.0.0.1", "address": "10.0.0.9"} | fields


def test_the_address_at_which_ranks_meet():
    ranks = object.__new__(RemoteRanks)
    here = socket.gethostname()
    far = [hello(0, interface=None, host=here), hello(1, host=here), hello(2, reached="10.0.0.1")]
    assert ranks._meeting_host(far) == "10.0.0.1"  # as the other node reached us, who are beside rank 0
    assert ranks._meeting_host([hello(0, interface=None, address="10.0.0.7"), hello(2)]) == "10.0.0.7"
    assert ranks._meeting_host([hello(0), hello(1)]) == "127.0.0.1"
    two_agents = [hello(0, interface=None, host=here), hello(2, host=here)]  # two torchrun on one machine
    assert ranks._meeting_host(two_agents) == "127.0.0.1"
    chosen = [hello(0, interface="ib0", address="10.9.0.7"), hello(2)]
    assert ranks._meeting_host(chosen) == "10.9.0.7"
    loop = [hello(0, interface=None, address="127.0.1.1"), hello(2)]
    with pytest.raises(MachineError, match=r"known as 127\.0\.1\.1, which no other node reaches"):
        ranks._meeting_host(loop)


def test_threads_follow_from_the_cores_that_a_rank_has_for_itself():
    shared = [hello(rank) for rank in range(4)]
    assert threads_of(shared, "auto") == [4, 4, 4, 4]  # two ranks on each node, eight cores in common
    bound = [hello(rank, cores=[4 * (rank % 2) + core for core in range(4)]) for rank in range(4)]
    assert threads_of(bound, "auto") == [4, 4, 4, 4]
    assert threads_of([hello(0, usable=2), hello(1, usable=2)], "auto") == [1, 1]
    assert threads_of(shared, 3) == [3, 3, 3, 3]


def test_nodes_of_one_machine_share_its_cores():
    one = [hello(rank) for rank in range(4)]
    assert timing_of(one, [4] * 4) == ["4 ranks x 4 threads share 8 cores"]
    apart = [hello(rank, boot=f"b{rank // 2}") for rank in range(4)]
    assert timing_of(apart, [4] * 4) == []


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}
            | {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"},
            (3, 4, 1, 1, "slurm-9-0-0"),
        ),
        (
            {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_PORT": "29400"}
            | {"RANK": "5", "WORLD_SIZE": "6", "GROUP_RANK": "2", "LOCAL_RANK": "1", "SLURM_PROCID": "2"},
            (5, 6, 2, 1, "torchrun-x-29400-2"),
        ),
    ],
)
def test_the_environment_says_which_rank_a_process_is(environ: dict[str, str], place: tuple[Any, ...]):
    ranks, key = worker.place_of(environ)
    assert (ranks["rank"], ranks["ranks"], ranks["node"], ranks["local_rank"], key) == place


def test_a_process_that_nobody_started_as_a_rank_says_so():
    with pytest.raises(LookupError, match=r"neither torchrun .* nor srun"):
        worker.place_of({})


def test_ranks_that_are_told_to_take_a_cpu_are_not_asked_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = Finding("error", "devices", "2 ranks see 1 GPU", "they share it", "sbatch --gpus-per-node=2")
    slow = Finding("warning", "affinity", "2 ranks on 1 core", "they share it", "fewer")
    monkeypatch.setattr(remote, "cluster_findings", lambda *_, **__: [short, slow])
    directory = make(tmp_path)
    here = {"node": 0, "host": "h", "boot": "b", "facts": {}}
    hellos = [{"rank": rank, "local_rank": rank, **here} for rank in range(2)]
    ranks = ranks_of(directory, Tasks(directory, [0, 0], "works"), [2])
    ranks._on_cpus = True
    assert ranks._look(hellos, 1) == ["2 ranks on 1 core"]
    ranks._on_cpus = False
    with pytest.raises(MachineError, match="2 ranks see 1 GPU"):
        ranks._look(hellos, 1)
