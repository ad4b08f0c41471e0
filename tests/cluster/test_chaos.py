"""Random kills, in small; `make chaos` does it at length."""

import subprocess
import sys
from pathlib import Path

from scenarios import Stories


def test_a_sweep_whose_processes_are_killed_at_random_loses_doubles_and_changes_nothing(
    stories: Stories, tmp_path: Path
):
    stories.all_over()  # a node goes down
    program = Path(__file__).parent / "chaos.py"
    words = ["--kills", "5", "--runs", "2", "--seed", "0", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(program), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": kill ") + done.stdout.count("  kill ") == 5
