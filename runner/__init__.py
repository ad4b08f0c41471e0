"""The experiment runner: twelve rooms; a lower one never imports a higher one (tests/test_boundaries.py)."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent  # has conf/ and results/reference/
