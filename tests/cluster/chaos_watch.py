"""What chaos sees of one run while it is broken, and what it must find in its folder at the end."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learnt
from slurm_site import status_of, step_of

from daso_bench.runner.records.json_lines import read_json, read_records

CHECKPOINT_SAMPLES, BATCH = 320, 64
LOST_STEPS = (
    CHECKPOINT_SAMPLES // BATCH + 1
)  # of one checkpoint interval: the last batch of an epoch is longer
_TITLE = re.compile(rb"daso-bench (\S+) rank (\d+)\0*$")


def ranks_alive() -> dict[str, dict[int, list[int]]]:
    """Run id -> rank -> ids of the processes that call themselves so."""
    found: dict[str, dict[int, list[int]]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            match = _TITLE.match((folder / "cmdline").read_bytes())
        except OSError:
            continue
        if match is not None:
            of_run = found.setdefault(match[1].decode(), {})
            of_run.setdefault(int(match[2]), []).append(int(folder.name))
    return found


@dataclass
class Watched:
    """One run: looked at again and again by `look`, judged by `violations`."""

    path: Path
    checkpoint_before: dict[int, int] = field(default_factory=dict)  # attempt -> newest one while it ran
    step_before: dict[int, int] = field(default_factory=dict)  # attempt -> the last step that it told of
    wrong: list[str] = field(default_factory=list)
    _twice: int = 0

    def look(self, alive: dict[int, list[int]]) -> dict[str, Any]:
        """Note how it is now; `alive`: its ranks' processes. Returns its status.json."""
        try:
            status = status_of(self.path)
        except json.JSONDecodeError as error:
            self.wrong.append(f"status.json is half written: {error}")
            return {}
        attempt = len(status.get("attempts", ()))
        if status.get("status") == "running":
            self.checkpoint_before[attempt] = self.newest_checkpoint()
            self.step_before[attempt] = max(step_of(self.path), self.step_before.get(attempt, 0))
        double = {rank: pids for rank, pids in alive.items() if len(pids) > 1}
        self._twice = self._twice + 1 if double else 0
        if self._twice == 3:  # one that is just being killed is no second one
            self.wrong.append(f"two attempts at once: processes of its ranks {double}")
        return status

    def newest_checkpoint(self) -> int:
        names = (path.name for path in (self.path / "checkpoints").glob("step_*"))
        return max((int(name.removeprefix("step_")) for name in names), default=0)

    def violations(self, reference: Path) -> Iterator[str]:
        """What is not as it must be of a run that was to finish like `reference`."""
        yield from self.wrong
        status = status_of(self.path)
        if status.get("status") != "finished":
            yield f"is {status.get('status')}: {status.get('reason')}"
            return
        yield from self._unreadable()
        yield from self._overlaps(status["attempts"])
        yield from self._lost_work()
        if learnt.history(self.path) != learnt.history(reference):
            yield f"has learnt otherwise than the unbroken {reference}"
        elif not learnt.same_model(self.path, reference):
            yield f"ended with another model than the unbroken {reference}"

    def _unreadable(self) -> Iterator[str]:
        for file in sorted(self.path.rglob("*.json")):
            try:
                read_json(file)
            except ValueError as error:
                yield f"{file.relative_to(self.path)}: {error}"
        for file in sorted(self.path.rglob("*.jsonl")):
            for damage in read_records(file).damage:
                if "the line is cut" not in damage:  # by the death of its writer
                    yield f"{file.relative_to(self.path)}, {damage}"

    def _overlaps(self, attempts: list[dict[str, Any]]) -> Iterator[str]:
        ended = 0.0
        for attempt in attempts:
            if attempt["started_unix"] < ended:
                yield f"attempt {attempt['number']} began before the end of the one before"
            ended = attempt["ended_unix"] or attempt["started_unix"]

    def _lost_work(self) -> Iterator[str]:
        """Attempts that began before the newest checkpoint, or lost more than the way to it."""
        for row in learnt.starts(self.path):
            attempt, step = row["attempt"], row["step"]
            earlier = range(1, attempt)
            saved = max((self.checkpoint_before.get(number, 0) for number in earlier), default=0)
            if step < saved:
                yield f"attempt {attempt} began at step {step}, a checkpoint of step {saved} was there"
            done = max((self.step_before.get(number, 0) for number in earlier), default=0)
            if done - step > LOST_STEPS:
                yield f"attempt {attempt} began at step {step}, step {done} had been told of before"
