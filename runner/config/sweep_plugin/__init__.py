"""Hydra's two plugins of daso-bench: they turn a sweep into composed configurations and start nothing.

This folder is installed as the package `hydra_plugins.daso_bench`, because Hydra instantiates a launcher or
sweeper only from there. `register()` makes them known in an editable install, where Hydra's scan of
`hydra_plugins` finds nothing. What is done with the composed configurations (order, skipping, running) is
`runner/studies/sweep.py`, after Hydra has returned.
"""

from .plugin import register

__all__ = ["register"]
