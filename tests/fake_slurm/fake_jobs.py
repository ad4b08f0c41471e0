"""What the controller and the node daemon of the fake Slurm do: give nodes to jobs, run them, end them.

Every job runs under a process of its own (`run`), which outlives the command that started it. Node names are
names only: all processes run here.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fake_state import LIVE, Job, compressed, folder, locked, stamp, version

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
    if job["eligible"] > time.time():
        return "BeginTime"
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
        "end": None, "wish": None, "exit": "0:0", "steps": {}, "batch": None, "runner": None,
    }  # fmt: skip


def run(key: str) -> int:
    """The life of one attempt, from the allocation to its end."""
    with locked() as state:
        job = state["jobs"][key]
        job["runner"] = os.getpid()
        settings, environment = state["settings"], batch_environment(state, job)
    process, log = _launch(job, environment, version(state))
    if process is None:
        _finish(key, ("FAILED", "NonZeroExitCode", "0:53"))
        return 0
    with locked() as state:
        state["jobs"][key]["batch"] = process.pid
    try:
        _finish(key, _watch(key, process, log, settings))
    finally:
        if log:
            log.close()
    return 0


def _launch(job: Job, environment: dict[str, str], at: tuple[int, int]) -> tuple[Any, Any]:
    home = folder() / "jobs" / str(job["base"])
    options = job["options"]
    array = job["index"] is not None
    output = pattern(options.get("output", "slurm-%A_%a.out" if array else "slurm-%j.out"), job)
    error = pattern(options["error"], job) if "error" in options else None
    mode = "ab" if options.get("open-mode", "t").startswith("a") else "wb"
    script = home / f"script.{job['key']}.{job['restarts']}"
    script.write_bytes((home / "script").read_bytes())
    script.chmod(0o700)
    try:
        if at >= (23, 2):  # "Automatically create directories for stdout/stderr" (CHANGELOG/slurm-23.02.md)
            for path in (output, error):
                Path(job["cwd"], path or output).parent.mkdir(parents=True, exist_ok=True)
        log = open(Path(job["cwd"], output), mode, buffering=0)  # noqa: SIM115
        errors = subprocess.STDOUT
        if error:
            errors = open(Path(job["cwd"], error), mode, buffering=0)  # noqa: SIM115
        process = subprocess.Popen(
            [str(script), *job["arguments"]], cwd=job["cwd"], env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=errors, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None, None
    if errors is not subprocess.STDOUT:
        log.close()
        log = errors
    return process, log


def _watch(key: str, process: Any, log: Any, settings: dict[str, Any]) -> tuple[str, str, str]:
    """State, reason and exit code of the attempt."""
    with locked() as state:
        job = state["jobs"][key]
    limit_s = job["checked"]["limit_min"] * settings["minute_s"]
    warning = job["checked"]["signal"]
    warn_at = limit_s - warning["before_s"] * settings["minute_s"] / 60 if warning else math.inf
    began, ending, verdict, why = time.monotonic(), None, None, ""
    while process.poll() is None:
        ran = time.monotonic() - began
        if warning and ran >= warn_at:
            send(key, warning["number"], "batch" if warning["batch"] else "steps")
            warning = None
        with locked() as state:
            wish = state["jobs"][key]["wish"]
        if verdict is None and (wish or ran >= limit_s):
            verdict = wish or "TIMEOUT"
            why = {
                "TIMEOUT": " DUE TO TIME LIMIT",
                "PREEMPTED": " DUE TO PREEMPTION",
                "NODE_FAIL": " DUE TO NODE FAILURE",
            }
            text = (
                f"slurmstepd-{job['nodes'][0]}: error: *** JOB {job['id']} ON {job['nodes'][0]} CANCELLED AT "
            )
            log.write(f"{text}{stamp(time.time())}{why.get(verdict, '')} ***\n".encode())
            ending = time.monotonic() + (0 if verdict == "NODE_FAIL" else settings["kill_wait_s"])
            if verdict != "NODE_FAIL":
                send(key, signal.SIGCONT, "all")
                send(key, signal.SIGTERM, "all")
        if ending is not None and time.monotonic() >= ending:
            send(key, signal.SIGKILL, "all")
        time.sleep(POLL_S)
    send(key, signal.SIGKILL, "all")  # nothing of a job outlives its batch script
    code = process.returncode
    pair = f"{code}:0" if code >= 0 else f"0:{-code}"
    if verdict is not None:
        return (
            verdict,
            "TimeLimit" if verdict == "TIMEOUT" else "None",
            "0:15" if verdict == "REQUEUED" else pair,
        )
    if code == 0:
        return "COMPLETED", "None", "0:0"
    return "FAILED", "NonZeroExitCode" if code > 0 else f"RaisedSignal:{-code}", pair


def _finish(key: str, result: tuple[str, str, str]) -> None:
    with locked() as state:
        job, settings = state["jobs"][key], state["settings"]
        verdict, job["reason"], job["exit"] = result
        job["end"] = time.time()
        again = verdict == "REQUEUED" or (verdict in ("PREEMPTED", "NODE_FAIL") and job["requeue"])
        job["attempts"].append(
            {name: job[name] for name in ("start", "end", "nodes", "exit", "submitted", "reason")}
            | {"state": verdict}
        )  # fmt: skip
        job["state"] = verdict
        if again:
            delay = settings["requeue_delay_s"]
            job |= {
                "state": "PENDING", "reason": "BeginTime" if delay else "None",
                "restarts": job["restarts"] + 1, "nodes": [], "start": None, "end": None,
                "exit": "0:0", "eligible": time.time() + delay,
            }  # fmt: skip
    if again and settings["requeue_delay_s"]:
        time.sleep(settings["requeue_delay_s"])
    schedule()


def send(key: str, number: int, to: str) -> None:
    """A signal to the tasks of all steps, the batch shell alone ("batch"), or everything ("all")."""
    with locked() as state:
        job = state["jobs"].get(key)
        if job is None or job["state"] != "RUNNING":
            return
        tasks = [pid for step in job["steps"].values() if not step["over"] for pid in step["pids"]]
        batch = job["batch"]
    if to in ("steps", "all"):
        for pid in tasks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
    if batch and to in ("batch", "all"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(batch, number) if to == "batch" else os.killpg(batch, number)


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


def wait_for(base: int) -> int:
    """`sbatch --wait`: the highest exit code of the job."""
    while True:
        with locked() as state:
            jobs = [job for job in state["jobs"].values() if job["base"] == base]
        if all(job["state"] not in LIVE for job in jobs):
            return max(int(job["exit"].split(":")[0]) for job in jobs)
        time.sleep(0.1)


def batch_environment(state: dict[str, Any], job: Job) -> dict[str, str]:
    """What a batch script finds (22.05, seen on a cluster), on top of what sbatch was started with."""
    settings, checked, at = state["settings"], job["checked"], version(state)
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
        limit = checked["limit_min"] * settings["minute_s"]
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
    if "gpus-per-task" in job["options"]:
        found["SLURM_GPUS_PER_TASK"] = job["options"]["gpus-per-task"]
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


def pattern(text: str, job: Job, *, task: int = 0, node: str = "", step: str = "batch") -> str:
    """A file name pattern (`man sbatch`, "FILENAME PATTERN") filled in; a number pads to that width."""
    values = {
        "A": job["base"], "a": 4294967294 if job["index"] is None else job["index"], "j": job["id"],
        "J": f"{job['id']}.{step}", "N": node or (job["nodes"] or [""])[0], "n": 0, "s": step, "t": task,
        "u": job["user"], "x": job["name"], "%": "%",
    }  # fmt: skip
    if "\\" in text:
        return text.replace("\\", "")
    filled, rest = "", text
    while "%" in rest:
        before, _, rest = rest.partition("%")
        width = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        letter, rest = rest[len(width) : len(width) + 1], rest[len(width) + 1 :]
        value = values.get(letter, f"%{width}{letter}")
        filled += before + (f"{value:0{int(width)}}" if width and isinstance(value, int) else str(value))
    return filled + rest
