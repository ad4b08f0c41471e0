"""What no arm can exceed: of equal devices what communication costs, of others perfect balance as well."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import run_here
from sharing import there
from test_rank_times import on
from test_speedups import Make, answered, claim_of, comparisons_of, study

from daso_bench.runner.config.load import requests
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report.answers import limits
from daso_bench.runner.report.claims.bounds import (
    BALANCE,
    COMMUNICATION,
    bound_of,
    ceiling_of,
    differ,
    upper_limit,
)
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.judge import judge
from daso_bench.runner.report.claims.paper_claims import StatedConditions
from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import Run, find_runs, load_run
from daso_bench.runner.report.statistics.verdict import Bound, Verdict

SPEEDS = [1.0, 1.0, 0.5, 0.25]
LINKS = ("inter", "intra")
PACED = [3.0, 3.0, 2.0, 0.0]  # of 4 s these wait for the slowest


def of(root: Path) -> Bound:
    (comparison,) = comparisons_of(root)
    return bound_of(next(arm for arm in comparison.arms if arm.runs[0].strategy == "ddp"))


def recorded(path: Path, waiting: Sequence[float], *, told: Any = None, device: Any = None) -> Path:
    """The run at `path` with 4 s of training on each rank, of which rank r waited `waiting[r]`."""
    on(path, [[0.0]] * len(waiting), told, {"speeds": SPEEDS} if device is None else device)
    for rank, waiting_s in enumerate(waiting):
        parts = {"compute": 4 - waiting_s, "exposed": 0.0, "waiting": waiting_s}
        row = {"kind": "train_interval", "attempt": 1, "index": 0, "train_s": 4.0, "parts_s": parts}
        (path / "ranks" / f"{rank}.jsonl").write_text(f"{json.dumps(row)}\n")
    return path


def test_of_equal_devices_it_is_what_communication_costs(make_run: Make, tmp_path: Path):
    """Conftest's runs are exposed for 0.2 and wait for 0.1 of their time."""
    make_run(tmp_path)
    make_run(tmp_path, seed=1)
    found = of(tmp_path)
    assert found.value == pytest.approx(1 / 0.7)
    assert found.of == COMMUNICATION


@pytest.mark.parametrize(
    ("waiting", "exposed_s", "told", "bound"),
    [
        (PACED, 0, None, 0.6875 / 0.25),  # speeds 1, 1, 1/2, 1/4: their mean over the slowest
        (PACED, 1, None, 2.75 * 5 / 4),  # of 5 s each rank is 1 s in transfers
        # Shares as the speeds: all are busy all the time, and there is nothing to be gained.
        ([0.0] * 4, 0, {"batches": [16, 16, 8, 4]}, 1.0),
        # Busy for 1, 1, 2 and 4 s, at 60, 20, 10 and 5 samples/s: 120 samples take all of them 120/95 s.
        (PACED, 0, {"samples_of_worker": [60, 20, 20, 20]}, 4 * 95 / 120),
    ],
)
def test_of_unequal_devices_it_is_that_of_perfect_balance_without_transfers(
    make_run: Make, tmp_path: Path, waiting: list[float], exposed_s: float, told: Any, bound: float
):
    for seed in range(3):
        path = recorded(make_run(tmp_path, seed=seed), waiting, told=told)
        for file in (path / "ranks").glob("*.jsonl"):
            row = json.loads(file.read_text())
            row |= {"train_s": 4.0 + exposed_s, "parts_s": row["parts_s"] | {"exposed": exposed_s}}
            file.write_text(json.dumps(row))
    found = of(tmp_path)
    assert (found.value, found.limit) == (pytest.approx(bound), pytest.approx(bound))
    assert found.of == BALANCE


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        (PACED[:3], None),
        (PACED, {"samples_of_worker": [100, 50]}),
        (PACED, {"batches": [16, 16, 8, 0]}),
        (PACED, {"batches": [16, 16, 8, "a"]}),
        ([4.0, 3.0, 2.0, 0.0], None),
    ],
    ids=["a rank missing", "workers are not ranks", "no samples", "no number", "a rank that did nothing"],
)
def test_where_the_speeds_of_ranks_cannot_be_known_the_bound_is_unknown_and_that_is_said(
    make_run: Make, tmp_path: Path, waiting: list[float], told: Any
):
    for seed in range(2):
        recorded(make_run(tmp_path, seed=seed), PACED)
    path = recorded(make_run(tmp_path, seed=2), PACED)
    for file in (path / "ranks").glob("*.jsonl"):
        file.unlink()
    recorded(path, waiting, told=told)
    found = of(tmp_path)
    assert (found.value, found.limit, found.of) == (None, None, BALANCE)


