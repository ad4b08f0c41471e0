"""Calls, bytes and virtual time of every built-in strategy, compared with golden numbers.

`traffic/<strategy>.json` holds {case: {rank: {"channel.verb": [calls, bytes], "end_ns": [equal, slow]}}} of
the conformance kit's trial run. A case is the ranks of each node, and the keys that differ from the trial's.
Calls are those of steps, epoch ends and `finalize`. `end_ns` is the length of the run in nanoseconds of
virtual time: with ranks of one speed, and with a last rank whose steps take four times as long.

    python tests/conformance/golden_traffic.py [NAME ...]    writes the files anew
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from proof import builtin, declared, spelt, strategies, with_keys

from daso_bench.runner.conformance.check_command import RANKS
from daso_bench.runner.conformance.checks import Candidate, Failed, RanksOfNodes
from daso_bench.runner.conformance.driver import drive
from daso_bench.runner.conformance.scenario import History
from daso_bench.runner.conformance.trial import NETWORK, STRATEGY_CALLS, plain, slow_last, trial_scenario
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.errors import ConfigError

FOLDER = Path(__file__).parent / "traffic"

Counts = dict[str, dict[str, list[int]]]
"""Of one run: {rank: {"channel.verb": [calls, bytes], "end_ns": [equal, slow]}}."""


def counted(strategy: str, strategy_class: type[Strategy] | None = None) -> dict[str, Counts]:
    """The counts of all cases of a built-in strategy, or of `strategy_class` in its place.

    Ranks that the strategy refuses are no case.
    """
    candidate = builtin(strategy)
    if strategy_class is not None:
        candidate = dataclasses.replace(candidate, strategy_class=strategy_class)
    cases = {}
    for ranks in RANKS:
        try:
            cases[",".join(map(str, ranks))] = _counts(candidate, ranks)
        except ConfigError:
            continue
    for keys in declared(strategy, "VARIANTS"):
        cases[spelt("2,2", keys)] = _counts(with_keys(candidate, keys), (2, 2))
    return cases


def require(strategy: str, strategy_class: type[Strategy] | None = None) -> None:
    """Raise Failed at the first case, rank and number that is not the golden one."""
    golden = json.loads(_file(strategy).read_text(encoding="utf-8"))
    counts = counted(strategy, strategy_class)
    for case in sorted(golden.keys() | counts.keys()):
        for rank in sorted(golden.get(case, {}).keys() | counts.get(case, {}).keys()):
            expected, got = (cases.get(case, {}).get(rank, {}) for cases in (golden, counts))
            for key in sorted(expected.keys() | got.keys()):
                if expected.get(key) != got.get(key):
                    raise Failed(f"{case}: rank {rank}: {key} is {got.get(key)}, must be {expected.get(key)}")


def write(strategy: str) -> None:
    """Write the golden file of a strategy anew, a line for each rank."""
    cases = []
    for case, counts in counted(strategy).items():
        rows = ",\n".join(f'  "{rank}": {json.dumps(row)}' for rank, row in counts.items())
        cases.append(f' "{case}": {{\n{rows}\n }}')
    _file(strategy).write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")


def _counts(candidate: Candidate, ranks: RanksOfNodes) -> Counts:
    run = trial_scenario(candidate, ranks)
    step_ns = slow_last(run)
    slow = drive(run, network=NETWORK, step_time=lambda rank, samples: step_ns[rank])
    return {
        str(equal.rank): {**_calls(equal), "end_ns": [equal.end_ns, late.end_ns]}
        for equal, late in zip(plain(candidate, ranks), slow, strict=True)
    }


def _calls(history: History) -> dict[str, list[int]]:
    calls: dict[str, list[int]] = {}
    for call in history.calls:
        if call.during in STRATEGY_CALLS:
            number, numbytes = calls.get(f"{call.channel}.{call.verb}", (0, 0))
            calls[f"{call.channel}.{call.verb}"] = [number + 1, numbytes + call.numbytes]
    return dict(sorted(calls.items()))


def _file(strategy: str) -> Path:
    return FOLDER / f"{strategy}.json"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for asked in sys.argv[1:] or strategies():
        write(asked)
