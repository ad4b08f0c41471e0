"""Where training time went, as far as it was recorded."""

from types import SimpleNamespace
from typing import Any

import pytest

from daso_bench.runner.report.data.means import time_shares


def run(blocked: Any) -> Any:
    parts = {"compute": 5.0, "exposed": 2.0, "waiting": 1.0, "data": 1.0, "step_other": 1.0}
    return SimpleNamespace(parts_s=parts, summary={"blocked_s": blocked})


@pytest.mark.parametrize("missing", [None, "absent"])
def test_where_one_run_does_not_say_for_how_long_it_was_blocked_nothing_is_said(missing: str | None):
    told, silent = run({"intra": 1.0, "inter": 2.0}), run(None)  # null: a GPU waited, and its host did not
    if missing == "absent":
        del silent.summary["blocked_s"]
    found = time_shares([told])
    assert found is not None
    assert found["blocked on inter"] == pytest.approx(0.2)
    assert time_shares([told, silent]) is None
