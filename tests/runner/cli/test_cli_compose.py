"""Composing: what Hydra makes of the user's words, and its errors said in one sentence of ours."""

import os
import sys
from pathlib import Path

import pytest

from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.load import from_composed, requests
from daso_bench.strategies.errors import ConfigError

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's --config-dir with two strategies that have a key in common which ddp has not."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "strategy").mkdir()
    for name in ("one", "two"):
        (folder / "strategy" / f"{name}.yaml").write_text("# mine\n_target_: mine.Mine\nperiod: 4\n")
    (folder / "study").mkdir()
    (folder / "study" / "mine.yaml").write_text(
        "# @package _global_\n# my study\nstudy:\n  name: mine\nhydra:\n  mode: MULTIRUN\n"
        "  sweeper:\n    params:\n      strategy: one,two\n      seed: 1,2\n"
    )
    return folder


def test_a_bare_run_has_the_documented_defaults_and_leaves_nothing_behind(here: Path) -> None:
    argv, environment = sys.argv, dict(os.environ)
    config = compose([], sweep=False)[0].composed
    assert config is not None
    assert config.strategy._target_.endswith("ddp.DDP")
    assert (config.train.epochs, config.train.global_batch_size, config.seed) == ("auto", 64, 0)
    assert from_composed(config, here).train.epochs == 12
    large = compose(["model=resnet18"], sweep=False)[0].composed
    assert large is not None
    assert from_composed(large, here).train.epochs == 6, "what the model suggests"
    assert (config.cluster.nodes, config.cluster.ranks_per_node, config.launcher.name) == (2, 2, "local")
    assert list(here.iterdir()) == []
    assert sys.argv == argv
    assert dict(os.environ) == environment


def test_a_sweep_is_the_grid_and_leaves_nothing_behind(here: Path) -> None:
    jobs = compose(["optimizer=sgd,adamw", "seed=0,1", "run.tag=x,1e3", "train.epochs=3"], sweep=True)
    made = [job.composed for job in jobs if job.composed]
    rows = [(one.optimizer._target_.rpartition(".")[2], one.seed, one.run.tag) for one in made]
    assert rows == [(o, s, t) for o in ("SGD", "AdamW") for s in (0, 1) for t in ("x", "1e3")]
    assert {one.train.epochs for one in made} == {3}
    assert jobs[0].words == ("optimizer=sgd", "seed=0", "run.tag='x'", "train.epochs=3")
    assert list(here.iterdir()) == []


def test_a_job_that_does_not_compose_stops_no_other() -> None:
    jobs = compose(["strategy=ddp,nosuch", "seed=1,2"], sweep=True)
    assert [job.composed is not None for job in jobs] == [True, True, False, False]
    assert str(jobs[2].error).startswith("strategy=nosuch: unknown; known: ")
    assert jobs[3].words == ("strategy=nosuch", "seed=2")


def test_a_key_that_only_the_swept_strategies_have_is_no_error(own: Path) -> None:
    jobs = compose(["strategy=one,two", "strategy.period=8"], sweep=True, config_dir=own)
    assert [job.composed.strategy.period for job in jobs if job.composed] == [8, 8]
    jobs = compose(["strategy=one,ddp", "strategy.period=8"], sweep=True, config_dir=own)
    assert jobs[0].composed is not None
    error = str(jobs[1].error)
    assert error.startswith("strategy.period: unknown key")
    assert "strategy.algorithm" in error
    assert error.endswith("(strategy=ddp)")


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize(("text", "says"), [("a: 1\na: 2\n", "duplicate key a"), ("a: [1\n", "line 2")])
def test_a_file_that_is_no_yaml_is_one_sentence_that_names_it(
    own: Path, sweep: bool, text: str, says: str
) -> None:
    file = own / "cluster" / "mine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    try:
        job, *_ = compose(["cluster=mine", *(["seed=0,1"] if sweep else [])], sweep=sweep, config_dir=own)
        error = job.error
    except ConfigError as raised:
        error = raised
    assert str(file) in str(error)
    assert says in str(error)
    assert "\n" not in str(error)


def test_a_study_is_its_sweep_and_the_command_line_wins(own: Path) -> None:
    for words, names in (
        ([], [("mine", 1), ("mine", 2)] * 2),
        (["seed=7", "study.name=other"], [("other", 7)] * 2),
    ):
        jobs = compose(["+study=mine", *words], sweep=True, config_dir=own)
        assert [(job.composed.study.name, job.composed.seed) for job in jobs if job.composed] == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy=ddpp"], "strategy=ddpp: unknown (did you mean 'ddp'?); known: "),
        (["model=resnet55"], "`daso-bench list models` shows all"),
        (["+study=quik"], "study=quik: unknown (did you mean 'quick'?); `daso-bench list studies` shows"),
        (["study=quick"], "study: a study is added with a plus: +study=NAME"),
        (["train.epoch=3"], "train.epoch: unknown key (did you mean train.epochs?); known: train.epochs, "),
        (["optimzer=sgd"], "optimzer: unknown key (did you mean optimizer?); known: strategy, model, "),
        (["optimizer.bta1=1", "optimizer=adamw"], "(did you mean optimizer.beta1?); known: optimizer.lr, "),
        (["hydra.nosuch=1"], "hydra.nosuch: unknown key"),
        (["seed=1,2"], "seed=1,2: several values need a sweep: daso-bench -m"),
        (["model={a:1}"], "model: takes one name, model=NAME"),
        (["train.target=a#b"], "this spelling works: 'train.target=\"a#b\"'"),
        (["+seed=3"], "Could not append to config. An item is already at 'seed'."),
        (["~nosuch"], "Could not delete from config. 'nosuch' does not exist."),
        (["strategy=null"], "strategy=null: must be one name of `daso-bench list strategies`"),
        (["strategy="], "strategy=: must be one name of"),
        (["model=[mlp,resnet20]"], "several make a sweep: -m model=A,B"),
        (["=3"], "=3: must be KEY=VALUE"),
    ],
)
def test_what_does_not_compose_is_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(words, sweep=False)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_listed_values_can_be_swept() -> None:
    with pytest.raises(ConfigError, match=r"train\.target=interval\(0,1\): a sweep needs its values listed"):
        compose(["train.target=interval(0,1)"], sweep=True)


