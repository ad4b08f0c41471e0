"""One table for packing tensors into a flat buffer and back.

Frozen parameters are left out by whoever makes the list, tied ones appear once (`named_parameters` drops
repeats), and zero-size, non-contiguous and mixed-dtype tensors are slots like any other. Packing and
unpacking walk the same table, so they cannot disagree.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """One tensor's place in the flat buffer: elements `[offset, offset + numel)`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    numel: int


class Layout:
    """The fixed order, offsets and types of a list of named tensors.

    The flat buffer is float64 if any tensor is, else float32: sums and merges of narrower types happen in
    float32, and every narrower value survives the round trip exactly.

    `device`: where the buffer of an empty list lies; other lists tell it by their tensors.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], device: torch.device) -> None:
        self.tensors: list[Tensor] = []
        self.slots: list[Slot] = []
        offset = 0
        for name, tensor in named:
            if not tensor.is_floating_point():
                raise ValueError(f"{name}: only floating-point tensors can be packed, got {tensor.dtype}")
            self.tensors.append(tensor)
            self.slots.append(Slot(name, tuple(tensor.shape), tensor.dtype, offset, tensor.numel()))
            offset += tensor.numel()
        self.numel = offset
        wide = any(slot.dtype == torch.float64 for slot in self.slots)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = self.tensors[0].device if self.tensors else device
        self._home: Tensor | None = None

    def named(self) -> list[tuple[str, Tensor]]:
        """The list that the table was made of."""
        return [(slot.name, tensor) for slot, tensor in zip(self.slots, self.tensors, strict=True)]

    def empty(self, extra: int = 0) -> Tensor:
        """A new flat buffer [numel + extra] on the tensors' device."""
        return torch.empty(self.numel + extra, dtype=self.dtype, device=self.device)

    def lay_out(self) -> None:
        """Move the tensors into one memory, so that packing and unpacking them is one copy.

        Nothing is done for tensors of several types or of other strides than usual.
        """
        same = all(tensor.dtype == self.dtype and tensor.is_contiguous() for tensor in self.tensors)
        if self.slots and same:
            home = self.pack()
            for tensor, view in zip(self.tensors, self.views(home), strict=True):
                tensor.data = view
            self._home = home

    def pack(self, out: Tensor | None = None, tensors: list[Tensor] | None = None) -> Tensor:
        """Copy the tensors (or `tensors` of the same shapes) into `out[:numel]`, a new buffer by default.

        Returns it.
        """
        out = self.empty() if out is None else out
        home = self.home_now() if tensors is None else None
        if home is not None:
            out[: self.numel].copy_(home)
        elif self.slots:
            with torch.no_grad():
                torch._foreach_copy_(self.views(out), self._like(tensors))  # pyright: ignore[reportPrivateImportUsage] (no public name)
        return out

    def unpack(self, flat: Tensor, tensors: list[Tensor] | None = None) -> None:
        """Copy `flat[:numel]` back into the tensors (or into `tensors` of the same shapes)."""
        home = self.home_now() if tensors is None else None
        if home is not None:
            home.copy_(flat[: self.numel])
        elif self.slots:
            with torch.no_grad():
                torch._foreach_copy_(self._like(tensors), self.views(flat))  # pyright: ignore[reportPrivateImportUsage] (as above)

    def home_now(self) -> Tensor | None:
        """The memory [numel] that the tensors are views of, one after the other, if `lay_out` has made it so
        and nobody has put one of them elsewhere since (`parameter.data = ...`)."""
        if self._home is not None:
            for tensor, slot in ((self.tensors[0], self.slots[0]), (self.tensors[-1], self.slots[-1])):
                if tensor.data_ptr() != self._home.data_ptr() + slot.offset * self._home.element_size():
                    self._home = None
                    break
        return self._home

    def digest(self) -> int:
        """A 62-bit hash of names, shapes, types and offsets, equal on ranks whose tables agree."""
        text = ";".join(f"{s.name}{s.shape}{s.dtype}{s.offset}" for s in self.slots)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2

    def _like(self, tensors: list[Tensor] | None) -> list[Tensor]:
        if tensors is None:
            return [tensor.detach() for tensor in self.tensors]
        assert [t.shape for t in tensors] == [t.shape for t in self.tensors], "tensors do not fit the table"
        return tensors

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors' places in `flat[:numel]`, in their shapes."""
        pieces = flat[: self.numel].split([slot.numel for slot in self.slots])
        return [
            piece if len(slot.shape) == 1 else piece.view(slot.shape)
            for piece, slot in zip(pieces, self.slots, strict=True)
        ]
