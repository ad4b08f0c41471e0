"""`daso-bench check` as a user meets it: a table, sentences, exit codes."""

import logging
from pathlib import Path

import pytest
from asking import code_of  # pyright: ignore[reportMissingImports] (another folder of tests)
from plugins import Averager

from daso_bench.runner.config.groups import entries
from daso_bench.runner.conformance import check_command, kit
from daso_bench.runner.conformance.check_command import asked, candidates
from daso_bench.runner.conformance.checks import Candidate, CheckResult, Failed

REAL_PROCESSES = kit.LAYERS[kit.PROCESSES]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder of strategies of one's own."""
    (tmp_path / "strategy").mkdir()
    for name, kind in (("mine", "Averager"), ("broken", "ForgetsTheEnd"), ("single", "Refuses")):
        text = f"# {kind}\n_target_: plugins.{kind}\nevery: 3\n"
        (tmp_path / "strategy" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks of the contract and no real processes: enough to see what the command makes of them."""

    some = {name: kit.CONTRACT_CHECKS[name] for name in ("drains", "stops anywhere")}
    layers = {kit.CONTRACT: some}
    monkeypatch.setattr(kit, "LAYERS", layers)
    monkeypatch.setattr(check_command, "LAYERS", layers)


def test_a_plug_in_is_checked_in_all_layers_with_real_processes(
    few: None, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(kit.LAYERS, kit.PROCESSES, REAL_PROCESSES)
    assert code_of("check", "strategy=mine", f"--config-dir={folder}", "--ranks", "1,1", "--jobs=1") == 0
    told = capsys.readouterr().out
    lines = [line.split() for line in told.splitlines()]
    assert any(line[:2] == ["real", "processes"] and "ok" in line for line in lines)
    assert "0 FAILED" in told


@pytest.mark.usefixtures("few")
def test_a_failure_names_step_and_rank_and_ends_with_1(folder: str, capsys: pytest.CaptureFixture[str]):
    code = code_of("check", "strategy=mine,broken", f"--config-dir={folder}", "--ranks", "1,1", "--jobs=1")
    told = capsys.readouterr().out
    assert code == 1
    assert "stops anywhere: Stopped after any step the run ends the same way" in told
    assert "  1,1: stopped after step 1, after finalize(): rank 1 differs from rank 0: scale[0] is " in told
    assert "mine: 2 ok, 0 refused, 0 FAILED" in told
    assert "broken: 1 ok, 0 refused, 1 FAILED" in told
    assert "FAILED: broken" in told


@pytest.mark.usefixtures("few")
def test_a_refusal_is_shown_once_and_is_no_failure(folder: str, capsys: pytest.CaptureFixture[str]):
    given = ["strategy=single", f"--config-dir={folder}"]
    assert code_of("check", *given, "--ranks", "2", "1,1", "--jobs=1") == 0
    told = capsys.readouterr().out
    assert told.count("needs one node") == 1
    assert "single: 2 ok, 2 refused, 0 FAILED" in told
    # In worker processes now.
    assert code_of("check", *given, "--ranks", "1,1", "--jobs=2") == 2, "nothing could be tried"
    assert "nothing could be tried" in capsys.readouterr().out


def test_without_a_name_all_built_in_strategies_are_meant(folder: str):
    built_in = list(entries("strategy"))
    assert asked([]) == (built_in, [])
    assert asked(["strategy.a=1"], Path(folder)) == (built_in, ["strategy.a=1"])
    assert asked(["strategy=all"], Path(folder))[0] == sorted([*built_in, "mine", "broken", "single"])
    assert asked(["strategy=daso,ddp", "strategy=daso"])[0] == ["daso", "ddp"]


def test_periods_are_short_unless_they_are_named():
    ((candidate, words),) = candidates(["strategy=local_sgd"])
    assert (candidate.builtin, candidate.config.sync_every, words) == (
        "local_sgd",
        4,
        ["strategy.sync_every=4"],
    )
    ((candidate, words),) = candidates(["strategy=local_sgd", "strategy.sync_every=5"])
    assert (candidate.config.sync_every, words) == (5, ["strategy.sync_every=5"])


def test_real_processes_are_not_started_for_what_hangs_in_virtual_time(monkeypatch: pytest.MonkeyPatch):
    def never(candidate: Candidate, ranks: tuple[int, ...]) -> None:
        raise AssertionError("started")

    def hangs(candidate: Candidate, ranks: tuple[int, ...]) -> None:
        raise Failed("no rank can go on")

    layers = {
        kit.CONTRACT: {"ends": hangs},
        kit.PROCESSES: {"as in virtual time": never},
    }
    monkeypatch.setattr(kit, "LAYERS", layers)
    told: list[CheckResult] = []
    candidate = Candidate("averager", Averager, Averager.Config())
    level = logging.getLogger("daso_bench").level
    kit.run([candidate], [(1, 1)], jobs=1, show=lambda _, found: told.extend(found))
    assert logging.getLogger("daso_bench").level == level
    assert told[1].text == "not tried: it does not end in virtual time"
    assert check_command.exit_code(told) == 1
