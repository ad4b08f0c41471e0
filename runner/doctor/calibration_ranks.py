"""Measurements by real ranks: steps on noise, sums of two ranks, and both at once.

Ranks of one machine read the same clock, so a sum lasts from the moment when its last member enters until its
last member leaves. Ranks meet before every step that counts, as they do in training; the meeting itself is
not counted. The step is the train loop's own, on noise that is made beforehand.
"""

import dataclasses
import statistics
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.spec import InputSpec
from ...strategies.ddp import DDP
from ...strategies.progress import Progress
from ...strategies.replica import Batch
from ...strategies.topology import WORLD
from ..communication.torch_communicator import TorchCommunicator
from ..config.parts import TrainConfig
from ..config.run_config import RunConfig
from ..launch.rank import meet
from ..launch.rank_process import Link, RankTask
from ..records.json_lines import read_json
from ..simulation import timing_only
from ..simulation.simulated_world import Recorded
from ..training.context import Backend, TrainContext
from ..training.precision import DTYPES
from ..training.torch_replica import TorchReplica
from ..training.trainer import Trainer

ENTRY = f"{__name__}:measure"
TASK = "task.json"
NEVER = 10**12  # samples
_STILL = 1e-12  # the learning rate: the model stays what it is, whatever noise it sees


class Apart(DDP):
    """DDP whose sums can be left out, so that ranks do not exchange stop requests."""

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        return False


def measure(task: RankTask, link: Link) -> None:
    """Do what the run directory asks for; rank 0 sends the measurements as its summary.

    task.json: `part` (steps, sums or overlap) and its arguments. Those of all: `rounds`; `own`, the samples
    of the run's own step on each rank. Raises ConfigError: the run directory asks for something impossible.
    """
    wanted = read_json(task.run_dir / TASK)
    config, comm = meet(task)
    part = {"steps": measure_steps, "sums": measure_sums, "overlap": measure_overlap}[wanted.pop("part")]
    measured = part(Rig(config, comm), link, **wanted)
    comm.barrier(WORLD)
    link.finish("finished", measured if task.rank == 0 else None, None)
    comm.close()


def measure_steps(
    rig: "Rig", link: Link, *, rounds: int, own: int, sizes: list[int], steps: int, own_steps: int
) -> dict[str, Any]:
    """Times of steps without sums, all ranks at once, the sizes in turn.

    `sizes`: samples of a rank's step. `steps`, `own_steps`: that count, in a round, of each size and of the
    run's own.

    Returns seconds: `sizes` [rounds][sizes][ranks], the mean of a round's steps; `own` [ranks][steps] of
    single steps of the run's own size; `own_forward` likewise their forward passes; `data` [ranks], the
    median time to get a batch of the run's own data.
    """
    means = np.zeros((rounds, len(sizes)))
    whole, forward, data = [], [], []
    for number in range(rounds):
        for place in turned(len(sizes), number):
            size = sizes[place]
            count = own_steps if size == own else steps
            rig.step(size)  # the first of another size finds no memory that fits
            took = [rig.step(size) for _ in range(count)]
            means[number, place] = statistics.fmean(whole_s for whole_s, _, _ in took)
            if size == own:
                whole += [whole_s for whole_s, _, _ in took]
                forward += [forward_s for _, forward_s, _ in took]
                data.append(rig.next_batch_s())
        link.progress(step=number + 1, steps=rounds)
    of_ranks = rig.comm.gather_values([means.tolist(), whole, forward, statistics.median(data)])
    return {
        "sizes": np.stack([of_rank[0] for of_rank in of_ranks], 2).tolist(),
        "own": [of_rank[1] for of_rank in of_ranks],
        "own_forward": [of_rank[2] for of_rank in of_ranks],
        "data": [of_rank[3] for of_rank in of_ranks],
        "device": torch.cuda.get_device_name(device) if (device := rig.comm.device).type == "cuda" else None,
    }


