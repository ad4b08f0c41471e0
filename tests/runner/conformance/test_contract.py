"""The contract, and virtual time against gloo: what keeps them passes, and what does not is told."""

import re

import plugins
import pytest

from daso_bench.runner.conformance.checks import Candidate, CheckResult, Failed, RanksOfNodes
from daso_bench.runner.conformance.kit import CONTRACT, CONTRACT_CHECKS, attempt
from daso_bench.runner.conformance.real_processes import as_in_virtual_time
from daso_bench.strategies.daso import DASO

# Tried on two nodes of two ranks here; others on two ranks.
WIDE = ("one model", "sync points", "time")


def tried(check: str, candidate: Candidate, ranks: RanksOfNodes = (1, 1)) -> CheckResult:
    return attempt(candidate, CONTRACT, check, ranks)


def plugin(name: str) -> Candidate:
    kind = getattr(plugins, name)
    return Candidate(name, kind, kind.Config())


@pytest.mark.parametrize("name", CONTRACT_CHECKS)
def test_a_plug_in_that_keeps_the_contract_passes(name: str):
    finding = tried(name, plugin("Averager"), (2, 1) if name in WIDE else (1, 1))
    assert finding.status == "ok", finding.text
    remarks = {
        "hears stop requests": "within 2 steps",
        "buckets": "no key bucket_mib",
    }
    assert finding.text == remarks.get(name, "")


@pytest.mark.parametrize(
    ("name", "check", "sentence"),
    [
        ("ForgetsTheEnd", "stops anywhere", "after step 1, after finalize.*: rank 1 differs from rank 0"),
        ("ForgetsState", "resumes", "saved after step 1 and resumed: rank 0, after step 3: "),
        ("OtherOrderAfterResume", "resumes", ": rank 0, step 2: calls broadcast on parameters "),
        ("ForgetsBadEpochs", "resumes", "saved after step 17 and resumed: rank 0, after step "),
        ("IgnoresStopRequests", "hears stop requests", "a stop request of rank 0 in step 1 never makes "),
        ("TellsOneRank", "hears stop requests", "ranks disagree about the stop at step 1: stop_agreed"),
        ("ForgetsStopRequests", "hears stop requests", "a stop request in step 11 alone never makes "),
        (
            "Alone",
            "ends",
            r"^Deadlock: no rank can go on: rank 0 waits in barrier over \(0, 1\) for ranks \[1\]; "
            r"rank 1 waits in all_reduce over \(0, 1\) for ranks \[0\]$",
        ),
        ("NeverEnds", "ends", "rank 0 has taken 421 steps and the run does not end"),
        ("Raises", "ends", r"KeyError: 'momentum' \(.*plugins\.py:\d+\)$"),
        ("OtherSizes", "calls in step", r"call 3 is broadcast on parameters over ranks \[0, 1\], 8 bytes"),
        ("NeverWaits", "drains", "at the end: rank 0 launched 1 operations it never waits for"),
        ("LeavesTraces", "looks leave no trace", r"rank 0, after step 1: changed by a look: again\.bias"),
        ("OwnBuffers", "one model", r"after step 1: rank 1 differs from rank 0: buffers\[0\] is "),
        ("MeetsAnywhere", "sync points", r"is_sync_point\(\) is true after step 1, where rank "),
        ("OneBucket", "buckets", r"rank 0: buckets of \[328\] bytes, bucket_mib=0\.0001 asks for \["),
        ("NoOverlap", "buckets", " buckets are hidden behind the backward pass, with overlap=true"),
        ("CopiesLackBuffers", "copies", "made at sync point 1 lacks parameters or buffers: 81 elements"),
        ("CopiesOwnBuffers", "copies", "made at sync point 1: its buffers are not the mean over ranks"),
    ],
)
def test_what_breaks_the_contract_is_told_in_a_sentence(name: str, check: str, sentence: str):
    finding = tried(check, plugin(name))
    assert finding.status == "FAILED"
    assert re.search(sentence, finding.text), finding.text


# ------------------------------------------------------------------ over gloo


def test_the_same_run_over_gloo():
    """Of a plug-in it is tested in `test_check_command.py`."""
    assert as_in_virtual_time(Candidate("daso", DASO, DASO.Config()), (1, 1)) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("OtherOverGloo", r"fp32 over gloo: rank 0, after step 8: scale\[0\] is .*, must be .*"),
        (
            "CallsMoreOverGloo",
            r"fp32 over gloo: rank 0, step 8: barrier on control .* is called 1 times, must be 0",
        ),
        ("HangsOverGloo", r"over gloo: .*rank 1.*no memory left.*"),
    ],
)
def test_a_difference_to_virtual_time_is_told(name: str, sentence: str):
    with pytest.raises(Failed) as caught:
        as_in_virtual_time(plugin(name), (1, 1))
    assert re.match(sentence, str(caught.value)), caught.value
