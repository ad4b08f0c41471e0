"""Every run is submitted once, as what was asked for, whoever submits it from where."""

import re
from collections import Counter
from typing import Any

from scenarios import Stories

from daso_bench.runner.records.json_lines import read_json


def test_a_sweep_is_one_throttled_array_and_two_commands_submit_it_once(stories: Stories):
    found: dict[str, Any] = stories["sweep twice"]
    assert [done.code for done in found["said"]] == [0, 0], found["said"]
    arrays = Counter(job["id"].partition("_")[0] for job in found["jobs"])
    assert list(arrays.values()) == [4], found["jobs"]
    assert 1 <= found["at_once"] <= 2, "launcher.array_parallelism=2"
    texts = sorted((done.text for done in found["said"]), key=lambda text: "in the queue already" in text)
    assert "4 runs" in texts[0]
    assert texts[1].count("in the queue already, as job") + texts[1].count("skipped: finished") == 4


def test_status_shows_all_runs_of_an_array_and_the_report_is_made_of_them(stories: Stories):
    found: dict[str, Any] = stories["sweep twice"]
    assert len(found["halfway"]) == len(found["after"]) == 4
    assert {row["state"] for row in found["halfway"]} >= {"finished", "queued"}
    assert {row["state"] for row in found["after"]} == {"finished"}
    assert {row["job"] for row in found["after"]} == {job["id"] for job in found["jobs"]}
    assert found["report"].code == 0, found["report"].text
    assert (found["study"] / "report" / "index.html").is_file()


def test_a_submission_that_died_of_sbatchs_yes_is_not_repeated(stories: Stories):
    found: dict[str, Any] = stories["killed submission"]
    assert found["first"].code == -9
    assert "submitted as" not in found["first"].text
    array = re.search(r"\d+", found["sbatch"])
    assert array is not None
    assert {job["id"] for job in found["jobs"]} == {f"{array[0]}_{index}" for index in range(2)}
    said = found["again"].text  # on a slow machine they have finished by then
    assert said.count(f"in the queue already, as job {array[0]}_") + said.count("finished already") == 2
    assert "submitted as" not in said
    assert found["again"].code == 0, found["again"].text
    for status in found["status"]:
        assert [attempt["status"] for attempt in status["attempts"]] == ["finished"]


def test_nothing_of_the_job_around_a_submission_leaks_into_the_new_job(stories: Stories):
    found: dict[str, Any] = stories["from inside"]
    assert found["code"] == 0, found["text"]
    outer, inner = found["outer"], found["inner"]
    assert outer["SLURM_NTASKS"] == "3"
    assert outer["SLURM_CPU_BIND"] == "quiet,mask_cpu:0x1"
    assert inner["SLURM_JOB_ID"] == found["jobs"][0]["id"] != outer["SLURM_JOB_ID"]
    assert inner["SLURM_NTASKS"] == inner["SLURM_NNODES"] == "2"
    assert inner["SLURM_NTASKS_PER_NODE"] == "1"
    assert inner["SLURM_JOB_NODELIST"] == "n[1,3]"
    assert not [
        name for name in inner if re.search(r"CPU_BIND|ARRAY|DISTRIBUTION|_STEP_|PROCID.*[1-9]", name)
    ]
    known = read_json(found["run"] / "environment.json")
    assert [rank["host"] for rank in known["ranks"]] == ["n1", "n3"]
    assert {tuple(rank["cores"]) for rank in known["ranks"]} == {tuple(known["ranks"][0]["cores"])}
