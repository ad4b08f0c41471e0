"""`check launcher=slurm`: its ranks, run for real on this machine; its request; its result on the screen."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from daso_bench.runner.config.load import run_config
from daso_bench.runner.conformance import real_processes
from daso_bench.runner.conformance.check_command import candidates
from daso_bench.runner.conformance.checks import Candidate
from daso_bench.runner.conformance.trial import problem
from daso_bench.runner.doctor import rank_checks, slurm_check
from daso_bench.runner.launch import local
from daso_bench.runner.launch.slurm.job import ENTRY_FILE, entry_of
from daso_bench.runner.records import display
from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.topology import Topology

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))  # ranks import the plug-ins by their name

from plugins import (  # pyright: ignore[reportMissingImports] (found by the line above)
    Averager,
    HangsOverGloo,
    OtherOverGloo,
    Refuses,
)

pytestmark = pytest.mark.timeout(300)  # several launches, each with a few small trainings
Result = dict[str, Any]
SLURM_RUN = ("launcher=slurm", "launcher.gpus_per_rank=0", "launcher.cpus_per_rank=1")


def plugin(kind: type) -> Candidate:
    return Candidate(kind.__name__, kind, kind.Config())


def look(
    folder: Path, ranks_of_nodes: tuple[int, ...], strategies: list[Candidate]
) -> tuple[RunDirectory, str]:
    """Run the ranks on this machine; their directory, and the outcome."""
    words = [f"cluster.nodes={len(ranks_of_nodes)}", f"cluster.ranks_per_node={list(ranks_of_nodes)}"]
    directory = RunDirectory.create(run_config([*words, f"results_dir={folder}"], cwd=folder).tree, folder)
    write_json(directory.path / ENTRY_FILE, slurm_check.entry(strategies))
    settings: dict[str, Any] = {"threads": 1, "port": None, "stall_s": 60.0, "entry": rank_checks.ENTRY}
    outcome = local.launch(directory, ranks=sum(ranks_of_nodes), **settings)
    return directory, f"{outcome.status}: {outcome.reason}"


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two nodes of two ranks.

    Of the strategies one is broken, one refuses two nodes, one has ranks at their own pace, one measures.
    """
    folder = tmp_path_factory.mktemp("four")
    built_in = [candidate for candidate, _ in candidates(["strategy=daso,lasgd,heterogeneous"])]
    directory, end = look(folder, (2, 2), [plugin(OtherOverGloo), plugin(Refuses), *built_in])
    assert end == "finished: None"
    return read_json(directory.path / rank_checks.RESULT)


@pytest.fixture
def cluster(of_four: Result) -> Result:
    """What four ranks found, as if each node were a host of its own, with cores enough and no faults."""
    result = copy.deepcopy(of_four)
    del result["contracts"][:2]
    for row in result["rows"]:
        row["host"], row["variables"] = f"n{row['node'] + 1}", {"SLURM_JOB_ID": "12"}
        row["cores"], row["usable_cores"] = [row["local_rank"]], 1
        row["route_interface"] = "e0"
    for pair in result["pairs"]:
        pair["a"], pair["b"] = "n1", "n2"
        pair["rate_gbit"], pair["latency_us"] = 10.0, 100.0
    return result


def topics(result: Result) -> list[str]:
    return [finding.topic for finding in slurm_check.findings(result)]


# ------------------------------------------------------------------ by real ranks


def test_the_result_has_rows_links_sums_contracts_and_versions(of_four: Result):
    result = of_four
    nodes = result["ranks_of_nodes"]
    assert result["complete"]
    assert result["backend"] == "gloo"
    assert torch.__version__.startswith(result["versions"]["torch"])
    assert [row["rank"] for row in result["rows"]] == list(range(sum(nodes)))
    assert [row["node"] for row in result["rows"]] == list(Topology.of(nodes).node_of_rank)
    assert all(row["torch"]["version"] == torch.__version__ for row in result["rows"])
    assert [pair["nodes"] for pair in result["pairs"]] == [[0, 1]]
    assert result["pairs"][0]["latency_us"] > 0
    assert result["pairs"][0]["rate_gbit"] == min(result["pairs"][0]["rate_gbit_each_way"]) > 0
    assert [one["bytes"] for one in result["collectives"]] == [64 * 1024, 1024**2, 16 * 1024**2]
    assert all(one["bus_gbit"] > 0 for one in result["collectives"])
    assert len(result["contracts"]) == 5