def measure_sums(rig: "Rig", link: Link, *, rounds: int, own: int, payloads: list[int]) -> dict[str, Any]:
    """All-reduces of each payload, each after a step of the run's own size.

    Then sockets and caches are cold. Returns seconds: `sums` [rounds][payloads].
    """
    tensors = [torch.zeros(payload // 4, device=rig.comm.device) for payload in payloads]
    for tensor in tensors:
        rig.sum(tensor)
    stamps = []
    for number in range(rounds):
        for tensor in tensors:
            rig.step(own)
            stamps.append(rig.sum(tensor))
        link.progress(step=number + 1, steps=rounds)
    return {"sums": rig.lasted(stamps).reshape(rounds, len(tensors)).tolist()}


def measure_overlap(rig: "Rig", link: Link, *, rounds: int, own: int) -> dict[str, Any]:
    """The run's own step without sums, DDP's sums without a step, and DDP's step, in turn.

    Returns seconds: `alone`, `ddp`, [rounds][2], the mean over ranks of the forward pass and of forward and
    backward up to the last gradient; `sums` [rounds][buckets], first bucket first; `ready` [buckets], the
    share of the backward pass after which each is there.
    """
    buckets, ready = rig.buckets()
    rig.step(own, averaged=True)
    alone, ddp, stamps = [], [], []
    for number in range(rounds):
        alone.append(rig.step(own))
        stamps += [rig.sum(bucket) for bucket in buckets]
        ddp.append(rig.step(own, averaged=True))
        link.progress(step=number + 1, steps=rounds)
    passes = [[[forward_s, compute_s] for _, forward_s, compute_s in steps] for steps in (alone, ddp)]
    alone_s, ddp_s = np.mean(rig.comm.gather_values(passes), 0)
    return {
        "alone": alone_s.tolist(),
        "ddp": ddp_s.tolist(),
        "sums": rig.lasted(stamps).reshape(rounds, len(buckets)).tolist(),
        "ready": ready,
    }


class Rig:
    """One rank that takes steps of any size, with or without its gradients averaged, and sums tensors."""

    def __init__(self, config: RunConfig, comm: TorchCommunicator) -> None:
        self.comm = comm
        self._config = config
        self._samples = 0
        self._noise: dict[int, tuple[Tensor, Tensor]] = {}
        config = dataclasses.replace(
            config,
            strategy_class=Apart,
            optimizer=dataclasses.replace(config.optimizer, lr=_STILL),  # pyright: ignore[reportArgumentType] (by contract)
            train=endless(config.train),
        )
        real = Backend(
            "calibrate",
            comm,
            lambda model, loss: TorchReplica(model, loss, comm),
            comm.device,
            common_clock=True,
        )
        context = TrainContext(config, real, config.dataset.load(), Recorded(), None)
        self._loop = Trainer(context)
        context.prepare()
        self._loop.begin(None)
        context.share()
        self._real, self._noisy = real, dataclasses.replace(real, make_batch=self._batch)
        averaging = context.replica.averaging
        self._averaging = {True: averaging, False: dataclasses.replace(averaging, group=None)}
        # DDP rebuilds its buckets, with all ranks, in the second forward pass of its life.
        self.step(context.batch_order.first_sizes()[comm.rank], averaged=True)

    def step(self, samples: int, *, averaged: bool = False) -> tuple[float, float, float]:
        """One step of the train loop on noise, once all ranks are here.

        Returns seconds of the whole step, of its forward pass, of forward and backward without waiting.
        """
        context, comm = self._loop.context, self.comm
        self._samples = samples
        if samples not in self._noise:
            assert context.replica.noise is not None, "the context gives noise to measure with"
            self._noise[samples] = context.replica.noise(samples)
        context.backend = self._noisy
        context.replica.averaging = self._averaging[averaged]
        comm.barrier(WORLD)
        comm.traffic.clear_stamps()
        began = comm.now()
        self._loop.step()
        self._loop.after_step()
        replica = context.replica
        replica.wait_pending()
        self.comm.synchronise()
        took = comm.now() - began
        return took / 1e9, replica.forward_ns / 1e9, replica.compute_ns / 1e9

    def next_batch_s(self) -> float:
        """Seconds to get the run's next batch of its own data, after a step as in training."""
        context = self._loop.context
        context.backend = self._real
        context.progress.samples_of_rank = context.batch_order.sizes(context.progress)
        began = self.comm.now()
        context.next_batch()
        self.comm.synchronise()
        return (self.comm.now() - began) / 1e9

    def sum(self, tensor: Tensor) -> tuple[int, int]:
        """All-reduce `tensor` over all ranks; nanoseconds when this rank entered and left."""
        began = self.comm.now()
        self.comm.all_reduce(tensor, WORLD, channel="gradients").wait()
        self.comm.synchronise()
        return began, self.comm.now()

    def lasted(self, stamps: list[tuple[int, int]]) -> np.ndarray:
        """Seconds of each collective: from the last rank's entry to the last rank's leave."""
        entered, left = np.max(self.comm.gather_values(stamps), 0).T
        return (left - entered) / 1e9

    def buckets(self) -> tuple[list[Tensor], list[float]]:
        """Tensors as large as DDP's buckets of this model, and the share of backward that each waits for."""
        config, context = self._config, self._loop.context
        spec = InputSpec(*context.data.shape, context.data.classes)
        profile = timing_only.profile_of(config, spec)
        dtype = DTYPES[config.train.precision]
        buckets = profile.buckets(dtype.itemsize, config.strategy.bucket_mib)
        sizes = [sum(profile.numels[first:last]) for first, last in buckets]
        tensors = [torch.zeros(size, dtype=dtype, device=self.comm.device) for size in sizes]
        return tensors, [profile.ready[first] for first, _ in buckets]

    def _batch(self, sizes: tuple[int, ...]) -> Batch:
        return Batch(*self._noise[self._samples], (self._samples,) * len(sizes))


def endless(train: TrainConfig) -> TrainConfig:
    """Training without end, evaluation, checkpoint and progress, so that only steps are left of it."""
    return dataclasses.replace(
        train,
        epochs=10**6,
        max_steps=None,
        max_seconds=None,
        target=None,
        stop="budget",
        eval_every_samples=NEVER,
        eval_mode="inline",
        checkpoint_every_samples=None,
    )


def turned(sizes: int, number: int) -> list[int]:
    """The places of the sizes, beginning with another one in each round: none always follows the pause."""
    return [(number + place) % sizes for place in range(sizes)]
