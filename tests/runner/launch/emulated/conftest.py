"""Who runs these tests' programs: an ordinary user; and where they cannot run at all."""

from collections.abc import Iterator

import pytest
from people import Person, may_administer, nobody, this_user

from daso_bench.runner.launch.emulated.nodes import impossible


@pytest.fixture(scope="session", autouse=True)
def _nodes_can_be_had() -> None:
    """Skipped only where they are forbidden: root with all of its power is never skipped."""
    if not may_administer() and (reason := impossible()):
        pytest.skip(reason)


@pytest.fixture
def person() -> Iterator[Person]:
    """Nobody, for whom only root can run something: any other user is an ordinary one."""
    with nobody() if may_administer() else this_user() as made:
        yield made
