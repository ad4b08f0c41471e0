"""`daso-bench claims` as a reader meets it: whole, plain where it is redirected, with commands to copy."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from daso_bench.runner.cli.main import main
from daso_bench.runner.report.claims import paper_claims


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, what was printed, and what was complained about."""
    with pytest.raises(SystemExit) as caught:
        main(["claims", *arguments])
    assert isinstance(caught.value.code, int)
    out, error = capsys.readouterr()
    return caught.value.code, out, error


def test_redirected_output_is_plain_whole_and_needs_neither_torch_nor_hydra() -> None:
    script = (
        "import sys, atexit; from daso_bench.runner.cli.main import main\n"
        "heavy = ('torch', 'pandas', 'matplotlib', 'hydra')\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules]))\n"
        "main(['claims'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "\x1b" not in done.stdout
    for claim in paper_claims.load():
        assert claim.paper.reference in done.stdout
        for key, value in paper_claims.parts(claim).items():
            assert f"{key:<12}{value}\n" in done.stdout, "in one piece"


def test_a_claim_tells_gain_headline_comparator_certainty_and_conditions() -> None:
    found = {claim.id: paper_claims.parts(claim) for claim in paper_claims.load()}
    assert found["daso_time"]["gain"] == "up to 1.515 times (34 % less time)"
    assert found["daso_time"]["stated in"].endswith("(certainty: abstract)")
    assert found["hsgd_efficiency"]["gain"] == "20 times"
    assert found["hsgd_efficiency"]["against"] == "native: ddp, one process a node with all its cores"
    assert found["hsgd_efficiency"]["judged by"] == "computing efficiency"
    assert found["lasgd_time"]["gain"] == "faster, no number"
    assert found["lasgd_time_gossip"]["against"] == "sgp"
    assert found["daso_time"]["conditions"] == "not stated"
    assert found["lasgd_time"]["conditions"] == "dataset ImageNet"


def test_a_study_or_a_claim_of_ones_own_is_tested_with_its_folder(tmp_path: Path) -> None:
    shipped = {claim.id: claim for claim in paper_claims.load()}
    renamed = replace(shipped["hsgd_efficiency"], study="my_own")
    assert paper_claims.command(renamed, [tmp_path]) == "daso-bench +study=my_own"
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "my_own.yaml").write_text("# of my own\n")
    assert paper_claims.command(renamed, [tmp_path]) == f"daso-bench --config-dir {tmp_path} +study=my_own"
    folder = tmp_path / "a b"
    moved = replace(shipped["daso_time"], file=folder / "claims" / "x.yaml")
    assert (
        paper_claims.command(moved, [folder]) == f"daso-bench --config-dir '{folder}' +study=mission_fashion"
    )


def test_a_wrong_file_is_exit_code_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "mine.yaml").write_text("study: x\n")
    code, out, error = said(capsys, "--config-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert error == f"daso-bench: {tmp_path / 'claims' / 'mine.yaml'}: paper: must be given\n"
