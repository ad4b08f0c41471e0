"""The command line as a user meets it: exit codes, clear sentences, quick answers, nothing left over."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import code_of

import daso_bench
from daso_bench.datasets.fashion_mnist import FashionMNIST
from daso_bench.runner.cli import main as cli
from daso_bench.runner.config import groups
from daso_bench.runner.config.load import load
from daso_bench.runner.launch import local
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.runner.studies import start
from daso_bench.strategies.errors import MachineError

COMMAND = [sys.executable, "-c", "from daso_bench.runner.cli.main import main; main()"]


class Machine:
    """Stands in for `local.launch`: every run ends as `fate` says by its run id's strategy and seed."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.settings: list[dict[str, Any]] = []
        self.fate: dict[str, Any] = {}

    def launch(self, directory: RunDirectory, **settings: Any) -> Outcome:
        strategy, *_, seed, _ = directory.run_id.split("-")
        self.launched.append(f"{strategy} {seed}")
        self.settings.append(settings)
        outcome = self.fate.get(self.launched[-1], "finished")
        if isinstance(outcome, Exception):
            raise outcome
        with directory.lock():
            directory.begin_attempt()
            summary = {"final_accuracy": 0.5, "train_s": 2.0} if outcome == "finished" else None
            reason = None if outcome == "finished" else f"rank 1 {outcome}"
            directory.end_attempt(outcome, reason, summary=summary, labels=["no asynchronous phase"])
        code = {"finished": 0, "cancelled": 130}.get(outcome, 1)
        return Outcome(
            status=outcome,
            reason=reason,
            exit_code=code,
            summary=summary or {},
            details="Traceback of rank 1",
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, here: Path) -> Machine:
    """Runs are launched on a fake; the user stands in an empty folder."""
    made = Machine()
    monkeypatch.setattr(local, "launch", made.launch)
    monkeypatch.setattr(local, "warm", lambda: None)
    monkeypatch.setattr(FashionMNIST, "prepare", lambda self, tell: None)  # no run reads its files
    return made


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], "daso-bench list [GROUP]"),
        (["--version"], f"daso-bench {daso_bench.__version__}"),
        (["list", "models"], "resnet18"),
        (["status", "results"], "queued"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_quick_answer_loads_nothing_heavy(arguments: list[str], says: str, tmp_path: Path) -> None:
    RunDirectory.create({"study": {"name": "s"}, "run": {"id": "r"}}, tmp_path / "results")
    script = (
        "import sys, atexit; from daso_bench.runner.cli.main import main\n"
        "heavy = ('torch', 'pandas', 'matplotlib', 'hydra')\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules]))\n"
        f"main({arguments!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert says in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_teaches_commands_choices_and_exit_codes() -> None:
    text = cli.help_text()
    for word in ("list", "status", "resume", "evaluate", "report", "--dry-run", "+study=NAME", "-m", "130"):
        assert word in text
    for group in groups.GROUPS:
        assert any(name in text for name in groups.entries(group)), group
    assert max(map(len, text.splitlines())) <= 120


def test_a_reader_who_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [*COMMAND, "claims"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    assert command.stdout is not None
    command.stdout.close()
    _, said = command.communicate()
    assert (command.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["strategy=ddpp"], "strategy=ddpp: unknown (did you mean 'ddp'?)"),
        (["+train.foo=1"], "train.foo: unknown key"),
        (["strategy=daso", "strategy.sync_every=0"], "strategy.sync_every=0: must be >= 1"),
        (
            ["statsu", "results"],
            "statsu: neither a command (list, status, resume, cancel, evaluate, report, tensorboard, check, ",
        ),
        (["--nosuch"], "unrecognized arguments: --nosuch"),
        (["--config-dir", "nowhere"], "--config-dir=nowhere: no such folder"),
        (["status", "nowhere"], "nowhere: no such folder"),
        (["resume", "."], "no run in it"),
        (["evaluate", "."], "is no run directory"),
        (["list", "modles"], "did you mean 'models'?"),
        (["-m", "train.epochs=0,-1"], "train.epochs=0: must be >= 1"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert code_of(*arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("daso-bench: ")
    assert "Traceback" not in shown.err
    assert machine.launched == []
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_launched_as_configured_and_summed_up(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run.tag=lr=0.1 #1", "run.name=Zürich", "launcher.threads_per_rank=2", "launcher.stall_s=7"]
    assert code_of(*words, "cluster.nodes=3", "dataset=fashion_mnist", "dataset.root=../imgs") == 0
    assert machine.launched == ["ddp s0"]
    (settings,) = machine.settings
    assert (settings["ranks"], settings["threads"], settings["stall_s"]) == (6, 2, 7.0)
    (path,) = (tmp_path / "results" / "runs").iterdir()
    config = load(path / "config.yaml")
    assert (config.run.tag, config.run.name) == ("lr=0.1 #1", "Zürich")
    assert config.dataset.folder() == str(tmp_path.parent / "imgs")
    shown = capsys.readouterr().out
    assert "50.00 %" in shown
    assert "no asynchronous phase" in shown
    assert f"run directory: {path}" in shown
    assert [entry.name for entry in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("words", [["hydra.job.chdir=true"], ["-m", "seed=0,1"]])
def test_relative_paths_mean_from_here_in_runs_and_sweeps(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert code_of(*words, "results_dir=../out", "dataset=fashion_mnist", "dataset.root=imgs") == 0
    for path in (tmp_path / "out" / "runs").glob("*/"):
        assert load(path / "config.yaml").dataset.folder() == str(tmp_path / "sub" / "imgs")
    assert list((tmp_path / "sub").iterdir()) == []


@pytest.mark.parametrize(
    ("fate", "code"), [("failed", 1), ("diverged", 1), ("timed_out", 1), ("cancelled", 130)]
)
def test_the_exit_code_of_a_run_tells_the_truth(
    machine: Machine, capsys: pytest.CaptureFixture[str], fate: str, code: int
) -> None:
    machine.fate = {"ddp s0": fate}
    assert code_of() == code
    shown = capsys.readouterr().out
    assert f"rank 1 {fate}" in shown
    assert "Traceback of rank 1" in shown
    assert ("daso-bench resume" in shown) == (fate != "diverged")


def test_a_machine_that_cannot_is_exit_code_3(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fate = {"ddp s0": MachineError("launcher.port=80: taken")}
    assert code_of("launcher.port=80") == 3
    assert capsys.readouterr().err == "daso-bench: launcher.port=80: taken\n"


def test_a_failed_run_is_resumed_and_a_finished_one_is_not(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fate = {"ddp s0": "failed"}
    assert code_of("cluster=one_node") == 1
    (path,) = (tmp_path / "results" / "runs").iterdir()
    assert code_of("cluster=one_node") == 2  # writing into an existing run needs the word resume
    assert f"daso-bench resume {path}" in capsys.readouterr().err
    machine.fate = {}
    assert code_of("resume", str(path)) == 0
    assert machine.settings[-1]["ranks"] == 2
    assert len(RunDirectory(path).status()["attempts"]) == 2
    assert code_of("resume", str(path)) == 2
    assert "finished already" in capsys.readouterr().err


def test_resume_of_a_folder_goes_on_with_all_that_is_not_finished(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fate = {"ddp s1": "failed", "ddp s2": "failed"}
    assert code_of("-m", "seed=0,1,2") == 1
    machine.fate = {"ddp s2": "failed"}
    machine.launched.clear()
    assert code_of("resume", "results") == 1
    assert sorted(machine.launched) == ["ddp s1", "ddp s2"]
    machine.fate = {}
    assert code_of("resume", "results") == 0
    capsys.readouterr()
    assert code_of("resume", "results") == 0
    assert capsys.readouterr().out == "nothing to do: 3 runs, all finished\n"


def test_a_sweep_with_a_bad_name_and_a_failure_runs_the_rest_and_repeats_only_what_is_missing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-m", "strategy=ddp,nosuch,daso", "seed=1,2")
    machine.fate = {"daso s1": "failed"}
    assert code_of(*words) == 1
    assert machine.launched == ["ddp s1", "daso s1", "daso s2", "ddp s2"]
    shown = capsys.readouterr().out
    end = shown[shown.index("did not end in a result") :]
    assert "3 of 6 did not end in a result" in shown
    assert end.count("strategy=nosuch: unknown; known: ") == 2
    assert "failed: daso-small_cnn-digits-s1-" in end
    assert "rank 1 failed" in end
    assert "results/runs/daso-small_cnn-digits-s1-" in end
    machine.fate = {}
    machine.launched.clear()
    assert code_of(*words) == 2
    assert machine.launched == ["daso s1"]
    shown = capsys.readouterr().out
    assert shown.count("skipped: finished already") == 3
    assert shown.count("goes on after an attempt that did not finish") == 1


def test_a_study_ends_with_its_report(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from daso_bench.runner.report import build

    asked: list[tuple[Path, Path, Path | None]] = []

    def report(directory: Path, output: Path, config_dir: Path | None = None) -> Path:
        asked.append((directory, output, config_dir))
        return output / "index.html"

    monkeypatch.setattr(build, "report", report)
    assert code_of("+study=quick", "strategy=ddp,daso", "seed=0,1") == 0
    assert machine.launched == ["ddp s0", "daso s0", "daso s1", "ddp s1"]
    folder = tmp_path / "results" / "quick"
    assert asked == [(folder, folder / "report", None)]
    assert str(folder / "report" / "index.html") in capsys.readouterr().out
    assert code_of("-m", "seed=0,1", "study.name=other") == 0
    assert len(asked) == 1
    assert f"daso-bench report {tmp_path / 'results' / 'other'}" in capsys.readouterr().out
    assert code_of("report", "results/quick", "--output", "out") == 0
    assert asked[1] == (Path("results/quick"), Path("out"), None)


def test_a_dry_run_shows_all_and_touches_nothing(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("--dry-run", "cluster.ranks_per_node=[3,1]", "run.tag=1e3") == 0
    shown = capsys.readouterr().out
    assert "4 ranks on 2 nodes (3 + 1)" in shown
    assert "would      run" in shown
    assert str(tmp_path / "results" / "runs" / "ddp-small_cnn-digits-s0-") in shown
    assert "global_batch_size: 64" in shown
    assert "tag: 1e3" in shown.replace("'", "")
    assert code_of("--dry-run", "-m", "strategy=ddp,nosuch", "seed=0,1") == 2
    shown = capsys.readouterr().out
    assert shown.count("would      run") == 2
    assert "[3/4] refused: strategy=nosuch: unknown" in shown
    assert machine.launched == []
    assert list(tmp_path.iterdir()) == []


def test_start_hands_events_to_the_display(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def launch(directory: RunDirectory, *, on_event: Any, **_: Any) -> Outcome:
        progress = {"step": 1, "steps": 9, "epoch": 0, "epochs": 3, "loss": 2.5}
        on_event({"kind": "progress", "rank": 0, "progress": progress, "call": ""})
        return Outcome(status="finished", reason=None, exit_code=0)

    monkeypatch.setattr(start.local, "launch", launch)
    assert code_of() == 0
    assert "  epoch 1/3  step 1/9  loss 2.5000\n" in capsys.readouterr().out
