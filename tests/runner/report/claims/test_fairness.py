"""The fairness table: seeded unfair comparisons are all flagged, fair ones raise no alarm."""

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from sharing import target_of

from daso_bench.runner.config.groups import entries
from daso_bench.runner.records.rows import StartRow
from daso_bench.runner.report.claims import recorded
from daso_bench.runner.report.claims.fairness import (
    MAY_DIFFER,
    NOT_RECORDED,
    FairnessRow,
    by_design,
    fairness,
    forbidding,
    in_words,
    spread,
)
from daso_bench.runner.report.data.arms import computed_on
from daso_bench.runner.report.data.load import Run

SEEDS = (0, 1, 2)
Arms = tuple[list[Run], list[Run]]
Change = dict[str, Any]
# A finished run of 4 ranks on 2 nodes of real processes, as its records have it.
RECORDS = """
config:
  model: {_target_: daso_bench.models.small.SmallCNN, channels: [8, 16, 32]}
  dataset: {_target_: daso_bench.datasets.digits.Digits, root: /data}
  optimizer: {_target_: daso_bench.runner.config.optimizers.SGD, lr: 0.05, weight_decay: 0.0001}
  schedule: {_target_: daso_bench.runner.config.schedules.Cosine, warmup_epochs: 1.0}
  cluster: {nodes: 2, ranks_per_node: [2, 2]}
  launcher: {name: local, threads_per_rank: auto, port: null, stall_s: 300.0}
  train: {epochs: 12, max_steps: null, max_seconds: null, global_batch_size: 64, short_batch: join,
    target: 0.9, target_metric: accuracy, stop: budget, eval_every_samples: 574, eval_split: test,
    eval_mode: auto, precision: fp32, clip_norm: null}
  run: {name: "", tag: "", arm: "", repeat: 0}
  study: {name: mine, arm: "", role: ""}
  results_dir: /results
environment:
  {schema_version: 1, rules_version: "2.0", python: 3.11.2, daso_bench: 0.1.0,
  packages: {torch: 2.14.1, numpy: "2.1"}, commit: abc, dirty: null, cores: 4, platform: Linux-6,
  machine: x86_64, backend: gloo, world: local, variables: {OMP_NUM_THREADS: "1", MKL_NUM_THREADS: null}}
status: {schema_version: 1, status: finished, timing: {valid: true, reasons: []}}
summary: {samples: 13788, parameters: 9930, left_out_samples: 0, train_s: 80.0, strategy: {},
  run_queue_share: 0.002}
evaluation: {split: test, count: 360, mode: inline, accuracy: 0.9, train_s: 40.0, samples: 6894}
"""


_RECORDED: dict[str, Any] = yaml.safe_load(RECORDS)


def may_differ(strategy: str) -> list[str]:
    module, _, name = target_of(strategy).rpartition(".")
    return list(getattr(importlib.import_module(module), name).may_differ)


