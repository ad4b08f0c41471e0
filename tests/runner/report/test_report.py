"""The page as a whole: complete, offline, the same bytes for the same runs, whatever their state."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sharing import table

from daso_bench.runner.report.build import report
from daso_bench.strategies.errors import ConfigError

DAMAGED = '{"kind": "evaluation", "step": 99, "acc'
Make = Callable[..., Path]
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
    assert (first["crossing_after_s"], first["crossing_stamp_s"]) == ("90.0", "180.0")
    assert float(first["to_target_s"]) == pytest.approx(127.279, abs=1e-3)
    assert (first["to_target_wall_s"], first["confirmed_stamp_s"]) == ("200.0", "")
    assert first["for_good_stamp_s"] == "360.0"
    arms = {row["arm"]: row for row in table(out / "arms.csv")}
    assert (arms["ddp"]["runs"], arms["ddp"]["runs_not_counted"], arms["ddp"]["reached"]) == ("5", "2", "3")
    assert arms["ddp"]["to_target_s_geometric_mean"] == ""
    expected = math.sqrt(2) * (60 * 61 * 62) ** (1 / 3)
    assert float(arms["daso"]["to_target_s_geometric_mean"]) == pytest.approx(expected)
    assert arms["local_sgd"]["to_target_s_geometric_mean"] == ""


def test_odd_numbers_stay_apart_from_missing_ones(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    rows = [row for row in table(out / "evaluations.csv") if row["seed"] == "4"]
    assert [row["accuracy"] for row in rows] == ["0.6", "NaN"]
    assert rows[1]["correct"] == ""


def test_what_a_reader_must_not_miss_is_visible(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    text = " ".join(Text((out / "index.html").read_text()).text.split())
    for words in (
        *("local processes, real time", "no asynchronous phase", "4 ranks on 2 cores (7 runs)"),
        *("3 runs did not finish", "3 of 5", "no mean, not all reached it", "not reached", "last line"),
        *("The answer: small_cnn on digits", "in (90.00, 180.0] s", "127.3 s", "one run"),
    ):
        assert words in text


def test_offline(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    source = (out / "index.html").read_text()
    page = Text(source)
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
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
    assert len(alternatives) == 5
    assert all("ddp" in words and "daso" in words for words in alternatives)
    svgs = sorted(out.glob("*.svg"))
    assert [file.stem for file in svgs] == [
        *("accuracy_samples", "accuracy_time"),
        *("parts", "speedups", "time_to_target"),
    ]
    for file in svgs:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
        assert file.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")


def test_equal_input_gives_equal_bytes(mixed: tuple[Path, Path], tmp_path: Path) -> None:
    root, out = mixed
    shutil.copytree(root, tmp_path / "deeper" / "copy")
    again = report(root, tmp_path / "again").parent
    elsewhere = report(tmp_path / "deeper" / "copy", tmp_path / "deeper" / "out").parent
    names = sorted(entry.name for entry in out.iterdir())
    for other in (again, elsewhere):
        assert sorted(entry.name for entry in other.iterdir()) == names
        for name in names:
            assert (other / name).read_bytes() == (out / name).read_bytes(), name


def test_a_new_process_with_another_hash_seed_gives_equal_bytes(
    mixed: tuple[Path, Path], tmp_path: Path
) -> None:
    root, out = mixed
    program = (
        "import sys, pathlib; from daso_bench.runner.report.build import report;"
        "report(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.size: 30\nsvg.fonttype: none\nlines.linewidth: 9\n")
    environment = {"PYTHONHASHSEED": "77", "MPLBACKEND": "no such backend", "MATPLOTLIBRC": str(settings)}
    environment |= {"HOME": "/nonexistent", "MPLCONFIGDIR": str(tmp_path), "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", program, str(root), str(tmp_path / "out")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path, timeout=100)
    for entry in out.iterdir():
        assert (tmp_path / "out" / entry.name).read_bytes() == entry.read_bytes(), entry.name


def test_names_survive(make_run: Make, tmp_path: Path) -> None:
    names = ["None", "NA", "_x", "$x$", "a|b", "<b>", "nan", "x,y", '"q"', "\\frac", "名前", "new\nline"]
    for name in names:
        make_run(tmp_path / "results", arm=name)
    out = report(tmp_path / "results", tmp_path / "out").parent
    expected = {f"ddp [{name}]" for name in names}
    for file in ("runs.csv", "arms.csv", "evaluations.csv"):
        assert {row["arm"] for row in table(out / file)} == expected
    page = Text((out / "index.html").read_text())
    assert ("b", {}) not in page.tags
    for name in names:
        assert f"ddp [{name}]" in page.text
        assert f"run.arm={name}" in page.text
    alternatives = [a["aria-label"] or "" for _, a in page.tags if a.get("role") == "img"]
    assert len(alternatives) == 4
    assert all(label in words for label in expected for words in alternatives)


def test_one_run_has_no_mean_and_no_spread(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "results")
    page = report(tmp_path / "results", tmp_path / "out")
    text = Text(page.read_text()).text
    assert "range" not in text
    assert "±" not in text
    (arm,) = table(tmp_path / "out" / "arms.csv")
    assert [arm[key] for key in arm if key.endswith("mean")] == [""] * 6


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
    with open(path / "ranks" / "0.jsonl", "w") as file:
        for attempt, steps in ((1, 50), (2, 20)):
            for interval in range(steps):
                row = {"kind": "train_interval", "attempt": attempt, "index": interval, "train_s": 2.0}
                print(json.dumps(row), file=file)
    (path / "ranks" / "1.jsonl").unlink()
    page = report(tmp_path / "results", tmp_path / "out")
    (run,) = table(tmp_path / "out" / "runs.csv")
    assert (run["evaluations"], run["replaced_rows"], run["resumed"]) == ("60", "10", "True")
    assert (run["train_s"], run["spent_train_s"], run["calendar_s"]) == ("120.0", "140.0", "440")
    assert run["crossing_stamp_s"] == "120.0"
    assert float(run["samples_per_s"]) == 0.5
    text = Text(page.read_text()).text
    assert "Resumed runs" in text
    assert "resumed: useful time" in text


def test_torn_files_are_used_and_reported(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path / "results")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    lines[1:3] = [lines[1] + lines[2]]
    (path / "metrics.jsonl").write_text("\n".join([*lines[:2], "rubbish", *lines[2:], DAMAGED]))
    (path / "environment.json").write_text('{"python": ')
    page = report(tmp_path / "results", tmp_path / "out")
    (run,) = table(tmp_path / "out" / "runs.csv")
    assert (run["evaluations"], run["damage"], run["final_accuracy"]) == ("4", "4", "0.78")
    text = Text(page.read_text()).text
    assert "line 3 (DAMAGE IN THE MIDDLE): not a record" in text
    assert "line 2 (DAMAGE IN THE MIDDLE): several records; whole records used: 2" in text
    assert "(last line): the line is cut" in text
    assert "environment.json: cannot be read, it is damaged" in text


def test_any_file_may_be_lost(make_run: Make, tmp_path: Path) -> None:
    names = ("status.json", "config.yaml", "environment.json", "metrics.jsonl")
    for seed, name in enumerate(names):
        (make_run(tmp_path / "results", seed=seed) / name).unlink()
    page = report(tmp_path / "results", tmp_path / "out")
    assert len(table(tmp_path / "out" / "runs.csv")) == 4
    text = Text(page.read_text()).text
    for name in names[:3]:
        assert f"{name}: missing" in text


def test_a_figure_that_fails_costs_nothing_else(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daso_bench.runner.report.plots import style

    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("no fonts here")

    monkeypatch.setattr(style, "drawn", broken)
    make_run(tmp_path / "results")
    page = report(tmp_path / "results", tmp_path / "out")
    assert Text(page.read_text()).text.count("not drawn: RuntimeError: no fonts here") == 4
    assert len(table(tmp_path / "out" / "runs.csv")) == 1


def test_without_target_there_is_no_time_to_target(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "results", target=None)
    page = report(tmp_path / "results", tmp_path / "out")
    assert "no target set" in Text(page.read_text()).text
    assert not (tmp_path / "out" / "time_to_target.svg").exists()


def test_studies_and_datasets_are_not_mixed(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "results")
    make_run(tmp_path / "results", study="other")
    page = report(tmp_path / "results", tmp_path / "out")
    assert "Studies other, quick" in Text(page.read_text()).text
    assert (tmp_path / "out" / "1_accuracy_time.svg").exists()
    assert (tmp_path / "out" / "2_accuracy_time.svg").exists()


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        report(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match="no run directory"):
        report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_title_and_every_figure_tell_world_and_size(make_run: Make, tmp_path: Path) -> None:
    for world, size in (("local", "2 nodes"), ("simulated", "2 nodes"), ("simulated", "8 nodes")):
        make_run(tmp_path / "results", world=world, place={"size": size})
    page = Text(report(tmp_path / "results", tmp_path / "out").read_text())
    places = ("real processes, 2 nodes", "simulated, 2 nodes", "simulated, 8 nodes")
    for number, place in enumerate(places, 1):
        assert f"small_cnn on digits, {place}" in page.text
        for file in (tmp_path / "out").glob(f"{number}_*.svg"):
            assert f"<!-- {place} -->" in file.read_text()
    alternatives = [words for _, a in page.tags if (words := a.get("aria-label"))]
    assert [sum(f"({place})" in words for words in alternatives) for place in places] == [4, 4, 4]
    assert page.text.count("simulated: real gradients") == 3


def test_without_accuracy_there_is_no_curve(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "results", accuracies=(math.nan, math.nan), target=None)
    report(tmp_path / "results", tmp_path / "out")
    assert not list((tmp_path / "out").glob("accuracy*"))


def test_clocks_without_training_are_not_called_gradients(make_run: Make, tmp_path: Path) -> None:
    make_run(tmp_path / "results", world="simulated", launcher={"timing_only": True})
    text = Text(report(tmp_path / "results", tmp_path / "out").read_text()).text
    assert "simulated: no training, the time of a modelled cluster alone" in text
    assert "real gradients" not in text


def test_every_table_is_there_as_csv_markdown_and_latex_with_the_same_rows(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    page = Text((out / "index.html").read_text())
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    for name in ("runs", "evaluations", "arms", "headline"):
        rows = table(out / f"{name}.csv")
        assert len((out / f"{name}.md").read_text().splitlines()) == len(rows) + 2
        assert len((out / f"{name}.tex").read_text().splitlines()) == len(rows) + 7
        assert {f"{name}.csv", f"{name}.md", f"{name}.tex"} <= links


def test_the_headline_can_be_printed_as_it_stands(mixed: tuple[Path, Path]) -> None:
    _, out = mixed
    rows = {row["arm"]: row for row in table(out / "headline.csv")}
    assert list(rows) == ["ddp", "daso", "local_sgd"]
    assert (rows["ddp"]["reached"], rows["ddp"]["time to target"]) == (
        "3 of 5 [0.23, 0.88]",
        "no mean, not all reached it",
    )
    assert (rows["daso"]["bytes inside nodes"], rows["daso"]["bytes between nodes"]) == ("3.00 MB", "0 B")
    assert (rows["daso"]["training time"], rows["local_sgd"]["training time"]) == ("244.0 s", "one run")


def test_every_figure_leads_to_the_commands_of_its_runs(make_run: Make, tmp_path: Path) -> None:
    for world in ("local", "simulated"):
        make_run(tmp_path / "results", world=world)
    page = report(tmp_path / "results", tmp_path / "out").read_text()
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert [re.findall(r'href="#(.*?)"', figure)[-1] for figure in figures] == [
        *["commands-1"] * 4,
        *["commands-2"] * 4,
    ]
    for place, world in (("commands-1", "local"), ("commands-2", "simulated")):
        _, _, commands = page.partition(f'<div id="{place}">')
        assert f"launcher={world}" in commands.partition("</details>")[0]


def test_what_an_arm_shares_is_said_once_and_runs_say_the_rest(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "results", "daso", seed)
        make_run(tmp_path / "results", "ddp", seed)
    page = report(tmp_path / "results", tmp_path / "out").read_text()
    _, _, apart = page.partition("What sets each arm and each run apart")
    apart = apart.partition("</details>")[0]
    assert apart.count("<code>strategy.sync_every=4</code>") == 1
    assert apart.count("<code>seed=2</code>") == 2
