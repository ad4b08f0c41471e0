"""What each rank notes of the bytes it had sent up to an evaluation, for made-up runs."""

from pathlib import Path
from typing import Any

from daso_bench.runner.records.json_lines import RecordWriter

START = {"kind": "start", "attempt": 1, "step": 0, "ranks_of_nodes": [1, 1]}


def note(index: int, inter: Any, attempt: int = 1, step: int | None = None) -> dict[str, Any]:
    step = 10 + 10 * index if step is None else step
    sent = {"intra": 1, "inter": inter}
    return {"kind": "evaluation", "attempt": attempt, "index": index, "step": step, "payload_bytes": sent}


def with_notes(path: Path, sent: list[float]) -> Path:
    """Two ranks that have sent half of it each."""
    with RecordWriter(path / "metrics.jsonl") as writer:
        writer.write(START)
    for rank in range(2):
        with RecordWriter(path / "ranks" / f"{rank}.jsonl") as writer:
            for index, total in enumerate(sent):
                writer.write(note(index, int(total / 2)))
    return path
