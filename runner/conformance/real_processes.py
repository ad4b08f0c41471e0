"""The check with real processes: the trial run over gloo must equal the one in virtual time, and resume."""

import dataclasses
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from ...strategies.base import AsynchronousStrategy
from ...strategies.topology import WORLD, Topology
from ..communication.gpus import connect
from ..communication.torch_communicator import TorchCommunicator
from ..config.typed import TARGET, locate_target, typed
from ..launch import local
from ..launch.rank_process import Link, RankTask
from ..records.run_directory import RunDirectory
from ..training.torch_replica import TorchReplica
from . import trial
from .checks import (
    Candidate,
    Failed,
    RanksOfNodes,
    require_agreement,
    require_equal,
    require_same_calls,
    require_same_walk,
)
from .driver import drive
from .given_workload import given_data
from .observer import LoggedTraffic, ScenarioObserver, observed_run
from .scenario import Call, History, Problem, Scenario

ENTRY = "daso_bench.runner.conformance.real_processes:walk_rank"
PRELOAD = (*local.PRELOAD, "daso_bench.runner.conformance.real_processes")
PRECISIONS = {"fp32": (torch.float32, 1e-6), "fp64": (torch.float64, 1e-12)}
CPU = torch.device("cpu")
VIRTUAL_RANKS = 128  # each takes 0.15 s
OWN_PACE = "at their own pace"
TOO_MANY = f"with more than {VIRTUAL_RANKS} ranks not held against virtual time: it ends, and ranks agree"
OTHER_SIZES = "with batches of other sizes than in virtual time: it ends, and ranks agree"
STALL_S = 60.0
Walks = dict[str, list[History]]
"""Histories of all ranks in both precisions, and of the resumed run."""
SAVE_AFTER = trial.STEPS_PER_EPOCH + 2  # inside an epoch