def test_the_upper_limit_of_the_bound_is_one_sided() -> None:
    bounds = [1.25 * share for share in (0.98, 0.99, 1.0, 1 / 0.99, 1 / 0.98)]
    # sd of the logarithms .015956, t of 4 degrees of freedom at 0.95 is 2.1318.
    assert upper_limit(bounds) == pytest.approx(1.25 * 1.01533, abs=1e-4)
    assert upper_limit(bounds[:2]) is None


@pytest.mark.parametrize(
    ("device", "models", "expected"),
    [
        ({"speeds": SPEEDS}, (), True),
        ({"trace": "steps.csv"}, (), True),
        ({"jitter": "gaussian"}, (), False),
        (None, ("A100", "A100"), False),
        (None, ("A100", "V100"), True),
    ],
)
def test_which_devices_differ(
    make_run: Make, tmp_path: Path, device: Any, models: Sequence[str], expected: bool
):
    path = make_run(tmp_path)
    if device:
        recorded(path, PACED, device=device)
    (path / "environment.json").write_text(json.dumps({"ranks": [{"device_model": m} for m in models]}))
    assert differ(load_run(path, "it")) is expected


def claimed(root: Path) -> tuple[Speedups, str]:
    """The speed-ups of `root`, and the verdict on DASO's claim of a factor of 1.515 with its reasons."""
    found = answered(root)
    (judged,) = judge([claim_of("daso_time")], [found])
    return found, "; ".join((judged.verdict.word, *judged.verdict.reasons))