def test_the_contract_holds_over_the_real_backend_and_at_the_ranks_own_pace(of_four: Result):
    contracts = [
        tuple(entry[key] for key in ("strategy", "status", "text")) for entry in of_four["contracts"]
    ]
    assert contracts[2:4] == [("daso", "ok", None), ("lasgd", "ok", real_processes.OWN_PACE)]
    assert contracts[4] == ("heterogeneous", "ok", "with shares of [2.0, 1.0, 2.0, 1.0]")


def test_a_broken_strategy_is_an_error_and_the_others_are_still_tried(of_four: Result):
    status = {one["strategy"]: one["status"] for one in of_four["contracts"][:2]}
    assert status == {"OtherOverGloo": "FAILED", "Refuses": "refuses"}
    (finding,) = [one for one in slurm_check.findings(of_four) if one.topic == "contract"]
    assert finding.severity == "error"
    assert finding.what.startswith("strategy=OtherOverGloo: fp32 over gloo: rank 0, after step 8: scale[0]")


def test_what_was_found_before_a_rank_died_is_kept_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    directory, end = look(tmp_path, (1, 1), [plugin(Averager), plugin(HangsOverGloo)])
    assert "no memory left" in end
    result = read_json(directory.path / rank_checks.RESULT)
    assert not result["complete"]
    assert [one["status"] for one in result["contracts"]] == ["ok"]
    config = run_config([], cwd=tmp_path)
    code = slurm_check.conclude(display.make_console(), directory.path, config, directory.status())
    said = capsys.readouterr().out
    assert code == slurm_check.FAILED
    assert "Averager: ok" in said
    assert "the job failed: contract of HangsOverGloo: rank 1: RuntimeError: no memory left" in said


# ------------------------------------------------------------------ each in itself


def test_few_nodes_are_all_paired_and_of_many_the_neighbours():
    assert rank_checks.pairs_of(1) == []
    assert rank_checks.pairs_of(3) == [(0, 1), (0, 2), (1, 2)]
    assert len(rank_checks.pairs_of(16)) == 120
    assert rank_checks.pairs_of(40) == [*((node, node + 1) for node in range(39)), (0, 39)]


