"""A program for the tests: MODE, end or raise. Two nodes, a rank in each, and once a line comes: that end.

Prints a JSON line once all is there: holder, ranks (process ids), namespaces (what /proc says of the nodes').
"""

import json
import multiprocessing
import os
import sys
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.emulated.namespaces import NodeEntry, enter
from daso_bench.runner.launch.emulated.nodes import Nodes
from daso_bench.runner.machine.signals import FORKSERVER_VARIABLE, die_with_parent


def main(mode: str) -> None:
    local.warm(preload=())
    context = multiprocessing.get_context("forkserver")
    with ExitStack() as after, Nodes((1, 1), LinkConfig(rate_gbit=0.1)) as nodes:
        processes = []
        for entry in nodes.entries:
            ours, theirs = Pipe()
            process = context.Process(target=rank_main, args=(entry, theirs))
            with local.no_main():
                process.start()
            theirs.close()
            after.callback(process.join, 10)
            after.callback(ours.close)  # which ends the rank
            assert ours.recv() == "inside"
            processes.append(process)
        ranks = [process.pid for process in processes]
        namespaces = [os.stat(entry.net).st_ino for entry in nodes.entries]
        print(
            json.dumps({"holder": nodes.holder_pid, "ranks": ranks, "namespaces": namespaces}),
            flush=True,
        )
        sys.stdin.readline()  # the test has looked
        if mode == "raise":
            raise RuntimeError("in the body")


def rank_main(entry: NodeEntry, line: Connection) -> None:
    die_with_parent(int(os.environ[FORKSERVER_VARIABLE]))
    enter(entry)
    line.send("inside")
    try:
        line.recv()
    except EOFError:
        return


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import holds

    holds.main(sys.argv[1])
