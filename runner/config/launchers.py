"""What starts the ranks of a run: the keys of each `launcher=NAME`, checked."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...strategies.errors import ConfigError, above, at_least, one_of, within


@dataclass(frozen=True, kw_only=True)
class LauncherConfig:
    """The keys that every launcher has: how the processes of a run are started and watched.

    A launcher derives its own keys from this class and names in `run_by` the class that starts the ranks
    (`runner/launch/launcher.py`).

    `loader_workers`: processes of each rank that make its batches ahead of time, `prefetch_batches` each; 0:
    the rank makes a batch when it needs it; auto: a rank on a GPU has one on each of its cores but one, at
    most 16, for image files and augmented sets, every other rank none; virtual ranks share as many.
    `device_data_mib`: a rank on a GPU keeps those splits there that together fit into so much memory, the
    training split first; not files on disk, nor images that are changed one by one. `share_gpus`: more ranks
    than GPUs may run on a machine, several on one; it is recorded as no valid timing; auto: they may where
    this program starts them and `cluster.device.kind` is not given. `pin`: each rank has as many cores of its
    own as it has threads and loader workers; workers of auto have cores of its threads.
    """

    run_by: ClassVar[str]  # dotted path of the `Launcher`
    virtual: ClassVar[bool] = False  # all ranks live in one process, in virtual time
    external: ClassVar[bool] = False  # another program starts the ranks, perhaps on other machines

    name: str
    threads_per_rank: int | str = "auto"
    stall_s: float = 300.0
    port: int | None = None
    allow_oversubscription: bool = True
    share_gpus: bool | str = "auto"
    pin: bool = False
    loader_workers: int | str = "auto"
    prefetch_batches: int = 2
    device_data_mib: float = 1024.0
    timeline: bool = False
    timing_only: bool = False
    extrapolate: bool = False

    def __post_init__(self) -> None:
        for key in ("timing_only", "timeline"):
            if getattr(self, key) and not self.virtual:
                raise ConfigError(f"launcher.{key}=true: needs virtual time, launcher=simulated")
        if self.pin and self.virtual:
            raise ConfigError("launcher.pin=true: virtual ranks have no cores; leave it false")
        above("launcher.stall_s", self.stall_s, 0)
        self.auto_or_at_least("loader_workers", 0)
        if not isinstance(self.share_gpus, bool) and self.share_gpus != "auto":
            raise ConfigError(f"launcher.share_gpus={self.share_gpus}: must be auto, true or false")
        at_least("launcher.prefetch_batches", self.prefetch_batches, 1)
        at_least("launcher.device_data_mib", self.device_data_mib, 0)
        if self.asked_workers and self.asked_network != "none":
            raise ConfigError(
                f"launcher.loader_workers={self.loader_workers}: emulated ranks have none, for "
                "cluster.device says what data cost; take 0"
            )
        self.auto_or_at_least("threads_per_rank", 1)
        if self.port is not None:
            within("launcher.port", self.port, 1, 65535)

    def auto_or_at_least(self, key: str, least: int) -> None:
        """Raises ConfigError unless the key is auto or a number of at least `least`."""
        value = getattr(self, key)
        if isinstance(value, int):
            at_least(f"launcher.{key}", value, least)
        elif value != "auto":
            raise ConfigError(f"launcher.{key}={value}: must be auto or a whole number >= {least}")

    @property
    def asked_workers(self) -> int:
        """Loader workers of each rank that have cores beside those of its threads: none for auto."""
        return self.loader_workers if isinstance(self.loader_workers, int) else 0

    def takes_gpu(self, kind: str | None) -> bool:
        """Whether a real rank takes a GPU, if there is one, where `cluster.device.kind` says `kind` for it.

        With emulated links or devices only where it says so: only CPUs are slowed down.
        """
        return kind == "cuda" or (kind is None and self.asked_network == "none")

    def may_share_gpus(self, kinds: Sequence[str]) -> bool:
        """Whether ranks may share a GPU, where `cluster.device.kind` asks for devices of these kinds."""
        asked = self.share_gpus
        return asked if isinstance(asked, bool) else not (self.external or kinds)

    @property
    def asked_network(self) -> str:
        """Who makes the links of `cluster.links`: none, modelled, kernel, or auto of the last two."""
        return "none"

    @property
    def real_time(self) -> bool:
        """Whether the run takes the time that this hardware takes: no virtual clock, no modelled links."""
        return not self.virtual and self.asked_network == "none"


@dataclass(frozen=True, kw_only=True)
class SimulatedConfig(LauncherConfig):
    """`launcher=simulated`: all ranks in one process, in virtual time.

    `rank_compute`: how steps of ranks that wait are computed: stacked, many in one call; graph, one captured
    step for all, on GPUs; one_by_one; auto, the fastest of those that the model allows, timed at the start.
    `device`: what computes the numbers of all ranks: cpu, cuda (one GPU), or auto, a GPU if torch sees
    one. No clock depends on it, the last digits of the numbers do.
    """

    run_by: ClassVar[str] = "daso_bench.runner.launch.local.SimulatedLauncher"
    virtual: ClassVar[bool] = True

    name: str = "simulated"
    device: str = "auto"
    rank_compute: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("launcher.rank_compute", self.rank_compute, ("auto", "stacked", "graph", "one_by_one"))
        one_of("launcher.device", self.device, ("auto", "cpu", "cuda"))
        if self.device == "cuda" and self.timing_only:
            raise ConfigError("launcher.device=cuda: launcher.timing_only=true computes nothing; take auto")


@dataclass(frozen=True, kw_only=True)
class LocalConfig(LauncherConfig):
    """`launcher=local`: a process per rank on this machine.

    `network`: none, the links are this machine's; modelled, operations are held back until they would have
    ended on the cluster's. `on_invalid`: where the checks of a modelled or emulated run fail at its start,
    refuse it, or run it and record that it is invalid. `keep_awake`: let programs of the lowest class spin
    while such a run goes on, so that no core falls asleep (`cores.keep_awake`).
    """

    run_by: ClassVar[str] = "daso_bench.runner.launch.local.LocalLauncher"
    networks: ClassVar[tuple[str, ...]] = ("none", "modelled")

    name: str = "local"
    network: str = "none"
    on_invalid: str = "refuse"
    keep_awake: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("launcher.network", self.network, self.networks)
        one_of("launcher.on_invalid", self.on_invalid, ("refuse", "record"))

    @property
    def asked_network(self) -> str:
        return self.network


@dataclass(frozen=True, kw_only=True)
class EmulatedConfig(LocalConfig):
    """`launcher=emulated`: a process per rank on this machine, whose nodes are real network namespaces.

    `network`: kernel, its queues shape the links between nodes; modelled, as of `launcher=local`, for systems
    without namespaces; auto, the first where it can be had.
    """

    networks: ClassVar[tuple[str, ...]] = ("auto", "kernel", "modelled")

    name: str = "emulated"
    network: str = "auto"


@dataclass(frozen=True, kw_only=True)
class ExternalConfig(LauncherConfig):
    """The keys of launchers whose ranks another program starts, on one machine or many.

    `start_s`: seconds for all ranks to have started. `interface`: of the network between the nodes; null:
    the one by which they reach rank 0.
    """

    external: ClassVar[bool] = True

    start_s: float = 300.0
    interface: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        above("launcher.start_s", self.start_s, 0)
        if self.interface is not None and self.interface.startswith("^"):
            raise ConfigError(
                f"launcher.interface={self.interface}: must be the name of an interface; ^ for all "
                "others is NCCL's alone"
            )


@dataclass(frozen=True, kw_only=True)
class TorchrunConfig(ExternalConfig):
    """`launcher=torchrun`: the user, or any batch system, starts torchrun on every node."""

    run_by: ClassVar[str] = "daso_bench.runner.launch.torchrun.TorchrunLauncher"

    name: str = "torchrun"


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(ExternalConfig):
    """`launcher=slurm`: a batch job per run, or a job array for many.

    `auto`: read from the partition's nodes. `sbatch`, `srun`: options of these commands that have no key of
    their own, name -> value ("" for one without a value). `setup`: shell lines before the run. `grace_s`:
    how long before its time limit a job is warned. `submit=false`: run in the allocation around the command.
    """

    run_by: ClassVar[str] = "daso_bench.runner.launch.slurm.submit.SlurmLauncher"

    name: str = "slurm"
    submit: bool = True
    wait: bool = False
    timeout_min: int | str = 60
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    cpus_per_rank: int | str = "auto"
    gpus_per_rank: int | str = "auto"
    mem: str | None = None
    exclusive: bool = False
    array_parallelism: int = 16
    max_requeues: int = 3
    grace_s: int | str = "auto"
    snapshot: bool = False
    python: str | None = None
    setup: tuple[str, ...] = ()
    sbatch: dict[str, str] = field(default_factory=dict)
    srun: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.auto_or_at_least("cpus_per_rank", 1)
        self.auto_or_at_least("gpus_per_rank", 0)
        self.auto_or_at_least("grace_s", 1)
        at_least("launcher.array_parallelism", self.array_parallelism, 1)
        at_least("launcher.max_requeues", self.max_requeues, 0)
        if isinstance(self.grace_s, int) and self.grace_s >= 60 * self.limit_min:
            raise ConfigError(
                f"launcher.grace_s={self.grace_s}: must be below the time limit (launcher.timeout_min: "
                f"{60 * self.limit_min} s)"
            )
        # Of two values of an option one would be lost without a word.
        for command, options in (("sbatch", OWN_OPTIONS), ("srun", OWN_STEP_OPTIONS)):
            for name in getattr(self, command):
                key = f"launcher.{command}.{name}"
                if name.startswith("-") or "_" in name:
                    raise ConfigError(f"{key}: write the option as {command} has it, without --")
                if name in options:
                    raise ConfigError(f"{key}: is set by {options[name]}")

    @property
    def limit_min(self) -> int:
        """The time limit in whole minutes."""
        return minutes(self.timeout_min, "launcher.timeout_min")

    @property
    def notice_s(self) -> int:
        """Seconds before the limit at which the job is warned: two minutes, of a short job a quarter."""
        return self.grace_s if isinstance(self.grace_s, int) else max(10, min(120, 60 * self.limit_min // 4))


# Options of sbatch that follow from keys. Slurm lets the last of two win.
OWN_OPTIONS = {
    "nodes": "cluster.nodes",
    "ntasks": "cluster.nodes and cluster.ranks_per_node",
    "ntasks-per-node": "cluster.ranks_per_node",
    "cpus-per-task": "launcher.cpus_per_rank",
    "gpus-per-node": "launcher.gpus_per_rank",
    "gpus-per-task": "launcher.gpus_per_rank",
    "time": "launcher.timeout_min",
    **{name: f"launcher.{name}" for name in ("partition", "account", "qos", "mem", "exclusive")},
    "array": "the runs of the sweep and launcher.array_parallelism",
    "job-name": "the runs: it keeps a second submission away",
    "signal": "launcher.grace_s",
    **dict.fromkeys(("requeue", "no-requeue", "open-mode"), "launcher.max_requeues"),
    **dict.fromkeys(("output", "error"), "results_dir"),
    **dict.fromkeys(
        ("parsable", "wait", "test-only", "wrap", "quiet", "chdir"),
        "daso-bench, which has to read sbatch's answer and find its files",
    ),
}
OWN_STEP_OPTIONS = {
    **{name: OWN_OPTIONS[name] for name in ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task")},
    **{name: OWN_OPTIONS[name] for name in ("gpus-per-node", "gpus-per-task", "time", "signal")},
    **dict.fromkeys(
        ("nodelist", "distribution", "kill-on-bad-exit", "wait", "input", "output", "error", "label"),
        "daso-bench, which places the ranks and ends them together",
    ),
}

LAUNCHERS: dict[str, type[LauncherConfig]] = {
    "local": LocalConfig,
    "emulated": EmulatedConfig,
    "simulated": SimulatedConfig,
    "slurm": SlurmConfig,
    "torchrun": TorchrunConfig,
}
"""The launchers that are built in, by `launcher.name`; another one names its class in `launcher._target_`."""


# ------------------------------------------------------------------ time limits of Slurm

# `man sbatch`, --time: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours",
# "days-hours:minutes" and "days-hours:minutes:seconds"; seconds are rounded up to the next minute.
_SPELLINGS = (
    'a whole number is minutes; as text "30" (minutes), "30:00" (minutes:seconds), "12:30:00", "1-12" '
    '(days-hours), "1-12:30" and "1-00:00:00"'
)
_WITH_DAYS = re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?", re.ASCII)
_WITHOUT = re.compile(r"((?P<h>\d+):(?=\d+:))?(?P<m>\d+)(:(?P<s>\d+))?", re.ASCII)


def minutes(value: int | str, key: str) -> int:
    """The time limit `value` of the option `key` in whole minutes, rounded up, at least 1.

    Parts behind the first may not overflow ("1-36" and "5:75" are refused, though Slurm would count on).
    Raises ConfigError for anything that is not one of the six spellings, nought and UNLIMITED included.
    """
    seconds = value * 60 if isinstance(value, int) and not isinstance(value, bool) else _seconds(value)
    if seconds is None or seconds <= 0:
        raise ConfigError(f"{key}={value}: not a time limit of one minute or more; {_SPELLINGS}")
    return math.ceil(seconds / 60)


def limit_in_words(minutes: int) -> str:
    """The limit as people read it: "1 d 2 h 30 min"."""
    hours, rest = divmod(minutes, 60)
    parts = zip((*divmod(hours, 24), rest), ("d", "h", "min"), strict=True)
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 min"


def seconds_left(text: str) -> float | None:
    """What squeue's %L says: "1:23" or "2-03:04:05" in seconds, infinity for UNLIMITED.

    None where Slurm does not know: INVALID (over the limit), NOT_SET (no limit yet), or anything else.
    """
    if text == "UNLIMITED":
        return math.inf
    return _seconds(text) if ":" in text else None


def _seconds(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    match = _WITH_DAYS.fullmatch(text.strip()) or _WITHOUT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match.groupdict().get(name) or 0) for name in "dhms")
    if seconds > 59 or (minutes > 59 and match["h"] is not None) or (hours > 23 and match.re is _WITH_DAYS):
        return None
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