def ranks_of(threads: int, host: str = "box", device: str = "cpu") -> list[dict[str, Any]]:
    """The rows of 4 ranks with so many threads and cores each."""
    return [
        {"rank": r, "node": r // 2, "host": host, "device": device, "threads": threads}
        | {"cores": list(range(r * threads, (r + 1) * threads))}
        for r in range(4)
    ]


def a_run(strategy: str, seed: int, place: int, **changes: Any) -> Run:
    """The run of `RECORDS` with this strategy and seed, started as the `place`-th.

    `changes`: paths below config, environment, status, start, summary or evaluation, `__` between names, and
    the new value; None is a missing one.
    """
    parts: dict[str, Any] = copy.deepcopy(_RECORDED)
    parts["config"] |= {"strategy": {"_target_": target_of(strategy)}, "seed": seed}
    parts["config"]["train"]["eval_phase"] = 0.1 * seed
    parts["config"]["run"]["id"] = f"{strategy}-small_cnn-digits-s{seed}-0"
    parts["environment"]["ranks"] = ranks_of(1)
    parts["start"] = {"still_cached": 0.99 - 0.01 * (seed % 10), "may_differ": may_differ(strategy)}
    times = {"started_unix": 100.0 * place, "ended_unix": 100.0 * place + 90}
    parts["status"]["attempts"] = [{"number": 1, **times}]
    parts["summary"]["digests"] = {"initial_weights": f"w{seed}", "first_batches": f"b{seed}"}
    for path, value in changes.items():
        *inner, last = path.split("__")
        node = parts
        for name in inner:
            node = node.setdefault(name, {})
        node[last] = value
    number = parts["evaluation"].pop("number", 24)
    return Run(
        place=f"{strategy}-{seed}",
        config=parts["config"],
        environment=parts["environment"],
        status=parts["status"],
        evaluations=[copy.deepcopy(parts["evaluation"]) for _ in range(number)],
        summary=parts["summary"],
        rank_rows=[],
        damage=[],
        start=StartRow.read(parts["start"]),
    )


def arms(
    strategy: str = "daso",
    *,
    own: Change | Callable[[int], Change] | None = None,
    both: Change | Callable[[int], Change] | None = None,
    base: Change | Callable[[int], Change] | None = None,
    seeds: Sequence[int] = SEEDS,
) -> Arms:
    """ddp and `strategy`, interleaved: `own` changes the arm's runs, `base` those of ddp, `both` all of them.

    Changes that are functions are asked with the seed.
    """

    def of(change: Change | Callable[[int], Change] | None, seed: int) -> Change:
        return change(seed) if callable(change) else change or {}

    baseline = [
        a_run("ddp", seed, 2 * place + place % 2, **of(both, seed), **of(base, seed))
        for place, seed in enumerate(seeds)
    ]
    arm = [
        a_run(strategy, seed, 2 * place + 1 - place % 2, **of(both, seed), **of(own, seed))
        for place, seed in enumerate(seeds)
    ]
    return baseline, arm


def keys(rows: Sequence[FairnessRow]) -> set[str]:
    return {row.key for row in rows}


def row_of(table: list[FairnessRow], key: str) -> FairnessRow:
    (found,) = [row for row in table if row.key == key]
    return found


def efficient(baseline: list[Run], arm: list[Run]) -> list[FairnessRow]:
    """The table for a claim about computing efficiency."""
    return by_design(fairness(baseline, arm), "efficiency")


LASGD_OWN = {
    "summary__digests__first_batches": "own",
    "summary__samples": 13900,
    "evaluation__mode": "deferred",
    "evaluation__number": 22,
}


def started(order: str) -> Arms:
    """Runs in this order of time, `A` of ddp and `b` of daso; seeds by turn."""
    taken = {"A": 0, "b": 0}
    found: dict[str, list[Run]] = {"A": [], "b": []}
    for place, side in enumerate(order):
        found[side].append(a_run("ddp" if side == "A" else "daso", taken[side], place))
        taken[side] += 1
    return found["A"], found["b"]


def with_a_failed_one() -> Arms:
    """A run of the arm that failed on another machine, and was repeated."""
    baseline, arm = arms()
    failed = a_run("daso", 0, 9, status__status="failed", environment__commit="old", environment__ranks=[])
    return baseline, [failed, *arm]


def second_baseline(role: str, **changes: Any) -> Arms:
    baseline = [a_run("ddp", seed, 2 * place) for place, seed in enumerate(SEEDS)]
    changes |= {"config__study__role": role, "config__run__arm": role}
    first = 10**6 if role == "fresh_seeds" else 0
    second = [
        a_run("ddp", first + seed, 2 * place + 1, config__train__eval_phase=0.1 * place, **changes)
        for place, seed in enumerate(SEEDS)
    ]
    return baseline, second


VIRTUAL = {"config__launcher__name": "simulated", "environment__world": "simulated"}


FAIR: dict[str, Arms] = {
    "daso": arms("daso", own={"config__strategy__sync_every": 4}),
    "daso is judged from copies": arms("daso", own={"evaluation__mode": "deferred"}),
    "the same strategy with another key": arms("ddp", own={"config__strategy__hook": "bf16"}),
    "lasgd draws by itself and overshoots": arms("lasgd", own=LASGD_OWN),
    "sgp is judged from copies": arms("sgp", own={"evaluation__mode": "deferred", "evaluation__number": 23}),
    "heterogeneous has uneven batches": arms(
        "heterogeneous", own={"summary__strategy": {"batches": [24, 24, 8, 8]}}
    ),
    "each block on nodes of its own": arms(
        both=lambda seed: {
            "environment__ranks": [
                {"node": n, "host": f"n{seed}{n}", "device": "cpu", "cores": [0], "threads": 1}
                for n in (0, 1)
            ]
        }
    ),
    "no digest on either side": arms(both={"summary__digests": {}}),
    "other names, folders and watches": arms(
        own={
            "config__run__name": "x",
            "config__run__tag": "y",
            "config__results_dir": "/else",
            "config__dataset__root": "/copy",
            "config__launcher__port": 29500,
            "config__launcher__stall_s": 60.0,
            "config__study__arm": "daso",
        }
    ),
    "other ways to wait for a job": arms(
        own={"config__launcher__timeout_min": 90, "config__launcher__account": "b"},
        base={"config__launcher__timeout_min": 30, "config__launcher__account": "a"},
    ),
    "stopped at the target": arms(
        both={"config__train__stop": "first"}, own={"summary__samples": 5000, "evaluation__number": 9}
    ),
    "timed out": arms(
        own={"status__status": "timed_out", "summary__samples": 9000, "evaluation__number": 15}
    ),
    "a failed run was repeated": with_a_failed_one(),
    "virtual time on whatever machines": arms(
        both=VIRTUAL,
        own={"environment__ranks": [], "environment__platform": "Other", "environment__cores": 1},
    ),
    "one run each": arms(seeds=[3]),
    "the first run of all found no page in the cache": arms(
        base=lambda seed: {"start__still_cached": 0.0 if seed == 0 else 1.0}
    ),
    "both read cold files": arms(both={"start__still_cached": 0.0}),
    "data in memory": arms(both={"start__still_cached": None}),
    "one run of an arm waited for a core": arms(
        own=lambda seed: {"summary__run_queue_share": 0.3 if seed == 1 else 0.004}
    ),
    "runs at the same time": arms(
        both={"status__attempts": [{"number": 1, "started_unix": 5.0, "ended_unix": 90.0}]}
    ),
    "a plug-in of its own name": arms(
        own={"config__strategy": {"_target_": "mine.Mine", "name": "mine"}, "config__study__arm": "mine"}
    ),
    "a second baseline with fresh seeds": second_baseline(
        "fresh_seeds", summary__digests={"initial_weights": "w9", "first_batches": "b9"}
    ),
    "a second baseline for the clock": second_baseline(
        "same_seeds", config__train__max_steps=43, summary__samples=2752, evaluation__number=5
    ),
}


@pytest.mark.parametrize("name", FAIR)
def test_a_fair_comparison_raises_no_alarm(name: str) -> None:
    table = fairness(*FAIR[name])
    assert forbidding(table) == []


# Of the arm alone: path, value, the rows that forbid.
CHANGED: list[tuple[str, Any, str]] = [
    ("config__train__global_batch_size", 128, "train.global_batch_size data.local_batch"),
    ("config__optimizer__lr", 0.1, "optimizer.lr"),
    (
        "config__optimizer",
        {"_target_": "daso_bench.runner.config.optimizers.LARS", "lr": 0.05},
        "optimizer._target_ optimizer.weight_decay",
    ),
    ("summary__samples", 12000, "data.samples"),
    ("config__model__channels", [8, 8, 8], "model.channels"),
    ("summary__parameters", 9000, "model.parameters"),
    ("config__dataset", {"_target_": "daso_bench.datasets.synthetic.Synthetic"}, "dataset._target_"),
    ("config__train__eval_phase", 0.77, "train.eval_phase"),
    ("config__train__target", 0.8, "train.target"),
    ("config__train__turbo", True, "train.turbo"),  # a key that nobody has thought of
    ("config__cluster__ranks_per_node", [4, 4], "cluster.ranks_per_node data.local_batch"),
    ("evaluation__count", 100, "evaluation.set"),
    ("summary__digests__initial_weights", "x", "model.initial"),
    ("summary__digests__initial_weights", None, "model.initial"),
    ("summary__digests__first_batches", "x", "data.order"),
    ("summary__strategy", {"batches": [24, 24, 8, 8]}, "data.local_batch"),
    ("environment__ranks", ranks_of(1, device="cuda:0"), "hardware.devices"),
    ("environment__backend", "nccl", "transport.backend"),
    (
        "environment__variables",
        {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "ib0"},
        "transport.variables",
    ),
    ("environment__network", {"made_by": "ranks"}, "transport.network"),
    ("environment__packages", {"torch": "2.9.0", "numpy": "2.1"}, "versions.packages"),
    ("environment__commit", "def", "code.commit"),
    ("environment__dirty", "12ab", "code.changes"),
    ("environment__rules_version", "1.0", "rules.version"),
    ("environment__python", "3.13.1", "versions.python"),
    ("config__launcher__loader_workers", 4, "launcher.loader_workers"),
    ("config__cluster__device", {"tflops": 60}, "cluster.device.tflops cluster.node_speed"),
    ("start__still_cached", 0.03, "data.cached"),
    ("start__still_cached", None, "data.cached"),
    ("summary__run_queue_share", 0.09, "hardware.queue"),
    ("summary__run_queue_share", None, "hardware.queue"),
]
UNFAIR: dict[str, tuple[Arms, str]] = {
    "more epochs": (
        arms(own={"config__train__epochs": 14, "summary__samples": 16086}),
        "train.epochs data.samples",
    ),
    "judged on another split": (
        arms(own={"config__train__eval_split": "validation", "evaluation__split": "validation"}),
        "train.eval_split evaluation.set",
    ),
    "judged more often": (
        arms("hsgd", own={"config__train__eval_every_samples": 100, "evaluation__number": 60}),
        "train.eval_every_samples evaluation.count",
    ),
    "judged from copies without need": (
        arms("hsgd", own={"evaluation__mode": "deferred"}),
        "evaluation.mode",
    ),
    "other seeds": (
        (arms(seeds=[0, 1, 2])[0], arms(seeds=[3, 4, 5])[1]),
        "seed model.initial data.order train.eval_phase",
    ),
    "a seed is missing": ((arms()[0], arms()[1][:2]), "seed"),
    "sgp may not draw by itself": (arms("sgp", own={"summary__digests__first_batches": "x"}), "data.order"),
    "faster links": (
        arms(
            base={"config__cluster__links": {"inter": {"rate_gbit": 1}}},
            own={"config__cluster__links": {"inter": {"rate_gbit": 10}}},
        ),
        "cluster.links.inter.rate_gbit",
    ),
    "more threads": (
        arms(own={"environment__ranks": ranks_of(2), "environment__cores": 8}),
        "threads.per_rank threads.affinity threads.fit hardware.cores",
    ),
    "machines of the blocks swapped": (
        arms(
            base=lambda seed: {"environment__ranks": ranks_of(1, host=f"h{seed}")},
            own=lambda seed: {"environment__ranks": ranks_of(1, host=f"h{(seed + 1) % 3}")},
        ),
        "hardware.hosts",
    ),
    "other clock": (arms(own=VIRTUAL), "launcher.name rules.clock"),
    "the baseline beside other work": (arms(base={"summary__run_queue_share": 0.4}), "hardware.queue"),
    "the baseline reads cold files": (arms(base={"start__still_cached": 0.0}), "data.cached"),
    "more threads than cores on both sides": (arms(both={"environment__cores": 2}), "threads.fit"),
    "an environment lost": (
        arms(own={"environment__ranks": [], "environment__commit": None, "environment__python": None}),
        "hardware.hosts hardware.devices threads.per_rank threads.affinity threads.fit "
        "code.commit code.changes versions.python",
    ),
    "a second baseline with other work": (
        second_baseline("fresh_seeds", config__train__epochs=3, summary__digests={"initial_weights": "w9"}),
        "train.epochs",
    ),
    "no run that counts": ((arms()[0], []), "seed"),
}
UNFAIR |= {f"{path}={value}": (arms(own={path: value}), rows) for path, value, rows in CHANGED}


@pytest.mark.parametrize("name", UNFAIR)
def test_an_unfair_comparison_is_flagged_by_what_is_unfair(name: str) -> None:
    (baseline, arm), expected = UNFAIR[name]
    assert keys(forbidding(fairness(baseline, arm))) == set(expected.split())


def test_what_is_the_strategys_own_is_shown_and_forbids_nothing() -> None:
    table = fairness(*FAIR["lasgd draws by itself and overshoots"])
    own = keys([row for row in table if row.equal is False])
    assert own == {"strategy", "data.order", "data.samples", "evaluation.mode", "evaluation.count"}
    row = row_of(table, "data.samples")
    assert (row.baseline, row.arm, row.own, row.forbids) == ("13788", "13900", True, False)


def test_what_nobody_has_recorded_is_shown_and_not_taken_for_equal() -> None:
    table = fairness(*FAIR["no digest on either side"])
    row = row_of(table, "model.initial")
    assert (row.baseline, row.arm, row.equal, row.forbids) == (NOT_RECORDED, NOT_RECORDED, None, False)
    unknown = keys([row for row in table if row.equal is None])
    assert unknown == {"model.initial", "data.order", "tuning", "arithmetic.flags", "hardware.models"}
    assert row_of(fairness(*FAIR["data in memory"]), "data.cached").baseline == NOT_RECORDED


def test_what_some_runs_of_both_sides_lack_is_not_equal_either() -> None:
    lacking = arms(both=lambda seed: {"environment__commit": None} if seed == 1 else {})
    row = row_of(fairness(*lacking), "code.commit")
    assert (row.baseline, row.equal, row.forbids) == (f"abc; {NOT_RECORDED}", None, False)


def test_keys_that_agree_are_one_line_and_each_that_differs_has_its_own() -> None:
    fair = fairness(*FAIR["daso"])
    assert row_of(fair, "strategy").arm == "daso: sync_every=4"
    assert row_of(fair, "configuration").equal is True
    unfair = fairness(*UNFAIR["config__optimizer__lr=0.1"][0])
    row = row_of(unfair, "optimizer.lr")
    assert (row.baseline, row.arm) == ("0.05", "0.1")
    counts = [int(row_of(table, "configuration").arm.split()[0]) for table in (fair, unfair)]
    assert counts[0] == counts[1] + 1


@pytest.mark.parametrize(
    ("order", "places", "first"),
    [
        ("AbbAAb", ("1, 4, 5", "2, 3, 6"), ""),  # each first in turn
        ("AbAbAb", ("1, 3, 5", "2, 4, 6"), ""),
        ("AbAbbAAb", ("1, 3, 6, 7", "2, 4, 5, 8"), ""),
        ("AAAbbb", ("1, 2, 3", "4, 5, 6"), "the baseline's"),
        ("bbAA", ("3, 4", "1, 2"), "the arm's"),
        ("AAAAbAbbbb", ("1, 2, 3, 4, 6", "5, 7, 8, 9, 10"), "the baseline's"),
    ],
)
def test_the_order_of_runs_is_shown_by_places_in_time(
    order: str, places: tuple[str, str], first: str
) -> None:
    table = fairness(*started(order))
    row = row_of(table, "execution.order")
    assert (row.baseline, row.arm, row.equal) == (*places, True)
    said = f"in more than 9 of 10 pairs {first} run came first: interleave them (one sweep does)"
    assert row.wrong == (said if first else "")
    assert keys(forbidding(table)) == ({"execution.order"} if first else set())


def test_an_order_that_is_not_recorded_is_not_known() -> None:
    unknown = row_of(fairness(*arms(both={"status__attempts": []})), "execution.order")
    assert (unknown.baseline, unknown.equal) == (NOT_RECORDED, None)


def test_one_modelled_process_a_node_may_be_as_fast_as_all_the_others_ranks_together_and_no_faster() -> None:
    """24 cores of 0.04 Tflop/s each are the machine, in one process or in 24."""

    def pair(tflops: float) -> Arms:
        def side(ranks: int, each: float) -> dict[str, Any]:
            return {
                "config__cluster__ranks_per_node": [ranks, ranks],
                "config__cluster__device": {"tflops": each},
            }

        baseline, _ = arms(both=lambda seed: side(1, tflops))
        _, arm = arms("hsgd", both=lambda seed: side(24, 0.04))
        return baseline, arm

    assert "cluster.device.tflops" in keys(forbidding(fairness(*pair(0.96))))
    assert "cluster.node_speed" not in keys(forbidding(fairness(*pair(0.96))))
    assert not {"cluster.device.tflops", "cluster.node_speed"} & keys(forbidding(efficient(*pair(0.96))))
    slower = efficient(*pair(0.5))
    row = row_of(slower, "cluster.node_speed")
    assert (row.baseline, row.arm, row.forbids) == ("0.5 Tflop/s", "0.96 Tflop/s", True)


def test_the_arms_of_an_efficiency_differ_in_ranks_and_threads_but_not_in_the_machine() -> None:
    def native(seed: int) -> Change:
        rows = [
            {"rank": n, "node": n, "host": "box", "device": "cpu", "threads": 2, "cores": [2 * n, 2 * n + 1]}
            for n in (0, 1)
        ]
        return {
            "config__cluster__ranks_per_node": [1, 1],
            "config__launcher__threads_per_rank": 2,
            "environment__ranks": rows,
        }

    asked = arms("hsgd", base=native)
    assert keys(forbidding(fairness(*asked))) == {
        *("cluster.ranks_per_node", "launcher.threads_per_rank", "data.local_batch"),
        *("threads.per_rank", "threads.affinity"),
    }
    assert forbidding(efficient(*asked)) == []
    fewer = arms("hsgd", base=lambda seed: native(seed) | {"environment__ranks": ranks_of(1)[:2]})
    assert row_of(fairness(*fewer), "threads.fit").forbids
    assert not row_of(efficient(*fewer), "threads.fit").forbids
    elsewhere = arms("hsgd", base=native, own={"environment__cores": 8})
    assert keys(forbidding(efficient(*elsewhere))) == {"hardware.cores"}


def test_uneven_and_even_splits_are_told_rank_by_rank() -> None:
    row = row_of(fairness(*FAIR["heterogeneous has uneven batches"]), "data.local_batch")
    assert (row.baseline, row.arm) == ("16 x 4", "24 x 2, 8 x 2")
    ragged = arms(both={"config__train__global_batch_size": 66})
    assert row_of(fairness(*ragged), "data.local_batch").baseline == "17 x 2, 16 x 2"


def test_virtual_ranks_computed_on_a_gpu_and_on_cpus_are_not_mixed() -> None:
    gpu, device = (
        {"environment__computed_on": "NVIDIA H200"},
        "device that computed (changes numbers, not times)",
    )
    mixed = fairness(*arms(both=VIRTUAL, own=gpu))
    assert in_words(mixed) == f"1 unequal thing: other {device}: NVIDIA H200 instead of CPU"
    # Each repetition on a device of its own is fair, and is said.
    first, second = arms(both=lambda seed: VIRTUAL | (gpu if seed == 0 else {}))
    assert forbidding(fairness(first, second)) == []
    assert spread(first) == [f"{device}: NVIDIA H200 (1 run), CPU (2 runs)"]
    assert computed_on(first) == "on CPU and NVIDIA H200"
    assert [computed_on(arms(both=world)[0]) for world in (VIRTUAL, gpu)] == ["on CPU", ""], "virtual, real"


def test_virtual_clocks_have_no_lines_about_machines() -> None:
    rows = keys(fairness(*FAIR["virtual time on whatever machines"]))
    assert not rows & {"hardware.hosts", "threads.fit", "execution.order", "transport.variables"}
    assert rows >= {"versions.packages", "code.commit", "transport.backend"}


def test_a_configuration_that_is_lost_on_one_side_forbids() -> None:
    baseline, arm = arms()
    for run in arm:
        run.config.clear()
    table = fairness(baseline, arm)
    assert {"train.global_batch_size", "optimizer.lr", "seed"} <= keys(forbidding(table))
    assert row_of(table, "train.target").arm == NOT_RECORDED
    assert row_of(table, "strategy").arm == NOT_RECORDED


@pytest.mark.parametrize("side", [0, 1])
def test_a_repetition_that_was_run_twice_is_one_line(side: int) -> None:
    """Its settings are the same as ever: nothing else differs because there are two of them."""
    both = list(arms())
    again = copy.deepcopy(both[side][0])
    both[side] = [*both[side], replace(again, place="again")]
    table = fairness(*both)
    assert keys(forbidding(table)) == {"seed"}
    assert row_of(table, "seed").wrong == "twice in an arm: 0"
    again.config["train"]["epochs"] = 3
    assert keys(forbidding(fairness(*both))) == {"seed", "train.epochs"}, "what does differ is still seen"


def test_a_second_baseline_with_fresh_seeds_is_compared_repetition_by_repetition() -> None:
    baseline, second = second_baseline("fresh_seeds")
    for place, run in enumerate(baseline):
        run.environment["commit"] = f"c{place}"
        second[place].environment["commit"] = f"c{place}"
    assert not row_of(fairness(baseline, second), "code.commit").forbids
    second[0].environment["commit"], second[1].environment["commit"] = "c1", "c0"
    assert row_of(fairness(baseline, second), "code.commit").forbids


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"config__optimizer__lr": 0.1}, "other optimizer.lr: 0.1 instead of 0.05"),
        (
            {"environment__packages": {"torch": "2.9.0", "a": "a very long version, as there are some"}},
            "other packages: torch: 2.9.0, a: a very long version, as there … instead of torch: 2.14.1",
        ),
        ({"environment__commit": None, "environment__dirty": None}, "commit: recorded on one side alone"),
        ({"start__still_cached": 0.04}, "page cache at the start: 4% instead of 98%"),
        (
            {"summary__run_queue_share": 0.5},
            "(busy machine): 0.5 s in each second of training, at most 0.01 s in each second of training",
        ),
    ],
)
def test_what_is_unequal_is_a_sentence(change: Change, sentence: str) -> None:
    words = in_words(fairness(*arms(own=change)))
    assert sentence in words
    assert words.startswith("1 unequal thing: ") is ("environment__commit" not in change)


