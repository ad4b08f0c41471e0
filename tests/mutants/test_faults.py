"""The faults of `make mutants` still fit the code: a fault that cannot be planted proves nothing."""

from pathlib import Path

from faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]


def test_each_fault_has_one_place_in_the_code():
    for fault in FAULTS:
        assert fault.path(ROOT).read_text(encoding="utf-8").count(fault.old) == 1, fault.name
        assert fault.old != fault.new


def test_the_tests_that_faults_name_are_there():
    for fault in FAULTS:
        if fault.test:
            file, name = fault.test.split("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), fault.name


def test_there_are_faults_of_every_kind_and_strategy():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert sum(fault.timing for fault in FAULTS) >= 10
    shown = {path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml")}
    assert {fault.strategy for fault in FAULTS if not fault.test} == shown
