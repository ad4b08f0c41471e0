"""The plug-ins of these tests are found by their plain module name, in rank processes too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
