"""Warm-up before the training clock starts: steps that are undone, and compilation of the model in them."""

from collections.abc import Iterable
from typing import Any

import torch

from ...strategies.communicator import Communicator
from ...strategies.errors import ConfigError, MachineError
from ...strategies.replica import Batch, Replica
from ...strategies.topology import WORLD
from ..communication.traffic import CountedCommunicator
from .batch_order import BatchOrder
from .callbacks import Callback

FIRST_BUCKET_MIB = 1  # PyTorch's


def undone_step(replica: Replica, batch: Batch, comm: Communicator) -> None:
    """Forward, backward, gradient averaging and optimizer step on `batch`; then restore all state.

    It builds what is built lazily (kernels, connections, optimizer state) before the clock starts. It also
    makes a resumed run continue bit for bit: a new DistributedDataParallel reduces its first step in another
    bucket layout than all later ones, at start and at resume; here that step is undone.

    Ranks of a node may share their parameters: no rank steps before all have saved them and ended backward,
    and none goes on before all have restored them.
    """
    with replica.untouched():
        replica.compute_gradients(batch)
        comm.barrier(WORLD)
        replica.step()
        comm.barrier(WORLD)
    comm.barrier(WORLD)


class CompiledModel(Callback):
    """Compiles the model before training, for each size of batch, and never in training time.

    `nn.Module.compile` changes only how a model is called: its parameters keep their names, so checkpoints of
    compiled and plain runs are alike. The model is called inside DDP's forward pass, where PyTorch cuts the
    graph at the ends of DDP's buckets: buckets are complete one after the other, and sums overlap with
    backward. Evaluations run the plain model.
    """

    def __init__(self, comm: CountedCommunicator) -> None:
        self._comm = comm
        self._seconds = 0.0

    def on_prepared(self, replica: Replica, batch_order: BatchOrder) -> None:
        assert replica.noise is not None, "the context sets it"
        batches = (Batch(*replica.noise(sizes[self._comm.rank]), sizes) for sizes in batch_order.extremes())
        self._seconds = compile_model(replica, batches, self._comm)

    def on_train_start(self) -> None:
        """Make it an error to run anything that is not compiled."""
        torch.compiler.set_stance("fail_on_recompile")

    def on_pause(self) -> None:
        """Run nothing compiled in a pause."""
        torch.compiler.set_stance("force_eager")

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        return {"compile_s": self._seconds}


def compile_model(replica: Replica, batches: Iterable[Batch], comm: CountedCommunicator) -> float:
    """Compile the replica's model for `batches` in steps that are undone; returns their seconds.

    Raises:
        MachineError: this machine cannot compile it.
        ConfigError: the strategy's buckets are too small to cut the graph by them.
    """
    bucket_mib = replica.averaging.bucket_mib
    if bucket_mib < FIRST_BUCKET_MIB:
        raise ConfigError(
            f"train.compile=true: buckets of {bucket_mib:g} MiB (strategy.bucket_mib) are smaller than DDP's "
            f"first, {FIRST_BUCKET_MIB} MiB, by which PyTorch cannot cut a graph; take {FIRST_BUCKET_MIB} or "
            "more"
        )
    began = comm.now()
    replica.model.compile(dynamic=False)
    try:
        for batch in batches:
            undone_step(replica, batch, comm)
    except Exception as error:
        # By name: importing these modules would take a second in runs that compile nothing.
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        first = str(error).strip().splitlines()[0]
        raise MachineError(
            f"train.compile=true: the model cannot be compiled on this machine ({first}); take "
            "train.compile=false, or see that a C++ compiler (CPU) or Triton (GPU) is there"
        ) from error
    return (comm.now() - began) / 1e9
