"""The page in a real browser: opened from disk without a network, sorted, read by assistive programs."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sharing import Make

from daso_bench.runner.report.build import report

ODD = "<b>|$x$_"
# Runs in a copy of the page, after the page's own script, and writes what it finds to the end of the page.
PROBE = """
<script>
addEventListener("load", () => {
  const table = document.querySelector("[aria-label='Arms and runs'] table");
  const label = (row) => row.cells[0].textContent.trim().replace(/\\s+/g, " ");
  const rows = () => [...table.rows].slice(1).map(label);
  const heads = [...table.tHead.rows[0].cells];
  const press = (column) => { heads[column].querySelector("button").click(); return rows(); };
  const cards = [...document.querySelectorAll("figure .card")];
  const focusable = [...document.querySelectorAll("a[href], button, summary, [tabindex='0']")];
  const told = {
    asItWas: rows(),
    up: press(3), ariaUp: heads.map((head) => head.getAttribute("aria-sort")),
    down: press(3), ariaDown: heads[3].getAttribute("aria-sort"),
    back: press(3), byBytes: press(7),
    names: cards.map((card) => [card.computedRole, card.computedName]),
    regions: [...document.querySelectorAll(".wide")]
      .filter((one) => !one.closest("details")).map((one) => [one.computedRole, one.computedName]),
    first: focusable[0].textContent,
    unfocused: focusable.filter((one) => !one.closest("details:not([open]) > :not(summary)")).filter(
      (one) => { one.focus(); return document.activeElement !== one; }).length,
    loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor,
    cards: cards.map((card) => getComputedStyle(card).backgroundColor),
  };
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify(told);
  document.body.append(found);
});
</script>
"""
LOOK_INSIDE = """
<script>
addEventListener("load", () => {
  const inside = document.querySelector("iframe").contentDocument, found = document.createElement("pre");
  const count = (selector) => inside.querySelectorAll(selector).length;
  found.id = "found";
  found.textContent = JSON.stringify([count("button"), count("[aria-sort]"), inside.body.innerText]);
  document.body.append(found);
});
</script>
"""


def chromium() -> str:
    """Where a browser is; without one the tests are skipped, in CI they fail."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found:
        return found
    reason = "no Chromium on this machine (Debian: apt-get install chromium)"
    if os.environ.get("DASO_BENCH_REQUIRE_CHROMIUM"):
        pytest.fail(reason)
    pytest.skip(reason)


def opened(page: Path, folder: Path, *options: str) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser says on its error output."""
    command = [
        *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom"),
        *("--enable-blink-features=ComputedAccessibilityInfo", *options, page.as_uri()),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    return done.stdout, done.stderr


def probed(page: Path, folder: Path, *options: str) -> dict[str, Any]:
    """What PROBE finds on the page; the console must stay empty."""
    copy = page.with_name("probed.html")
    copy.write_text(page.read_text() + PROBE)
    document, said = opened(copy, folder, *options)
    assert "CONSOLE" not in said
    found = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert found, "the probe did not run to its end"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def page(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms of two runs, quick to slow in another order than by name."""
    chromium()
    root = tmp_path_factory.mktemp("browser")
    for seed in range(2):
        make_run(root / "runs", "ddp", seed, train_s=90.0 - seed, payload=(0, 9e8))
        make_run(root / "runs", "daso", seed, train_s=1200.0 - seed, payload=(0, 2e9))
        make_run(root / "runs", "lasgd", seed, train_s=60.0 - seed, payload=(0, 3e6), arm=ODD)
    return report(root / "runs", root / "out")


@pytest.fixture(scope="module")
def found(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe finds in a window of 1280 pixels."""
    return probed(page, tmp_path_factory.mktemp("profile"), "--window-size=1280,900")


def by_arm(rows: list[str]) -> list[tuple[str, list[str]]]:
    """Each arm with the seeds of the runs below it."""
    arms: list[tuple[str, list[str]]] = []
    for row in rows:
        if row.startswith("seed"):
            arms[-1][1].append(row)
        else:
            arms.append((re.split(r"[ 2]", row)[0], []))
    return arms


def test_arms_are_sorted_by_a_number_and_keep_their_runs(found: dict[str, Any]) -> None:
    both, turned = ["seed 0", "seed 1"], ["seed 1", "seed 0"]
    assert by_arm(found["asItWas"]) == [("ddp", both), ("daso", both), ("lasgd", both)]
    # 1,200 s is more than 90 s, whatever their first digits say; run 1 of each arm is the quicker one.
    assert by_arm(found["up"]) == [("lasgd", turned), ("ddp", turned), ("daso", turned)]
    assert by_arm(found["down"]) == [("daso", both), ("ddp", both), ("lasgd", both)]
    assert found["back"] == found["asItWas"]
    assert (found["ariaUp"], found["ariaDown"]) == (["none"] * 3 + ["ascending"] + ["none"] * 4, "descending")


def test_sorting_knows_units(found: dict[str, Any]) -> None:
    """3 MB, 900 MB, 2 GB."""
    assert [arm for arm, _ in by_arm(found["byBytes"])] == ["lasgd", "ddp", "daso"]


def test_figures_and_tables_have_names_for_who_cannot_see_them(found: dict[str, Any]) -> None:
    assert len(found["names"]) == 4
    for role, name in found["names"]:
        assert role in ("img", "image")
        assert "daso" in name
        assert f"lasgd [{ODD}]" in name
    assert ["region", "Arms and runs"] in found["regions"]
    assert all(role == "region" and name for role, name in found["regions"])


def test_all_can_be_reached_by_keyboard_and_the_first_stop_skips_the_head(found: dict[str, Any]) -> None:
    assert found["first"] == "Skip to the results"
    assert found["unfocused"] == 0
    assert found["loaded"] == [], "nothing is loaded beside the page"


def test_the_page_fits_its_window_and_in_the_dark_figures_stay_on_light_cards(
    page: Path, tmp_path: Path, found: dict[str, Any]
) -> None:
    narrow = probed(page, tmp_path, "--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    assert (found["wider"], narrow["wider"]) == (0, 0)
    assert found["background"] == "rgb(255, 255, 255)"
    assert narrow["background"] == "rgb(20, 23, 28)"
    assert set(narrow["cards"]) == {"rgb(255, 255, 255)"}


def test_without_scripts_the_tables_stand_and_have_no_dead_buttons(page: Path, tmp_path: Path) -> None:
    """In a frame that may run none; the frame around it looks at what is there."""
    around = page.with_name("around.html")
    around.write_text(
        f'<iframe sandbox="allow-same-origin" srcdoc="{html.escape(page.read_text())}"></iframe>{LOOK_INSIDE}'
    )
    document, said = opened(around, tmp_path)
    assert "Blocked script execution" in said
    found = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert found, "the probe did not run to its end"
    buttons, sorts, text = json.loads(html.unescape(found[1]))
    assert (buttons, sorts) == (0, 0)
    assert "220.5 s" in text
