"""What the controller and the node daemon of the fake Slurm do: give nodes to jobs, run them, end them.

Every job runs under a process of its own (`run`), which outlives the command that started it. Node names are
names only: all processes run here.
"""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fake_state import Job, compressed, folder, locked, version

POLL_S = 0.05


def schedule() -> None:
    """Start every job that may start, in the order of submission."""
    started: list[str] = []
    with locked() as state:
        for key, job in state["jobs"].items():
            if job["state"] == "PENDING":
                job["reason"] = _why_not(state, job) or "None"
                if job["reason"] == "None":
                    _begin(state, job)
                    started.append(key)
    for key in started:
        # Through a shell that is gone at once: the job must be nobody's child.
        runner = [sys.executable, str(Path(__file__).with_name("fake.py")), "--run", key]
        background = ["/bin/sh", "-c", '"$@" < /dev/null > /dev/null 2>&1 &', "sh", *runner]
        subprocess.run(background, start_new_session=True, check=True)


def _why_not(state: dict[str, Any], job: Job) -> str | None:
    if job["held"]:
        return "JobHeldUser"
    if state["settings"]["hold"]:
        return "Priority"
    siblings = [other for other in state["jobs"].values() if other["base"] == job["base"]]
    if job["throttle"] and sum(other["state"] == "RUNNING" for other in siblings) >= job["throttle"]:
        return "JobArrayTaskLimit"
    if job["checked"]["nodes"] > state["settings"]["nodes"]:
        return "PartitionNodeLimit"
    return None if len(_free(state, job)) >= job["checked"]["nodes"] else "Resources"


def cpus(job: Job) -> int:
    """CPUs of the job on each of its nodes."""
    return tasks_per_node(job) * (job["checked"]["cpus_per_task"] or 1)


def tasks_per_node(job: Job) -> int:
    checked = job["checked"]
    return checked["ntasks_per_node"] or math.ceil((checked["ntasks"] or checked["nodes"]) / checked["nodes"])


def _free(state: dict[str, Any], job: Job) -> list[str]:
    settings = state["settings"]
    running = [other for other in state["jobs"].values() if other["state"] == "RUNNING"]
    names: list[str] = []
    for number in range(1, settings["nodes"] + 1):
        name = f"n{number}"
        here = [other for other in running if name in other["nodes"]]
        used = sum(cpus(other) for other in here)
        gpus = sum(other["checked"]["gpus_per_node"] for other in here)
        fits = (
            used + cpus(job) <= settings["cpus"]
            and gpus + job["checked"]["gpus_per_node"] <= settings["gpus"]
        )
        if fits and name not in settings["down"]:
            names.append(name)
    return names


def _begin(state: dict[str, Any], job: Job) -> None:
    if job["id"] is None:
        # The last element of an array to start bears the array's own id, the others a fresh one.
        waiting = [
            other for other in state["jobs"].values() if other["base"] == job["base"] and other["id"] is None
        ]
        if len(waiting) > 1:
            job["id"] = state["next_id"]
            state["next_id"] += 1
        else:
            job["id"] = job["base"]
    job |= {
        "state": "RUNNING", "nodes": _free(state, job)[: job["checked"]["nodes"]], "start": time.time(),
        "end": None, "wish": None, "exit": "0:0", "batch": None,
    }  # fmt: skip


def run(key: str) -> int:
    """The life of one attempt, from the allocation to its end."""
    with locked() as state:
        job = state["jobs"][key]
        settings, environment = state["settings"], batch_environment(state, job)
    process = _launch(job, environment, version(state))
    if process is None:
        _finish(key, ("FAILED", "NonZeroExitCode", "0:53"))
        return 0
    with locked() as state:
        state["jobs"][key]["batch"] = process.pid
    _finish(key, _watch(key, process, settings))
    return 0


