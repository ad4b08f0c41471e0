"""Run and compare data-parallel training strategies by time-to-accuracy."""

from importlib.metadata import version

__version__ = version("daso-bench")
