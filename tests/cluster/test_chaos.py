"""Random kills, in small, and `daso-bench check launcher=slurm`; both beside all other scenarios."""

from scenarios import Stories
from slurm_site import Done


def test_a_sweep_whose_processes_are_killed_at_random_loses_doubles_and_changes_nothing(stories: Stories):
    """`make chaos` does it at length."""
    done: Done = stories["chaos"]
    print(done.text)
    assert done.code == 0, done.text
    assert done.text.count("  kill ") == 4


def test_a_job_looks_at_the_cluster_and_finds_nothing_to_mend(stories: Stories):
    done, results = stories["check"]
    assert done.code == 0, done.text
    rows = [" ".join(line.split()) for line in done.text.splitlines()]
    assert {"running on n[1,3]: contract of daso", "Nothing has to be mended."} <= set(rows)
    for start in ("0 0 n1 ", "3 1 n3 ", "16.8 MB ", "ddp: ok (", "daso: ok ("):
        assert any(row.startswith(start) for row in rows), start
    assert any(row.startswith("n1 - n3 ") and " Gbit/s " in row for row in rows)
    (result,) = results.glob("check/*/check.json")
    assert rows[-1] == f"all of it: {result}"
