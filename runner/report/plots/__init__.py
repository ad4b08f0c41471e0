"""Figures of the report. Matplotlib is imported without MPLBACKEND: a wrong name in it would raise."""

import os
from importlib import import_module

_backend = os.environ.pop("MPLBACKEND", None)
import_module("matplotlib")
if _backend is not None:
    os.environ["MPLBACKEND"] = _backend
