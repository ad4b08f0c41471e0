"""The script of many runs gives each run exactly the arguments of its own command."""

import shlex
import shutil
import subprocess
from pathlib import Path

from sharing import Make, compared

from daso_bench.runner.report.reproduce import command_of, script_of


def test_the_script_runs_the_same_commands(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "runs", "ddp", seed)
        make_run(
            tmp_path / "runs", "daso", seed, settings={"odd": "it's $x"}, place={"note": f"${seed} it's"}
        )
    make_run(tmp_path / "runs", "daso", 0, arm="A' `x`\n|", train={"epochs": 3})
    comparison = compared(tmp_path / "runs")
    script = script_of([arm.runs for arm in comparison.arms])
    # A program of that name that writes its arguments down.
    told = tmp_path / "daso-bench"
    told.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >> told; printf "\\0" >> told\n')
    told.chmod(0o755)
    bash = shutil.which("bash")
    assert bash, "the script is for bash"
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([bash, "-eu", "-c", script], check=True, cwd=tmp_path, env=path, timeout=60)
    calls = (tmp_path / "told").read_text().split("\0\0")[:-1]
    runs = [run for arm in comparison.arms for run in arm.runs]
    assert len(calls) == len(runs) == 7
    for call, run in zip(calls, runs, strict=True):
        assert sorted(call.split("\0")) == sorted(shlex.split(command_of(run))[1:])


def test_what_runs_share_is_said_once(make_run: Make, tmp_path: Path) -> None:
    for seed in range(20):
        make_run(tmp_path, "daso", seed)
    comparison = compared(tmp_path)
    script = script_of([arm.runs for arm in comparison.arms])
    assert script.count("train.global_batch_size=64") == 1
    for run in comparison.runs:
        assert script.count(run.run_id) == 1
    assert max(map(len, script.splitlines()[-20:])) < 120
