"""Helper modules beside the tests are imported by their plain names; CI repeats the same random examples."""

import os
import sys
from pathlib import Path

import torch
from hypothesis import settings

for folder in ("strategies", "runner", "datasets"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

torch.set_num_threads(1)

# A developer's run explores; a landing must not hang on which examples are drawn today.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
