"""One full step that leaves no trace.

It builds what is built lazily (kernels, connections, optimizer state) before the clock starts. It is also
what makes a resumed run continue bit for bit: a fresh DistributedDataParallel reduces its first step in
another bucket layout than all later ones, at start and at resume alike; here that step is undone.
"""

import torch

from ..strategies.replica import Batch, Replica


def undone_step(replica: Replica, batch: Batch) -> None:
    """Forward, backward, gradient averaging and optimizer step on `batch`.

    Then all state is as before, bit for bit.
    """
    tensors = list(replica.model.state_dict().values())
    saved = [tensor.clone() for tensor in tensors]
    rng = replica.rng_state()
    replica.compute_gradients(batch)
    replica.optimizer.step()
    with torch.no_grad():
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)
    replica.optimizer.state.clear()
    replica.wished = False
    for parameter in replica.parameters.tensors:
        parameter.grad = None
    replica.load_rng_state(rng)
