"""The script of a comparison gives each run exactly its arguments, and says once what runs share."""

import shutil
import subprocess
from pathlib import Path

from sharing import Make, compared

from daso_bench.runner.report.reproduce import arguments_of, script_of


def test_the_script_gives_each_run_its_arguments(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "runs", "ddp", seed)
        odd = {"settings": {"odd": "it's $x"}, "place": {"note": f"${seed} it's"}}
        make_run(tmp_path / "runs", "daso", seed, **odd)
    make_run(tmp_path / "runs", "daso", 0, arm="A' `x`\n|", train={"epochs": 3})
    comparison = compared(tmp_path / "runs")
    script = script_of(comparison.arms)
    # A program of that name that writes its arguments down.
    program = tmp_path / "daso-bench"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >> calls; printf "\\0" >> calls\n')
    program.chmod(0o755)
    bash = shutil.which("bash")
    assert bash, "the script is for bash"
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([bash, "-eu", "-c", script], check=True, cwd=tmp_path, env=path, timeout=60)
    calls = (tmp_path / "calls").read_text().split("\0\0")[:-1]
    assert len(calls) == len(comparison.runs) == 7
    for call, run in zip(calls, comparison.runs, strict=True):
        assert sorted(call.split("\0")) == sorted(arguments_of(run))
        assert script.count(run.run_id) == 1
    assert script.count("train.global_batch_size=64") == 1
