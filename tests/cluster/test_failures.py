"""A run that fails says so at once: exit code, traceback, the numbers that do not fit."""

import re
from typing import Any

import pytest
from scenarios import Stories
from slurm_site import runs_in, status_of


@pytest.mark.parametrize("rank", [0, 1])
def test_a_model_that_raises_on_any_rank_fails_the_run_within_seconds(stories: Stories, rank: int):
    found: dict[str, Any] = stories["raising"]
    status = found["status"][rank]
    assert status["status"] == "failed"
    said = re.fullmatch(
        rf"rank {rank}: RuntimeError: this model does not like rank {rank}, it is ([\d.]+)", status["reason"]
    )
    assert said is not None, status["reason"]
    assert status["attempts"][0]["ended_unix"] - float(said[1]) < 30
    _, _, trace = found["done"].text.partition(f"\n{found['runs'][rank].name}: failed: {status['reason']}\n")
    assert trace.startswith("Traceback (most recent call last):")
    assert 'cluster_models.py", line' in trace[: trace.index("does not like")]


def test_the_command_fails_and_the_other_run_of_the_sweep_keeps_its_result(stories: Stories):
    found: dict[str, Any] = stories["raising"]
    assert found["done"].code == 1
    status = found["status"][-1]
    assert status["status"] == "finished"
    assert status["summary"]["final_accuracy"] > 0.3
    last = max(status["attempts"][-1]["ended_unix"] for status in found["status"].values())
    assert found["done_unix"] - last < 60
    by_job = {job["id"]: job["state"] for job in found["jobs"]}
    for rank, state in ((0, "FAILED"), (1, "FAILED"), (-1, "COMPLETED")):
        assert by_job[found["status"][rank]["job"]["id"]] == state


@pytest.mark.parametrize(
    ("few", "asked", "there"),
    [("nodes", r"cluster\.nodes=2", "1 node"), ("tasks", r"4 (ranks|tasks)", r"\b2 tasks")],
)
def test_an_allocation_of_another_shape_is_refused_with_both_numbers(
    stories: Stories, few: str, asked: str, there: str
):
    found: dict[str, Any] = stories["wrong shapes"][few]
    assert found["code"] in (2, 3)
    _, _, message = found["text"].partition("daso-bench: ")
    assert re.search(asked, message)
    assert re.search(there, message)
    for run in runs_in(found["run"]):
        for attempt in status_of(run)["attempts"]:
            assert attempt["ended_unix"] - attempt["started_unix"] < 10
