"""Where a run stands: what strategies may base decisions on. Nothing in it is set by hand."""

from dataclasses import dataclass

from .topology import Topology


@dataclass
class Progress:
    """The loop's position, equal on all ranks at the same step.

    `step` counts optimizer steps of the whole run from 0, `batch` those of the epoch; `samples` counts global
    samples whose gradients have been applied; `samples_of_rank` are the samples n_r of each rank in the
    present step. `budget` is the number of global samples at which the schedule ends; `global_batch_size` the
    samples of a full global batch; `first_decay` the global samples behind which the schedule first lowers
    the rate in a step (None: it has no such step). With independent sampling `step` and `batch` are this
    rank's own, and `samples` is as of the last time all ranks met. `epoch_loss` is the mean training loss
    over all samples and ranks of the epoch just ended (float64), there only for strategies and schedules with
    `reads_epoch_loss`.
    """

    epochs: int
    steps_per_epoch: int
    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    samples_of_rank: tuple[int, ...] = ()
    budget: int = 0
    global_batch_size: int = 0
    first_decay: int | None = None
    epoch_loss: float | None = None

    @property
    def last_batch(self) -> bool:
        return self.batch == self.steps_per_epoch - 1

    @property
    def last_step(self) -> bool:
        """Whether this is the last step of the complete schedule."""
        return self.epoch == self.epochs - 1 and self.last_batch

    @property
    def steps(self) -> int:
        """Steps of the complete schedule."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Plan:
    """What a run is going to be, for refusing what a strategy cannot do before any process starts.

    `steps_per_epoch` and `steps` are None where the size of the data set is not known before it is loaded;
    `setup` sees it then. `steps` is cut by `train.max_steps`.
    """

    topology: Topology
    epochs: int
    global_batch_size: int
    steps_per_epoch: int | None = None
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """What a rank of `launcher=simulated` holds beside its strategy's copies of the model.

    `states`: numbers of optimizer state for each parameter. `on_gpu`: the ranks live on a GPU. `in_sums`:
    gradients are not counted, for they lie in the vector of sums. `waiting`: the most copies that wait to be
    judged. `eval_mode`: as of the run; `eval_every`: global samples between evaluations.
    """

    states: float
    on_gpu: bool
    in_sums: bool
    waiting: int
    eval_mode: str
    eval_every: int

    def copies(self, samples_between_syncs: float = 0) -> int:
        """Copies that wait if ranks meet only after so many samples, and two for judging the last of them."""
        rarely = self.eval_mode == "auto" and samples_between_syncs > self.eval_every
        return self.waiting + 2 if self.waiting and (rarely or self.eval_mode == "deferred") else 0
