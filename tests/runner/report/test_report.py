"""The page as a whole: complete, offline, the same bytes for the same runs, whatever their state."""

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sharing import Make, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.results import results_of
from daso_bench.runner.report.sections.details import DetailsSection
from daso_bench.strategies.errors import ConfigError

DAMAGED = '{"kind": "evaluation", "step": 99, "acc'
CROWDED = ["4 ranks on 2 cores"]


class Text(HTMLParser):
    """Visible text of a page, and its tags with attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.hidden += tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text += data


@pytest.fixture(scope="module")
def mixed(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Results with every kind of run, and the report on them."""
    root = tmp_path_factory.mktemp("mixed") / "results"
    for seed in range(3):
        make_run(root, "ddp", seed, train_s=90.0 + seed, untimed=CROWDED)
        labels = ["no asynchronous phase"] if seed == 1 else []
        make_run(root, "daso", seed, train_s=60.0 + seed, untimed=CROWDED, labels=labels, payload=(3e6, 0))
    make_run(root, "ddp", 3, (0.5, 0.6), untimed=CROWDED)
    make_run(root, "ddp", 4, (0.6, math.nan), status="diverged", reason="loss is NaN at step 17 on rank 2")
    make_run(root, "ddp", 5, (0.6,), status="failed", reason="rank 1 was killed by SIGKILL", tail=DAMAGED)
    make_run(root, "ddp", 6, (), status="queued")
    make_run(root, "local_sgd", 0)
    return root, report(root, root.parent / "out").parent


