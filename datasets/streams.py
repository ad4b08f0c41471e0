"""Seeds of named random streams; without torch, for readers of files run where torch is not loaded."""

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """Seed of the random stream called `names`: 63 bits of BLAKE2b, the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