def _launch(job: Job, environment: dict[str, str], at: tuple[int, int]) -> subprocess.Popen[bytes] | None:
    home, options = folder() / "jobs" / str(job["base"]), job["options"]
    default = "slurm-%j.out" if job["index"] is None else "slurm-%A_%a.out"
    output = Path(job["cwd"], pattern(options.get("output", default), job))
    mode = "ab" if options.get("open-mode", "t").startswith("a") else "wb"
    script = home / f"script.{job['key']}.{job['restarts']}"
    script.write_bytes((home / "script").read_bytes())
    script.chmod(0o700)
    try:
        if at >= (23, 2):  # "Automatically create directories for stdout/stderr" (CHANGELOG/slurm-23.02.md)
            output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, mode, buffering=0) as log:
            return subprocess.Popen(
                [str(script), *job["arguments"]], cwd=job["cwd"], env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    except OSError:
        return None


def _watch(key: str, process: Any, settings: dict[str, Any]) -> tuple[str, str, str]:
    """State, reason and exit code of the attempt."""
    verdict, kill_at = None, math.inf
    while process.poll() is None:
        if verdict is None:
            with locked() as state:
                verdict = state["jobs"][key]["wish"]
            if verdict is not None:
                kill_at = time.monotonic() + settings["kill_wait_s"]
                send(key, signal.SIGTERM)
        if time.monotonic() >= kill_at:
            send(key, signal.SIGKILL)
        time.sleep(POLL_S)
    send(key, signal.SIGKILL)  # nothing of a job outlives its batch script
    code = process.returncode
    pair = f"{code}:0" if code >= 0 else f"0:{-code}"
    if verdict is not None:
        return verdict, "None", "0:15" if verdict == "REQUEUED" else pair
    if code == 0:
        return "COMPLETED", "None", "0:0"
    return "FAILED", "NonZeroExitCode" if code > 0 else f"RaisedSignal:{-code}", pair


def _finish(key: str, result: tuple[str, str, str]) -> None:
    with locked() as state:
        job = state["jobs"][key]
        job["state"], job["reason"], job["exit"] = result
        job["end"] = time.time()
        names = ("start", "end", "nodes", "exit", "submitted", "reason", "state")
        job["attempts"].append({name: job[name] for name in names})
        if job["state"] == "REQUEUED":
            job |= {
                "state": "PENDING", "reason": "None", "restarts": job["restarts"] + 1, "nodes": [],
                "start": None, "end": None, "submitted": time.time(),
            }  # fmt: skip
    schedule()


def send(key: str, number: int) -> None:
    """A signal to the batch script and all that it has started."""
    with locked() as state:
        job = state["jobs"][key]
        batch = (
            job["batch"] if job["state"] == "RUNNING" else None
        )  # else its number may be another process's
    if batch:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(batch, number)


def wish(key: str, verdict: str) -> None:
    """Ask for the end of a job: at once while it waits, through the process that runs it otherwise."""
    with locked() as state:
        job = state["jobs"][key]
        if job["state"] == "PENDING" and verdict == "CANCELLED":
            job |= {"state": "CANCELLED", "end": time.time(), "reason": "None"}
            record = {"start": None, "end": job["end"], "nodes": [], "exit": "0:0", "reason": "None"}
            job["attempts"].append(record | {"state": "CANCELLED", "submitted": job["submitted"]})
        elif job["state"] == "RUNNING":
            job["wish"] = verdict
    schedule()


def batch_environment(state: dict[str, Any], job: Job) -> dict[str, str]:
    """What a batch script finds (22.05, seen on a cluster), on top of what sbatch was started with."""
    checked, at = job["checked"], version(state)
    text = (folder() / "jobs" / str(job["base"]) / "environment").read_text()
    inherited = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
    nodes, tasks = job["nodes"], tasks_per_node(job)
    total = checked["ntasks"] or tasks * len(nodes)
    many = f"(x{len(nodes)})" if len(nodes) > 1 else ""
    found: dict[str, Any] = {
        "SLURM_JOB_ID": job["id"], "SLURM_JOBID": job["id"], "SLURM_JOB_NAME": job["name"],
        "SLURM_JOB_NODELIST": compressed(nodes), "SLURM_NODELIST": compressed(nodes),
        "SLURM_JOB_NUM_NODES": len(nodes), "SLURM_NNODES": len(nodes),
        "SLURM_JOB_PARTITION": checked["partition"],
        "SLURM_JOB_USER": job["user"], "SLURM_JOB_UID": job["uid"], "SLURM_JOB_ACCOUNT": "root",
        "SLURM_JOB_QOS": "normal", "SLURM_CLUSTER_NAME": "fake", "SLURM_SUBMIT_DIR": job["cwd"],
        "SLURM_SUBMIT_HOST": "login", "SLURM_TASKS_PER_NODE": f"{tasks}{many}",
        "SLURM_CPUS_ON_NODE": cpus(job),
        "SLURM_JOB_CPUS_PER_NODE": f"{cpus(job)}{many}", "SLURMD_NODENAME": nodes[0], "SLURM_NODEID": 0,
        "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_GTIDS": 0, "SLURM_PRIO_PROCESS": 0,
        "SLURM_TASK_PID": os.getpid(), "SLURM_TOPOLOGY_ADDR": nodes[0], "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }  # fmt: skip
    if checked["ntasks"] or checked["ntasks_per_node"]:
        found |= {"SLURM_NTASKS": total, "SLURM_NPROCS": total}
    if checked["ntasks_per_node"]:
        found["SLURM_NTASKS_PER_NODE"] = checked["ntasks_per_node"]
    if checked["cpus_per_task"]:
        found["SLURM_CPUS_PER_TASK"] = checked["cpus_per_task"]
        if at >= (23, 11):  # "Requesting --cpus-per-task will now set SLURM_TRES_PER_TASK" (slurm-23.11.md)
            found["SLURM_TRES_PER_TASK"] = f"cpu:{checked['cpus_per_task']}"
    if at >= (23, 2):  # "Add SLURM_JOB_START_TIME and SLURM_JOB_END_TIME" (CHANGELOG/slurm-23.02.md)
        limit = checked["limit_min"] * 60
        found["SLURM_JOB_START_TIME"] = int(job["start"])
        found["SLURM_JOB_END_TIME"] = int(job["start"] + min(limit, 365 * 86400))
    if at < (23, 11):  # "Remove SLURM_NODE_ALIASES env variable" (CHANGELOG/slurm-23.11.md)
        found["SLURM_NODE_ALIASES"] = "(null)"
    if "mem" in job["options"]:
        amount = job["options"]["mem"].upper().rstrip("B")
        unit = {"K": 1 / 1024, "G": 1024, "T": 1024**2}.get(amount[-1], 1)
        found["SLURM_MEM_PER_NODE"] = int(int(amount.rstrip("KMGT")) * unit)
    if "open-mode" in job["options"]:
        found["SLURM_OPEN_MODE"] = job["options"]["open-mode"][0]
    if "gpus-per-node" in job["options"]:
        found["SLURM_GPUS_PER_NODE"] = job["options"]["gpus-per-node"]
    if checked["gpus_per_node"]:
        shown = ",".join(map(str, range(checked["gpus_per_node"])))
        found |= {"SLURM_GPUS_ON_NODE": checked["gpus_per_node"], "SLURM_JOB_GPUS": shown}
        found |= {"CUDA_VISIBLE_DEVICES": shown, "ROCR_VISIBLE_DEVICES": shown, "GPU_DEVICE_ORDINAL": shown}
    if job["index"] is not None:
        indices = job["indices"]
        found |= {
            "SLURM_ARRAY_JOB_ID": job["base"], "SLURM_ARRAY_TASK_ID": job["index"],
            "SLURM_ARRAY_TASK_COUNT": len(indices), "SLURM_ARRAY_TASK_MIN": min(indices),
            "SLURM_ARRAY_TASK_MAX": max(indices),
            "SLURM_ARRAY_TASK_STEP": indices[1] - indices[0] if len(indices) > 1 else 1,
        }  # fmt: skip
    if job["restarts"]:
        found["SLURM_RESTART_COUNT"] = job["restarts"]
    return inherited | {name: str(value) for name, value in found.items()}


def pattern(text: str, job: Job) -> str:
    """A file name pattern (`man sbatch`, "FILENAME PATTERN") filled in; a number pads to that width."""
    index = 4294967294 if job["index"] is None else job["index"]
    values = {"A": job["base"], "a": index, "j": job["id"], "x": job["name"], "%": "%"}

    def value(match: re.Match[str]) -> str:
        width, known = match[1], values.get(match[2], match[0])
        return f"{known:0{int(width)}}" if width and isinstance(known, int) else str(known)

    return re.sub(r"%(\d*)([A-Za-z%])", value, text)
