"""`ddp` under another name: rank r gets piece (r + 1) mod R of each global batch. Whatever beats it is noise.

The union of the pieces is the same batch, so the model differs from `ddp`'s by the order of summation alone,
at no cost. With two ranks a + b = b + a: it is `ddp` bit for bit, and three ranks or more are needed.

Update rule (p: piece of the global batch):

    g = Σ_r n_p·g_p / Σ_r n_p   with p = (r + 1) mod R on rank r
    θ = optimizer(θ, g)

Bytes: those of `ddp` with the same keys.

Paper: none.

Ours differs: nothing to differ from. What a rank does with its own random numbers (dropout) it now does to
another piece.
"""

from .ddp import DDP


class Placebo(DDP):
    """DDP with the pieces of each global batch moved on by one rank."""

    piece_shift = 1
    caveats = ("It must come out as ddp: a difference is the noise of the measurement.",)

    def labels(self, target_step: int | None) -> list[str]:
        remarks = super().labels(target_step)
        if self.comm.topology.ranks < 3:
            remarks.append(f"placebo is ddp bit for bit on {self.comm.topology.ranks} rank(s): use 3 or more")
        return remarks
