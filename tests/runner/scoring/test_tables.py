"""The shipped script prints every table, the same ones each time."""

import pytest

from daso_bench.runner.scoring import tables


def test_the_script_prints_every_table_in_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--repetitions", "200", "--quick"]) == 0
    first = capsys.readouterr().out
    headings = [line.split(":")[0] for line in first.splitlines() if line.startswith("## ")]
    assert headings[:5] == ["## A", "## B", "## C", "## D", "## Verdicts"]
    assert first.startswith("200 studies per cell")
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert "| 5 % | 18 | 6 |" in first
    assert len(rows) == sum(2 + count for count in (6, 3, 3, 4, 6, 6, 3))
    assert tables.main(["--repetitions", "200", "--quick"]) == 0
    assert capsys.readouterr().out == first


def test_quick_never_simulates_more_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def note(repetitions: int, *_: object, **__: object) -> str:
        asked.append(repetitions)
        return ""

    for name in ("table_a", "table_c", "table_d", "table_verdicts", "table_further"):
        monkeypatch.setattr(tables, name, note)
    tables.main(["--quick"])
    tables.main([])
    assert set(asked[:5]) == {4_000}
    assert set(asked[5:]) == {20_000}


def test_no_repetitions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tables.main(["--repetitions", "0"])
    assert stop.value.code == 2
    assert "--repetitions=0: must be >= 1" in capsys.readouterr().err
