"""A compiled model: compiled in the warm-up, for every size of batch that comes, and never in training time.

`nn.Module.compile` changes how a model is called and nothing else: its parameters keep their names, so
checkpoints of compiled and plain runs are alike. It is called inside of DDP's forward pass, where PyTorch
cuts the graph at the ends of DDP's buckets: gradients come bucket after bucket, and sums run beside backward.
Evaluations run the plain model.
"""

from collections.abc import Iterable

import torch

from ...strategies.errors import ConfigError, MachineError
from ...strategies.replica import Batch, Replica
from ..communication.traffic import CountedCommunicator
from .warm_up import undone_step

FIRST_BUCKET_MIB = 1  # PyTorch's


def warm_up(replica: Replica, batches: Iterable[Batch], comm: CountedCommunicator) -> float:
    """Compile the replica's model for `batches`, in steps that are undone; returns the seconds they took.

    Raises:
        MachineError: it cannot be compiled here.
        ConfigError: graphs cannot be cut by buckets as small as the strategy's.
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
        # By name: to load these modules takes a second, which runs that compile nothing are spared.
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        first = str(error).strip().splitlines()[0]
        raise MachineError(
            f"train.compile=true: the model cannot be compiled on this machine ({first}); take "
            "train.compile=false, or see that a C++ compiler (CPU) or Triton (GPU) is there"
        ) from error
    return (comm.now() - began) / 1e9


def training(on: bool) -> None:
    """Training begins: what is not compiled yet is an error; or it pauses: nothing compiled runs."""
    torch.compiler.set_stance("fail_on_recompile" if on else "force_eager")
