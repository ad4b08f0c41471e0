"""Named random streams: each use of chance has its own generator, derived by name from the run's seed."""

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names` of `seed`; other names give unrelated streams."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
