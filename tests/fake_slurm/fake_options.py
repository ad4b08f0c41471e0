"""The command lines of the fake Slurm, read as getopt_long reads them: abbreviations, refusals and all."""

from typing import NoReturn

from fake_state import fail

# Options of sbatch and srun in 22.05 (`man sbatch`, `man srun`); "=": takes a value, "?": may take one.
_BOTH = """
account=A acctg-freq= bb= bbf= begin=b chdir=D cluster-constraint= clusters=M comment= constraint=C
container= contiguous core-spec=S cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task=c deadline=
delay-boot= dependency=d error=e exclude=x exclusive? export= extra-node-info=B gid= gpu-bind= gpu-freq=
gpus-per-node= gpus-per-socket= gpus-per-task= gpus=G gres-flags= gres= help:h hint= hold:H input=i
job-name=J licenses=L mail-type= mail-user= mcs-label= mem-bind= mem-per-cpu= mem-per-gpu= mem= mincpus=
network= nice? no-kill?k nodefile=F nodelist=w nodes=N ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
ntasks-per-socket= ntasks=n open-mode= output=o overcommit:O oversubscribe:s partition=p power= prefer=
priority= profile= propagate? qos=q quiet:Q reboot reservation= signal= sockets-per-node= spread-job
switches= test-only thread-spec= threads-per-core= time-min= time=t tmp= uid= usage use-min-nodes
verbose:v version:V wckey= distribution=m
"""
_SBATCH = """
array=a batch= export-file= get-user-env? ignore-pbs kill-on-invalid-dep= no-requeue parsable requeue
wait-all-nodes= wait:W wrap=
"""
_SRUN = """
accel-bind= bcast-exclude= bcast? compress? cpu-bind= disable-status:X epilog= exact het-group=
immediate?I jobid= kill-on-bad-exit?K label:l mpi= msg-timeout= multi-prog no-allocate:Z overlap
preserve-env:E prolog= pty quit-on-interrupt relative=r resv-ports? send-libs? slurmd-debug= task-epilog=
task-prolog= threads=T unbuffered:u wait=W x11?
"""
_TABLES = {
    "sbatch": _BOTH + _SBATCH,
    "srun": _BOTH + _SRUN,
    "squeue": """
account=A all:a array:r federation format=o Format=O help iterate=i jobs?j json local long:l me name=n
noconvert nodelist=w noheader:h partition=p priority:P qos=q reservation=R sort=S start states=t steps?s
user=u users= verbose:v version:V clusters=M
""",
    "sacct": """
accounts=A allocations:X allusers:a clusters=M completion:c delimiter= duplicates:D endtime=E federation
format=o jobs=j json local long:l name= noconvert noheader:n nodelist=N parsable:p parsable2:P
partition=r qos=q reason=R starttime=S state=s truncate:T uid=u user= units= verbose:v version:V
""",
    "scancel": """
account=A batch:b ctld cron full:f hurry:H interactive:i jobname= name=n nodelist=w partition=p qos=q
quiet:Q reservation=R sibling= signal=s state=t user=u verbose:v version:V wckey= me clusters=M
""",
    "sinfo": """
all:a dead:d exact:e federation format=o Format=O future:F hide iterate=i json list-reasons:R local
long:l noconvert Node:N nodes=n noheader:h partition=p reservation:T responding:r sort=S states=t
summarize:s verbose:v version:V clusters=M
""",
    "scontrol": """
all:a clusters=M details:d federation future:F help:h hide json local oneliner:o quiet:Q sibling uid=u
verbose:v version:V
""",
    "sacctmgr": """
associations:s help:h immediate:i json noheader:n oneliner:o parsable:p parsable2:P quiet:Q readonly:r
verbose:v version:V
""",
}


class Table:
    """The options of one command at one version of Slurm."""

    def __init__(self, command: str, version: tuple[int, int]) -> None:
        self.command = command
        self.kinds: dict[str, str] = {}
        self.letters: dict[str, str] = {}
        words = _TABLES[command].split()
        if command in ("sbatch", "srun") and version >= (23, 2):
            words.append("tres-per-task=")  # "Add --tres-per-task" (CHANGELOG/slurm-23.02.md)
        if command == "sbatch" and version >= (23, 11):
            words.remove("export-file=")  # "removed --export-file" (CHANGELOG/slurm-23.11.md)
        if command == "sacct" and version >= (23, 2):
            words.append("array")  # "sacct - Add --array option" (CHANGELOG/slurm-23.02.md)
        for word in words:
            mark = next((mark for mark in "=?:" if mark in word), "")
            name, _, letter = word.partition(mark) if mark else (word, "", "")
            self.kinds[name] = "" if mark == ":" else mark
            if letter:
                self.letters[letter] = name

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
            elif word.startswith("-") and len(word) > 1:
                self._short(word, queue, found)
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

    def _short(self, word: str, queue: list[str], found: dict[str, str]) -> None:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = self.letters.get(letter)
            if name is None:
                self._refuse(f"invalid option -- '{letter}'")
            if self.kinds[name] == "":
                found[name] = ""
                continue
            if self.kinds[name] == "=" and not letters:
                if not queue:
                    self._refuse(f"option requires an argument -- '{letter}'")
                letters = queue.pop(0)
            found[name], letters = letters, ""

    def _refuse(self, why: str) -> NoReturn:
        fail("", f"{self.command}: {why}", f'Try "{self.command} --help" for more information', code=255)
