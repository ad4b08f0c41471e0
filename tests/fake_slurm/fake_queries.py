"""squeue, scancel, scontrol, sacct, sinfo and sacctmgr of the fake Slurm."""

import os
import re
import time
from typing import Any

import fake_jobs
from fake_options import Table
from fake_state import (
    LIVE,
    Job,
    clock,
    compressed,
    expanded,
    fail,
    locked,
    long_clock,
    peek,
    ranges,
    stamp,
    version,
    visible,
)

_UNKNOWN = "Invalid job id specified"


def _match(job: Job, ids: list[str]) -> bool:
    return job["key"] in ids or str(job["base"]) in ids or str(job["id"]) in ids


def _left(job: Job) -> str:
    limit = job["checked"]["limit_min"]
    if limit == float("inf"):
        return "UNLIMITED"
    return clock(max(0, limit * 60 - _ran(job)))


def _ran(job: Job) -> float:
    return (job["end"] or time.time()) - job["start"] if job["start"] else 0.0


def squeue(arguments: list[str]) -> int:
    state = peek()
    options, _ = Table("squeue", version(state)).read(arguments)
    if "version" in options:
        print(f"slurm {state['settings']['version']}.0")
        return 0
    jobs = visible(state)
    ids = options["jobs"].split(",") if options.get("jobs") else []
    if ids:
        jobs = [job for job in jobs if _match(job, ids)]
        # Only a single id is asked of the controller by itself; of several, unknown ones are left out.
        if len(ids) == 1 and not jobs:
            fail("", f"slurm_load_jobs error: {_UNKNOWN}")
    if "name" in options:
        jobs = [job for job in jobs if job["name"] in options["name"].split(",")]
    users = options.get("user", str(os.getuid()) if "me" in options else "")
    if users:
        jobs = [job for job in jobs if {job["user"], str(job["uid"])} & set(users.split(","))]
    if options.get("states", os.environ.get("SQUEUE_STATES")) != "all":
        jobs = [job for job in jobs if job["state"] in LIVE]
    for job in jobs:
        print(_filled(options["format"], _squeue_fields(job)))
    return 0


def _waiting_id(job: Job, waiting: list[Job]) -> str:
    throttle = f"%{job['throttle']}" if job["throttle"] else ""
    return f"{job['base']}_[{ranges([other['index'] for other in waiting])}{throttle}]"


def _filled(text: str, fields: dict[str, Any]) -> str:
    return re.sub(r"%([A-Za-z])", lambda match: str(fields[match[1]]), text)


def _squeue_fields(job: Job) -> dict[str, Any]:
    return {
        "i": job["key"], "T": job["state"], "r": job["reason"], "L": _left(job),
        "N": compressed(job["nodes"]), "j": job["name"],
    }  # fmt: skip


def scancel(arguments: list[str]) -> int:
    state = peek()
    _, ids = Table("scancel", version(state)).read(arguments)
    for job in visible(state):  # one that is over or unknown is no error
        if _match(job, ids):
            fake_jobs.wish(job["key"], "CANCELLED")
    return 0


def scontrol(arguments: list[str]) -> int:  # noqa: RET503 (fail does not return)
    state = peek()
    options, words = Table("scontrol", version(state)).read(arguments)
    if "version" in options:
        print(f"slurm {state['settings']['version']}.0")
        return 0
    verb, *rest = words or ["help"]
    if verb == "show":
        what, *names = rest
        if what in ("job", "jobs"):
            return _show_jobs(state, names, "oneliner" in options)
        if what in ("config", "conf"):
            return _show_config(state)
        fail("", f"invalid entity:{what} for keyword:show")
    if verb == "requeue":
        return _requeue(rest[0])
    if verb == "ping":
        print("Slurmctld(primary) at login is UP")
        return 0
    fail("", f"invalid keyword: {verb}")


