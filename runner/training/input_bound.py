"""The label of a run that spends much of its training time on data: on what, and which key would help."""

MUCH_DATA = 0.1  # of training time
INPUT_BOUND = f"input-bound: more than {MUCH_DATA:.0%} of training time for data"
MOSTLY = 0.5


def by_index(*, virtual: bool) -> str:
    """Of a run without a reader. virtual: what data cost is said, not measured."""
    return f"{INPUT_BOUND} ({'cluster.device' if virtual else 'launcher.loader_workers'})"


def by_reader(*, data_s: float, waited_s: float, work: str) -> str:
    """Of a run that reads a packed file, by what most of the time went to.

    data_s: mean over ranks; waited_s: of it, waiting for the reader; work: of the rank itself, in words.
    """
    waited = min(1.0, waited_s / data_s)
    if waited >= MOSTLY:
        return f"{INPUT_BOUND} ({waited:.0%} of it waiting for the reader: reader.prefetch_batches, the disk)"
    return (
        f"{INPUT_BOUND} ({1 - waited:.0%} of it {work} in the rank itself, which no key of reader shortens)"
    )
