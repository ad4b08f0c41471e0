"""docs/strategies.md says what the code says."""

import pytest
import strategy_pages


def test_the_pages_are_up_to_date():
    text = strategy_pages.FILE.read_text(encoding="utf-8")
    assert strategy_pages.document(text) == text, "run `make docs`"


def test_a_file_without_its_marker_is_left_alone():
    with pytest.raises(ValueError, match="marker"):
        strategy_pages.document("# Strategies\n")