def test_every_run_is_in_every_table(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    runs = table(out / "runs.csv")
    assert len(runs) == 11
    assert [row["status"] for row in runs if row["arm"] == "ddp"] == ["finished"] * 4 + [
        *("diverged", "failed", "queued")
    ]
    page = Text((out / "index.html").read_text())
    for row in runs:
        assert row["run_id"] in page.text
    assert "loss is NaN at step 17 on rank 2" in page.text
    assert "rank 1 was killed by SIGKILL" in page.text


def test_numbers_by_hand(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    first = next(row for row in table(out / "runs.csv") if row["arm"] == "ddp" and row["seed"] == "0")
    assert (first["crossing_after_s"], first["crossing_stamp_s"]) == ("180.0", "270.0")
    assert float(first["to_target_s"]) == pytest.approx(220.454, abs=1e-3)
    assert first["to_target_wall_s"] == "300.0"
    arms = {row["arm"]: row for row in table(out / "arms.csv")}
    assert (arms["ddp"]["runs"], arms["ddp"]["runs_not_counted"], arms["ddp"]["reached"]) == ("5", "2", "3")
    assert arms["ddp"]["to_target_s_geometric_mean"] == ""
    expected = math.sqrt(6) * (60 * 61 * 62) ** (1 / 3)
    assert float(arms["daso"]["to_target_s_geometric_mean"]) == pytest.approx(expected)
    assert arms["local_sgd"]["to_target_s_geometric_mean"] == "", "one run has no mean"
    diverged = [row for row in table(out / "evaluations.csv") if row["seed"] == "4"]
    assert [row["accuracy"] for row in diverged] == ["0.6", "NaN"]
    assert diverged[1]["correct"] == ""


def test_what_a_reader_must_not_miss_is_visible(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    text = " ".join(Text((out / "index.html").read_text()).text.split())
    for words in (
        *("real processes", "no asynchronous phase", "4 ranks on 2 cores (7 runs)"),
        *("3 runs did not finish", "3 of 5 [0.23, 0.88]", "median 225.4 s", "not reached", "last line"),
        *("Exploratory: on small_cnn/digits over 2×2 ranks, ", "220.5 s", "1 run"),
    ):
        assert words in text


def test_offline(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    source = (out / "index.html").read_text()
    page = Text(source)
    assert "script" not in {tag for tag, _ in page.tags}
    files = {entry.name for entry in out.iterdir()}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value in files or value.removeprefix("#") in ids
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink))", source)
    assert "@import" not in source
    assert str(out) not in source
    assert "/somewhere/else" not in source


def test_figures_have_words_and_are_files(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    page = Text((out / "index.html").read_text())
    alternatives = [a["aria-label"] or "" for _, a in page.tags if a.get("role") == "img"]
    assert len(alternatives) == 5, "that of page one is there for wide and for narrow windows"
    assert all("ddp" in words and "daso" in words for words in alternatives)
    svgs = sorted(out.glob("*.svg"))
    assert [file.stem for file in svgs] == [
        *("accuracy_samples", "accuracy_time"),
        *("parts", "speedups"),
    ]
    for file in svgs:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
        assert file.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")


def test_a_new_process_with_another_hash_seed_gives_equal_bytes_elsewhere(
    mixed: tuple[Path, Path], tmp_path: Path
) -> None:
    root, out = mixed
    shutil.copytree(root, tmp_path / "deeper" / "copy")
    program = (
        "import sys, pathlib; from daso_bench.runner.report.build import report;"
        "report(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.size: 30\nsvg.fonttype: none\nlines.linewidth: 9\n")
    environment = {"PYTHONHASHSEED": "77", "MPLBACKEND": "no such backend", "MATPLOTLIBRC": str(settings)}
    environment |= {"HOME": "/nonexistent", "MPLCONFIGDIR": str(tmp_path), "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", program, str(tmp_path / "deeper" / "copy"), str(tmp_path / "out")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path, timeout=100)
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {entry.name for entry in out.iterdir()}
    for entry in out.iterdir():
        assert (tmp_path / "out" / entry.name).read_bytes() == entry.read_bytes(), entry.name


@pytest.mark.usefixtures("undrawn")
def test_resumed_run_counts_useful_time(make_run: Make, tmp_path: Path) -> None:
    """FA2's restart: 2 s a step, saved at 40, killed after 50, 300 s in the queue, target at step 60."""
    rows = []
    for attempt, start, end in ((1, 0, 50), (2, 40, 60)):
        rows.append({"kind": "start", "attempt": attempt, "step": start, "samples": start, "train_s": 0.0})
        for step in range(start + 1, end + 1):
            found = {"kind": "evaluation", "attempt": attempt, "step": step, "samples": step}
            rows.append(found | {"train_s": 2.0 * step, "wall_s": 2.0 * step, "accuracy": step / 100})
    attempts = [
        {"number": 1, "started_unix": 1000, "ended_unix": 1100},
        {"number": 2, "started_unix": 1400, "ended_unix": 1440},
    ]
    path = make_run(tmp_path / "results", target=0.6, rows=rows, attempts=attempts)
    intervals = [
        {"kind": "train_interval", "attempt": attempt, "index": interval, "train_s": 2.0}
        for attempt, first, end in ((1, 0, 50), (2, 40, 60))
        for interval in range(first, end)
    ]
    for file in (path / "ranks").iterdir():
        file.write_text("".join(json.dumps(row) + "\n" for row in intervals))
    page = report(tmp_path / "results", tmp_path / "out")
    (run,) = table(tmp_path / "out" / "runs.csv")
    assert (run["evaluations"], run["train_s"], run["resumed"]) == ("60", "120.0", "True")
    assert run["crossing_stamp_s"] == "120.0"
    assert float(run["samples_per_s"]) == 0.5
    text = Text(page.read_text()).text
    assert "resumed: useful time" in text


@pytest.mark.usefixtures("undrawn")
def test_torn_files_are_used_and_any_file_may_be_lost(make_run: Make, tmp_path: Path) -> None:
    names = ("status.json", "config.yaml", "environment.json", "metrics.jsonl")
    for seed, name in enumerate(names):
        (make_run(tmp_path / "results", seed=seed) / name).unlink()
    path = make_run(tmp_path / "results", seed=9)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    lines[1:3] = [lines[1] + lines[2]]
    (path / "metrics.jsonl").write_text("\n".join([*lines[:2], "rubbish", *lines[2:], DAMAGED]))
    (path / "environment.json").write_text('{"python": ')
    page = report(tmp_path / "results", tmp_path / "out")
    runs = {row["run_id"]: row for row in table(tmp_path / "out" / "runs.csv")}
    run = runs[path.name]
    assert len(runs) == 5
    assert (run["evaluations"], run["damage"], run["final_accuracy"]) == ("4", "4", "0.78")
    text = Text(page.read_text()).text
    assert "line 3 (DAMAGE IN THE MIDDLE): not a record" in text
    assert "line 2 (DAMAGE IN THE MIDDLE): several records; whole records used: 2" in text
    assert "(last line): the line is cut" in text
    assert "environment.json: cannot be read, it is damaged" in text
    assert all(f"{name}: missing" in text for name in names[:3])


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        report(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match="no run directory"):
        report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_figures_tell_study_world_and_size_and_lead_to_commands(make_run: Make, tmp_path: Path) -> None:
    for world, size in (("local", "2 nodes"), ("simulated", "2 nodes"), ("simulated", "8 nodes")):
        make_run(tmp_path / "results", world=world, place={"size": size})
    make_run(tmp_path / "results", study="other")
    source = report(tmp_path / "results", tmp_path / "out").read_text()
    page = Text(source)
    assert "studies other, quick" in page.text
    plots = DetailsSection(results_of(tmp_path / "results", "test", None)).plots()
    places = (
        "real processes",
        "real processes, 2 nodes",
        "simulated on CPU, 2 nodes",
        "simulated on CPU, 8 nodes",
    )
    assert [plot.corner for plot in plots] == [place for place in places for _ in range(3)]
    assert all(f"({plot.corner})" in plot.alternative for plot in plots)
    titles = ("real processes", "2 nodes, real processes", "2 nodes, simulated", "8 nodes, simulated")
    # A heading; the line above an answer names the world in its own words.
    assert all(page.text.count(f"small_cnn/digits over 2×2 ranks, {title}") == 1 for title in titles)
    assert page.text.count("simulated: real gradients on CPU") == 2, "two comparisons"
    figures = re.findall(r"<figure>.*?</figure>", source, re.DOTALL)
    links = [re.findall(r'href="#(.*?)"', figure)[-1] for figure in figures]
    assert links == [f"commands-{number}" for number in (1, 2, 3, 4) for _ in range(3)]
    for number, launcher in enumerate(("local", "local", "simulated", "simulated"), 1):
        _, _, commands = source.partition(f'<div id="commands-{number}">')
        assert f"launcher={launcher}" in commands.partition("</details>")[0]


@pytest.mark.usefixtures("undrawn")
def test_without_accuracy_there_is_no_curve_and_clocks_without_training_are_no_gradients(
    make_run: Make, tmp_path: Path
) -> None:
    nothing = {"accuracies": (math.nan, math.nan), "target": None}
    make_run(tmp_path / "results", world="simulated", launcher={"timing_only": True}, **nothing)
    text = Text(report(tmp_path / "results", tmp_path / "out").read_text()).text
    assert "accuracy_time.svg" not in text
    assert "simulated: no training, the time of a modelled cluster" in text
    assert "real gradients" not in text
    assert "no target set" in text


def test_the_table_for_a_paper_has_six_columns_as_csv_and_as_latex(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    page = Text((out / "index.html").read_text())
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    row, single = table(out / "paper.csv")
    assert list(row) == [
        *(
            "arm",
            "time saved [CI]",
            "time saved to 75 % accuracy [CI]",
            "accuracy, points [CI]",
            "n",
            "comparable",
        )
    ]
    assert (row["arm"], row["n"], single["arm"], single["n"]) == ("daso", "3", "local_sgd", "1")
    assert (out / "paper.tex").read_text().count(r"\\") == 3
    assert {"speedups.csv", "paper.csv", "paper.tex", "runs.csv", "arms.csv"} <= links
