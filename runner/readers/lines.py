"""Lines from the ranks of a node to its first one, over which a feeder tells them what is ready.

The first rank listens on a socket: on Linux one without a file, so that nothing is left behind by a process
that is killed; elsewhere a file in a folder of its own. The others learn its name and a key over the control
channel.
"""

import multiprocessing
import secrets
import shutil
import sys
import tempfile
from multiprocessing.connection import Client, Connection, Listener
from typing import cast

import torch

from ...strategies.communicator import Communicator
from ...strategies.topology import NODE

_MESSAGE_BYTES, _KEY_BYTES = 256, 16


def open_alone() -> tuple[list[Connection], Connection]:
    """As `NodeLines.open`, of a rank that feeds itself."""
    ours, own = cast(tuple[Connection, Connection], multiprocessing.Pipe())
    return [ours], own


class NodeLines:
    """A rank's end of the lines of its node; all ranks of the node make it together."""

    def __init__(self, comm: Communicator) -> None:
        self._members = comm.topology.ranks_of_nodes[comm.node]
        self._place = comm.local_rank
        self._folder: str | None = None
        self._listener: Listener | None = None
        message = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
        if self._place == 0:
            key = secrets.token_bytes(_KEY_BYTES)
            address = self._free_address()
            self._listener = Listener(address, family="AF_UNIX", backlog=self._members, authkey=key)
            said = key + address.encode()
            message[: len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        if self._members > 1:
            comm.broadcast(message, 0, NODE, channel="control").wait()
        heard = bytes(message.tolist())
        # Such a socket's name begins with a zero byte; those at the end only fill the message up.
        self._key, self._address = heard[:_KEY_BYTES], heard[_KEY_BYTES:].rstrip(b"\0").decode()

    @property
    def first(self) -> bool:
        """Whether this is the rank that others come to."""
        return self._place == 0

    def open(self) -> tuple[list[Connection], Connection]:
        """A new line for each rank of the node: the first rank's ends (of others none), and one's own.

        All ranks of the node call it.
        """
        if self._listener is None:
            own = cast(Connection, Client(self._address, family="AF_UNIX", authkey=self._key))
            own.send(self._place)
            return [], own
        (ours,), own = open_alone()
        ends = {0: ours}
        for _ in range(self._members - 1):
            line = cast(Connection, self._listener.accept())
            ends[line.recv()] = line
        return [ends[place] for place in range(self._members)], own

    def close(self) -> None:
        """Nobody may come any more."""
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _free_address(self) -> str:
        if sys.platform == "linux":
            return f"\0daso-bench-{secrets.token_hex(16)}"
        self._folder = tempfile.mkdtemp(prefix="daso-bench-")
        return f"{self._folder}/reader"
