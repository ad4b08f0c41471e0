"""Compressed node lists are read whole or refused."""

import os
import re
import stat
from pathlib import Path

import pytest
from fake_slurm.fake import Cluster
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.runner.launch.slurm.host_list import expand, hosts

# First host and count.
FIRST = [
    ("gpu[1,2]", "gpu1", 2),
    ("cl-ia810", "cl-ia810", 1),
    ("alpha,beta,gamma", "alpha", 3),
    ("host[001,003-004,006]", "host001", 4),
    ("c457-[011-012]", "c457-011", 2),
    ("rack[1-2]n[01-02]", "rack1n01", 4),
]
WHOLE = [
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("n[099-101]", ["n099", "n100", "n101"]),
    ("n[9-10]", ["n9", "n10"]),
    ("n[01,1]", ["n01", "n1"]),
    ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
    ("a[1-2]b", ["a1b", "a2b"]),
    ("node[0001-0002]-int,login", ["node0001-int", "node0002-int", "login"]),
    ("a.b[1-2].c.d", ["a.b1.c.d", "a.b2.c.d"]),
    ("a[1-2][3-4]", ["a13", "a14", "a23", "a24"]),
    ("x,y[1,3],z", ["x", "y1", "y3", "z"]),
    # Slurm 22.05.8 counts the last group fastest and the others from the left.
    ("r[1-2]n[1-2]s[1-2]", ["r1n1s1", "r1n1s2", "r2n1s1", "r2n1s2", "r1n2s1", "r1n2s2", "r2n2s1", "r2n2s2"]),
]
UNKNOWN = [
    "gpu[1", "gpu1]", "a[[1]]", "a[1]]", "n[]", "n[a-b]", "n[1-2,]", "n[3-1]", "n[-2]", "n[1-]", "n[1-2-3]",
    "n[0-9:3]", "n[1- 2]", "", "a,,b", ",a", "a,", "a b", "(null)", "n[1-99999]", "[1-2]", "None assigned",
    "-a",
    "n[1-2\n]", "n[1-2],", "n[١-٢]",
]  # fmt: skip


@pytest.mark.parametrize(("text", "first", "count"), FIRST)
def test_the_first_host_and_the_count_are_those_worked_by_hand(text: str, first: str, count: int) -> None:
    names = hosts(text)
    assert (names[0], len(names)) == (first, count)


@pytest.mark.parametrize(("text", "names"), WHOLE)
def test_every_form_is_read_whole_and_in_order(text: str, names: list[str]) -> None:
    assert hosts(text) == names


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_form_is_an_error_and_never_a_guess(text: str) -> None:
    with pytest.raises(ValueError, match=r"no form of a node list known here"):
        hosts(text)


names_of_nodes = st.from_regex(r"[a-z][a-z-]{0,5}[a-z]", fullmatch=True)
numbers = st.lists(st.integers(0, 999), min_size=1, max_size=5)


@given(names_of_nodes, numbers, st.integers(1, 5))
def test_a_list_that_is_compressed_number_by_number_comes_back(
    name: str, some: list[int], width: int
) -> None:
    text = f"{name}[{','.join(f'{number:0{width}}' for number in some)}]"
    assert hosts(text) == [f"{name}{number:0{width}}" for number in some]


def scontrol(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_slurm_is_asked_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, 'test "$1 $2 $3" = "show hostnames x[1-2]" && echo y1 && echo y2', monkeypatch)
    assert expand("x[1-2]") == ["y1", "y2"]


def test_without_slurm_the_list_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert expand("rack[1-2]n[01-02]")[0] == "rack1n01"
    with pytest.raises(ValueError, match=re.escape("'gpu[1'")):
        expand("gpu[1")


@pytest.mark.parametrize(
    "script",
    ["echo 'Invalid hostlist: a[1-2]b' >&2", "echo 'gpu]'", "echo nonsense; exit 1", "true", "echo '(null)'"],
)
def test_an_answer_that_is_no_list_of_names_is_not_taken(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, script, monkeypatch)
    assert expand("a[1-2]b") == ["a1b", "a2b"]
    with pytest.raises(ValueError, match="gpu"):
        expand("gpu[1")


@pytest.mark.parametrize("version", ["22.05", "23.11"])
def test_every_version_ends_in_the_same_names(cluster: Cluster, version: str) -> None:
    cluster(version)
    for text, names in WHOLE[:7]:
        assert expand(text) == names
    with pytest.raises(ValueError, match="gpu"):
        expand("gpu[1")
