"""Many launches at once on one machine: no two may want the same port."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
AT_ONCE, EACH = 8, 25

LAUNCHES = """
import json, sys
from pathlib import Path
from daso_bench.runner.launch.local import launch
from daso_bench.runner.records.run_directory import RunDirectory

if __name__ == "__main__":
    root, own = Path(sys.argv[1]), sys.argv[2]
    for number in range(int(sys.argv[3])):
        directory = RunDirectory.create({"study": {"name": own}, "run": {"id": f"run{number}"}}, root)
        (directory.path / "plan.json").write_text(json.dumps({"ends": [["finished", None]] * 2}))
        outcome = launch(directory, ranks=2, threads=1, port=None, stall_s=60, preload=(),
                         entry="process_entries:ends_as_planned")
        assert outcome.status == "finished", outcome
"""


@pytest.mark.timeout(400)
def test_two_hundred_launches_eight_at_a_time_never_clash(tmp_path: Path):
    environ = {**os.environ, "PYTHONPATH": str(HERE)}
    script = tmp_path / "launches.py"
    script.write_text(LAUNCHES)
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "results"), f"study{number}", str(EACH)],
            env=environ,
            stderr=subprocess.PIPE,
        )
        for number in range(AT_ONCE)
    ]
    said = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * AT_ONCE, "\n".join(said)
    ends = [json.loads(file.read_text())["status"] for file in (tmp_path / "results").glob("*/*/status.json")]
    assert ends == ["finished"] * (AT_ONCE * EACH)
