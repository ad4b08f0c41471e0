"""`launcher=slurm`: submits runs as job arrays within the site's limits, each run at most once.

Each array has a folder, `<study>/.slurm/<job name>`, that lists its runs before sbatch is called: a
later submission finds by that name what is in the queue, even if this process ended right after sbatch.
"""

import contextlib
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ....strategies.errors import ConfigError, MachineError
from ...config.launchers import SlurmConfig
from ...config.run_config import RunConfig
from ...records import display
from ...records.json_lines import write_json
from ...records.run_directory import Outcome, RunDirectory
from ..launcher import Launcher, Runs, refuse_uneven_nodes
from ..supervisor import Event
from . import job, queue, slurm_status
from .request import CODE_FILE, JobRequest, code_state, request_of, scrubbed, snapshot

FOLDER = ".slurm"
KNOWN_S = 10.0  # from sbatch's answer until squeue shows the job, on a busy controller


class SlurmLauncher(Launcher):
    """`launcher=slurm`: submits batch jobs, or runs in the allocation around this process."""

    def refuse(self, config: RunConfig) -> None:
        refuse_uneven_nodes(config)

    def describe(self, config: RunConfig) -> list[str]:
        lines = super().describe(config)
        try:
            return [*lines, *request_of(config).describe()]
        except MachineError as error:  # a machine without Slurm can show the rest
            return [*lines, f"what it asks of Slurm is not known here: {str(error).splitlines()[0]}"]

    def run(
        self, directory: RunDirectory, config: RunConfig, on_event: Callable[[Event], None] | None = None
    ) -> Outcome:
        return job.run_here(directory, config, job.Allocation.around(), on_event)

    def hands_over(self, config: RunConfig) -> bool:
        return isinstance(config.launcher, SlurmConfig) and config.launcher.submit

    def hand_over(self, runs: Runs, console: Console) -> int:
        for run, _ in runs:
            run.cancel_file.unlink(missing_ok=True)
        display.say(console, f"slurm: {len(runs)} run{'s' * (len(runs) != 1)}", "bold")
        refused = submit(runs, lambda text: display.say(console, text))
        for id, why in refused.items():
            display.say(console, f"{id}: not submitted: {why}", "red")
        if self.waits([config for _, config in runs]):
            followed = [run for run, _ in runs if run.run_id not in refused]
            return max(slurm_status.follow(followed, console), 3 if refused else 0)
        for folder in dict.fromkeys(run.path.parent for run, _ in runs):
            where = runs[0][0].path if len(runs) == 1 else folder
            display.say(console, f"look: daso-bench status {shlex.quote(str(where))}")
        return 3 if refused else 0

    def waits(self, configs: Sequence[RunConfig]) -> bool:
        return any(isinstance(config.launcher, SlurmConfig) and config.launcher.wait for config in configs)


def submit(runs: Runs, tell: Callable[[str], None]) -> dict[str, str]:
    """Put `runs` (existing run directories that are not finished) into Slurm's queue.

    Runs that are there already are left alone. Ids are written into each run's status.json as they come.
    Returns why runs were refused, by run id. Raises ConfigError, MachineError if nothing could be submitted.
    """
    refused: dict[str, str] = {}
    studies: dict[Path, list[tuple[RunDirectory, RunConfig]]] = {}
    for directory, config in runs:
        studies.setdefault(directory.path.parent, []).append((directory, config))
    for study, members in studies.items():
        with _locked(study):
            live = queued_runs(study)
            new: list[tuple[RunDirectory, RunConfig]] = []
            for directory, config in members:
                queued = live.get(directory.run_id)
                if queued is not None:
                    tell(f"{directory.run_id}: in the queue already, as job {queued.id}")
                    # The process that submitted it may have died before it wrote the id.
                    if slurm_status.job_id(directory.status()) != queued.id:
                        _note_job(directory, queued.id, queued.name)
                elif directory.status()["status"] == "running":
                    refused[directory.run_id] = "it is being run, by no job of this study"
                else:
                    new.append((directory, config))
            if new:
                most, array = queue.max_submit(), queue.setting("MaxArraySize")
                room = len(new) if most is None else max(0, most - len(live))
                for request, batch in _batches(new, array):
                    room -= _submit_batch(study, request, batch, room, refused, tell)
    return refused


def queued_runs(study: Path) -> dict[str, queue.QueuedJob]:
    """Run id -> its job, of all runs of the study that wait or run in the queue now."""
    live: dict[str, queue.QueuedJob] = {}
    for file in (study / FOLDER).glob(f"*/{job.RUNS}"):
        over = file.parent / "over"
        if over.exists():
            continue
        ids = file.read_text(encoding="utf-8").split()
        alive = [element for element in _known(file.parent.name, file).values() if element.live]
        live |= {ids[int(element.id.partition("_")[2] or 0)]: element for element in alive}
        if not alive and time.time() - file.stat().st_mtime > 60:
            over.touch()  # no later call needs to ask about it
    return live


