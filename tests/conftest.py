"""Helper modules beside the tests are imported by their plain names."""

import sys
from pathlib import Path

import torch

for folder in ("strategies", "runner"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

torch.set_num_threads(1)