def as_in_virtual_time(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Over gloo the same calls give the same model as in virtual time; see `require_as_in_virtual_time`."""
    candidate, remark = without_measuring(candidate, ranks)
    candidate.strategy_class.check(candidate.config, trial.trial_scenario(candidate, ranks).plan)
    return require_as_in_virtual_time(candidate, ranks, _launch(candidate, ranks), "gloo") or remark


def require_as_in_virtual_time(
    candidate: Candidate, ranks: RanksOfNodes, walks: Walks, backend: str, fp32_tolerance: float = 0.0
) -> str | None:
    """Raise Failed unless real ranks walk as virtual ones do, to 1e-6 in fp32 and 1e-12 in fp64.

    A resumed run must be exact. `fp32_tolerance`: allowed in fp32, and after a resume, if it is more. Where
    ranks step at their own pace, where batches have other sizes in virtual time, and of many ranks, it only
    requires that they end, agree, and have made equally many calls; returns a remark on it, else None.
    """
    virtual: Walks = {}
    own_pace = issubclass(candidate.strategy_class, AsynchronousStrategy)
    remark = OWN_PACE if own_pace else TOO_MANY if sum(ranks) > VIRTUAL_RANKS else None
    if remark is None:
        virtual = {
            name: drive(scenario_of(candidate, ranks, dtype)) for name, (dtype, _) in PRECISIONS.items()
        }
        remark = OTHER_SIZES if walks["fp32"][0].sizes != virtual["fp32"][0].sizes else None
    if remark is not None:
        for name in PRECISIONS:
            _require_agreement_of(walks[name], f"{name} over {backend}")
        return remark
    for name, (_, tolerance) in PRECISIONS.items():
        allowed = max(tolerance, fp32_tolerance) if name == "fp32" else tolerance
        for history, simulated in zip(walks[name], virtual[name], strict=True):
            _require_as_virtual(history, simulated, f"{name} over {backend}", allowed)
    what = f"fp32 over {backend}, saved after step {SAVE_AFTER} and resumed"
    for resumed, unbroken in zip(walks["resumed"], walks["fp32"], strict=True):
        require_same_walk(resumed, unbroken, what, fp32_tolerance)
    return None


def _require_as_virtual(history: History, virtual: History, what: str, tolerance: float) -> None:
    """Raise Failed where a rank differs from virtual time: parameters, result, calls, stop_agreed()."""
    require_same_walk(history, virtual, what, tolerance)
    require_equal(history.given, virtual.given, f"{what}: rank {history.rank}", history.names, tolerance)
    require_same_calls(_strategy_calls(history), _strategy_calls(virtual), f"{what}: rank {history.rank}")
    if history.agreed != virtual.agreed:
        raise Failed(f"{what}: rank {history.rank}: stop_agreed() answers otherwise")


def without_measuring(candidate: Candidate, ranks: RanksOfNodes) -> tuple[Candidate, str | None]:
    """With fixed shares where `heterogeneous` would measure times, which never repeat; and a remark on it."""
    config = candidate.config
    if candidate.builtin != "heterogeneous" or config.balancing not in ("static", "dynamic"):
        return candidate, None
    shares = tuple(2.0 - rank % 2 for rank in range(sum(ranks)))
    config = dataclasses.replace(config, balancing="manual", shares=shares)
    return dataclasses.replace(candidate, config=config), f"with shares of {list(shares)}"


def scenario_of(
    candidate: Candidate, ranks: RanksOfNodes, dtype: torch.dtype, device: torch.device = CPU, **changes: Any
) -> Scenario:
    """The trial run in which the last rank requests a stop; model and samples are on `device`."""
    last = sum(ranks) - 1
    stop_request = lambda rank, step: rank == last and step >= trial.STEPS_PER_EPOCH + 1  # noqa: E731
    scenario = trial.trial_scenario(candidate, ranks, precision=dtype, stop_request=stop_request, **changes)
    if device.type == "cpu":
        return scenario
    return dataclasses.replace(scenario, problem=on_device(scenario.problem, device))


class HostDropout(nn.Dropout):
    """Dropout with masks drawn on the CPU: a GPU's random numbers differ from those of virtual time."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        kept = 1 - self.p
        mask = torch.empty(input.shape, dtype=input.dtype).bernoulli_(kept).div_(kept)
        return input * mask.to(input.device)


def on_device(problem: Problem, device: torch.device) -> Problem:
    """The same start, the same samples and the same dropout, on `device`."""

    def model() -> nn.Module:
        made = problem.model()  # drawn on the CPU
        for name, child in list(made.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(made, name, HostDropout(child.p))
        return made.to(device)

    @cache
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = problem.data(rank, step)
        return inputs.to(device), targets.to(device)

    return dataclasses.replace(problem, model=model, data=data)


def _require_agreement_of(histories: Sequence[History], what: str) -> None:
    """Raise Failed unless all ranks (in order) end with one model and have called equally often."""
    require_agreement([h.final for h in histories], f"{what}, after finalize()", histories[0].names)
    counts = [
        Counter((c.channel, c.verb, c.members, c.numbytes) for c in _strategy_calls(h)) for h in histories
    ]
    for history, count in zip(histories, counts, strict=True):
        for (channel, verb, members, numbytes), calls in count.items():
            for member in members:
                theirs = counts[member][channel, verb, members, numbytes]
                if verb != "send" and theirs != calls:
                    raise Failed(
                        f"{what}: rank {history.rank} calls {verb} on {channel} over ranks "
                        f"{list(members)} {calls} times, rank {member} {theirs} times"
                    )


def _strategy_calls(history: History) -> list[Call]:
    return [call for call in history.calls if call.during in trial.STRATEGY_CALLS]


# ------------------------------------------------------------------ in the process that checks


def _launch(candidate: Candidate, ranks: RanksOfNodes) -> Walks:
    """One run of real processes: fp32, fp64, and fp32 resumed."""
    with tempfile.TemporaryDirectory(prefix="daso-bench-check-") as folder:
        directory = RunDirectory.create(
            {
                "study": {"name": "check"},
                "run": {"id": candidate.name},
                "strategy": plain_of(candidate),
                "name": candidate.name,
                "ranks_of_nodes": list(ranks),
            },
            Path(folder),
        )
        outcome = local.launch(
            directory,
            ranks=sum(ranks),
            threads=1,
            port=None,
            stall_s=STALL_S,
            entry=ENTRY,
            preload=PRELOAD,
        )
        if outcome.status == "cancelled":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            raise Failed(f"over gloo: {outcome.reason or outcome.status}")
        return walks_of(directory.path, candidate.name, sum(ranks))


def walks_of(folder: Path, name: str, ranks: int) -> Walks:
    """What `walk` has written on so many ranks; removes the files."""
    files = [_file(folder, name, rank) for rank in range(ranks)]
    of_ranks = [torch.load(file, weights_only=False, map_location=CPU) for file in files]
    for file in files:
        file.unlink()
    return {precision: [walks[precision] for walks in of_ranks] for precision in of_ranks[0]}


def plain_of(candidate: Candidate) -> dict[str, Any]:
    """The candidate's class and keys, for a file; `candidate_of` reads it."""
    kind = candidate.strategy_class
    keys = json.loads(json.dumps(dataclasses.asdict(candidate.config)))
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **keys}


def candidate_of(name: str, tree: dict[str, Any], builtin: str | None = None) -> Candidate:
    """The candidate that `plain_of` wrote. Raises ConfigError if its class cannot be found."""
    kind = locate_target(tree, "strategy")
    return Candidate(name, kind, typed(kind.Config, tree, "strategy"), builtin)


# ------------------------------------------------------------------ in a rank


def walk_rank(task: RankTask, link: Link) -> None:
    """Entry of a rank process: `walk`."""
    torch.set_num_threads(task.threads)
    tree = yaml.safe_load((task.run_dir / "config.yaml").read_text(encoding="utf-8"))
    candidate = candidate_of(tree["name"], tree["strategy"])
    comm = connect(
        Topology.of(tuple(tree["ranks_of_nodes"])),
        task.rank,
        host=task.meeting.host,
        port=task.port,
        listener_fd=task.listener_fd(),
        device=CPU,
        timeout_s=STALL_S + 60,
    )
    comm.on_call = link
    walk(comm, candidate, task.run_dir)
    link.finish("finished", None, None)
    comm.close()


def walk(comm: TorchCommunicator, candidate: Candidate, folder: Path) -> None:
    """Make this rank's trial runs on `comm`: in both precisions, and resumed where all ranks step together.

    `folder`: for checkpoints and histories, the same on all ranks; `walks_of` reads the latter afterwards.
    """
    walks: dict[str, History] = {}
    ranks, checkpoints = tuple(comm.topology.ranks_of_nodes), folder / "checkpoints"
    for name, (dtype, _) in PRECISIONS.items():
        saves = name == "fp32"
        run = scenario_of(candidate, ranks, dtype, comm.device, save_after=[SAVE_AFTER] if saves else [])
        walks[name] = _walk(run, comm, checkpoints if saves else None)
    if walks["fp32"].saved and not issubclass(candidate.strategy_class, AsynchronousStrategy):
        walks["resumed"] = _walk(scenario_of(candidate, ranks, torch.float32, comm.device), comm, checkpoints)
    for history in walks.values():
        history.strategy = history.replica = history.traffic = None  # they belong to this process
    torch.save(walks, _file(folder, candidate.name, comm.rank))
    comm.barrier(WORLD)
    if comm.rank == 0:
        shutil.rmtree(checkpoints, ignore_errors=True)


def _file(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name.replace('/', '.')}_{rank}.pt"  # a strategy's file may be in a folder of its group


def _walk(scenario: Scenario, comm: TorchCommunicator, checkpoints: Path | None) -> History:
    comm.traffic = LoggedTraffic(comm.topology, comm.rank)

    def make_replica(model: nn.Module, criterion: nn.Module) -> TorchReplica:
        return TorchReplica(model, criterion, comm)

    observer = ScenarioObserver(scenario, comm)
    return observed_run(observer, make_replica, given_data(scenario), checkpoints, comm.device)
