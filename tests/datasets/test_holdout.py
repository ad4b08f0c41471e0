"""What is held out of train where a split is missing: stratified, disjoint, the same whatever the order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.holdout import hold_out, share_of_class
from daso_bench.datasets.tree import File


def files_of(sizes: list[int]) -> list[File]:
    return [File(f"{label}/{n}.jpg", label, 1, 1) for label, size in enumerate(sizes) for n in range(size)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0.01, 0.49))
def test_each_class_gives_its_share_and_keeps_an_image(sizes: list[int], share: float) -> None:
    files = files_of(sizes)
    found = hold_out(files, share_of_class(share), 0, ["validation", "test"])
    assert sorted(file.path for split in found.values() for file in split) == sorted(f.path for f in files)
    for label, size in enumerate(sizes):
        counts = {name: sum(file.label == label for file in split) for name, split in found.items()}
        assert counts["train"] >= 1
        wanted = max(round(share * size), 1) if size >= 3 else 0
        assert counts["validation"] == counts["test"] == min(wanted, (size - 1) // 2)


def test_the_order_of_listing_does_not_matter_and_the_seed_does() -> None:
    files = files_of([30, 30])
    shuffled = random.Random(1).sample(files, len(files))

    def drawn(listed: list[File], seed: int = 0) -> set[str]:
        return {file.path for file in hold_out(listed, share_of_class(0.2), seed, ["test"])["test"]}

    assert drawn(files) == drawn(shuffled)
    assert drawn(files) != drawn(files, seed=1)
    assert drawn(files) != {f"{label}/{n}.jpg" for label in (0, 1) for n in range(6)}


def test_a_new_file_moves_few_others() -> None:
    files = files_of([100])
    before = hold_out(files, share_of_class(0.1), 0, ["test"])["test"]
    after = hold_out([*files, File("0/new.jpg", 0, 1, 1)], share_of_class(0.1), 0, ["test"])["test"]
    assert len({file.path for file in before} & {file.path for file in after}) >= 9


def test_nothing_missing_leaves_all_in_train() -> None:
    files = files_of([5])
    assert hold_out(files, share_of_class(0.1), 0, []) == {"train": files}