def test_a_claim_above_the_bound_is_not_testable_and_one_below_is(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    _, said = claimed(tmp_path)
    assert said.startswith("not testable here; no communication saving can exceed 1.43 here")
    for path in find_runs(tmp_path):
        recorded(path, PACED)
    found, said = claimed(tmp_path)
    assert not said.startswith("not testable")
    assert limits(found).startswith("At most 64 % of the baseline's time (2.8×) could be saved here")
    (row,) = speedup_rows([found])
    assert (row["bound"], row["bound_of"]) == (pytest.approx(2.75), "balance and communication")
    for path in find_runs(tmp_path):
        recorded(path, [0.4, 0.4, 0.4, 0.0])
    assert claimed(tmp_path)[1].startswith(
        "not testable here; not even perfect balance without communication can exceed 1.08 here"
    )


def test_an_unknown_bound_is_no_number_anywhere(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path, fresh=1.0)
    for path in find_runs(tmp_path):
        on(path, [[0.0]], None, {"speeds": SPEEDS})
    found, said = claimed(tmp_path)
    assert not said.startswith("not testable")
    assert {(row["bound"], row["bound_of"]) for row in speedup_rows([found])} == {(None, "unknown")}
    assert limits(found).endswith("devices differ, and not all ranks recorded their times.")


WORDS = "launcher=simulated cluster.nodes=2 cluster.ranks_per_node=2 cluster.device.tflops=null model=mlp "
WORDS += "cluster.device.samples_per_second=2000 cluster.device.fixed_ms=0.5 train.epochs=1 "
WORDS += "cluster.device.speeds=[1,1,0.5,0.25] train.checkpoint_every_samples=null"


def simulated(root: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Run:
    """A run in virtual time, in this process, read back from its directory."""
    monkeypatch.setattr(environment, "commit_of", lambda source: ("0" * 40, None))
    (request,) = requests([*WORDS.split(), *words], sweep=True, cwd=root)
    assert request.config is not None, request.error
    directory = RunDirectory.create(request.config.tree, root)
    run_here(directory)
    return load_run(directory.path, directory.path.name)


def test_recorded_runs_on_four_speeds_stay_below_the_bound_and_exceed_that_of_equal_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Links that cost nothing: ddp is paced by the slowest, workers that never wait come close to balance."""
    free = [f"cluster.links.{link}.{key}" for link in LINKS for key in ("rate_gbit=inf", "latency_us=0")]
    ddp = simulated(tmp_path / "ddp", monkeypatch, "strategy=ddp", *free)
    lasgd = simulated(tmp_path / "lasgd", monkeypatch, "strategy=lasgd", *free)
    runs = [ddp, simulated(tmp_path / "again", monkeypatch, "strategy=ddp", "seed=1", *free)]
    (comparison,) = compare(runs)
    bound = there(bound_of(comparison.arms[0]).value)
    assert bound == pytest.approx(2.75, rel=2e-3)
    reached = there(lasgd.samples_per_s) / there(ddp.samples_per_s)
    equal = sum(ddp.parts_s.values()) / (sum(ddp.parts_s.values()) - ddp.parts_s["waiting"])
    assert equal == pytest.approx(2.0, rel=2e-3)
    assert equal < reached <= bound


def stating(root: Path, **fields: Any) -> None:
    """Every run below `root` with these fields in its summary."""
    for path in find_runs(root):
        *rows, summary = (path / "metrics.jsonl").read_text().splitlines()
        (path / "metrics.jsonl").write_text("\n".join([*rows, json.dumps(json.loads(summary) | fields)]))


def test_an_arm_that_waits_by_its_own_schedule_has_a_lower_ceiling(make_run: Make, tmp_path: Path):
    """3 of 10 s are to be saved; an arm that waits in half of the steps saves 1.5 s at most."""
    study(make_run, tmp_path, fresh=1.0)
    stating(tmp_path, communication_share=0.5, communication_share_to_target=0.8)
    found = answered(tmp_path)
    (line,) = found.lines
    whole = ceiling_of(found.bound, line.arm, to_target=False)
    assert whole.value == pytest.approx(1 / 0.85)
    assert ceiling_of(found.bound, line.arm, to_target=True).value == pytest.approx(1 / 0.94)
    assert found.bound.value == pytest.approx(1 / 0.7)
    assert whole.limit == found.bound.limit, "of no schedule of ours"


@pytest.mark.parametrize("share", [0.0, math.nan, 1.5, "half", None])
def test_a_share_that_is_none_lowers_no_ceiling(make_run: Make, tmp_path: Path, share: Any):
    study(make_run, tmp_path, fresh=1.0)
    stating(tmp_path, communication_share=share)
    found = answered(tmp_path)
    assert ceiling_of(found.bound, found.lines[0].arm, to_target=False) == found.bound


def verdict_on(root: Path, value: float) -> Verdict:
    """The verdict on a claim of up to `value` times less time, in conditions that are the claim's own."""
    own = StatedConditions(nodes=2, devices_per_node=2, device="these", network="this")
    claim = claim_of("daso_time", less_time=None, value=value, conditions=own)
    (judged,) = judge([claim], [answered(root)])
    return judged.verdict


def test_nothing_is_smaller_here_where_the_arms_ceiling_lies_below_it(make_run: Make, tmp_path: Path):
    """Measured 0.91 times; the bound of all arms is 1.43, and the claim 1.35 lies below that."""
    study(make_run, tmp_path, fresh=1.0, arm=(110, 114, 106, 118, 102))
    assert verdict_on(tmp_path, 1.35).word == "smaller here"
    stating(tmp_path, communication_share=0.5)
    found = verdict_on(tmp_path, 1.35)
    assert found.word == "not testable here"
    assert found.reasons[0] == (
        "no communication saving can exceed 1.18 here (its schedule waits for a global sum in 50 % of the "
        "steps), the claim is 1.35"
    )
    assert verdict_on(tmp_path, 1.17).word == "smaller here", "what it could have reached stays"
