"""What this machine can do, in words: one line per launcher, and what it is made of."""

from dataclasses import asdict, dataclass
from typing import Any

from ..machine.health.findings import Facts
from ..machine.health.rules_devices import gpus_present

GIB = 2**30


@dataclass(frozen=True)
class Ability:
    """Something that works here, does not (`works` False; `what` says why), or is just a fact (None)."""

    name: str
    works: bool | None
    what: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def abilities(facts: Facts) -> list[Ability]:
    """The machine's parts, then its launchers. `facts`: of `probes.machine_facts`."""
    return [
        Ability("cores", None, _cores(facts)),
        Ability("memory", None, _memory(facts)),
        Ability("GPUs", None, _gpus(facts)),
        Ability("torch", None, _torch(facts)),
        Ability("daso-bench", None, _source(facts)),
        Ability("Slurm", None, _slurm(facts)),
        Ability("results", None, _results(facts)),
        *launchers(facts),
    ]


def launchers(facts: Facts) -> list[Ability]:
    """Which launchers can work here, and why not."""
    torch_error = None if facts["versions"]["torch"] else "torch is not installed"
    torch_error = torch_error or facts["torch"].get("error")
    backend = "NCCL" if facts["torch"].get("devices") else "gloo"
    cores = facts["usable_cores"]
    local = f"real processes over {backend}; timings hold for up to {cores} rank{'s' * (cores != 1)}"
    emulation = facts["emulation"]
    latency = "" if emulation["netem"] else "; without latencies, which need netem in the kernel"
    return [
        _launcher("simulated", torch_error, "virtual time, any number of ranks"),
        _launcher("local", torch_error, local),
        _launcher(
            "slurm", torch_error or _no_slurm(facts), f"submitit {facts['submitit']}, the controller is up"
        ),
        _launcher(
            "torchrun",
            torch_error or (None if facts["torchrun"] else "no command torchrun"),
            str(facts["torchrun"]),
        ),
        _launcher(
            "emulated",
            torch_error or emulation["error"],
            f"nodes with slow links of their own on this machine, without root{latency}",
        ),
    ]


def _launcher(name: str, error: str | None, what: str) -> Ability:
    return Ability(f"launcher={name}", error is None, error or what)


def _no_slurm(facts: Facts) -> str | None:
    if facts["commands"]["sbatch"] is None:
        return "no sbatch on the PATH"
    if facts["submitit"] is None:
        return "submitit is not installed"
    return None if facts["slurm"]["controller"] == "up" else f"controller: {facts['slurm']['controller']}"


def _cores(facts: Facts) -> str:
    usable, bound, all_of_them = facts["usable_cores"], len(facts["cores"]), facts["cores_of_machine"]
    if bound < all_of_them:
        return f"{usable} of {all_of_them} (the process is bound to {bound})"
    return f"{usable}" if usable == all_of_them else f"{usable} of {all_of_them} (a control group's quota)"


def _memory(facts: Facts) -> str:
    memory = facts["memory"]
    return f"{memory['total_bytes'] / GIB:.1f} GiB, {memory['available_bytes'] / GIB:.1f} GiB free"


def _gpus(facts: Facts) -> str:
    torch = facts["torch"]
    if not torch.get("devices"):
        present = gpus_present(facts)
        return "none" if present is None else f"none that torch can use; {present}"
    each = zip(torch["names"], torch["memory_bytes"], strict=True)
    return ", ".join(f"{name} ({size / GIB:.0f} GiB)" for name, size in each)


def _torch(facts: Facts) -> str:
    torch = facts["torch"]
    if torch.get("error"):
        return torch["error"]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "CPU"
    python, backends = facts["versions"]["python"], ", ".join(torch["backends"])
    return f"{torch['version']} ({build}), {backends or 'no backend'}; Python {python}"


def _source(facts: Facts) -> str:
    versions = facts["versions"]
    where = f"{versions['daso_bench'] or 'not installed'} in {facts['package']}"
    if versions["commit"] is None:
        return where
    return f"{where}, commit {versions['commit'][:10]}" + (" with changes" if versions["dirty"] else "")


def _slurm(facts: Facts) -> str:
    found = [name for name, path in facts["commands"].items() if path is not None]
    commands = [
        name for name in ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel") if name in found
    ]
    if not commands:
        return "no commands on the PATH"
    job = facts["variables"].get("SLURM_JOB_ID")
    inside = f", inside job {job}" if job and facts["slurm"]["job_known"] else ""
    return f"{facts['slurm']['version'] or 'version unknown'}: {', '.join(commands)}{inside}"


def _results(facts: Facts) -> str:
    folder = facts["folders"]["results"]
    if folder["error"]:
        return f"{folder['path']}: {folder['error']}"
    return f"{folder['path']}, {folder['free_bytes'] / GIB:.1f} GiB free"
