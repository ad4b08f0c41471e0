"""The time that threads wait in the kernel's run queue, over all attempts of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from runs import config
from test_torch_world import launch

from daso_bench.runner.communication.traffic import CountedCommunicator
from daso_bench.runner.machine.run_queue import RunQueue, in_each_second
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.callbacks import RunQueueTime

MS = 1_000_000


def threads(folder: Path, **waited_ms: int) -> Path:
    """A folder as /proc/self/task: each thread has run 5 s and waited for so many milliseconds."""
    for thread in list(folder.glob("*")):
        (thread / "schedstat").unlink()
        thread.rmdir()
    for name, waited in waited_ms.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "schedstat").write_text(f"5000000000 {waited * MS} 0\n")
    return folder


def test_the_run_queue_counts_what_threads_waited_while_they_trained(tmp_path: Path):
    queue = RunQueue(threads(tmp_path, t1=500, t2=900))
    assert queue.waited_ns == 0
    queue.training(True)
    threads(tmp_path, t1=700, t3=40)  # t2 has ended, t3 has begun
    queue.training(False)
    assert queue.waited_ns == (200 + 40) * MS
    threads(tmp_path, t1=5000, t3=5000)  # not in training
    queue.training(True)
    threads(tmp_path, t1=5001, t3=5002)
    queue.training(False)
    assert queue.waited_ns == (240 + 3) * MS
    threads(tmp_path, t1=9000, t3=9000)
    queue.training(False)  # nobody says so twice; if, nothing between is counted again
    assert queue.waited_ns == (240 + 3 + 3999 + 3998) * MS
    queue.training(False)
    assert queue.waited_ns == (240 + 3 + 3999 + 3998) * MS


def test_waking_an_idle_core_is_no_queue(tmp_path: Path):
    """Of 18 ms in 20 times, half a millisecond each is waking up."""
    queue = RunQueue(threads(tmp_path, t1=0))
    queue.training(True)
    (tmp_path / "t1" / "schedstat").write_text(f"5000000000 {18 * MS} 20\n")
    queue.training(False)
    assert queue.waited_ns == 8 * MS
    queue.training(True)
    (tmp_path / "t1" / "schedstat").write_text(f"5000000000 {19 * MS} 120\n")
    queue.training(False)
    assert queue.waited_ns == 8 * MS, "a thread that wakes quickly excuses no other"


def waited(folder: Path, waited_ms: int, before: dict[str, int | None] | None = None) -> RunQueue:
    """The queue of an attempt whose only thread waited for so long."""
    queue = RunQueue(threads(folder, t1=0))
    if before is not None:
        queue.load_state_dict(before)
    queue.training(True)
    threads(folder, t1=waited_ms)
    queue.training(False)
    return queue


def test_the_share_is_of_all_attempts(tmp_path: Path):
    first = waited(tmp_path, 30)
    assert first.share(1000 * MS) == pytest.approx(0.03)
    second = waited(tmp_path, 10, first.state_dict(1000 * MS))
    assert second.share(3000 * MS) == pytest.approx(0.01)
    third = waited(tmp_path, 0, second.state_dict(3000 * MS))
    assert third.share(4000 * MS) == pytest.approx(0.005)


def test_threads_that_wait_side_by_side_add_up_beyond_the_time_of_training(tmp_path: Path):
    """Six threads on two cores for a second: each stood ready for two thirds of it."""
    queue = RunQueue(threads(tmp_path, **{f"t{number}": 0 for number in range(6)}))
    queue.training(True)
    threads(tmp_path, **{f"t{number}": 667 for number in range(6)})
    queue.training(False)
    share = queue.share(1000 * MS)
    assert share is not None
    assert share == pytest.approx(4.002)
    assert in_each_second(share) == "4 s in each second of training"


def test_an_attempt_without_counts_makes_the_share_unknown(tmp_path: Path):
    assert RunQueue().share(0) == 0
    silent = RunQueue(tmp_path / "nothing")
    silent.training(True)
    assert silent.share(MS) is None
    after = waited(tmp_path, 10, silent.state_dict(MS))
    assert after.share(1000 * MS) is None


@pytest.mark.parametrize(
    ("of_others", "worst"), [([0.004, 0.02], 0.02), ([0.004, 0.0], 0.01), ([0.004, -1.0], None)]
)
def test_the_worst_rank_is_recorded(tmp_path: Path, of_others: list[float], worst: float | None):
    rows = torch.tensor([[value] for value in of_others], dtype=torch.float64)
    comm = SimpleNamespace(gather=lambda of_rank: torch.cat([of_rank[None], rows]))
    callback = RunQueueTime(waited(tmp_path, 10), cast(CountedCommunicator, comm))
    assert callback.on_end(1000 * MS, finished=True) == {"run_queue_share": worst}


def test_it_is_told_when_training_starts_and_pauses():
    calls: list[bool] = []
    callback = RunQueueTime(
        cast(RunQueue, SimpleNamespace(training=calls.append)), cast(CountedCommunicator, None)
    )
    callback.on_train_start()
    callback.on_pause()
    assert calls == [True, False]


def test_real_ranks_record_it_and_virtual_ones_nothing(tmp_path: Path):
    cfg = config(ranks=[2], results=tmp_path)
    _, outcome = launch(cfg)
    assert outcome.status == "finished", outcome.details
    share = (outcome.summary or {})["run_queue_share"]
    assert (share is None) is (RunQueue()._read() is None)
    assert share is None or share >= 0
    done = simulate(cfg, cfg.dataset.load())
    assert "run_queue_share" not in done.results[0].summary