def test_of_many_unequal_things_the_number_and_the_two_worst_are_given() -> None:
    change = {"config__optimizer__lr": 0.1, "config__train__target": 0.8, "environment__commit": "def"}
    found = fairness(*arms(own=change))
    worst = "other optimizer.lr: 0.1 instead of 0.05; other train.target: 0.8 instead of 0.9"
    assert in_words(found) == f"3 unequal things: {worst}; and 1 more"
    assert in_words(fairness(*arms())) == ""


def test_the_baselines_own_runs_are_compared_with_each_other() -> None:
    baseline, _ = arms(base=lambda seed: {"environment__commit": "old" if seed == 2 else "new"})
    assert spread(baseline) == ["commit: new (2 runs), old (1 run)"]
    assert spread(arms()[0]) == []
    hosts, _ = arms(base=lambda seed: {"environment__ranks": ranks_of(1, host=f"h{seed}")})
    assert spread(hosts) == ["nodes: h0 (1 run), h1 (1 run), h2 (1 run)"]
    for run in hosts:
        run.config["launcher"]["name"] = "simulated"
    assert spread(hosts) == [], "no machine matters to a virtual clock"


@pytest.mark.parametrize(
    ("declared", "more"),
    [
        (["strategy", "train", "optimizer", "cluster"], "train, optimizer and cluster"),
        (["strategy", "data"], "data"),  # a beginning of what is allowed is more than is allowed
        (["strategy", "evaluation.mode", "strategy.period"], ""),
        (["strategy"], ""),
        (None, ""),
    ],
)
def test_a_plug_in_may_not_differ_in_more_than_the_projects_list(
    declared: list[str] | None, more: str
) -> None:
    change: Change = {"config__strategy": {"_target_": "mine.Mine"}, "start__may_differ": declared}
    found = fairness(*arms(own=change))
    assert keys(forbidding(found)) == ({"strategy"} if more else set())
    assert (f"mine.Mine declares that {more} may differ" in in_words(found)) is bool(more)
    unequal = fairness(*arms(own=change | {"config__optimizer__lr": 0.1}))
    assert "optimizer.lr" in keys(forbidding(unequal)), "whatever the plug-in declares"


def test_the_list_of_what_may_differ_is_what_our_strategies_declare() -> None:
    declared = {name: may_differ(name) for name in entries("strategy")}
    assert {key for keys in declared.values() for key in keys} == set(MAY_DIFFER)
    assert set(MAY_DIFFER) <= {"strategy", *recorded.QUANTITIES}
    assert all(MAY_DIFFER.values()), "each with its reason"
