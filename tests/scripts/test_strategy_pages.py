"""docs/strategies.md says what the code says."""

import pytest
import strategy_pages
from runs import NAMES, strategy_class


def test_the_pages_are_up_to_date():
    text = strategy_pages.FILE.read_text(encoding="utf-8")
    assert strategy_pages.document(text) == text, "run `make docs`"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_every_key_and_every_caveat(name: str):
    page = strategy_pages.page(name)
    kind = strategy_class(name)
    for key in kind.Config.__dataclass_fields__:
        assert f"| `{key}` |" in page
    for sentence in kind.caveats:
        assert sentence in page
    assert kind.caveats, "every method has limits"


def test_a_file_without_its_marker_is_left_alone():
    with pytest.raises(ValueError, match="marker"):
        strategy_pages.document("# Strategies\n")
