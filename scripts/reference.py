"""Makes the numbers of results/reference again and compares them with the stored ones.

    python scripts/reference.py mission          compare; exit code 1 if a table is missing or differs
    python scripts/reference.py mission write    store the new tables, and their numbers in README.md

(`make reference only=mission`, with `with=write` to store.) A folder's `reference.yaml` says how:

    commands: [daso-bench +study=mission]   run one after the other in an empty folder, one thread each
    report: results/mission                 whose report is stored; or `output`: what commands wrote
    files: [runs.csv, arms.csv]             what is stored of it, also `../results/…` of the same run; tables
                                            are compared number by number, YAML files as they are
    measured: false                         true: in real time, so that other numbers are no error
    commit, date, seconds                   of the stored numbers; written by this script

A number is stored with six significant digits. It differs if it is more than one unit of its last digit away.
Another kind of processor rounds sums in another way, so that accuracies and times to target may differ there.
"""

import csv
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from daso_bench.runner.config import groups
from daso_bench.runner.report import simulation_errors
from daso_bench.runner.report.statistics.model_error import reference_pairs

ROOT = groups.CONF.parent
REFERENCE = ROOT / "results" / "reference"
FILE, README = "reference.yaml", "README.md"
BEGIN, END = "<!-- numbers: written by `make reference only=NAME with=write` -->", "<!-- end of numbers -->"
DIGITS, LEAST = 6, Decimal("1e-9")  # significant digits stored; relative difference that is rounding
SHOWN = 10  # differences that are printed, of each table
# Where and with which versions a run was made is no part of its numbers, if all arms agree.
PLACES = ("run_directory",)
VERSIONS = ("Python", "packages", "daso-bench", "commit", "local changes, hash", "system", "nodes")
# What README.md shows of the tables: "heading = column", or the column alone; see `_cell`.
SHOWN_COLUMNS: Mapping[str, Sequence[str]] = {
    "speedups.csv": (
        *("size", "baseline", "arm", "runs"),
        "same epochs, times as fast = fixed_work ±",
        "until the target = to_target ±",
        "final metric, points = quality_points ±",
        "no arm can exceed = bound",
        "noise floor, same epochs = fixed_work_noise_floor %",
        "noise floor, until the target = to_target_noise_floor %",
    ),
    "claims.csv": ("claim", "arm", "measured here = measured", "verdict", "remarks"),
    "efficiency.csv": (
        *("arm", "samples/s = samples_per_s", "efficiency = efficiency ±"),
        *("computing = share_compute %", "level 1 = share_blocked_on_intra %"),
    ),
    "readers.csv": (
        *("size", "reader = arm", "still cached = still_cached", "reads", "jumps"),
        *("waited, s = waited_s", "times as fast = times_as_fast ±"),
    ),
    "tuning.csv": ("arm", "trials", "failed = failed_trials", "winner", "regret of the default = regret ±"),
}

Table = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """What `reference.yaml` says; see the first lines of this file. One of report, output is given."""

    commands: Sequence[str]
    files: Sequence[str]
    report: str = ""
    output: str = ""
    measured: bool = False
    commit: str = ""
    date: str = ""
    seconds: int = 0


def read(folder: Path) -> StoredStudy:
    """Raises ValueError where the file is not as it must be, OSError where there is none."""
    tree: dict[str, Any] = yaml.safe_load((folder / FILE).read_text(encoding="utf-8"))
    study = StoredStudy(**{**tree, "date": str(tree.get("date", ""))})
    if bool(study.report) == bool(study.output):
        raise ValueError(f"{folder / FILE}: must have either report or output")
    return study


def make(study: StoredStudy, scratch: Path) -> Path:
    """Run the commands in `scratch`; returns the folder with the new files. Raises CalledProcessError."""
    commands = [*study.commands]
    if study.report:
        commands.append(f"daso-bench report {study.report} --output report")
    programs = Path(sys.executable).parent
    for command in commands:
        program, *words = shlex.split(command.replace("{project}", str(ROOT)))
        print(f"$ {command}", flush=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([programs / program, *words], cwd=scratch, env=environment, check=True)
    return scratch / ("report" if study.report else study.output)


def compare(study: StoredStudy, stored: Path, new: Path) -> list[str]:
    """A sentence for each file that is missing, and for each table or YAML file that differs."""
    found: list[str] = []
    for name in study.files:
        old, made = stored / Path(name).name, new / name
        missing = [place for place, file in (("stored", old), ("made", made)) if not file.is_file()]
        if missing:
            found.append(f"{name}: not {' and not '.join(missing)}")
        elif name.endswith(".yaml") and old.read_text() != made.read_text():
            found.append(f"{name}: differs")
        elif name.endswith(".csv") and (wrong := differences(table_of(old), table_of(made))):
            more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
            found.append("\n  ".join([f"{name}: {len(wrong)} differences", *wrong[:SHOWN], *more]))
    return found


def differences(stored: Table, new: Table) -> list[str]:
    """Each cell that differs: row (from 1), column, both texts."""
    if len(stored) != len(new):
        return [f"{len(stored)} rows stored, {len(new)} made"]
    if stored and list(stored[0]) != list(new[0]):
        return [f"columns stored: {', '.join(stored[0])}; made: {', '.join(new[0])}"]
    return [
        f"row {number}, {column}: stored {was}, now {row[column]}"
        for number, (old, row) in enumerate(zip(stored, new, strict=True), 1)
        for column, was in old.items()
        if column not in PLACES and not (old.get("quantity") in VERSIONS and column.startswith("of_"))
        if not equal(was, row[column])
    ]


def equal(stored: str, new: str) -> bool:
    """Whether two cells are alike: texts and whole numbers exactly, others to the last digit stored."""
    if stored == new:
        return True
    try:
        was, now = Decimal(stored), Decimal(new)
    except InvalidOperation:
        return False
    exponent = was.as_tuple().exponent
    if not isinstance(exponent, int) or not now.is_finite() or "." not in stored:  # NaN, a whole number
        return False
    return abs(was - now) <= max(Decimal(1).scaleb(exponent), LEAST * abs(was))


def store(study: StoredStudy, folder: Path, new: Path, *, commit: str, seconds: float) -> None:
    """Copy the new files, with rounded numbers, and write what was made when."""
    for name in study.files:
        if name.endswith(".csv"):
            rows = [{key: rounded(cell) for key, cell in row.items()} for row in table_of(new / name)]
            with (folder / Path(name).name).open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        else:
            shutil.copyfile(new / name, folder / Path(name).name)
    tree = yaml.safe_load((folder / FILE).read_text(encoding="utf-8"))
    tree |= {"commit": commit, "date": date.today().isoformat(), "seconds": round(seconds)}
    (folder / FILE).write_text(yaml.safe_dump(tree, sort_keys=False, width=140), encoding="utf-8")
    write_numbers(folder)


def rounded(cell: str) -> str:
    """A number that is not whole with so many significant digits; any other text as it is."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return f"{value:#.{DIGITS}g}" if "." in cell or "e" in cell else cell


def table_of(file: Path) -> Table:
    """The rows of a CSV file, all of text."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write_numbers(folder: Path) -> None:
    """Replace the block of numbers in the folder's README.md. Raises ValueError where it has none."""
    file = folder / README
    head, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file}: has no block of numbers ({BEGIN} … {END})")
    file.write_text(f"{head}{BEGIN}\n\n{numbers(folder)}\n{END}{tail}", encoding="utf-8")


