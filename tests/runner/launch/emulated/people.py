"""Running Python as this user or as user nobody, who may not be able to reach this Python or this folder.

Root shows nobody what it takes by bind mounts in a mount namespace of the one process: no copy, and nothing
is left of it.
"""

import os
import pwd
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import daso_bench

ROOT = Path(daso_bench.__file__).parent
_SYS_ADMIN = 21  # linux/capability.h


@dataclass(frozen=True)
class Person:
    """`python`: what starts an interpreter that has the package. `folder`: the person's own."""

    python: tuple[str, ...]
    folder: Path
    uid: int


def may_administer() -> bool:
    """Root with the power to mount; root of a container often has not."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text().split()
    return bool(int(status[status.index("CapEff:") + 1], 16) >> _SYS_ADMIN & 1)


@contextmanager
def this_user() -> Iterator[Person]:
    with tempfile.TemporaryDirectory() as folder:
        yield Person((sys.executable,), Path(folder), os.geteuid())


@contextmanager
def nobody() -> Iterator[Person]:
    entry = pwd.getpwnam("nobody")
    stage = Path(tempfile.mkdtemp(prefix="daso-bench-nobody-"))
    try:
        stage.chmod(0o755)
        packages = sysconfig.get_paths()["purelib"]
        seen = {"python": sys.base_prefix, "packages": packages, "source/daso_bench": ROOT}
        for name in (*seen, "own"):
            (stage / name).mkdir(parents=True)
        os.chown(stage / "own", entry.pw_uid, entry.pw_gid)
        binds = "".join(f"mount --bind '{path}' '{stage / name}'\n" for name, path in seen.items())
        executable, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
        python = stage / "python" / Path(executable).relative_to(prefix)
        variables = (
            f"HOME='{stage}/own' TMPDIR='{stage}/own' PYTHONDONTWRITEBYTECODE=1 "
            f"LD_LIBRARY_PATH='{stage}/python/lib' PYTHONPATH='{stage}/source:{stage}/packages'"
        )
        script = f"set -e\n{binds}cd /\nexec runuser -u nobody -- env {variables} '{python}' \"$@\""
        command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
        yield Person(command, stage / "own", entry.pw_uid)
    finally:
        shutil.rmtree(stage)