def _requeue(id: str) -> int:
    with locked() as state:
        jobs = [job for job in state["jobs"].values() if _match(job, [id])]
    if not jobs:
        fail("", f"{_UNKNOWN} for job {id}")
    for job in jobs:
        if not job["requeue"] or job["state"] == "CANCELLED":
            fail("", f"Requested operation is presently disabled for job {id}")
        if job["state"] == "PENDING":
            fail("", f"Job is pending execution for job {id}")
        fake_jobs.wish(job["key"], "REQUEUED")
    return 0


def _show_jobs(state: dict[str, Any], ids: list[str], oneline: bool) -> int:
    jobs = visible(state)
    if ids:
        known = [job for job in jobs if _match(job, [ids[0].split("_")[0]])]
        if not known:
            fail("", f"slurm_load_jobs error: {_UNKNOWN}")
        jobs = [job for job in known if _match(job, ids)]
        if not jobs:
            print(f"Job {ids[0]} not found")
            return 1
    shown: list[str] = []
    for job in jobs:
        waiting = [
            other
            for other in state["jobs"].values()
            if other["base"] == job["base"] and other["state"] == "PENDING"
        ]
        if job["index"] is not None and job["state"] == "PENDING":
            if job is not waiting[0] and len(jobs) > 1:
                continue  # they share one record
            throttle = f"%{job['throttle']}" if job["throttle"] else ""
            index = ranges([other["index"] for other in waiting]) + throttle
        else:
            index = job["index"]
        shown.append(_record(job, index))
    print("\n".join(text if oneline else text.replace(" ", "\n   ") + "\n" for text in shown))
    return 0


def _record(job: Job, index: object) -> str:
    limit = job["checked"]["limit_min"]
    array = "" if index is None else f" ArrayJobId={job['base']} ArrayTaskId={index}"
    throttle = f" ArrayTaskThrottle={job['throttle']}" if index is not None and job["throttle"] else ""
    started = job["start"] or None
    end = started + limit * 60 if started and limit != float("inf") else None
    return (
        f"JobId={job['id'] or job['base']}{array}{throttle} JobName={job['name']} "
        f"UserId={job['user']}({job['uid']}) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=root "
        f"QOS=normal JobState={job['state']} Reason={job['reason']} Dependency=(null) "
        f"Requeue={int(job['requeue'])} Restarts={job['restarts']} BatchFlag=1 Reboot=0 "
        f"ExitCode={job['exit']} RunTime={long_clock(_ran(job))} "
        f"TimeLimit={'UNLIMITED' if limit == float('inf') else long_clock(limit * 60)} TimeMin=N/A "
        f"SubmitTime={stamp(job['submitted'])} "
        f"StartTime={stamp(started)} EndTime={stamp(job['end'] or end)} Deadline=N/A "
        f"Partition={job['checked']['partition']} AllocNode:Sid=login:1 ReqNodeList=(null) "
        f"ExcNodeList=(null) NodeList={compressed(job['nodes'])} NumNodes={job['checked']['nodes']} "
        f"NumCPUs={fake_jobs.cpus(job)} CPUs/Task=1 Command=(null) WorkDir={job['cwd']} Power="
    )


def _show_config(state: dict[str, Any]) -> int:
    settings = state["settings"]
    storage = "accounting_storage/slurmdbd" if settings["accounting"] else "accounting_storage/none"
    print(f"Configuration data as of {stamp(time.time())}")
    for key, value in {
        "AccountingStorageType": storage, "ClusterName": "fake", "JobRequeue": 1,
        "KillWait": f"{settings['kill_wait_s']} sec", "MaxArraySize": settings["max_array_size"],
        "MinJobAge": f"{settings['min_job_age_s']:.0f} sec", "SLURM_VERSION": f"{settings['version']}.0",
    }.items():  # fmt: skip
        print(f"{key:<23} = {value}")
    return 0


