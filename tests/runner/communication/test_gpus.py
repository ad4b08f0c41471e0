"""What ranks hear of each other's GPUs when they meet, what is refused there, and what sharing one means."""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import config
from torch._C._distributed_c10d import HashStore

from daso_bench.runner.communication import gpus, torch_communicator
from daso_bench.runner.config import load
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.launch import local
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.outcome import Outcome
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import MachineError
from daso_bench.strategies.topology import Topology


def test_all_ranks_hear_the_same_names_in_the_order_of_ranks():
    store, names = HashStore(), ["a", "cpu", "a"]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(lambda rank: gpus.names_of_all(store, 3, rank, names[rank]), range(3)))
    assert heard == [names] * 3
    assert [gpus.most_on_one(told) for told in (names, ["a", "b"], ["cpu", "cpu"])] == [2, 1, 0]


def test_rank_0_stays_until_all_have_heard_for_the_store_goes_with_it():
    store = HashStore()
    store.set("gpu/1", "cpu")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gpus.names_of_all, store, 2, 0, "a")
        with pytest.raises(TimeoutError):
            first.result(timeout=0.3)
        store.set("gpu/1/heard", "")
        assert first.result(timeout=10) == ["a", "cpu"]


@pytest.mark.parametrize(
    ("names", "asked", "says"),
    [
        (["a", "cpu", "b", "cpu"], {}, "cluster.device.kind: ranks 1, 3 of 4 see no GPU, and the others do"),
        (["cpu", "a"], {"share": True}, "cluster.device.kind: rank 0 of 2 sees no GPU, and the others do"),
        (["a", "b", "a", "a"], {}, "launcher.share_gpus=false: 3 ranks would share a GPU"),
        (["a", "cpu", "a"], {"mixed": True}, "launcher.share_gpus=false: 2 ranks would share a GPU"),
        (["a", "b"], {}, None),
        (["cpu", "cpu"], {}, None),
        (["a", "cpu"], {"mixed": True}, None),
        (["a", "a"], {"share": True}, None),
    ],
)
def test_devices_that_nobody_asked_for_are_refused(
    names: list[str], asked: dict[str, bool], says: str | None
):
    wanted = {"mixed": False, "share": False, **asked}
    if says is None:
        gpus.check(names, **wanted)
        return
    with pytest.raises(MachineError) as error:
        gpus.check(names, **wanted)
    assert str(error.value).startswith(says)


def meet(
    monkeypatch: pytest.MonkeyPatch, devices: Sequence[str], uuids: Sequence[str], **asked: bool
) -> list[Any]:
    """What `connect` gives each rank, or raises, where GPUs have these names; no process group is made."""

    class Made:
        def __init__(self, *_: Any, mixed: bool, staged: bool | None) -> None:
            self.mixed, self.ranks_on_a_gpu, self.some_on_gpus = mixed, 0, False

    listener = socket.create_server(("127.0.0.1", 0))
    port, topology = listener.getsockname()[1], Topology.of([len(devices)])
    monkeypatch.setattr(torch_communicator, "TorchCommunicator", Made)
    monkeypatch.setattr(
        gpus, "name_of", lambda device: uuids[device.index] if device.type == "cuda" else "cpu"
    )

    def come(rank: int) -> Any:
        try:
            return torch_communicator.connect(
                topology,
                rank,
                host="127.0.0.1",
                port=port,
                listener_fd=listener.detach() if rank == 0 else None,
                device=torch.device(devices[rank]),
                timeout_s=20,
                mixed=asked.get("mixed", False),
                share_gpus=asked.get("share_gpus", False),
            )
        except MachineError as error:
            return str(error)

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(come, range(len(devices))))


def test_ranks_with_a_gpu_do_not_wait_for_what_ranks_without_one_never_say(monkeypatch: pytest.MonkeyPatch):
    told = meet(monkeypatch, ["cuda:0", "cpu"], ["GPU-a"])
    assert told[0] == told[1]
    assert told[0].startswith("cluster.device.kind: rank 1 of 2 sees no GPU")


def test_ranks_that_share_a_gpu_are_joined_by_gloo_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    made = meet(monkeypatch, ["cuda:0", "cuda:0"], ["GPU-a"], share_gpus=True)
    assert [(comm.mixed, comm.ranks_on_a_gpu) for comm in made] == [(True, 2)] * 2
    made = meet(monkeypatch, ["cuda:0", "cuda:1"], ["GPU-a", "GPU-b"])
    assert [(comm.mixed, comm.ranks_on_a_gpu) for comm in made] == [(False, 1)] * 2
    told = meet(monkeypatch, ["cuda:0", "cpu"], ["GPU-a"], mixed=True)
    assert [comm.some_on_gpus for comm in told] == [True, True], "also of a rank on the CPU"
    assert [comm.some_on_gpus for comm in meet(monkeypatch, ["cpu", "cpu"], [])] == [False, False]
    refused = meet(monkeypatch, ["cuda:0", "cuda:0"], ["GPU-a"])
    assert all("launcher.share_gpus=true" in told for told in refused)


def on_one_gpu(tmp_path: Path, *, share: bool) -> tuple[RunDirectory, Outcome]:
    """A run of two ranks that take their CPU for the same GPU."""
    cfg = config(ranks=[2], epochs=1, results=tmp_path)
    cfg = replace(cfg, launcher=LocalConfig(share_gpus=share))
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    entry = "gloo_entries_gpu:on_one_gpu"
    return directory, local.launch(directory, ranks=2, threads=1, stall_s=60, entry=entry)


def test_times_of_ranks_that_share_a_gpu_are_not_valid_and_say_why(tmp_path: Path):
    directory, outcome = on_one_gpu(tmp_path, share=True)
    assert outcome.status == "finished", outcome.details
    status = read_json(directory.path / "status.json")
    assert status["timing"]["valid"] is False
    assert "2 ranks share a GPU, joined by gloo" in status["timing"]["reasons"]
    assert "2 ranks share a GPU, joined by gloo" in status["labels"]
    assert read_json(directory.path / "environment.json")["backend"] == "gloo"


def test_sharing_a_gpu_is_refused_before_training_and_the_way_out_is_told(tmp_path: Path):
    _, outcome = on_one_gpu(tmp_path, share=False)
    assert (outcome.status, outcome.exit_code) == ("failed", 3)
    for way in ("cluster.ranks_per_node", "cluster.device.kind=cpu", "launcher.share_gpus=true"):
        assert way in (outcome.reason or "")
