"""Inside a batch job: what an attempt's end means for its run, and when a job leaves a run alone."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from slurm_cases import a_run

from daso_bench.runner.launch.failures import Rank
from daso_bench.runner.launch.remote import RemoteProcess
from daso_bench.runner.launch.slurm import job as module
from daso_bench.runner.launch.slurm import queue, request
from daso_bench.runner.launch.slurm.job import Allocation, SlurmRanks
from daso_bench.runner.launch.slurm.queue import QueuedJob, SlurmError
from daso_bench.runner.records.json_lines import write_json
from daso_bench.runner.records.run_directory import SUPERVISOR_GONE, Outcome, RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError

STOPPED = Outcome(status="cancelled", reason="interrupted by SIGUSR2", exit_code=130)
FAILED = Outcome(status="failed", reason="rank 1: RuntimeError: boom", exit_code=1, details="Traceback")
DAY_MIN = 24 * 60


def told(state: str = "RUNNING", left_s: float | None = 1800.0, id: str = "7") -> QueuedJob:
    """What squeue says of the job."""
    return QueuedJob(id=id, state=state, time_left_s=left_s)


class Slurm:
    """Stands in for the controller: what it says of jobs, and what it is asked to do."""

    def __init__(self) -> None:
        self.jobs: dict[str, QueuedJob | None] = {"7": told()}
        self.requeued: list[str] = []
        self.refusal: SlurmError | None = None

    def requeue(self, id: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requeued.append(id)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(queue, "job_of", lambda id: made.jobs.get(id))
    monkeypatch.setattr(queue, "requeue", made.requeue)
    monkeypatch.setattr(queue, "node_state", lambda name: "down*")
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    return made


def ranks_of(folder: Path, *, id: str = "7", **keys: Any) -> SlurmRanks:
    run, config = a_run(folder / "results", **keys)
    allocation = Allocation(id=id, name="daso-bench-1", hosts=("n1", "n2"), restarts=0)
    ranks = SlurmRanks(run, config, allocation)
    run.begin_attempt(**ranks.about())
    return ranks


def concluded(ranks: SlurmRanks, outcome: Outcome, *signals: str) -> tuple[Outcome, dict[str, Any]]:
    """The outcome, and status.json after all that follows from it."""
    outcome = ranks.conclude(outcome, list(signals))
    ranks.directory.end_attempt(
        outcome.status, outcome.reason, run_status=outcome.run_status, attempt=outcome.attempt
    )
    ranks.recorded(outcome)
    return outcome, ranks.directory.status()


def started(host: str, *, lost: bool = False, signals: tuple[str, ...] = (), number: int = 0) -> Rank:
    process = RemoteProcess({"pid": 1, "rank": number}, cast(Any, None), lambda _: None)
    process.lost = lost
    return Rank(
        number=number, process=process, line=cast(Any, None), log=Path("x"), host=host, signals=list(signals)
    )


LIMIT = "time limit of {} min (launcher.timeout_min)"
REQUEUED, ASKED = "requeued by Slurm", "preempted, or asked"


@pytest.mark.parametrize(
    ("signal", "limit_min", "state", "left_s", "status", "attempt", "reason", "requeues"),
    [
        # A warning near the limit. Slurm looks at its warnings once a minute: one may come that much early.
        ("SIGUSR2", 1, "RUNNING", 15.0, "queued", "timed_out", LIMIT, 1),
        ("SIGUSR2", 10, "RUNNING", 179.0, "queued", "timed_out", LIMIT, 1),
        ("SIGUSR2", 3 * DAY_MIN, "RUNNING", 179.0, "queued", "timed_out", LIMIT, 1),
        # One with much time left is a preemption, also in a short job, where submitit counts a time limit.
        ("SIGUSR2", 5, "RUNNING", 299.0, "queued", "cancelled", ASKED, 1),
        ("SIGUSR2", 3 * DAY_MIN, "RUNNING", 3 * DAY_MIN * 60.0 - 60, "queued", "cancelled", ASKED, 1),
        # SIGTERM means what Slurm says of the job; one that Slurm has requeued is not requeued again.
        ("SIGTERM", 10, "PENDING", 600.0, "queued", "cancelled", REQUEUED, 0),
        ("SIGTERM", 10, "REQUEUED", 600.0, "queued", "cancelled", REQUEUED, 0),
        ("SIGTERM", 10, "COMPLETING", 600.0, "queued", "cancelled", REQUEUED, 0),
        ("SIGTERM", 10, "COMPLETING", 400.0, "cancelled", "cancelled", "by scancel", 0),
        ("SIGTERM", 10, "CANCELLED", 400.0, "cancelled", "cancelled", "by scancel", 0),
        ("SIGTERM", 10, "COMPLETING", 0.0, "queued", "timed_out", LIMIT, 1),
        ("SIGTERM", 10, "TIMEOUT", 0.0, "queued", "timed_out", "time limit", 1),
        ("SIGTERM", 10, "PREEMPTED", 400.0, "queued", "cancelled", "preempted", 1),
        ("SIGTERM", 10, "RUNNING", 400.0, "queued", "cancelled", f"{ASKED} to stop by SIGTERM", 1),
        ("SIGTERM", 10, "RUNNING", 0.0, "queued", "timed_out", LIMIT, 1),
        ("SIGTERM", 10, "RUNNING", math.inf, "queued", "cancelled", ASKED, 1),
        ("SIGTERM", 1, "RUNNING", 27.0, "queued", "cancelled", ASKED, 1),
        ("SIGTERM", 10, None, None, "queued", "cancelled", ASKED, 1),  # no answer from Slurm
    ],
)
def test_what_a_signal_means_for_the_run_and_its_job(
    slurm: Slurm,
    tmp_path: Path,
    signal: str,
    limit_min: int,
    state: str | None,
    left_s: float | None,
    status: str,
    attempt: str,
    reason: str,
    requeues: int,
) -> None:
    slurm.jobs["7"] = None if state is None else told(state, left_s)
    _, found = concluded(ranks_of(tmp_path, timeout_min=limit_min), STOPPED, signal)
    assert (found["status"], found["attempts"][0]["status"]) == (status, attempt)
    assert found["attempts"][0]["reason"].startswith(reason.format(limit_min))
    assert found["attempts"][0].get("requeued", False) == (requeues > 0)
    assert slurm.requeued == ["7"] * requeues


def test_a_warning_that_only_the_ranks_heard_counts_as_well(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm signals the tasks of a job's steps and not its batch step."""
    slurm.jobs["7"] = told(left_s=100.0)
    ranks = ranks_of(tmp_path)
    ranks._started = [started("n1"), started("n2", signals=("SIGUSR2",))]
    assert concluded(ranks, STOPPED)[1]["attempts"][0]["status"] == "timed_out"
    assert slurm.requeued == ["7"]


