"""`daso-bench check launcher=slurm` on a real cluster."""

from slurm_site import SLURM, Site


def test_a_job_looks_at_the_cluster_and_finds_nothing_to_mend(site: Site):
    results = site.results("looked_at")
    # Other tests switch n2 off.
    done = site.bench("check", *SLURM, f"results_dir={results}", "+launcher.sbatch.exclude=n2")
    assert done.code == 0, done.text
    rows = [" ".join(line.split()) for line in done.text.splitlines()]
    assert "running on n[1,3]" in rows
    assert "contract of daso" in rows
    assert any(row.startswith("0 0 n1 ") for row in rows)
    assert any(row.startswith("3 1 n3 ") for row in rows)
    assert any(row.startswith("n1 - n3 ") and " Gbit/s " in row for row in rows)
    assert any(row.startswith("16.8 MB ") for row in rows)
    assert any(row.startswith("ddp: ok (") for row in rows)
    assert any(row.startswith("daso: ok (") for row in rows)
    assert "Nothing has to be mended." in rows
    (result,) = results.glob("check/*/check.json")
    assert rows[-1] == f"all of it: {result}"
