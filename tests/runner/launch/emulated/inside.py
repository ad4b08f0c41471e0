"""A program for the tests: FOLDER. Three ranks on two nodes, as the launcher bears them, tell what they can.

Prints one JSON object per rank.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import torch

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.emulated.namespaces import NodeEntry, enter
from daso_bench.runner.launch.emulated.nodes import Nodes
from daso_bench.runner.machine import shared_memory
from daso_bench.runner.machine.signals import FORKSERVER_VARIABLE, die_with_parent
from daso_bench.strategies.errors import MachineError

PORT, SIZE = 29500, 64
_PR_GET_PDEATHSIG = 2  # linux/prctl.h


def main(folder: Path) -> None:
    local.warm()
    context = multiprocessing.get_context("forkserver")
    with Nodes((2, 1), LinkConfig(rate_gbit=0.1)) as nodes:
        lines: list[Connection] = []
        processes = []
        for rank in range(3):
            ours, theirs = Pipe()
            process = context.Process(target=rank_main, args=(rank, nodes.entries, str(folder), theirs))
            with local.no_main():
                process.start()
            theirs.close()
            lines.append(cast(Connection, ours))  # on Windows it would be another one
            processes.append(process)
        offered = lines[0].recv()  # rank 0 listens now
        for line in lines[1:]:
            line.send(offered)
        told = [line.recv() for line in lines[1:]]  # rank 0 serves until both have been there
        told.insert(0, lines[0].recv())
        for line in lines:
            line.send("go")
        for process in processes:
            process.join(20)
    print(json.dumps(told))


def rank_main(rank: int, entries: list[NodeEntry], folder: str, line: Connection) -> None:
    die_with_parent(int(os.environ[FORKSERVER_VARIABLE]))
    tied = death_signal()
    node = rank // 2
    enter(entries[node])
    row: dict[str, object] = {"rank": rank, "uid": os.getuid(), "tied": [tied, death_signal()]}
    die_with_parent(os.getppid())
    row["tied_again"] = death_signal()
    row["interfaces"] = sorted(name for _, name in socket.if_nameindex())
    (Path(folder) / f"rank_{rank}").write_text("written")
    row["schedstat"] = [
        len(path.read_text().split()) for path in sorted(Path("/proc/self/task").glob("*/schedstat"))
    ]
    try:
        enter(entries[node])
    except MachineError as error:
        row["again"] = str(error)
    if rank == 0:
        descriptor, address = shared_memory.offer(SIZE, torch.float32)
        memory = shared_memory.as_tensor(descriptor, SIZE, torch.float32)
        with socket.create_server((entries[0].address, PORT)) as server:
            line.send(address)
            row["peers"] = sorted(served(server) for _ in range(2))
        row["memory"] = memory[3].item()
    else:
        offered = line.recv()
        if rank == 1:
            memory = shared_memory.as_tensor(shared_memory.take(offered), SIZE, torch.float32)
            memory[3] = 7.0
        with socket.create_connection((entries[0].address, PORT), timeout=20) as to_first:
            to_first.recv(1)
    line.send(row)
    line.recv()


def served(server: socket.socket) -> str:
    connection, (peer, _) = server.accept()
    connection.close()
    return peer


def death_signal() -> str:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return signal.Signals(number.value).name if number.value else "none"


if __name__ == "__main__":
    # By its module's name, so that the forkserver's children find `rank_main` there.
    sys.path.insert(0, str(Path(__file__).parent))
    import inside

    inside.main(Path(sys.argv[1]))
