"""Real processes are held against virtual time, and the difference is told."""

import re

import pytest
from plugins import CallsMoreOverGloo, HangsOverGloo, OtherOverGloo

from daso_bench.runner.conformance.checks import Candidate, Failed
from daso_bench.runner.conformance.real_processes import as_in_virtual_time
from daso_bench.strategies.daso import DASO


def plugin(kind: type) -> Candidate:
    return Candidate(kind.__name__, kind, kind.Config())


def test_the_same_run_over_gloo():
    """Of a plug-in it is tested in `test_check_command.py`."""
    assert as_in_virtual_time(plugin(DASO), (1, 1)) is None


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (OtherOverGloo, r"fp32 over gloo: rank 0, after step 8: scale\[0\] is .*, must be .*"),
        (
            CallsMoreOverGloo,
            r"fp32 over gloo: rank 0, step 8: barrier on control .* is called 1 times, must be 0",
        ),
        (HangsOverGloo, r"over gloo: .*rank 1.*no memory left.*"),
    ],
)
def test_a_difference_to_virtual_time_is_told(kind: type, sentence: str):
    with pytest.raises(Failed) as caught:
        as_in_virtual_time(plugin(kind), (1, 1))
    assert re.match(sentence, str(caught.value)), caught.value
