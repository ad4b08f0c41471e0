"""Rules about the GPUs that one process could use."""

from collections.abc import Iterator

from .findings import Facts, Finding

CPU_BUILD = "cpu"


def cpu_build(facts: Facts) -> Iterator[Finding]:
    """GPUs are here, and torch is a build that cannot use them."""
    present = gpus_present(facts)
    if present is None or not _is_cpu_build(facts):
        return
    yield Finding(
        "warning",
        "devices",
        f"{present}, and torch {facts['versions']['torch']} is a build for CPUs",
        "training would run on the CPU and leave the GPUs idle",
        "pip install --force-reinstall torch torchvision (a CUDA or ROCm build: pytorch.org, Get Started)",
    )


def no_device(facts: Facts) -> Iterator[Finding]:
    """GPUs are here, torch could use them, and finds none."""
    files, torch = facts["device_files"], facts.get("torch") or {}
    hidden = facts["visible_devices"] == []
    if not files or torch.get("devices") != 0 or _is_cpu_build(facts):
        return
    if hidden:
        yield Finding(
            "note",
            "devices",
            f"CUDA_VISIBLE_DEVICES is empty, and {len(files)} GPUs are here",
            "torch sees none of them and runs on the CPU",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif "SLURM_JOB_ID" not in facts["variables"] or _given_by_slurm(facts):
        yield Finding(
            "warning",
            "devices",
            f"{len(files)} GPUs are here ({', '.join(files[:4])}), torch {torch['version']} finds none",
            "the driver is missing, too old for this build of torch, or this user may not open the devices",
            "nvidia-smi (its message names the reason; then a torch build for the driver's CUDA version)",
        )


def missing_devices(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names GPUs that are not here: CUDA then hides those after it, too."""
    files, visible = facts["device_files"], facts["visible_devices"] or []
    wrong = [name for name in visible if name.isdecimal() and int(name) >= len(files)]
    if files and wrong:
        yield Finding(
            "error",
            "devices",
            f"CUDA_VISIBLE_DEVICES={','.join(visible)}, and {len(files)} GPUs are here",
            f"there is no GPU {wrong[0]}: CUDA hides it and all that are named after it",
            f"export CUDA_VISIBLE_DEVICES={','.join(str(number) for number in range(len(files)))}",
        )


def fewer_than_ranks(facts: Facts) -> Iterator[Finding]:
    """Ranks asked for on this host, against the GPUs that one process sees."""
    wanted = facts.get("wanted", {})
    ranks, seen = wanted.get("ranks_here"), (facts.get("torch") or {}).get("devices") or 0
    in_step = "SLURM_PROCID" in facts["variables"]  # there, each task may see its own
    if ranks is None or not 0 < seen < ranks or in_step or wanted.get("launcher") in ("slurm", "simulated"):
        return
    shared = wanted.get("share_gpus", False)
    yield Finding(
        "warning" if shared else "error",
        "devices",
        f"{ranks} ranks on this host, {seen} visible GPU{'s' * (seen != 1)}",
        "ranks would share a GPU and slow each other down; NCCL refuses two ranks on one",
        f"cluster.ranks_per_node={seen}",
    )


def one_per_task(facts: Facts) -> Iterator[Finding]:
    """Slurm shows each task one GPU of its own."""
    variables, visible = facts["variables"], facts["visible_devices"]
    tasks = variables.get("SLURM_NTASKS_PER_NODE", "")
    if "SLURM_PROCID" in variables and visible is not None and len(visible) == 1 and tasks not in ("", "1"):
        yield siblings_hidden(f"each of {tasks} tasks per node sees one GPU")


def siblings_hidden(what: str) -> Finding:
    """The note about tasks that see only their own GPU."""
    return Finding(
        "note",
        "devices",
        what,
        "training works; but NCCL may not copy directly between GPUs that a process cannot see",
        "sbatch --gpus-per-node=N instead of --gpus-per-task=1 (daso-bench gives every rank its own)",
    )


def gpus_present(facts: Facts) -> str | None:
    """GPUs of this host, in words; None if there are none."""
    if facts["device_files"]:
        count = len(facts["device_files"])
        return f"{count} GPU{'s' * (count != 1)} ({', '.join(facts['device_files'][:4])})"
    given = _given_by_slurm(facts)
    return None if given is None else f"GPUs given by Slurm ({given}={facts['variables'][given]})"


def _given_by_slurm(facts: Facts) -> str | None:
    """The variable that says so. In a job without GPUs, device files may be there and closed to it."""
    names = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS")
    return next((name for name in names if facts["variables"].get(name, "0") != "0"), None)


def _is_cpu_build(facts: Facts) -> bool:
    torch = facts.get("torch") or {}
    if "cuda" in torch:
        return torch["cuda"] is None and torch.get("hip") is None
    return (facts["versions"]["torch"] or "").partition("+")[2] == CPU_BUILD
