"""All-gather of vectors and of JSON values over the control channel; every rank gets all, in rank order."""

import json
from typing import Any

import torch
from torch import Tensor

from ...strategies.communicator import Communicator
from ...strategies.topology import WORLD


def vectors(comm: Communicator, vector: Tensor) -> Tensor:
    """All ranks' vectors [k] as [R, k]; k must be equal on all ranks."""
    ranks = comm.topology.ranks
    gathered = torch.empty(ranks * vector.numel(), dtype=vector.dtype)
    comm.all_gather(gathered, vector, WORLD, channel="control").wait()
    return gathered.view(ranks, vector.numel())


def values(comm: Communicator, value: Any) -> list[Any]:
    """All ranks' values, which JSON must be able to hold; their sizes may differ."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = vectors(comm, torch.tensor([len(text)])).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = text
    pieces = vectors(comm, padded).numpy()
    return [json.loads(piece[:length].tobytes()) for piece, length in zip(pieces, lengths, strict=True)]
