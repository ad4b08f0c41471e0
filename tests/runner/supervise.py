"""A supervisor as a program of its own, for tests that send it signals: ROOT RUN_ID ENTRY RANKS SETTINGS."""

import json
import sys
from pathlib import Path

from process_entries import make

from daso_bench.runner.launch.local import launch
from daso_bench.strategies.errors import ConfigError, MachineError


def main() -> int:
    root, run_id, entry, ranks, settings = sys.argv[1:]
    try:
        directory = make(Path(root), run_id, steps=30)
        outcome = launch(
            directory,
            ranks=int(ranks),
            threads=1,
            port=None,
            stall_s=60,
            entry=entry,
            on_event=lambda event: print(json.dumps(event), flush=True),
            **{"patience_s": 60, "preload": (), **json.loads(settings)},
        )
    except (ConfigError, MachineError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 3
    if "torch" in sys.modules:
        raise AssertionError("the supervisor imported torch")
    return outcome.exit_code


if __name__ == "__mp_main__":
    raise AssertionError("a rank ran the user's script again")
if __name__ == "__main__":
    sys.exit(main())
