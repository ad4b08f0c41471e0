"""How the processes of a run share the cores of this machine: one rule for all who start or foretell one."""

from ..config.schema import RunConfig
from ..machine.environment import threads_per_rank


def processes_of(config: RunConfig) -> int:
    """Processes that are ranks: as many as there are, or the one that plays all virtual ones."""
    return 1 if config.launcher.name == "simulated" else config.cluster.ranks


def threads_of(config: RunConfig) -> int:
    """Threads of each of them on this machine; `auto` leaves a core to each loader worker."""
    launcher = config.launcher
    setting = launcher.threads_per_rank
    return threads_per_rank(
        "auto" if isinstance(setting, str) else setting,
        processes_of(config),
        workers=launcher.loader_workers,
    )


def cores_of(config: RunConfig) -> int:
    """Threads and loader workers of all of them: the cores that the run can keep busy at once."""
    return processes_of(config) * (threads_of(config) + config.launcher.loader_workers)