def numbers(folder: Path) -> str:
    """How the numbers were made, and what SHOWN_COLUMNS says of the stored tables, as Markdown."""
    study = read(folder)
    minutes, seconds = divmod(study.seconds, 60)
    took = f", in {minutes} min {seconds} s" if study.seconds else ""
    where = "measured in real time" if study.measured else "in virtual time"
    lines = [f"Made at commit `{study.commit[:7]}`, {study.date}{took}, {where}, by", "", "```"]
    lines += [*study.commands, "```"]
    for name, columns in SHOWN_COLUMNS.items():
        if name in study.files and (folder / name).is_file():
            lines += ["", f"`{name}`:", "", *_markdown(table_of(folder / name), columns)]
    if "pairs.csv" in study.files:
        lines += ["", *_errors()]
    return "\n".join([*lines, ""])


def _markdown(rows: Table, columns: Sequence[str]) -> list[str]:
    """A table without the columns that are empty in all rows."""
    pairs = [shown.split(" = ") for shown in columns]
    cells = {pair[0]: [_cell(row, pair[-1]) for row in rows] for pair in pairs}
    cells = {head: column for head, column in cells.items() if any(column)}
    body = [[column[number] or "–" for column in cells.values()] for number in range(len(rows))]
    return [f"| {' | '.join(line)} |" for line in (cells, ["---"] * len(cells), *body)]


def _cell(row: Mapping[str, str], column: str) -> str:
    """`name`: as it stands, numbers in three digits; `name %`; `name ±`: with its interval."""
    name, _, kind = column.partition(" ")
    text = row[name]
    if not text:
        return ""
    if kind == "%":
        return f"{100 * float(text):.2g} %"
    if kind == "±":
        low, high = _short(row[f"{name}_low"]), _short(row[f"{name}_high"])
        return f"{row.get(f'{name}_bound') or ''}{_short(text)} [{low}, {high}]"
    return _short(text)


def _short(text: str) -> str:
    """A number that is not whole in three digits; any other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    number = f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    return number if "." in text else text


def _errors() -> list[str]:
    """Errors of virtual time over the stored pairs of `daso-bench validate`."""
    head = ["| error of virtual time | pairs | mean | median size | 95th percentile of sizes |"]
    return (
        head
        + ["|---|---|---|---|---|"]
        + [
            f"| {kind} | {of['count']} | {of['bias']:+.3f} | {of['median']:.3f} | {of['p95']:.3f} |"
            for kind, of in simulation_errors.validate(reference_pairs()).errors.items()
        ]
    )


def _commit() -> str:
    """The present commit. Raises ValueError where something other than results/ was changed since."""
    if changed := _git("status", "--porcelain", "--", ".", ":!results"):
        raise ValueError(f"numbers are stored of a commit alone; changed since the last one:\n{changed}")
    return _git("rev-parse", "HEAD")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    known = sorted(file.parent.name for file in REFERENCE.glob(f"*/{FILE}"))
    writes = len(arguments) == 2 and arguments[1] == "write"
    if not arguments or arguments[0] not in known or (len(arguments) > 1 and not writes):
        print(f"make reference only=NAME [with=write]; NAME: {', '.join(known)}", file=sys.stderr)
        return 2
    folder = REFERENCE / arguments[0]
    study, commit = read(folder), _commit() if writes else ""
    with tempfile.TemporaryDirectory(prefix="reference_") as scratch:
        began = time.monotonic()
        new = make(study, Path(scratch))
        found = compare(study, folder, new)
        print("\n".join(found) or f"{arguments[0]}: all {len(study.files)} files as stored")
        if writes and not any("not made" in sentence for sentence in found):
            store(study, folder, new, commit=commit, seconds=time.monotonic() - began)
            return 0
    missing = [sentence for sentence in found if ": not " in sentence]
    return int(bool(missing if study.measured else found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
