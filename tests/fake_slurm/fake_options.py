"""The long options of the fake Slurm's commands: unknown ones are refused as getopt_long does."""

from typing import NoReturn

from fake_state import fail

# Options of sbatch in 22.05 (`man sbatch`); "=": takes a value, "?": may take one.
_SBATCH = """
account= acctg-freq= bb= bbf= begin= chdir= cluster-constraint= clusters= comment= constraint=
container= contiguous core-spec= cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task= deadline=
delay-boot= dependency= error= exclude= exclusive? export= extra-node-info= gid= gpu-bind= gpu-freq=
gpus-per-node= gpus-per-socket= gpus-per-task= gpus= gres-flags= gres= help hint= hold input=
job-name= licenses= mail-type= mail-user= mcs-label= mem-bind= mem-per-cpu= mem-per-gpu= mem= mincpus=
network= nice? no-kill? nodefile= nodelist= nodes= ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
ntasks-per-socket= ntasks= open-mode= output= overcommit oversubscribe partition= power= prefer=
priority= profile= propagate? qos= quiet reboot reservation= signal= sockets-per-node= spread-job
switches= test-only thread-spec= threads-per-core= time-min= time= tmp= uid= usage use-min-nodes
verbose version wckey= distribution=
array= batch= export-file= get-user-env? ignore-pbs kill-on-invalid-dep= no-requeue parsable requeue
wait-all-nodes= wait wrap=
"""
_TABLES = {
    "sbatch": _SBATCH,
    "squeue": """
account= all array federation format= Format= help iterate= jobs? json local long me name=
noconvert nodelist= noheader partition= priority qos= reservation= sort= start states= steps?
user= users= verbose version clusters=
""",
    "sacct": """
accounts= allocations allusers clusters= completion delimiter= duplicates endtime= federation
format= jobs= json local long name= noconvert noheader nodelist= parsable parsable2
partition= qos= reason= starttime= state= truncate uid= user= units= verbose version
""",
    "scancel": """
account= batch ctld cron full hurry interactive jobname= name= nodelist= partition= qos=
quiet reservation= sibling= signal= state= user= verbose version wckey= me clusters=
""",
    "sinfo": """
all dead exact federation format= Format= future hide iterate= json list-reasons local
long noconvert Node nodes= noheader partition= reservation responding sort= states=
summarize verbose version clusters=
""",
    "scontrol": """
all clusters= details federation future help hide json local oneliner quiet sibling uid=
verbose version
""",
    "sacctmgr": """
associations help immediate json noheader oneliner parsable parsable2 quiet readonly
verbose version
""",
}


class Table:
    """The options of one command at one version of Slurm."""

    def __init__(self, command: str, version: tuple[int, int]) -> None:
        self.command = command
        self.kinds: dict[str, str] = {}
        words = _TABLES[command].split()
        if command == "sbatch" and version >= (23, 2):
            words.append("tres-per-task=")  # "Add --tres-per-task" (CHANGELOG/slurm-23.02.md)
        if command == "sbatch" and version >= (23, 11):
            words.remove("export-file=")  # "removed --export-file" (CHANGELOG/slurm-23.11.md)
        if command == "sacct" and version >= (23, 2):
            words.append("array")  # "sacct - Add --array option" (CHANGELOG/slurm-23.02.md)
        for word in words:
            name = word.rstrip("=?")
            self.kinds[name] = word[len(name) :]

    def read(self, arguments: list[str], *, permute: bool = True) -> tuple[dict[str, str], list[str]]:
        """Options by long name (the last wins) and the rest; `permute=False`: all after the first is rest."""
        found: dict[str, str] = {}
        rest: list[str] = []
        queue = list(arguments)
        while queue:
            word = queue.pop(0)
            if word == "--":
                rest += queue
                break
            if word.startswith("--"):
                self._long(word, queue, found)
            elif word.startswith("-"):
                self._refuse(f"invalid option -- '{word[1:]}'")
            elif permute:
                rest.append(word)
            else:
                rest += [word, *queue]
                break
        return found, rest

    def _long(self, word: str, queue: list[str], found: dict[str, str]) -> None:
        given, has_value, value = word[2:].partition("=")
        names = [name for name in self.kinds if name.startswith(given)]
        name = given if given in self.kinds else names[0] if len(names) == 1 else None
        if name is None:
            self._refuse(f"option '--{given}' is ambiguous" if names else f"unrecognized option '{word}'")
        if self.kinds[name] == "=" and not has_value:
            if not queue:
                self._refuse(f"option '--{name}' requires an argument")
            value = queue.pop(0)
        if self.kinds[name] == "" and has_value:
            self._refuse(f"option '--{name}' doesn't allow an argument")
        found[name] = value

    def _refuse(self, why: str) -> NoReturn:
        fail("", f"{self.command}: {why}", f'Try "{self.command} --help" for more information', code=255)