def _node_rows(state: dict[str, Any]) -> list[tuple[str, str]]:
    settings = state["settings"]
    running = [job for job in state["jobs"].values() if job["state"] == "RUNNING"]
    rows: list[tuple[str, str]] = []
    for number in range(1, settings["nodes"] + 1):
        name = f"n{number}"
        used = sum(fake_jobs.cpus(job) for job in running if name in job["nodes"])
        kind = "idle" if not used else "allocated" if used >= settings["cpus"] else "mixed"
        rows.append((name, "down*" if name in settings["down"] else kind))
    return rows


def sinfo(arguments: list[str]) -> int:
    state = peek()
    options, _ = Table("sinfo", version(state)).read(arguments)
    settings = state["settings"]
    gres = f"gpu:{settings['gpus']}" if settings["gpus"] else "(null)"
    names = expanded(options["nodes"]) if "nodes" in options else None
    for partition in ("main*", "gpu"):
        if "partition" in options and partition.rstrip("*") != options["partition"]:
            continue
        rows = [(name, kind) for name, kind in _node_rows(state) if names is None or name in names]
        groups = [[row] for row in rows] if "Node" in options else [rows] if rows else []
        for group in groups:
            fields = {
                "P": partition, "D": len(group), "c": settings["cpus"], "G": gres,
                "N": compressed([name for name, _ in group]), "T": group[0][1],
            }  # fmt: skip
            print(_filled(options["format"], fields))
    return 0


def sacct(arguments: list[str]) -> int:
    state = peek()
    options, _ = Table("sacct", version(state)).read(arguments)
    if not state["settings"]["accounting"]:
        fail("", "Slurm accounting storage is disabled")
    jobs = [job for job in state["jobs"].values() if _match(job, options["jobs"].split(","))]
    for job in jobs:
        waiting = [other for other in jobs if other["base"] == job["base"] and other["state"] == "PENDING"]
        for attempt in job["attempts"] if job["state"] not in LIVE else [*job["attempts"], job]:
            id = job["key"]
            if attempt["state"] == "PENDING" and job["index"] is not None:
                if job is not waiting[0]:
                    continue
                id = _waiting_id(job, waiting)
            values = {
                "JobID": id, "JobName": job["name"], "State": _sacct_state(attempt),
                "NodeList": compressed(attempt["nodes"]) or "None assigned",
                "Start": stamp(attempt["start"]), "Reason": attempt["reason"],
            }  # fmt: skip
            print(options["delimiter"].join(values[field] for field in options["format"].split(",")))
    return 0


def _sacct_state(attempt: dict[str, Any]) -> str:
    return f"CANCELLED by {os.getuid()}" if attempt["state"] == "CANCELLED" else attempt["state"]


def sacctmgr(arguments: list[str]) -> int:
    state = peek()
    options, words = Table("sacctmgr", version(state)).read(arguments)
    settings = state["settings"]
    if not settings["accounting"]:
        fail(
            "",
            "You are not running a supported accounting_storage plugin",
            "Only 'accounting_storage/slurmdbd' is supported.",
        )
    if words[:1] not in (["show"], ["list"]) or len(words) < 2:
        fail("", "invalid keyword")
    fields = next((word[len("format=") :] for word in words if word.startswith("format=")), "").split(",")
    values = {"name": "normal", "account": "root", "user": os.environ.get("USER", "root")}
    if words[1].startswith("qos") and settings["max_submit"] is not None:
        values["maxsubmitjobsperuser"] = str(settings["max_submit"])
    if "noheader" not in options:
        print("|".join(fields))
    print("|".join(values.get(field.lower(), "") for field in fields))
    return 0


def unreachable(command: str) -> None:
    """The controller does not answer, as often as the setting says."""
    with locked() as state:
        if not state["settings"]["unreachable"]:
            return
        state["settings"]["unreachable"] -= 1
    text = "Unable to contact slurm controller (connect failure)"
    words = {
        "squeue": f"slurm_load_jobs error: {text}",
        "sbatch": f"sbatch: error: Batch job submission failed: {text}",
        "scontrol": f"slurm_load_ctl_conf error: {text}",
        "sinfo": f"slurm_load_partitions: {text}",
    }
    fail("", words.get(command, f"{command}: error: {text}"))
