"""All rules on one process: a laptop, a login node, or a task of a job."""

from collections.abc import Callable, Iterable

from . import rules_cores, rules_devices, rules_folders, rules_network, rules_python, rules_slurm
from .findings import Facts, Finding, worst_first

Rule = Callable[[Facts], Iterable[Finding]]

RANK_RULES: tuple[Rule, ...] = (
    rules_cores.thread_variables,
    rules_cores.cores_of_task,
    rules_cores.memory,
    rules_cores.open_files,
    rules_cores.slowing_variables,
    rules_devices.cpu_build,
    rules_devices.no_device,
    rules_devices.missing_devices,
    rules_network.gloo_interface,
    rules_network.nccl_interface,
    rules_network.gloo_off_route,
    rules_folders.results,
    rules_folders.temporary,
    rules_folders.shared_memory,
    rules_python.encoding,
)
"""What holds for every rank of a job, too."""

RULES: tuple[Rule, ...] = (
    *RANK_RULES,
    rules_cores.threads_wanted,
    rules_cores.inherited_binding,
    rules_devices.fewer_than_ranks,
    rules_devices.one_per_task,
    rules_network.host_name,
    rules_network.port,
    rules_folders.home,
    rules_slurm.leaked_job,
    rules_slurm.missing_conf,
    rules_slurm.submitting,
    rules_slurm.tasks,
    rules_slurm.node_local_environment,
    rules_python.shadowed,
    rules_python.torch_import,
    rules_python.launched_elsewhere,
)


def machine_findings(facts: Facts, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """What is wrong with one process. `facts`: of `probes.machine_facts`, or of `facts.rank_facts`."""
    return worst_first(finding for rule in rules for finding in rule(facts))