def test_a_job_out_of_requeues_is_timed_out_and_says_so(slurm: Slurm, tmp_path: Path) -> None:
    slurm.jobs["7"] = told(left_s=100.0)
    ranks = ranks_of(tmp_path, max_requeues=2)
    for _ in range(2):
        assert concluded(ranks, STOPPED, "SIGUSR2")[1]["status"] == "queued"
        ranks.directory.begin_attempt(**ranks.about())
    outcome, status = concluded(ranks, STOPPED, "SIGUSR2")
    assert status["status"] == status["attempts"][-1]["status"] == "timed_out"
    assert status["reason"] == (
        "time limit of 10 min (launcher.timeout_min), after 2 requeues (launcher.max_requeues)"
    )
    assert outcome.exit_code != 0
    assert slurm.requeued == ["7", "7"]


def test_a_requeue_that_slurm_refuses_leaves_the_run_where_it_stopped_with_its_words(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.jobs["7"] = told(left_s=100.0)
    slurm.refusal = SlurmError(["scontrol"], "Timed out")
    _, status = concluded(ranks_of(tmp_path), STOPPED, "SIGUSR2")
    assert status["status"] == "timed_out"
    assert status["reason"].startswith("time limit of 10 min")
    assert status["reason"].endswith("cannot be requeued: scontrol: Timed out")


def test_a_requeue_by_slurm_at_the_same_moment_is_no_failure(slurm: Slurm, tmp_path: Path) -> None:
    slurm.jobs["7"] = told(left_s=100.0)
    ranks = ranks_of(tmp_path)
    outcome = ranks.conclude(STOPPED, ["SIGUSR2"])
    ranks.directory.end_attempt("timed_out", "x", run_status=outcome.run_status)
    slurm.jobs["7"], slurm.refusal = told("PENDING"), SlurmError(["scontrol"], "no")
    ranks.recorded(outcome)
    assert ranks.directory.status()["status"] == "queued"


def test_a_rank_that_fails_stays_failed_and_is_not_requeued(slurm: Slurm, tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path)
    ranks._started = [started("n1"), started("n2")]
    outcome, status = concluded(ranks, FAILED)
    assert outcome is FAILED
    assert (status["status"], status["reason"]) == ("failed", "rank 1: RuntimeError: boom")
    assert slurm.requeued == []


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_result_is_a_result_whatever_signal_came_last(slurm: Slurm, tmp_path: Path, status: str) -> None:
    outcome = Outcome(status=status, reason=None, exit_code=0, summary={"final_accuracy": 0.5})
    assert concluded(ranks_of(tmp_path), outcome, "SIGUSR2", "SIGTERM")[1]["status"] == status
    assert slurm.requeued == []


@pytest.mark.parametrize("signals", [["SIGTERM"], ["SIGUSR2"], []])
def test_a_run_that_was_cancelled_by_name_does_not_come_back(
    slurm: Slurm, tmp_path: Path, signals: list[str]
) -> None:
    ranks = ranks_of(tmp_path)
    ranks.directory.cancel_file.touch()
    slurm.jobs["7"] = told("PENDING", 600.0)
    outcome, status = concluded(ranks, STOPPED if signals else FAILED, *signals)
    assert (status["status"], status["reason"]) == ("cancelled", "by daso-bench cancel")
    assert outcome.exit_code == 130
    assert slurm.requeued == []


@pytest.mark.parametrize(
    ("lost", "by_srun", "again"),
    [
        ((False, False, True, True), None, True),
        ((False, False, False, True), None, False),  # one rank died: that is its own affair
        ((True, True, True, True), None, False),  # all at once: the supervisor itself is cut off
        ((False, False, False, False), None, False),
        ((False, False, False, False), "n2", True),
    ],
)
def test_a_node_whose_ranks_all_fell_silent_is_a_lost_node(
    slurm: Slurm, tmp_path: Path, lost: tuple[bool, ...], by_srun: str | None, again: bool
) -> None:
    ranks = ranks_of(tmp_path)
    ranks._srun.node_failure = by_srun
    hosts = ("n1", "n1", "n2", "n2")
    ranks._started = [
        started(host, lost=gone, number=rank)
        for rank, (host, gone) in enumerate(zip(hosts, lost, strict=True))
    ]
    _, status = concluded(ranks, FAILED)
    assert status["status"] == ("queued" if again else "failed")
    assert slurm.requeued == (["7"] if again else [])
    if again:
        assert status["attempts"][0]["reason"] == (
            "node_fail: all ranks on n2 fell silent at once (Slurm's state: down*)"
        )


def test_the_attempt_knows_its_job_and_why_the_one_before_broke_off(slurm: Slurm, tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path)
    about = ranks.about()
    assert about["place"] == {"job": "7", "nodes": ["n1", "n2"]}
    assert about["job"] == {"id": "7", "name": "daso-bench-1"}
    assert ranks.about()["gone"] == "the job was requeued by Slurm (lost node, or by hand)"
    ranks.directory.update(attempts=[{"number": 1, "job": "6"}])
    assert ranks.about()["gone"] == SUPERVISOR_GONE  # the attempt before was another job's


@pytest.mark.parametrize(
    ("environ", "id", "restarts"),
    [
        ({}, "7", 0),
        ({"SLURM_RESTART_COUNT": "2"}, "7", 2),
        ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}, "5_3", 0),
    ],
)
def test_the_job_around_is_read_from_its_variables(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], id: str, restarts: int
) -> None:
    inside(monkeypatch, **environ)
    found = Allocation.around()
    assert (found.id, found.hosts, found.restarts) == (id, ("n1", "n2"), restarts)