def _known(name: str, file: Path) -> dict[str, queue.QueuedJob]:
    """The jobs of an array; one that was submitted just now is waited for until squeue must know it."""
    deadline = time.monotonic() + min(KNOWN_S, file.stat().st_mtime + KNOWN_S - time.time())
    while not (jobs := queue.in_queue(name=name)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return jobs


def _batches(runs: Runs, max_array_size: int | None) -> list[tuple[JobRequest, list[RunDirectory]]]:
    """Runs that ask for the same, in portions that one array may hold; in the order given."""
    most = 1000 if max_array_size is None else max(1, max_array_size)  # 0: no arrays; one run is none
    alike: dict[str, tuple[JobRequest, list[RunDirectory]]] = {}
    for directory, config in runs:
        key = repr((config.launcher, config.cluster.ranks_of_nodes))
        if key not in alike:
            alike[key] = request_of(config), []
        alike[key][1].append(directory)
    return [
        (request, members[start : start + most])
        for request, members in alike.values()
        for start in range(0, len(members), most)
    ]


def _submit_batch(
    study: Path,
    request: JobRequest,
    members: list[RunDirectory],
    room: int,
    refused: dict[str, str],
    tell: Callable[[str], None],
) -> int:
    """Submit as many of `members` as there is `room` for; returns how many are in the queue now."""
    accepted, rest = members[:room], members[room:]
    for directory in rest:
        refused[directory.run_id] = "more than the site lets you submit at once; repeat it later"
    if not accepted:
        return 0
    for line in request.describe():
        tell(f"  {line}")
    name = f"daso-bench-{secrets.token_hex(5)}"
    folder = study / FOLDER / name
    try:
        folder.mkdir(parents=True)
        (folder / job.RUNS).write_text("".join(f"{run.run_id}\n" for run in accepted), encoding="utf-8")
        state = code_state()
        for directory in accepted:
            write_json(directory.path / CODE_FILE, state)
        ids = _sbatch(request, name, folder, accepted)
    except (MachineError, OSError) as error:
        for directory in accepted:
            refused[directory.run_id] = str(error)
        return 0
    for directory, id in zip(accepted, ids, strict=True):
        _note_job(directory, id, name)
    tell(f"  submitted as job {ids[0].partition('_')[0]}" + (f", {len(ids)} runs" if len(ids) > 1 else ""))
    return len(accepted)


def _note_job(directory: RunDirectory, id: str, name: str) -> None:
    with contextlib.suppress(ConfigError, MachineError), directory.lock():  # else it runs
        job_of = {"id": id, "name": name, "submitted_unix": time.time()}
        directory.update(status="queued", reason=None, job=job_of)


def _sbatch(request: JobRequest, name: str, folder: Path, runs: Sequence[RunDirectory]) -> list[str]:
    """The job ids, in the order of `runs`. Raises MachineError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    launcher = request.launcher
    parameters: dict[str, Any] = request.parameters()
    if launcher.snapshot:
        code = snapshot(folder.parent)
        line = f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}"
        parameters["setup"] = [*parameters.get("setup", []), line]
    given = [name.replace("_", "-") for name in parameters] + list(launcher.sbatch)
    with _environment(scrubbed(os.environ, given)):
        try:
            executor = _executor(folder, launcher.python)
            executor.update_parameters(job_name=name, **parameters)
            submitted = executor.map_array(str, [run.run_id for run in runs])
        except (FailedSubmissionError, FailedJobError, RuntimeError, OSError) as error:
            lines = [line.strip() for line in str(error).splitlines() if "sbatch: error" in line]
            words = "; ".join(line.removeprefix("sbatch: error: ") for line in lines)
            raise MachineError(f"sbatch: {words or str(error).strip()}") from error
    return [submitted_job.job_id for submitted_job in submitted]


def _executor(folder: Path, python: str | None) -> Any:
    """submitit's executor with our command in the batch file.

    Its own command loads a pickle that gets its name only after sbatch has answered: jobs of a submission
    that was cut off right there would never find theirs. Ours reads the list that was written before.
    """
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        @property
        def _submitit_command_str(self) -> str:
            return f"exec {self.python} -u -m {job.__name__} {shlex.quote(str(folder))}"

    return Executor(folder=folder, max_num_timeout=0, python=python)


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """submitit gives sbatch the process's own environment, and sbatch gives it to the job."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _locked(study: Path) -> Iterator[None]:
    """One submission at a time for a study: the second then sees what the first has put into the queue."""
    folder = study / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
