"""Seeds of named random streams. Does not import torch: readers of files run without it."""

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """Seed of the random stream called `names`: 63 bits of BLAKE2b, the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