def test_without_a_job_around_the_way_to_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match=r"launcher.submit=false: needs an allocation .*salloc"):
        Allocation.around()


def test_a_job_of_too_few_nodes_is_told_what_to_change(tmp_path: Path) -> None:
    run, config = a_run(tmp_path / "results")
    small = Allocation(id="9", name="", hosts=("n1",), restarts=0)
    with pytest.raises(ConfigError, match=r"cluster.nodes=2: job 9 has 1 nodes \(n1\); submit with"):
        module.run_here(run, config, small)


def inside(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    """The variables of job 7 on two nodes."""
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NAME": "daso-bench-1"}
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (given | environ).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[RunDirectory]:
    """Jobs run nothing; this is what they would have run."""
    found: list[RunDirectory] = []

    def run_here(directory: RunDirectory, *_: object, **__: object) -> Outcome:
        found.append(directory)
        return Outcome(status="finished", reason=None, exit_code=0)

    inside(monkeypatch)
    monkeypatch.setattr(module, "run_here", run_here)
    return found


def test_requeues_of_an_earlier_submission_are_not_counted(slurm: Slurm, tmp_path: Path) -> None:
    slurm.jobs["7"] = slurm.jobs["8"] = told(left_s=100.0)
    ranks = ranks_of(tmp_path, max_requeues=1)
    concluded(ranks, STOPPED, "SIGUSR2")
    ranks.directory.begin_attempt(**ranks.about())
    assert concluded(ranks, STOPPED, "SIGUSR2")[1]["status"] == "timed_out"
    ranks._allocation = replace(ranks._allocation, id="8")  # daso-bench resume
    ranks.directory.begin_attempt(**ranks.about())
    assert concluded(ranks, STOPPED, "SIGUSR2")[1]["status"] == "queued"


def test_what_a_job_does_with_its_run(
    tmp_path: Path, launched: list[RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, status in enumerate(("finished", "diverged", "cancelled")):
        over, _ = a_run(tmp_path / "results", seed=seed)
        over.update(status=status)
        if status == "cancelled":
            over.cancel_file.touch()
        assert module.run_alone(over.path) is None
        assert f"nothing to do ({status})" in capsys.readouterr().out
    assert launched == []
    run, _ = a_run(tmp_path / "results", seed=9)
    assert module.run_alone(run.path) is None
    assert [directory.path for directory in launched] == [run.path]


@pytest.mark.parametrize(
    ("outcome", "status", "failure"),
    [
        (FAILED, "failed", "failed: rank 1: RuntimeError: boom\nTraceback"),
        (STOPPED, "queued", None),  # it goes on later
    ],
)
def test_a_job_fails_with_its_run(
    tmp_path: Path,
    launched: list[RunDirectory],
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome,
    status: str,
    failure: str | None,
) -> None:
    run, _ = a_run(tmp_path / "results")
    run.update(status=status)
    monkeypatch.setattr(module, "run_here", lambda *_, **__: outcome)
    assert module.run_alone(run.path) == failure


def test_a_job_that_cannot_run_fails_and_its_run_says_why(
    tmp_path: Path, launched: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, _ = a_run(tmp_path / "results", seed=1)
    text = unreadable.config.read_text()
    unreadable.config.write_text(text.replace("max_requeues: 3", "max_requeues: 3\n  nosuch: 1"))
    with pytest.raises(ConfigError, match="nosuch"):
        module.run_alone(unreadable.path)
    assert unreadable.status()["status"] == "failed"
    changed, _ = a_run(tmp_path / "results")
    write_json(changed.path / request.CODE_FILE, request.code_state())
    changed.begin_attempt()  # one that was lost
    monkeypatch.setattr(request, "code_hash", lambda _: "0123456789abcdef")
    with pytest.raises(ConfigError, match=r"changed since the run was submitted: code .* -> 0123456789ab"):
        module.run_alone(changed.path)
    status = changed.status()
    assert (status["status"], len(status["attempts"])) == ("failed", 1)
    assert "0123456789ab" in status["reason"]
    monkeypatch.setattr(module, "APPEAR_S", 0.1)
    with pytest.raises(MachineError, match="not visible on this node; results_dir must be on"):
        module.run_alone(tmp_path / "nowhere")
    assert launched == []


@pytest.mark.parametrize(
    ("outcome", "job", "batch", "status"),
    [
        # The rank raised, then Slurm's warning came while the others were being ended.
        (replace(FAILED, raised=True), told(left_s=100.0), True, "failed"),
        # launcher.submit=false in salloc --time=2:00:00, timeout_min at its default: scancel.
        (replace(STOPPED, reason="SIGTERM"), told("COMPLETING", 5400.0), True, "cancelled"),
        (STOPPED, told(left_s=100.0), False, "timed_out"),  # a shell cannot begin again
    ],
    ids=["raised", "scancel", "shell"],
)
def test_what_is_not_requeued(
    slurm: Slurm, tmp_path: Path, outcome: Outcome, job: QueuedJob, batch: bool, status: str
) -> None:
    slurm.jobs["7"] = job
    signal = "SIGTERM" if outcome.reason == "SIGTERM" else "SIGUSR2"
    ranks = ranks_of(tmp_path, submit=False, timeout_min=60)
    ranks._allocation = replace(ranks._allocation, batch=batch)
    ranks._started = [started("n1", signals=(signal,)), started("n2")]
    assert concluded(ranks, outcome)[1]["status"] == status
    assert slurm.requeued == []
