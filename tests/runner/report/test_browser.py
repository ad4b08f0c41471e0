"""The page in a real browser: opened from disk without a network, wide and on a phone, light and dark."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from sharing import Make

from daso_bench.runner.report.build import report

ODD = "<b>|$x$_"
# Runs in a copy of the page that allows it, and writes what it finds to the end of the page.
PROBE = """
<script>
addEventListener("load", () => {
  const cards = [...document.querySelectorAll("figure .card")];
  const focusable = [...document.querySelectorAll("a[href], summary, [tabindex='0']")];
  const shown = (one) => one.getClientRects().length && !one.closest("details:not([open]) > :not(summary)");
  const seen = {
    names: cards.filter(shown).map((card) => [card.computedRole, card.computedName]),
    regions: [...document.querySelectorAll(".wide")].filter(shown)
      .map((one) => [one.computedRole, one.computedName]),
    first: focusable[0].textContent,
    unfocused: focusable.filter(shown)
      .filter((one) => { one.focus(); return document.activeElement !== one; }).length,
    loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor,
    figure: getComputedStyle(cards.filter(shown)[0].querySelector("svg path")).fill,
    ink: [...new Set([...cards.filter(shown)[0].querySelectorAll("svg g[id*='text_'] use")]
      .map((glyph) => getComputedStyle(glyph).fill))],
    answer: document.querySelector(".sentence").getBoundingClientRect().bottom,
    firstFigure: cards.filter(shown)[0].getBoundingClientRect().bottom,
    strip: document.querySelector(".strip").getBoundingClientRect().bottom,
  };
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify(seen);
  document.body.append(found);
});
</script>
"""
ROOT = Path(__file__).parents[3]


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
    source = page.read_text()
    copy.write_text(
        source.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'") + PROBE
    )
    document, said = opened(copy, folder, *options)
    assert "CONSOLE" not in said
    found = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert found, "the probe did not run to its end"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def page(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms of three runs."""
    chromium()
    root = tmp_path_factory.mktemp("browser")
    for seed in range(3):
        make_run(root / "runs", "ddp", seed, train_s=90.0 - seed)
        make_run(root / "runs", "daso", seed, train_s=120.0 - seed)
        make_run(root / "runs", "lasgd", seed, train_s=60.0 - seed, arm=ODD)
    return report(root / "runs", root / "out")


@pytest.fixture(scope="module")
def wide(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe finds in a window of 1400 pixels."""
    return probed(page, tmp_path_factory.mktemp("profile"), "--window-size=1400,900")


@pytest.fixture(scope="module")
def phone(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it finds on a phone at night."""
    options = ("--window-size=420,900", "--blink-settings=preferredColorScheme=0")
    return probed(page, tmp_path_factory.mktemp("phone"), *options)


def test_figures_and_tables_have_names_for_who_cannot_see_them(
    wide: dict[str, Any], phone: dict[str, Any]
) -> None:
    for found in (wide, phone):
        ((role, name),) = found["names"]
        assert role in ("img", "image")
        assert "daso" in name
        assert f"lasgd [{ODD}]" in name
        assert all(role == "region" and name for role, name in found["regions"])


def test_all_can_be_reached_by_keyboard_and_the_first_stop_skips_the_head(wide: dict[str, Any]) -> None:
    assert wide["first"] == "Skip to the results"
    assert wide["unfocused"] == 0
    assert wide["loaded"] == [], "nothing is loaded beside the page"


def test_the_answer_its_figure_and_the_checks_are_on_the_first_screen(
    wide: dict[str, Any], phone: dict[str, Any]
) -> None:
    assert wide["answer"] < wide["firstFigure"] < wide["strip"] <= 900
    assert phone["strip"] <= 3 * 900
    assert (wide["wider"], phone["wider"]) == (0, 0), "nothing is wider than the window"


def test_figures_are_light_on_a_light_page_and_dark_on_a_dark_one(
    wide: dict[str, Any], phone: dict[str, Any]
) -> None:
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    assert (wide["background"], wide["figure"]) == (light, light)
    assert (phone["background"], phone["figure"]) == (dark, dark)
    assert "rgb(230, 233, 238)" in phone["ink"]
    assert "rgb(29, 33, 41)" in wide["ink"]
    assert not set(phone["ink"]) & {"rgb(29, 33, 41)", "rgb(0, 0, 0)"}


def test_three_pictures_of_a_report_are_made(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "CHROMIUM": chromium()}
    command = [str(ROOT / "scripts" / "screenshots"), str(page.parent), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=100)
    sizes = {file.stem: imread(file).shape[:2] for file in tmp_path.glob("*.png")}
    assert sizes == {"report_light": (900, 1400), "report_dark": (900, 1400), "report_phone": (2700, 420)}
    light, dark = (imread(tmp_path / f"report_{name}.png") for name in ("light", "dark"))
    assert light[..., :3].mean() > 0.8
    assert dark[..., :3].mean() < 0.3, "no white card in the dark"
