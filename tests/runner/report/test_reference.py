"""scripts/reference.py: a tiny study stored, made again and compared; what differs or is missing is found."""

from pathlib import Path

import pytest
import reference
import yaml
from study_folder import ARMS, make_study

TREE = {
    "commands": ["daso-bench list strategies"],
    "report": "again",
    "files": ["runs.csv", "arms.csv", "speedups.csv"],
    "date": "2026-11-30",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study's new tables: runs of this process, the report by the command line."""
    scratch = tmp_path_factory.mktemp("made")
    make_study(scratch, {arm: ARMS[arm] for arm in ("ddp", "daso")}, seeds="0,1,2")
    return reference.make(reference.StoredStudy(**TREE), scratch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of results/reference without tables."""
    (tmp_path / reference.FILE).write_text(yaml.safe_dump(TREE))
    (tmp_path / reference.README).write_text(
        f"Tiny.\n\n{reference.BEGIN}\n{reference.END}\n\nIt says little.\n"
    )
    return tmp_path


def test_stored_tables_are_found_equal_and_changed_ones_are_not(made: Path, folder: Path) -> None:
    study = reference.read(folder)
    assert [sentence.split(":")[0] for sentence in reference.compare(study, folder, made)] == study.files
    reference.store(study, folder, made, commit="abcdef0123", seconds=61.4)
    assert reference.compare(study, folder, made) == []

    arms = folder / "arms.csv"
    rows = reference.table_of(arms)
    seconds = rows[0]["train_s_geometric_mean"]
    assert len(seconds.replace(".", "").lstrip("0")) == reference.DIGITS
    changed = f"{float(seconds) * 1.0001:#.6g}"
    arms.write_text(arms.read_text().replace(seconds, changed))
    (found,) = reference.compare(study, folder, made)
    assert f"train_s_geometric_mean: stored {changed}" in found
    arms.unlink()
    assert reference.compare(study, folder, made) == ["arms.csv: not stored"]


def test_a_file_from_outside_of_the_report_is_stored_and_compared_by_its_text(
    made: Path, folder: Path
) -> None:
    settings, stored = made.parent / "tune" / "settings.yaml", folder / "settings.yaml"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("lr: 0.1\n")
    tree = TREE | {"files": ["../tune/settings.yaml"]}
    (folder / reference.FILE).write_text(yaml.safe_dump(tree))
    study = reference.read(folder)
    reference.store(study, folder, made, commit="abcdef0123", seconds=1)
    assert stored.read_text() == "lr: 0.1\n"
    assert reference.compare(study, folder, made) == []
    stored.write_text("lr: 0.2\n")
    assert reference.compare(study, folder, made) == ["../tune/settings.yaml: differs"]


def test_nothing_is_stored_where_a_table_was_not_made(
    made: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "REFERENCE", folder.parent)
    monkeypatch.setattr(reference, "_commit", lambda: "abcdef0123")
    before = (folder / reference.FILE).read_text()
    for where, code in ((tmp_path_factory.mktemp("empty"), 1), (made, 0)):
        monkeypatch.setattr(reference, "make", lambda study, scratch, new=where: new)
        assert reference.main([folder.name, "write"]) == code
        assert ((folder / reference.FILE).read_text() == before) is (code == 1)


def test_numbers_of_the_readme_are_those_of_the_tables(made: Path, folder: Path) -> None:
    reference.store(reference.read(folder), folder, made, commit="abcdef0123", seconds=61.4)
    text = (folder / reference.README).read_text()
    assert text.startswith("Tiny.")
    assert text.endswith("It says little.\n")
    assert "Made at commit `abcdef0`" in text
    assert "in 1 min 1 s" in text
    (row,) = reference.table_of(folder / "speedups.csv")
    assert f"| daso | 3 | {float(row['fixed_work']):#.3g} [" in text
    reference.write_numbers(folder)  # once more: nothing is doubled
    assert (folder / reference.README).read_text() == text
    (folder / reference.README).write_text("no block")
    with pytest.raises(ValueError, match="no block of numbers"):
        reference.write_numbers(folder)


@pytest.mark.parametrize(
    ("stored", "new", "alike"),
    [
        ("1.20372", "1.203724583851923", True),
        ("1.20372", "1.20374", False),
        ("0.500000", "0.51", False),
        ("5", "6", False),
        ("5", "5.0001", False),
        ("", "0.0", False),
        ("NaN", "NaN", True),
        ("1.5", "NaN", False),
        ("daso", "ddp", False),
    ],
)
def test_numbers_are_equal_to_the_last_digit_stored(stored: str, new: str, alike: bool) -> None:
    assert reference.equal(stored, new) is alike


def test_rounded() -> None:
    cells = ["1.203724583851923", "0.5", "5", "mission", "", "NaN"]
    assert [reference.rounded(cell) for cell in cells] == ["1.20372", "0.500000", "5", "mission", "", "NaN"]


@pytest.mark.parametrize("folder_of", sorted(reference.REFERENCE.glob("*/")), ids=lambda folder: folder.name)
def test_every_reference_says_how_it_was_made(folder_of: Path) -> None:
    study = reference.read(folder_of)
    assert study.commands
    assert study.files
    assert study.date
    text = (folder_of / reference.README).read_text()
    assert f"{reference.BEGIN}\n\n{reference.numbers(folder_of)}\n{reference.END}" in text


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["nosuch"]) == 2
    assert "mission" in capsys.readouterr().err