SETS = """# @package _global_
# named points
study:
  name: sets
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      seed: 0,1
    sets:
      arm:
        "ddp, plain": strategy=ddp
        it's daso: strategy=daso strategy.sync_every=2
      assumption:
        slow: cluster.links.inter.latency_us=50 'run.tag=a b'
"""


@pytest.fixture
def sets(own: Path) -> Path:
    """A folder with a study whose grid has named points."""
    (own / "study" / "sets.yaml").write_text(SETS)
    return own


def labelled(*words: str, config_dir: Path) -> list[tuple[int, str, str, str, float]]:
    rows = []
    for job in compose(["+study=sets", *words], sweep=True, config_dir=config_dir):
        cfg = job.composed
        assert cfg is not None, job.error
        strategy = cfg.strategy._target_.rpartition(".")[2]
        latency = cfg.cluster.links.inter.latency_us if "links" in cfg.cluster else 0
        rows.append((cfg.seed, strategy, cfg.study.arm, cfg.study.assumption, latency))
    return rows


def test_a_study_has_named_points_and_one_without_assumption(sets: Path) -> None:
    assert labelled("cluster=ethernet_10g", config_dir=sets) == [
        (seed, strategy, arm, assumption, latency)
        for seed in (0, 1)
        for strategy, arm in (("DDP", "ddp, plain"), ("DASO", "it's daso"))
        for assumption, latency in (("", 25), ("slow", 50))
    ]


def test_the_labels_choose_points(sets: Path) -> None:
    words = ("cluster=ethernet_10g", "study.arm='it\\'s daso'", "seed=3")
    both = [(3, "DASO", "it's daso", "", 25), (3, "DASO", "it's daso", "slow", 50)]
    assert labelled(*words, "study.assumption=,slow", config_dir=sets) == both
    assert labelled(*words, "study.assumption=slow", config_dir=sets) == both[1:]
    assert labelled(*words, "+study.assumption=slow", config_dir=sets) == both[1:]
    assert labelled(*words, "study.assumption=''", config_dir=sets) == both[:1]


@pytest.mark.parametrize(
    "word",
    [
        "strategy=daso",
        "cluster.links.inter.latency_us=7",
        "++cluster.links.inter.latency_us=7",
        "cluster.links={inter: {latency_us: 7}}",
        "strategy.sync_every=3",
    ],
)
def test_a_key_that_named_points_set_is_not_for_the_command_line(sets: Path, word: str) -> None:
    with pytest.raises(ConfigError, match=r"of the study sets .*; choose among its (arm|assumption)s"):
        labelled("cluster=ethernet_10g", word, config_dir=sets)
    chosen = ("study.arm='ddp, plain'", "study.assumption=''")
    if word != "strategy=daso" and not word.startswith("strategy."):  # the plain arm chooses its strategy too
        assert len(labelled("cluster=ethernet_10g", word, *chosen, config_dir=sets)) == 2


def test_a_point_that_is_not_there_is_told_with_those_that_are(sets: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["+study=sets", "study.arm=mine"], sweep=True, config_dir=sets)
    assert str(caught.value).startswith("study.arm=mine: the study has 'ddp, plain', \"it's daso\"")


def test_a_study_without_named_arms_has_none_to_choose() -> None:
    """Else all of its runs would be recorded as that arm."""
    for name in ("arm", "size", "assumption"):
        with pytest.raises(ConfigError, match=rf"study.{name}: the study has no {name}s by name"):
            compose(["+study=quick", f"study.{name}=daso"], sweep=True)
    (made,) = compose(["study.arm=mine", "strategy=ddp"], sweep=True)
    assert made.composed is not None
    assert made.composed.study.arm == "mine", "a sweep of one's own is called what one likes"


def test_a_set_of_another_name_is_refused(sets: Path) -> None:
    (sets / "study" / "sets.yaml").write_text(SETS.replace("assumption:", "assumptions:"))
    with pytest.raises(ConfigError, match="must be one of arm, assumption, size"):
        compose(["+study=sets"], sweep=True, config_dir=sets)


def test_an_assumption_that_changes_nothing_is_refused_by_its_name(sets: Path, here: Path) -> None:
    (sets / "study" / "sets.yaml").write_text(SETS.replace("latency_us=50", "latency_us=25"))
    words = ["+study=sets", "launcher=simulated", "cluster=ethernet_10g", "seed=0"]
    made, changed = requests([*words, "study.arm='ddp, plain'"], sweep=True, cwd=here, config_dir=sets)
    assert made.config is not None
    assert "assumption 'slow' changes nothing against 'none' here: leave it out" in str(changed.error)
