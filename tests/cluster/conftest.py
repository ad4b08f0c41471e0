"""A real Slurm for the tests of this folder: scripts/slurm/dev_cluster, or whatever SLURM_CONF names.

Without one the tests are skipped, unless DASO_BENCH_REQUIRE_SLURM=1 says that they must not be.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scenarios import SCENARIOS, Stories
from slurm_site import Site

WHOLE_S = 1500  # for the first test, which waits for runs side by side; quiet cores need a quarter of it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.timeout(WHOLE_S))


def missing() -> str | None:
    """Why there is no cluster for these tests; None if there is."""
    if "SLURM_CONF" not in os.environ:
        return 'no Slurm: scripts/slurm/dev_cluster up; eval "$(scripts/slurm/dev_cluster env)"'
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        return (
            "a node goes down while these tests run: one process for all of them, pytest -n 0 tests/cluster"
        )
    if shutil.which("sinfo") is None:
        return "no sinfo in PATH"
    done = subprocess.run(["sinfo", "--noheader", "--format=%D"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"sinfo: {done.stderr}"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Where runs go; what is left of them in the queue is cancelled afterwards."""
    why = missing()
    if why is not None:
        if os.environ.get("DASO_BENCH_REQUIRE_SLURM") == "1":
            pytest.fail(f"DASO_BENCH_REQUIRE_SLURM=1, but {why}")
        pytest.skip(why)
    found = Site(tmp_path_factory.mktemp("site"))
    yield found
    found.give_up()


@pytest.fixture(scope="session")
def stories(site: Site) -> Iterator[Stories]:
    """All scenarios, running side by side."""
    found = Stories(site, SCENARIOS)
    yield found
    site.give_up()  # nothing is left to do, unless the tests were interrupted
    found.all_over()
