"""Whole runs of `launcher=emulated`: what they train, what they record, what they refuse."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import code_of
from launched import PROGRAM, STARTS_S, emulated
from people import Person
from real_runs import finished, history, same_model
from runs import Awkward, config

from daso_bench.datasets.digits import Digits
from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.records.json_lines import read_json, read_records
from daso_bench.runner.records.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


@pytest.mark.parametrize(
    ("strategy", "keys", "ranks", "more"),
    [
        ("ddp", {}, [1, 1], {"model": Awkward()}),
        ("hsgd", {}, [2, 2], {}),  # weights and sums in a node's shared memory
        ("sgp", {}, [1, 1], {}),  # messages
    ],
)
def test_a_run_on_emulated_nodes_trains_what_it_trains_without_and_records_its_validity(
    tmp_path: Path, strategy: str, keys: dict[str, Any], ranks: list[int], more: dict[str, Any]
):
    settings = {"epochs": 2, "eval_every_samples": 48, **more}
    plain, _ = finished(config(strategy, keys=keys, ranks=ranks, results=tmp_path / "plain", **settings))
    cfg = emulated(strategy, keys=keys, ranks=ranks, results=tmp_path / "emulated", **settings)
    directory, summary = finished(cfg)
    assert len(history(directory)) >= 4
    assert history(directory) == history(plain)
    assert same_model(directory, plain)

    network = read_json(directory.environment)["network"]
    assert network["made_by"] == "kernel"
    assert sum(" tbf rate " in line for line in network["commands"]) == 4
    validity, status = summary["validity"], directory.status()
    assert status["timing"] == {key: validity[key] for key in ("valid", "reasons")}
    assert validity["network"] == "kernel"
    assert 0 < validity["floor_s"] < 1
    assert len(validity["real_step_s"]) == sum(ranks)
    assert validity["padded_step_s"] == pytest.approx([16 / sum(ranks) / 1600] * sum(ranks))
    assert [len(validity[key]) for key in ("run_queue_share", "overrun_share")] == [sum(ranks)] * 2
    assert validity["links"]
    assert all(link["achieved_s"] > 0 for link in validity["links"])
    assert {"kernel network", "emulated devices"} <= set(status["labels"])
    # The devices' time is in it: what computes in 5 ms of emulated time took no less.
    assert summary["parts_s"]["compute"] >= 0.9 * summary["steps"] * 16 / sum(ranks) / 1600


def test_an_ordinary_users_run_and_this_users_train_the_same_side_by_side(person: Person, tmp_path: Path):
    # Steps of 50 ms: the pauses of its checks alone are longer than the other's start.
    slow = {"samples_per_second": 160.0}
    cfg = emulated(dataset=Digits(), device=slow, max_steps=4, results=person.folder / "results")
    theirs = RunDirectory.create(cfg.tree, cfg.results_dir)
    for path in (cfg.results_dir, *cfg.results_dir.rglob("*")):
        os.chown(path, person.uid, -1)
    command = [*person.python, "-c", PROGRAM, "resume", str(theirs.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(theirs.environment, process)
    running: list[bool] = []

    def look(event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            running.append(process.poll() is None)

    mine, _ = finished(replace(cfg, results_dir=tmp_path), on_event=look)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert running == [True]
    assert read_json(theirs.environment)["network"]["made_by"] == "kernel"
    assert theirs.metrics.stat().st_uid == person.uid
    assert len(theirs.status()["summary"]["validity"]["run_queue_share"]) == 2
    assert len(history(theirs)) == 1
    assert history(theirs) == history(mine)
    assert same_model(theirs, mine)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + STARTS_S
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, path
        time.sleep(0.02)


def test_with_auto_the_ranks_make_links_that_the_kernel_cannot(tmp_path: Path):
    cfg = emulated(ranks=[2, 2], epochs=1, results=tmp_path, launcher={"network": "auto"})
    links = replace(cfg.cluster.links, intra=LinkConfig(rate_gbit=1.0))
    directory, _ = finished(replace(cfg, cluster=replace(cfg.cluster, links=links)))
    why = "cluster.links.intra: the kernel network shapes links between nodes alone"
    assert read_json(directory.environment)["network"] == {"made_by": "ranks", "instead_of_kernel": why}
    assert {"modelled network", f"no kernel network: {why}"} <= set(directory.status()["labels"])


def test_a_run_that_the_machine_cannot_emulate_is_refused_with_the_nearest_it_can(here: Path):
    words = ["launcher=emulated", "launcher.network=kernel", "cluster.device.samples_per_second=3200"]
    assert code_of(*words, "model=small_cnn", "train.max_steps=4", "launcher.on_invalid=refuse") == 3
    (path,) = (here / "results" / "runs").iterdir()
    directory = RunDirectory.open(path)
    status = directory.status()
    assert status["status"] == "failed"
    reason = status["reason"]
    assert "this machine cannot emulate the run" in reason
    assert "launcher.on_invalid=record" in reason
    assert 0 < float(reason.partition("take cluster.links.inter.rate_gbit=")[2].split(",")[0]) < 0.1
    assert not [row for row in read_records(directory.metrics).rows if row["kind"] != "start"]
    assert not list(directory.checkpoints.iterdir())