def test_on_another_device_the_model_starts_and_drops_as_in_virtual_time():
    def run(made: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return made(inputs)

    plain = problem(torch.float64)
    moved = real_processes.on_device(plain, torch.device("cpu"))
    models = []
    for one in (plain, moved):
        torch.manual_seed(1)
        models.append(one.model().train())
    assert isinstance(models[1].dropout, real_processes.HostDropout)
    inputs, _ = moved.data(0, 4)
    assert torch.equal(inputs, plain.data(0, 4)[0])
    assert torch.equal(run(models[0], inputs), run(models[1], inputs))
    assert torch.equal(run(models[0].eval(), inputs), run(models[1].eval(), inputs))


# ------------------------------------------------------------------ what is said


@pytest.mark.parametrize(
    ("part", "places", "change", "expected"),
    [
        ("rows", slice(0, 0), {}, []),
        ("rows", slice(2, None), {"variables": {"GLOO_SOCKET_IFNAME": "nosuch0"}}, ["network"]),
        ("pairs", slice(0, 1), {"rate_gbit": 0.01}, ["links"]),
    ],
    ids=["no fault", "network", "links"],
)
def test_faults_in_the_result_are_found(
    cluster: Result, part: str, places: slice, change: dict[str, Any], expected: list[str]
):
    for row in cluster[part][places]:
        row.update(change)
    assert topics(cluster) == expected


def test_ranks_with_fewer_threads_than_the_fullest_node_are_not_blamed(cluster: Result):
    for row, threads in zip(cluster["rows"], (1, 1, 2, 2), strict=True):
        row["threads"] = threads
    assert topics(cluster) == []


def test_tables_and_the_exit_code_tell_the_same(
    cluster: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = run_config([], cwd=tmp_path)
    console = display.make_console()
    write_json(tmp_path / rank_checks.RESULT, cluster)
    assert slurm_check.conclude(console, tmp_path, config, {"status": "finished"}) == slurm_check.OK
    said = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert "rank node host cores threads device" in rows
    assert any(row.startswith("3 1 n2 1 1 cpu") for row in rows)
    assert any(row.startswith("n1 - n2 100 µs 10 Gbit/s ") for row in rows)
    assert any(row.startswith("16.8 MB ") for row in rows)
    assert any(row.startswith("daso: ok (") for row in rows)
    assert "Nothing has to be mended." in rows
    cluster["contracts"][0].update(status="FAILED", text="fp32 over gloo: other numbers")
    write_json(tmp_path / rank_checks.RESULT, cluster)
    assert slurm_check.conclude(console, tmp_path, config, {"status": "finished"}) == slurm_check.FOUND
    said = capsys.readouterr().out
    assert "strategy=daso: fp32 over gloo: other numbers" in said
    assert "To be mended: 1." in said


def test_a_job_that_left_nothing_has_failed_and_its_own_log_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = run_config([], cwd=tmp_path)
    log = tmp_path / "check" / ".slurm" / "daso-bench-ab" / "7_0_log.out"
    log.parent.mkdir(parents=True)
    log.write_text("submitit INFO - Loading pickle\nModuleNotFoundError: No module named 'submitit'\n")
    status = {"status": "failed", "reason": "job 7 ended", "job": {"id": "7", "name": "daso-bench-ab"}}
    logs = tmp_path / "check" / "2x2" / "logs"
    logs.mkdir(parents=True)
    code = slurm_check.conclude(display.make_console(), logs.parent, config, status)
    said = capsys.readouterr().out
    assert code == slurm_check.FAILED
    assert "the job failed: job 7 ended" in said
    assert f"{log}:\nModuleNotFoundError: No module named 'submitit'" in said
    (logs / "srun.log").write_text("worker on n2: launcher.interface=e7: n2 has e0, lo\n")
    slurm_check.conclude(display.make_console(), logs.parent, config, status)
    assert "launcher.interface=e7: n2 has e0, lo" in capsys.readouterr().out


# ------------------------------------------------------------------ the request


def test_the_words_become_a_short_job_that_is_not_repeated(tmp_path: Path):
    words = ["cluster.nodes=40", "cluster.ranks_per_node=4", "results_dir=out"]
    config, strategies = slurm_check.request([*SLURM_RUN, *words], None, tmp_path)
    assert [candidate.name for candidate in strategies] == ["ddp", "daso"]
    assert config.cluster.ranks == 160  # more than there are samples in a run's batch
    assert (config.launcher.timeout_min, config.launcher.max_requeues) == (15, 0)  # pyright: ignore[reportAttributeAccessIssue] (Slurm's)
    words = ["launcher.timeout_min=5", "strategy=hsgd"]
    config, strategies = slurm_check.request([*SLURM_RUN, *words], None, tmp_path)
    assert config.launcher.timeout_min == 5  # pyright: ignore[reportAttributeAccessIssue] (Slurm's)
    assert [candidate.name for candidate in strategies] == ["hsgd"]
    directory = slurm_check.create_directory(config, strategies)
    assert directory.path.parent == tmp_path / "results" / "check"
    assert entry_of(directory) == rank_checks.ENTRY
    assert slurm_check.create_directory(config, strategies).path != directory.path
