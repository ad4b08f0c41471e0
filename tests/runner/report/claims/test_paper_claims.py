"""Claims as data: the shipped ones are those of the sources; an error names file, key and value."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from daso_bench.runner.config import groups
from daso_bench.runner.report.claims import paper_claims
from daso_bench.runner.report.claims.paper_claims import Claim, load
from daso_bench.strategies.errors import ConfigError

STRATEGIES = list(groups.entries("strategy"))
GOOD: dict[str, Any] = {
    "paper": {"title": "On Gossip", "authors": "A. Author", "year": 2020, "arxiv": "2001.00010"},
    "study": "mine",
    "claims": [
        {
            "id": "mine_time",
            "says": "It is twice as fast.",
            "headline": "fixed_work",
            "value": 2,
            "arm": "sgp",
            "source": "abstract",
            "certainty": "abstract",
        }
    ],
}


def written(folder: Path, tree: Any, name: str = "mine") -> Path:
    """`tree` as a file of claims below `folder`, which stands for --config-dir."""
    path = folder / "claims" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        tree if isinstance(tree, str) else yaml.safe_dump(tree, sort_keys=False), encoding="utf-8"
    )
    return path


def with_keys(**keys: Any) -> dict[str, Any]:
    """The good file with these keys of its claim; None takes one away."""
    claim = {key: value for key, value in (GOOD["claims"][0] | keys).items() if value is not None}
    return GOOD | {"claims": [claim]}


def shipped() -> dict[str, Claim]:
    return {claim.id: claim for claim in load()}


def test_the_shipped_claims_are_the_abstracts_and_no_more() -> None:
    keys = ("headline", "quantifier", "arm", "comparator")
    found = {c.id: (c.gain or c.direction, *(getattr(c, key) for key in keys)) for c in load()}
    assert found == {
        "daso_time": (pytest.approx(1.5152, abs=5e-5), "fixed_work", "up_to", "daso", "ddp"),
        "hsgd_efficiency": (20.0, "efficiency", "typical", "hsgd", "native"),
        "lasgd_time": ("faster", "fixed_work", "typical", "lasgd", "ddp"),
        "lasgd_time_gossip": ("faster", "fixed_work", "typical", "lasgd", "sgp"),
        "ednncomm_time": ("faster", "fixed_work", "typical", "ednncomm", "ddp"),
        "ednncomm_accuracy": ("better", "quality", "typical", "ednncomm", "ddp"),
        "heterogeneous_accuracy": ("better", "quality_at_time", "typical", "heterogeneous", "plain_mean"),
    }
    for claim in load():
        # +study=paper_daso is clocks alone: it explains DASO's time, and no verdict rests on it.
        assert claim.study == ("mission_fashion" if claim.file.stem == "daso" else f"paper_{claim.file.stem}")
        assert claim.paper.doi or claim.paper.arxiv
        assert (claim.certainty, claim.quality_margin) == ("abstract", 0.5)


def test_shipped_files_show_every_key_and_begin_with_what_they_are() -> None:
    for file in sorted((groups.CONF / paper_claims.FOLDER).glob("*.yaml")):
        assert len(groups.describe(file)) > 20
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        for claim in tree["claims"]:
            number = {"value", "less_time", "direction"}
            assert claim.keys() | number == paper_claims.ClaimKeys.__dataclass_fields__.keys(), file
            assert len(claim.keys() & number) == 1
            assert claim["conditions"].keys() == paper_claims.StatedConditions.__dataclass_fields__.keys()
        assert tree["paper"].keys() == paper_claims.Paper.__dataclass_fields__.keys()


def test_a_file_of_ones_own_is_read_and_what_it_leaves_out_is_not_known(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    (mine,) = [claim for claim in load([tmp_path]) if claim.id == "mine_time"]
    assert (mine.file, mine.study, mine.paper.arxiv) == (file, "mine", "2001.00010")
    assert (mine.gain, mine.quantifier, mine.comparator, mine.metric) == (2.0, "typical", "ddp", "accuracy")
    assert mine.conditions == paper_claims.StatedConditions()
    assert mine.conditions.words == "not stated"
    assert len(load([tmp_path])) == len(load()) + 1


def test_a_claim_of_ones_own_with_an_id_that_exists_takes_its_place(tmp_path: Path) -> None:
    tree = yaml.safe_load((groups.CONF / "claims" / "lasgd.yaml").read_text(encoding="utf-8"))
    tree["claims"] = tree["claims"][:1]
    tree["claims"][0] |= {"certainty": "paper", "conditions": {"model": "ResNet-50", "nodes": 8}}
    written(tmp_path, tree, "other_name")
    found = load([tmp_path])
    assert [claim.id for claim in found] == [claim.id for claim in load()], "in its place"
    mine = next(claim for claim in found if claim.id == "lasgd_time")
    assert mine.certainty == "paper"
    assert mine.conditions.words == "model ResNet-50, nodes 8"
    gossip = next(claim for claim in found if claim.id == "lasgd_time_gossip")
    assert gossip == shipped()["lasgd_time_gossip"], "the file's other claim stays"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"headline": "fixed"}, ".headline=fixed: unknown (did you mean 'fixed_work'?); known: fixed_"),
        ({"quantifier": "upto"}, ".quantifier=upto: unknown (did you mean 'up_to'?); known: typical, "),
        ({"certainty": "sure"}, ".certainty=sure: unknown; known: abstract, paper, secondary"),
        ({"certainty": None}, ".certainty: must be given"),
        ({"metric": "f1"}, ".metric=f1: headline=fixed_work takes accuracy or top5 or miou"),
        ({"arm": "sgpp"}, ".arm=sgpp: unknown (did you mean 'sgp'?); known: daso, ddp"),
        ({"comparator": "nativ"}, ".comparator=nativ: unknown (did you mean 'native'?)"),
        ({"comparator": "sgp"}, ".comparator=sgp: must be another than claims[0].arm"),
        ({"value": 1}, ".value=1.0: must be > 1"),
        ({"value": float("nan")}, ".value=nan: must be > 1"),
        ({"value": float("inf")}, ".value=inf: must be finite"),
        ({"value": "twice"}, ".value=twice: must be a number or null"),
        ({"value": None}, ": headline=fixed_work takes exactly one of value, less_time, direction; has none"),
        (
            {"less_time": 0.5},
            ": headline=fixed_work takes exactly one of value, less_time, direction; has v",
        ),
        ({"value": None, "less_time": 34}, ".less_time=34.0: must be above 0 and below 1 (a share: 0.34"),
        ({"value": None, "less_time": 0}, ".less_time=0.0: must be above 0 and below 1"),
        ({"value": None, "direction": "better"}, ".direction=better: headline=fixed_work takes faster"),
        (
            {"value": None, "direction": "faster", "quantifier": "up_to"},
            ".quantifier=up_to: needs a number, value or less_time",
        ),
        ({"headline": "quality"}, ": headline=quality takes direction alone; has value"),
        ({"headline": "efficiency"}, ".metric=accuracy: headline=efficiency takes samples_per_s"),
        ({"quality_margin": 0}, ".quality_margin=0.0: must be > 0"),
        ({"id": "Mine"}, ".id=Mine: must be small letters, digits and _"),
        ({"says": " "}, ".says=' ': must be text, and not empty"),
        ({"speed": 2}, ".speed: unknown key"),
        ({"conditions": {"node": 2}}, ".conditions.node: unknown key (did you mean "),
        ({"conditions": {"nodes": 0}}, ".conditions.nodes=0: must be >= 1"),
        ({"conditions": {"nodes": "many"}}, ".conditions.nodes=many: must be a whole number or null"),
        ({"conditions": "none"}, ".conditions=none: must hold keys and values"),
    ],
)
def test_a_wrong_claim_is_told_by_file_key_and_value(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    file = written(tmp_path, with_keys(**keys))
    with pytest.raises(ConfigError, match=re.escape(f"{file}: claims[0]{message}")):
        paper_claims.read(file, STRATEGIES)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (GOOD | {"claim": []}, "claim: unknown key (did you mean claims?); known: paper, study, claims"),
        ({"paper": GOOD["paper"], "study": "x"}, "claims: must be given"),
        (GOOD | {"claims": GOOD["claims"][0]}, "claims={"),
        (GOOD | {"study": 3}, "study=3: must be text"),
        (GOOD | {"paper": {"title": "T", "authors": "A"}}, "paper.year: must be given"),
        (
            GOOD | {"paper": GOOD["paper"] | {"titel": "T"}},
            "paper.titel: unknown key (did you mean paper.title?)",
        ),
        (GOOD | {"paper": GOOD["paper"] | {"arxiv": 2203.1}}, "paper.arxiv=2203.1: must be quoted"),
        ("", "paper: must be given"),
        ("- a\n- b\n", "must hold the keys paper, study, claims"),
        ("paper: [", "cannot be read: while parsing"),
        ("study: a\nstudy: b\n", "cannot be read: while constructing a mapping"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, tree: Any, message: str) -> None:
    file = written(tmp_path, tree)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: {message}")):
        paper_claims.read(file, STRATEGIES)


def test_an_id_that_stands_twice_in_one_folder_is_refused_with_both_files(tmp_path: Path) -> None:
    first, second = written(tmp_path, GOOD, "a"), written(tmp_path, GOOD, "b")
    with pytest.raises(ConfigError, match=re.escape(f"{second}: id=mine_time: is there already, in {first}")):
        load([tmp_path])


def test_a_strategy_of_ones_own_may_make_a_claim(tmp_path: Path) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "own.yaml").write_text("# of my own\n_target_: a.B\n")
    written(tmp_path, with_keys(arm="own"))
    assert load([tmp_path])[-1].arm == "own"
