"""A model of a given size without layers: for virtual time, not for training."""

from dataclasses import dataclass

from torch import nn

from .spec import InputSpec, Model


@dataclass(frozen=True, kw_only=True)
class Sized(Model):
    """`parameters` numbers in `tensors` tensors of one size; `gflops` of a sample's forward pass.

    Raises ValueError for a number out of range.
    """

    parameters: int
    tensors: int = 100
    gflops: float = 1.0
    name: str = "sized"

    def __post_init__(self) -> None:
        if not 1 <= self.tensors <= self.parameters:
            raise ValueError(
                f"model.tensors={self.tensors}: must be between 1 and model.parameters={self.parameters}"
            )
        if not self.gflops > 0:
            raise ValueError(f"model.gflops={self.gflops}: must be > 0")

    def numels(self) -> list[int]:
        """The number of elements of each tensor."""
        size, rest = divmod(self.parameters, self.tensors)
        return [size + (place < rest) for place in range(self.tensors)]

    def build(self, spec: InputSpec) -> nn.Module:
        """Raises ValueError: there is nothing to train."""
        raise ValueError(f"model={self.name}: has sizes and no layers; it is for launcher.timing_only=true")
