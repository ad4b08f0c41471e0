"""`launcher=simulated` as a user meets it: a run like others, in virtual time, the same bits each time."""

import json
from pathlib import Path
from typing import Any

import pytest
from asking import code_of

from daso_bench.runner.records.json_lines import read_json, read_records, write_json

SMALL = ["launcher=simulated", "train.epochs=2", "cluster.nodes=2", "cluster.ranks_per_node=2"]


pytestmark = pytest.mark.usefixtures("here")


def runs() -> list[Path]:
    return sorted(Path("results/runs").glob("*/"))


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    read = read_records(run / name)
    assert not read.damage
    return read.rows


def test_a_run_is_like_any_other_and_says_what_it_is(capsys: pytest.CaptureFixture[str]):
    assert code_of(*SMALL, "strategy=daso", "train.epochs=3") == 0
    (run,) = runs()
    status = read_json(run / "status.json")
    assert (status["status"], status["timing"]["valid"]) == ("finished", True)
    environment = read_json(run / "environment.json")
    assert (environment["world"], environment["backend"]) == ("simulated", "virtual time")
    assert [row["node"] for row in environment["ranks"]] == [0, 0, 1, 1]
    assert environment["computed_on"] == "CPU"
    assert {row["device"] for row in environment["ranks"]} == {"virtual"}
    assert rows(run)[0]["world"] == "simulated"
    assert len(list((run / "ranks").glob("*.jsonl"))) == 4
    assert "simulated" in capsys.readouterr().out


def test_a_lost_node_ends_the_run_and_a_resume_finishes_it(capfd: pytest.CaptureFixture[str]):
    more = ["strategy=ddp", "train.checkpoint_every_samples=300"]
    assert code_of(*SMALL, *more) == 0
    assert code_of(*SMALL, *more, "cluster.failures_s=[0.06]") == 1
    whole, broken = sorted(runs(), key=lambda run: read_json(run / "status.json")["status"] == "failed")
    assert "a node was lost after 0.06 s" in read_json(broken / "status.json")["reason"]
    assert "Traceback" not in capfd.readouterr().out, "it was asked for: the sentence says all"
    assert "Traceback" in (broken / "logs" / "rank_0.log").read_text()
    assert code_of("resume", str(broken)) == 0
    ends = [rows(run)[-1] for run in (whole, broken)]
    assert ends[0]["kind"] == ends[1]["kind"] == "summary"
    assert ends[0]["final_accuracy"] == ends[1]["final_accuracy"]
    assert ends[0]["train_s"] == pytest.approx(ends[1]["train_s"], rel=1e-9)


def test_how_ranks_are_computed_is_recorded_and_kept():
    more = ["cluster.ranks_per_node=4", "strategy=ddp", "train.checkpoint_every_samples=300"]
    assert code_of(*SMALL, *more, "cluster.failures_s=[0.06]") == 1
    (run,) = runs()
    first = read_json(run / "environment.json")
    choice = first["rank_compute"]
    assert set(choice["step_s"]) == {"stacked", "one_by_one"}
    assert "cuda" in choice["refused"]["graph"]
    write_json(run / "environment.json", {**first, "rank_compute": {**choice, "way": "graph"}})
    assert code_of("resume", str(run)) != 0
    assert (
        "launcher.rank_compute=graph: steps are captured on cuda" in read_json(run / "status.json")["reason"]
    )
    kept = {**choice, "way": "one_by_one"}
    write_json(run / "environment.json", {**first, "rank_compute": kept})
    assert code_of("resume", str(run)) == 0
    assert read_json(run / "environment_3.json")["rank_compute"] == kept


def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]):
    assert code_of(*SMALL, "launcher.device=cuda") == 3
    assert "launcher.device=cuda: torch sees no GPU" in capsys.readouterr().err


def test_timing_only_through_the_command_line():
    words = ["launcher.timing_only=true", "model=resnet18", "strategy=ddp", "dataset=imagenet_sized"]
    assert code_of(*SMALL, *words, "train.global_batch_size=160000") == 0
    (run,) = runs()
    summary = rows(run)[-1]
    assert summary["parameters"] == 11_689_512
    assert json.dumps(summary["labels"]).count("timing only") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["launcher=simulated", "cluster=laptop"], "virtual time needs a rate"),
        (["cluster=ethernet_10g"], "are for launcher=emulated"),
        (["launcher.timing_only=true"], "needs virtual time, launcher=simulated"),
        (["launcher=simulated", "launcher.timing_only=true", "train.target=0.9"], "learns nothing"),
        (["launcher=simulated", "launcher.rank_compute=fast"], "launcher.rank_compute=fast"),
        (["launcher=simulated", "launcher.device=gpu"], "launcher.device=gpu: "),
        (["launcher=simulated", "launcher.device=cuda", "launcher.timing_only=true"], "take auto"),
        (["launcher=emulated", "launcher.loader_workers=1"], "emulated ranks have none"),
        (["launcher=simulated", "model=billion"], "it is for launcher.timing_only=true"),
        (["launcher=simulated", "cluster.links.inter.rate=1"], "cluster.links.inter.rate: unknown key"),
    ],
)
def test_what_cannot_be_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    assert code_of(*words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not Path("results").exists()
