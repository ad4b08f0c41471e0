"""One full step that leaves no trace.

It builds what is built lazily (kernels, connections, optimizer state) before the clock starts. It is also
what makes a resumed run continue bit for bit: a fresh DistributedDataParallel reduces its first step in
another bucket layout than all later ones, at start and at resume alike; here that step is undone.
"""

from ...strategies.communicator import Communicator
from ...strategies.replica import Batch, Replica
from ...strategies.topology import WORLD


def undone_step(replica: Replica, batch: Batch, comm: Communicator) -> None:
    """Forward, backward, gradient averaging and optimizer step on `batch`.

    Then all state is as before, bit for bit. Ranks of a node may share their parameters: nobody steps before
    all have saved them and gone backward, nobody goes on before all have put them back.
    """
    with replica.untouched():
        replica.compute_gradients(batch)
        comm.barrier(WORLD)
        replica.step()
        comm.barrier(WORLD)
    comm.barrier(WORLD)
