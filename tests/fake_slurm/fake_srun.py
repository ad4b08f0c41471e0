"""The fake `srun`: a step inside an allocation, whose tasks are processes on this machine.

Texts and exit codes are those of Slurm 22.05.8, seen on a small cluster; the exit code is the largest of all
tasks, 128 + signal for one that a signal ended.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import fake_jobs
from fake_options import Table
from fake_state import Job, compressed, expanded, fail, locked, stamp, version

Layout = list[tuple[str, int]]  # node and number of tasks


class Srun:
    """One step: its options, its tasks, and what became of them."""

    def __init__(self, options: dict[str, str], command: list[str], job: Job, state: dict[str, Any]) -> None:
        self.options, self.command, self.job = options, command, job
        self.at, self.settings = version(state), state["settings"]
        self.cpus_per_task = self._cpus_per_task()
        self.layout = self._layout()
        self.number = str(len(job["steps"]))
        self.name = f"{job['id']}.{self.number}"
        self.tasks: list[subprocess.Popen[bytes]] = []
        self.readers: list[threading.Thread] = []
        self.told: set[int] = set()
        self.ending: float | None = None

    def _cpus_per_task(self) -> int | None:
        """The cores of a task: said here, or inherited by the rule of this version.

        "srun will no longer read in SLURM_CPUS_PER_TASK ... or set the new SRUN_CPUS_PER_TASK" (release
        notes of 22.05, quoted in reframe-hpc/reframe#2655); "Replace SRUN_CPUS_PER_TASK with
        SLURM_CPUS_PER_TASK and get back the previous behavior before Slurm 22.05" (CHANGELOG/slurm-23.11.md).
        """
        if "cpus-per-task" in self.options:
            return int(self.options["cpus-per-task"])
        read = "SRUN_CPUS_PER_TASK" if (22, 5) <= self.at < (23, 11) else "SLURM_CPUS_PER_TASK"
        value, tres = os.environ.get(read), os.environ.get("SLURM_TRES_PER_TASK", "")
        if self.at >= (23, 11) and value and tres.startswith("cpu:") and tres != f"cpu:{value}":
            # scalableminds/webknossos-libs#1483
            fail(
                "srun",
                "fatal: cpus-per-task set by two different environment variables "
                f"SLURM_CPUS_PER_TASK={value} != SLURM_TRES_PER_TASK={tres}",
            )
        return int(value) if value else None

    def _layout(self) -> Layout:
        env, options = os.environ, self.options
        here = expanded(options["nodelist"]) if "nodelist" in options else self.job["nodes"]
        nodes = int(options.get("nodes", env.get("SLURM_JOB_NUM_NODES", env.get("SLURM_NNODES", len(here)))))
        if "nodelist" in options and "nodes" not in options:
            nodes = len(here)
        if nodes > len(self.job["nodes"]):
            fail("srun", f"error: Only allocated {len(self.job['nodes'])} nodes asked for {nodes}")
        per_node = options.get("ntasks-per-node", env.get("SLURM_NTASKS_PER_NODE"))
        if "ntasks" in options or ("ntasks-per-node" not in options and "SLURM_NTASKS" in env):
            total = int(options.get("ntasks", env.get("SLURM_NTASKS", "1")))
        else:
            total = int(per_node or 1) * nodes
        if per_node and int(per_node) * nodes != total > nodes and "ntasks-per-node" not in options:
            sys.stderr.write(
                f"srun: Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match the "
                f"requested tasks {total} with the number of requested nodes {nodes}. "
                "Ignoring --ntasks-per-node.\n"
            )
        nodes = min(nodes, total)
        if (
            math.ceil(total / nodes) * (self.cpus_per_task or 1) > fake_jobs.cpus(self.job)
            and "overcommit" not in options
        ):
            fail(
                "srun",
                f"error: Unable to create step for job {self.job['id']}: "
                "More processors requested than permitted",
            )
        return [(node, total // nodes + (index < total % nodes)) for index, node in enumerate(here[:nodes])]

    def environments(self) -> list[dict[str, str]]:
        """What each task finds, on top of what srun inherited."""
        total = sum(count for _, count in self.layout)
        names = [node for node, _ in self.layout]
        first_count = self.layout[0][1]
        many = f"(x{len(names)})" if len(names) > 1 else ""
        even = all(count == first_count for _, count in self.layout)
        per_node = f"{first_count}{many}" if even else ",".join(str(count) for _, count in self.layout)
        found: list[dict[str, str]] = []
        for node_id, (node, count) in enumerate(self.layout):
            for local in range(count):
                own: dict[str, Any] = {
                    "SLURM_PROCID": len(found), "SLURM_LOCALID": local, "SLURM_NODEID": node_id,
                    "SLURM_NTASKS": total, "SLURM_NPROCS": total, "SLURM_STEP_ID": self.number,
                    "SLURM_STEPID": self.number, "SLURM_STEP_NODELIST": compressed(names),
                    "SLURM_STEP_NUM_NODES": len(names), "SLURM_STEP_NUM_TASKS": total,
                    "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_TASKS_PER_NODE": per_node,
                    "SLURM_NNODES": len(names), "SLURM_NODELIST": self.job_list(), "SLURMD_NODENAME": node,
                    "SLURM_DISTRIBUTION": self.options.get("distribution", "block"),
                    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_TOPOLOGY_ADDR": node,
                    "SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_UMASK": "0022",
                    "SLURM_GTIDS": ",".join(str(len(found) - local + other) for other in range(count)),
                }  # fmt: skip
                if self.cpus_per_task:
                    own["SLURM_CPUS_PER_TASK"] = self.cpus_per_task
                if "cpu-bind" in self.options:
                    own["SLURM_CPU_BIND"] = f"quiet,{self.options['cpu-bind']}"
                own |= self._gpus(local)
                found.append(self._inherited() | {name: str(value) for name, value in own.items()})
        return found

    def job_list(self) -> str:
        return compressed(self.job["nodes"])

    def _inherited(self) -> dict[str, str]:
        text = self.options.get(
            "export", os.environ.get("SRUN_EXPORT_ENV", os.environ.get("SLURM_EXPORT_ENV", "ALL"))
        )
        if text in ("ALL", ""):
            return dict(os.environ)
        words = text.split(",")
        chosen = (
            dict(os.environ)
            if "ALL" in words
            else {key: os.environ[key] for key in words if key in os.environ}
        )
        chosen |= {key: value for key, value in os.environ.items() if key.startswith(("SLURM", "FAKE_SLURM"))}
        return (
            chosen | {"PATH": os.environ["PATH"]} | dict(word.split("=", 1) for word in words if "=" in word)
        )

    def _gpus(self, local: int) -> dict[str, str]:
        """Every task of a node sees its GPUs; with --gpus-per-task it sees its own.

        "This option will implicitly set --gpu-bind=per_task:<gpus_per_task>, but that can be overridden with
        an explicit --gpu-bind specification" (man srun of 22.05).
        """
        have = self.job["checked"]["gpus_per_node"]
        if not have:
            return {}
        shown = list(range(have))
        each = self.options.get("gpus-per-task", os.environ.get("SLURM_GPUS_PER_TASK"))
        bind = self.options.get("gpu-bind", os.environ.get("SLURM_GPU_BIND", ""))
        if each and not bind:
            count = int(each.split(":")[-1])
            shown = shown[local * count : (local + 1) * count]
        text = ",".join(map(str, shown))
        return {"CUDA_VISIBLE_DEVICES": text, "GPU_DEVICE_ORDINAL": text, "SLURM_STEP_GPUS": text}

    def start(self) -> None:
        environments = self.environments()
        for rank, environment in enumerate(environments):
            out = self._output("output", rank, environment)
            errors = self._output("error", rank, environment) or (out if "output" in self.options else None)
            label = "label" in self.options
            try:
                task = subprocess.Popen(
                    self.command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                    cwd=self.options.get("chdir"), stdout=out or (subprocess.PIPE if label else None),
                    stderr=errors or (subprocess.PIPE if label else None),
                )  # fmt: skip
            except OSError as error:
                node = environment["SLURMD_NODENAME"]
                sys.stderr.write(f"slurmstepd-{node}: error: execve(): {self.command[0]}: {error.strerror}\n")
                task = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"], start_new_session=True)
            self.tasks.append(task)
            for stream, target in ((task.stdout, sys.stdout), (task.stderr, sys.stderr)):
                if stream:
                    self._follow(rank, stream, target)

    def _output(self, option: str, rank: int, environment: dict[str, str]) -> IO[bytes] | None:
        if option not in self.options:
            return None
        text = self.options[option]
        if text == "none":
            return open(os.devnull, "wb")
        name = fake_jobs.pattern(
            text, self.job, task=rank, node=environment["SLURMD_NODENAME"], step=self.number
        )
        mode = self.options.get("open-mode", os.environ.get("SLURM_OPEN_MODE", "t"))
        if "%t" not in text and rank:
            mode = "a"  # one file for all
        return open(Path(name), "ab" if mode.startswith("a") else "wb", buffering=0)

    def _follow(self, rank: int, stream: IO[bytes], target: Any) -> None:
        def copy() -> None:
            for line in stream:
                target.write(f"{rank}: {line.decode(errors='replace')}")
                target.flush()

        self.readers.append(threading.Thread(target=copy))
        self.readers[-1].start()

    def signal(self, number: int) -> None:
        for task in self.tasks:
            if task.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(task.pid, number)

    def terminate(self) -> None:
        """SIGTERM now, SIGKILL after KillWait."""
        if self.ending is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.ending = time.monotonic() + self.settings["kill_wait_s"]

    def wait(self) -> int:
        bad = self.options.get("kill-on-bad-exit", os.environ.get("SLURM_KILL_BAD_EXIT", "0"))
        kills = bad != "0"
        terminated = False
        while None in [task.poll() for task in self.tasks]:
            time.sleep(0.02)
            failed = self._tell()
            if failed and kills and not terminated:
                terminated = True
                # "Removed 'launch' plugin" (CHANGELOG/slurm-23.02.md): its name no longer stands before it.
                where = "launch/slurm: _step_signal: " if self.at < (23, 2) else ""
                sys.stderr.write(f"srun: {where}Terminating StepId={self.name}\n")
                node = self.layout[0][0]
                sys.stderr.write(
                    f"slurmstepd-{node}: error: *** STEP {self.name} ON {node} "
                    f"CANCELLED AT {stamp(time.time())} ***\n"
                )
                self.terminate()
            if self.ending is not None and time.monotonic() >= self.ending:
                self.signal(signal.SIGKILL)
        signalled = self._tell() or any(task.returncode < 0 for task in self.tasks)
        if signalled and any(task.returncode == -signal.SIGTERM for task in self.tasks):
            sys.stderr.write(f"srun: Force Terminated StepId={self.name}\n")
        for reader in self.readers:
            reader.join()
        return max(code if code >= 0 else 128 - code for task in self.tasks for code in [task.returncode])

    def _tell(self) -> bool:
        """Say which tasks ended badly since the last time, node by node; whether there were any."""
        first, said = 0, False
        for node, count in self.layout:
            by_code: dict[int, list[int]] = {}
            for rank in range(first, first + count):
                code = self.tasks[rank].returncode
                if code and rank not in self.told:
                    by_code.setdefault(code, []).append(rank)
                    self.told.add(rank)
            for code, ranks in by_code.items():
                what = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code)
                text = f"task {ranks[0]}" if len(ranks) == 1 else f"tasks {_ranges(ranks)}"
                sys.stderr.write(f"srun: error: {node}: {text}: {what}\n")
                said = True
            first += count
        sys.stderr.flush()
        return said


def _ranges(ranks: list[int]) -> str:
    return compressed([f"n{rank}" for rank in ranks])[2:-1]


def main(arguments: list[str]) -> int:
    with locked() as state:
        options, command = Table("srun", version(state)).read(arguments, permute=False)
        if "version" in options:
            print(f"slurm {state['settings']['version']}.0")
            return 0
        id = options.get("jobid", os.environ.get("SLURM_JOB_ID"))
        job = next((job for job in state["jobs"].values() if str(job["id"]) == id), None)
        if id is None:
            fail("srun", "error: the fake srun allocates nothing: run it inside a job")
        if job is None or job["state"] != "RUNNING":
            fail("srun", f"error: Unable to confirm allocation for job {id}: Invalid job id specified")
        if not command:
            fail("srun", "fatal: No command given to execute.")
        step = Srun(options, command, job, state)
        job["steps"][step.number] = {
            "pids": [], "srun": os.getpid(), "over": False, "command": command, "options": options,
            "cpus_per_task": step.cpus_per_task, "layout": step.layout,
            "cpu_bind": options.get("cpu-bind", os.environ.get("SLURM_CPU_BIND")),
        }  # fmt: skip
        key = job["key"]
    if "jobid" in options and "SLURM_JOB_ID" not in os.environ:
        os.environ |= fake_jobs.batch_environment(state, job)
    return _run(step, key)


def _run(step: Srun, key: str) -> int:
    def forward(number: int, _: object) -> None:
        # As srun does: TERM and HUP end the step, every other signal is passed on.
        if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            sys.stderr.write("srun: forcing job termination\n")
            step.terminate()
        else:
            step.signal(number)

    for number in (
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
    ):
        signal.signal(number, forward)
    step.start()
    with locked() as state:
        state["jobs"][key]["steps"][step.number]["pids"] = [task.pid for task in step.tasks]
    code = step.wait()
    with locked() as state:
        record = state["jobs"][key]["steps"].get(step.number)
        if record is not None:
            record |= {"over": True, "exits": [task.returncode for task in step.tasks]}
    return code
