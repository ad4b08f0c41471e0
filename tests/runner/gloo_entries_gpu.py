"""What the ranks of the tests of precision and compiling do; imported by the ranks themselves."""

import functools
from pathlib import Path
from typing import Any

import torch
from gloo_entries import batch, meet
from runs import dies_after
from torch import nn

from daso_bench.runner.communication import gpus
from daso_bench.runner.launch import rank as training
from daso_bench.runner.training import warm_up
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.topology import WORLD


def wide() -> nn.Module:
    """Some 2 MB: three buckets of at most 1 MiB."""
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (nn.Linear(400, 400), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 400), *layers, nn.Linear(400, 5))


def compiled_steps(
    run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any
) -> None:
    """A compiled model against a plain one: same steps, same names, buckets before backward's end."""
    # PyTorch's own rules for derivatives in the place of its code generator, which takes half a minute.
    nn.Module.compile = functools.partialmethod(nn.Module.compile, backend="aot_eager")  # pyright: ignore[reportAttributeAccessIssue]
    comm = meet([2], rank, port, listener)
    plain, ours = (TorchReplica(wide(), nn.CrossEntropyLoss(), comm) for _ in range(2))
    for replica in (plain, ours):
        replica.optimizer = torch.optim.SGD(replica.parameters.tensors, lr=0.1, momentum=0.9)
        replica.average_gradients_over(WORLD, bucket_mib=1)
    sizes = (6, 5)
    names = list(ours.model.state_dict())
    seconds = warm_up.compile_model(ours, [batch(rank, 0, ranks, size) for size in sizes], comm)
    assert seconds > 0
    warm_up.CompiledModel(comm).on_train_start()
    for step in range(6):
        piece = batch(rank, step, ranks, sizes[step % 2])
        for replica in (plain, ours):
            replica.compute_gradients(piece)
            replica.step()
        for mine, theirs in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6), step
    assert list(ours.model.state_dict()) == names
    # Cut at the ends of buckets: one graph alone would give all gradients at its end.
    graphs = torch._dynamo.utils.counters["aot_autograd"]["total"]
    try:
        ours.compute_gradients(batch(rank, 0, ranks, 4))
        raised = False
    except RuntimeError as error:
        raised = "recompile" in str(error)
    link.finish("finished", {"graphs": graphs, "raised": raised}, None)


def dies_after_9_steps(*args: Any) -> None:
    """A rank of a real run that breaks off; what it has saved by then stays."""
    training.Trainer = dies_after(9)
    training.run_rank(*args)


def on_one_gpu(*args: Any) -> None:
    """A rank of a real run that takes its CPU for a GPU that all have in common."""
    gpus.name_of = lambda device: "GPU-0"
    training.run_rank(*args)
