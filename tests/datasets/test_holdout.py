"""What is held out of train where a split is missing: stratified, disjoint, the same whatever the order."""

import random
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.tree import File, hold_out, share_of_class


def held_out(files: list[File], share: float, *names: str, seed: int = 0) -> dict[str, list[File]]:
    """Drawn by their paths as they are."""
    return hold_out(files, share_of_class(share), seed=seed, names=names, drawn_as=lambda path: path)


def files_of(sizes: list[int]) -> list[File]:
    return [File(f"{label}/{n}.jpg", label, 1, 1) for label, size in enumerate(sizes) for n in range(size)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0.01, 0.49))
def test_each_class_gives_its_share_and_keeps_an_image(sizes: list[int], share: float) -> None:
    files = files_of(sizes)
    found = held_out(files, share, "validation", "test")
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
        return {file.path for file in held_out(listed, 0.2, "test", seed=seed)["test"]}

    assert drawn(files) == drawn(shuffled)
    assert drawn(files) != drawn(files, seed=1)
    assert drawn(files) != {f"{label}/{n}.jpg" for label in (0, 1) for n in range(6)}


def test_a_new_file_moves_few_others() -> None:
    files = files_of([100])
    before = held_out(files, 0.1, "test")["test"]
    after = held_out([*files, File("0/new.jpg", 0, 1, 1)], 0.1, "test")["test"]
    assert len({file.path for file in before} & {file.path for file in after}) >= 9


def test_nothing_missing_leaves_all_in_train() -> None:
    files = files_of([5])
    assert held_out(files, 0.1) == {"train": files}


def test_the_draw_is_frozen() -> None:
    """Other files here are other splits than those of published numbers."""
    found = held_out(files_of([20]), 0.2, "validation", "test")
    assert [file.path for file in found["validation"]] == [f"0/{n}.jpg" for n in (1, 2, 6, 18)]
    assert [file.path for file in found["test"]] == [f"0/{n}.jpg" for n in (7, 14, 16, 17)]


def test_what_files_are_drawn_as_decides_and_paths_tell_equals_apart() -> None:
    def drawn(prefix: str, listed: slice) -> set[str]:
        files = [File(f"{prefix}{n}.jpg", 0, 1, 1) for n in range(20)][listed]
        found = hold_out(
            files,
            share_of_class(0.2),
            seed=0,
            names=["test"],
            drawn_as=lambda path: path.removeprefix(prefix),
        )
        return {file.path.removeprefix(prefix) for file in found["test"]}

    assert drawn("", slice(None)) == drawn("deep/down/", slice(None))
    files = files_of([20])
    alike = [
        hold_out(listed, share_of_class(0.2), seed=0, names=["test"], drawn_as=lambda path: "one")["test"]
        for listed in (files, files[::-1])
    ]
    assert set(alike[0]) == set(alike[1])


def test_an_accent_is_one_letter_in_the_draw() -> None:
    names = [f"café/ö{n}.jpg" for n in range(30)]
    drawn = []
    for form in ("NFC", "NFD"):
        stored = [unicodedata.normalize(form, name) for name in names]
        found = held_out([File(name, 0, 1, 1) for name in stored], 0.1, "test")["test"]
        drawn.append([unicodedata.normalize("NFC", file.path) for file in found])
    assert drawn[0] == drawn[1]
