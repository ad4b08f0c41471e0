"""Runs of 2 nodes x 2 ranks go on after whatever ends a job, and learn the same to the last bit."""

import re

import learnt
import pytest
from scenarios import Stories, Story

from daso_bench.runner.records.json_lines import read_json

ENDS = {  # of each attempt but the last: its status and reason
    "time limit": [("timed_out", r"time limit of 2 min \(launcher\.timeout_min\)")],
    "stopped twice": [
        ("cancelled", r"preempted, or asked to stop by SIGUSR2, (59|60) min before the limit"),
        ("cancelled", r"requeued by Slurm \(SIGTERM\)"),
    ],
    "lost node": [("failed", r"node_fail: all ranks on n2 fell silent at once.*")],
}


def test_a_run_of_two_nodes_finishes_and_its_record_says_where_it_was(stories: Stories):
    story: Story = stories["unbroken"]
    assert story.seen["done"].code == 0, story.seen["done"].text
    assert len(story.attempts) == 1
    known = read_json(story.run / "environment.json")
    assert known["world"] == "slurm"
    assert [rank["host"] for rank in known["ranks"]] == ["n1", "n1", "n3", "n3"]
    assert known["nodes"] == ["n1", "n3"]
    assert known["job"] == story.status["job"]["id"] == story.row["job"]
    assert known["variables"]["GLOO_SOCKET_IFNAME"] == "e0", "the network between the nodes, not lo"


@pytest.mark.parametrize("name", ENDS)
def test_a_broken_run_finishes_with_the_history_of_an_unbroken_one(stories: Stories, name: str):
    # 2 nodes x 1 rank: compared with the arm of `cancelled` that had not begun.
    story = stories[name]
    whole = stories["cancelled"]["waiting"] if name == "time limit" else stories["unbroken"]
    assert story.status["status"] == "finished"
    assert len(story.attempts) > 1
    assert story.history == whole.history
    assert learnt.same_model(story.run, whole.run)
    assert {attempt["job"] for attempt in story.attempts} == {story.status["job"]["id"]}, "one job, requeued"


@pytest.mark.parametrize("name", ENDS)
def test_the_story_of_a_broken_run_names_the_cause_of_each_attempt(stories: Stories, name: str):
    story = stories[name]
    *broken, last = story.attempts
    assert (last["status"], last["reason"]) == ("finished", None)
    ends = [*ENDS[name], *[ENDS[name][-1]] * (len(broken) - len(ENDS[name]))]  # a limit may end several
    for attempt, (status, reason) in zip(broken, ends, strict=True):
        assert attempt["status"] == status
        assert re.fullmatch(reason, attempt["reason"])
    assert story.row["state"] == "finished"
    assert story.row["attempt"] == str(len(story.attempts))
    assert story.row["progress"] == "108/108"
    assert story.row["reason"] == ""


def test_attempts_begin_where_a_checkpoint_was(stories: Stories):
    for name in ENDS:
        rows = learnt.starts(stories[name].run)
        assert [row["attempt"] for row in rows] == list(range(1, len(rows) + 1)), name
        assert rows[0]["resumed_from"] is None
        assert all(row["resumed_from"] == f"step_{row['step']:010d}" for row in rows[1:]), name
        steps = [row["step"] for row in rows]
        assert steps == sorted(steps), name


def test_a_command_that_waits_tells_the_way_of_its_run_and_needs_no_sacct(stories: Stories):
    story = stories["stopped twice"]
    done = story.seen["done"]
    assert done.code == 0, done.text
    said = [line for line in done.text.splitlines() if line.startswith(f"  {story.run.name}: ")]
    words = [line.split(": ", 1)[1].split()[0] for line in said]
    ways = [word for word, before in zip(words, [None, *words], strict=False) if word != before]
    assert ways == [*["queued", "running"] * 3, "finished"]
    assert "(preempted, or asked to stop by SIGUSR2" in done.text


def test_a_killed_rank_fails_the_run_by_name_and_resume_finishes_it(stories: Stories):
    story = stories["killed rank"]
    first = story.seen["first"]
    assert first.code == 1
    assert "rank 1: killed by SIGKILL" in first.text
    assert f"daso-bench resume {story.run}" in first.text
    assert story.seen["broken"]["status"] == story.seen["broken_row"]["state"] == "failed"
    assert "rank 1: killed by SIGKILL" in story.seen["broken_row"]["reason"]
    assert story.seen["again"].code == 0, story.seen["again"].text
    assert [attempt["status"] for attempt in story.attempts] == ["failed", "finished"]
    whole = stories["cancelled"]["waiting"]
    assert story.history == whole.history
    assert learnt.same_model(story.run, whole.run)


def test_a_running_and_a_waiting_run_are_cancelled_and_resume_finishes_both(stories: Stories):
    both: dict[str, Story] = stories["cancelled"]
    running, waiting = both["running"], both["waiting"]
    before = {row["run"]: row for row in running.seen["before"]}
    assert before[running.run.name]["state"] == "running"
    assert before[waiting.run.name]["state"] == "queued"
    assert "JobArrayTaskLimit" in before[waiting.run.name]["reason"]
    assert running.seen["said"].code == 0
    text, job = running.seen["said"].text, before[running.run.name]["job"]
    assert f"{running.run.name}: job {job} is asked to end" in text
    assert f"{waiting.run.name}: taken out of the queue" in text
    assert {row["state"] for row in running.seen["after"]} == {"cancelled"}
    assert {row["reason"] for row in running.seen["after"]} == {"by daso-bench cancel"}
    assert running.seen["again"].code == 0
    assert running.reasons == ["by daso-bench cancel", None]
    assert waiting.reasons == [None], "it had not begun"
    assert running.history == waiting.history, "two arms of one configuration"
    assert learnt.same_model(running.run, waiting.run)
