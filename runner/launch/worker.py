"""The program of one rank that srun or torchrun starts: `python -m daso_bench.runner.launch.worker RUN_DIR`.

The environment names the rank, the run directory the address of the supervisor and what to train. Without a
supervisor (no `--key`), the process of rank 0 becomes the supervisor: it starts rank 0 as a child process and
ends after it, so that the process of the job that ends last has written the outcome.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

FIND_S = 120.0  # until the supervisor's address is visible: network file systems show new files late
CONNECT_S = 5.0
WELCOME_S = 900.0  # the supervisor refuses all ranks earlier if one does not come
_EARLY = (signal.SIGUSR2, signal.SIGTERM)
_early_signals: list[int] = []


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the process from start to end. Exit codes: as `rank_process`, 3 if no supervisor is found."""
    for number in _EARLY:  # torch takes a second to load: until then the default action would end the process
        signal.signal(number, lambda number, _: _early_signals.append(number))
    parser = argparse.ArgumentParser(prog="python -m daso_bench.runner.launch.worker", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--key", help="of the attempt, where a supervisor waits already")
    parser.add_argument("--entry", default="daso_bench.runner.launch.rank:run_rank", help="what a rank does")
    options = parser.parse_args(arguments)
    try:
        place, start_key = place_of(os.environ)
        if options.key is None and place["rank"] == 0:
            from .torchrun import supervise

            sys.exit(supervise(options.run_dir, start_key))
        if options.key is None and _is_finished(options.run_dir):  # rank 0 prints that and ends
            sys.exit(0)
        line, token = find(options.run_dir, options.key or start_key)
        _serve(options.run_dir, place, line, token, options.entry)
    except (LookupError, OSError) as error:
        print(f"daso-bench worker on {socket.gethostname()}: {error}", file=sys.stderr)
        sys.exit(3)


def _is_finished(run_dir: Path) -> bool:
    """Whether the run has its result and is not trained again: then there is no supervisor.

    Reads the file alone: `RunDirectory.state` tries the run's lock, which rank 0 may be taking now.
    """
    from ..records.run_directory import DONE

    try:
        status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))["status"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return status in DONE


def place_of(environ: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """This process's `rank`, `ranks`, `node` and `local_rank`; and the key of the start it belongs to.

    From torchrun's variables, or else Slurm's. Raises LookupError without either.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        port = environ.get("MASTER_PORT", "")  # two starts with the same id meet at different ports
        key = f"torchrun-{environ['TORCHELASTIC_RUN_ID']}-{port}-{restart}"
        names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    elif "SLURM_PROCID" in environ:
        parts = [environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")]
        key = f"slurm-{'-'.join(parts)}"
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_LOCALID")
    else:
        raise LookupError(
            "neither torchrun (RANK, WORLD_SIZE, ...) nor srun (SLURM_PROCID, ...) started this process; "
            "on one machine use `daso-bench launcher=local`"
        )
    keys = ("rank", "ranks", "node", "local_rank")
    return {name: int(environ[variable]) for name, variable in zip(keys, names, strict=True)}, key


def find(run_dir: Path, key: str, patience_s: float = FIND_S) -> tuple[socket.socket, str]:
    """A connection to the supervisor of the attempt `key`, and the token to show. Raises LookupError."""
    from .remote import ADDRESS

    deadline, why = time.monotonic() + patience_s, f"no {ADDRESS} in {run_dir}"
    while time.monotonic() < deadline:
        if _early_signals and not run_dir.is_dir():
            break
        with suppress(OSError, ValueError):
            os.listdir(run_dir)  # makes a network file system look again
            address = json.loads((run_dir / ADDRESS).read_text())
            if address["key"] == key:
                why = f"the supervisor cannot be reached at {', '.join(address['hosts'])}"
                for host in address["hosts"]:
                    with suppress(OSError):
                        line = socket.create_connection((host, address["port"]), CONNECT_S)
                        return line, address["token"]
            else:
                why = f"{run_dir / ADDRESS} is of another attempt ({address['key']}, not {key})"
        time.sleep(0.2)
    raise LookupError(why)


def _serve(run_dir: Path, place: Mapping[str, int], line: socket.socket, token: str, entry: str) -> NoReturn:
    """Send hello, wait for the welcome, and run the rank."""
    import yaml

    from .rank_process import Link, Meeting, RankTask, run_task
    from .remote import read_line

    launcher = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))["launcher"]
    listener = _listener(launcher.get("port") or 0) if place["rank"] == 0 else None
    port = listener.getsockname()[1] if listener is not None else None
    interface = launcher.get("interface")
    line.sendall(json.dumps(hello(run_dir, place, line, token, port, interface)).encode() + b"\n")
    answer = read_line(line, WELCOME_S)
    if answer is None:
        raise LookupError("the supervisor went away before all ranks had come")
    if answer["kind"] == "refused":
        raise LookupError(answer["reason"])
    line.settimeout(None)
    _set_interfaces(interface, line.getsockname()[0], answer["host"])
    link = Link(line, None)
    for number in _early_signals:
        link.interrupt(number)
    task = RankTask(
        run_dir=run_dir.absolute(),
        rank=place["rank"],
        ranks=place["ranks"],
        port=answer["port"],
        threads=answer["threads"],
        entry=entry,
        listener=listener,
        meeting=Meeting(host=answer["host"], one_clock=answer["one_clock"], known=answer["known"]),
        cores=tuple(answer["cores"]),
    )
    run_task(task, link)


def hello(
    run_dir: Path,
    place: Mapping[str, int],
    line: socket.socket,
    token: str,
    port: int | None,
    interface: str | None,
) -> dict[str, Any]:
    """A rank's first message: its number, its place, its cores, and the facts about its process."""
    from ..machine.cores import affinity, usable_cores
    from ..machine.facts import process_facts

    host, reached = socket.gethostname(), line.getpeername()[0]
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = host
    return {
        "kind": "hello",
        "token": token,
        **place,
        "host": host,
        "boot": boot,  # of the running machine, the same for all its processes and host names
        "pid": os.getpid(),
        "cores": affinity(),
        "usable": usable_cores(),
        "interface": interface,
        "address": line.getsockname()[0] if interface is None else _address_of(interface),
        "reached": reached,
        "port": port,
        "facts": process_facts(run_dir, master=reached).as_row(),
    }


def _address_of(interface: str) -> str:
    from ..machine.facts import interfaces

    known = interfaces()
    usable = [text for text in known.get(interface, {}).get("addresses", ()) if ":" not in text]
    if not usable:
        raise LookupError(
            f"launcher.interface={interface}: {socket.gethostname()} has {', '.join(sorted(known))}"
        )
    return usable[0]


def _listener(port: int) -> socket.socket:
    """Rank 0's open port for the rendezvous: `launcher.port`, or a free one for 0."""
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise LookupError(
            f"launcher.port={port}: cannot be used on {socket.gethostname()}: {error.strerror}; "
            "launcher.port=null takes a free one"
        ) from error


def _set_interfaces(chosen: str | None, address: str, meeting_host: str) -> None:
    """Have gloo and NCCL use the interface by which the ranks reach each other, unless the user chose one.

    Left alone, gloo takes the address of the host's name, which may be 127.0.1.1.
    """
    from ..machine.facts import interface_of, route_to

    if meeting_host == "127.0.0.1":
        return
    name = chosen or interface_of(address)
    if name is None or name == "lo":
        name = route_to(meeting_host)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


if __name__ == "__main__":
    main()
