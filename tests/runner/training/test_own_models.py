"""A user's own model: lazy layers, parameters of no use in some steps, parameters of two floating types."""

from pathlib import Path
from typing import Any

import pytest
import torch
from asking import code_of
from own_models import Lazy, LazyInTraining, Sometimes, TwoTypes
from real_runs import assert_close, final_model, finished
from runs import NAMES, PERIODS, config, simulated

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.spec import InputSpec
from daso_bench.runner.config import model_building
from daso_bench.runner.config.model_building import build
from daso_bench.runner.launch import rank
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.simulation import timing_only
from daso_bench.strategies.errors import ConfigError

SPEC = InputSpec(1, 4, 4, 4)


def steady(rank: int, samples: int) -> int:
    """Nanoseconds of a step: ranks at their own pace need time to pass."""
    return 1_000_000


@pytest.mark.parametrize(
    ("strategy", "model"),
    [("ddp", Lazy()), ("ddp", Sometimes()), ("ddp", Sometimes(never=True)), ("daso", Sometimes())],
    ids=["lazy", "some", "never", "daso"],
)
def test_real_ranks_train_the_model_of_virtual_time(tmp_path: Path, strategy: str, model: Any):
    cfg = config(strategy, keys=PERIODS.get(strategy), model=model, ranks=[1, 1], results=tmp_path)
    final = final_model(finished(cfg)[0])
    virtual = dict(simulated(cfg).contexts[0].replica.model.named_parameters())
    assert_close({name: final[name] for name in virtual}, virtual, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_trains_parameters_that_take_part_in_some_steps(name: str):
    cfg = config(name, keys=PERIODS.get(name), model=Sometimes())
    done = simulated(cfg, step_time=steady)
    vectors = [context.replica.flat() for context in done.contexts]
    assert all(vector.isfinite().all() for vector in vectors)
    branch = [p for n, p in done.contexts[0].replica.model.named_parameters() if n.startswith("sometimes")]
    torch.manual_seed(0)
    assert not torch.equal(branch[0], build(Sometimes(), SPEC).get_parameter("sometimes.weight"))


@pytest.mark.parametrize("name", NAMES)
def test_lazy_layers_are_those_whose_widths_are_given(name: str):
    models = []
    for eager in (False, True):
        cfg = config(name, keys=PERIODS.get(name), model=Lazy(eager=eager))
        done = simulated(cfg, step_time=steady)
        models.append(done.contexts[0].replica.model.state_dict())
    assert_close(models[0], models[1], 0)


def test_lazy_layers_have_a_clock_and_are_judged_from_a_checkpoint(tmp_path: Path):
    cfg = config("ddp", model=Lazy(), ranks=[1], results=tmp_path)
    assert timing_only.profile_of(cfg, SPEC) == timing_only.profile_of(
        config("ddp", model=Lazy(eager=True)), SPEC
    )
    directory, _ = finished(cfg)
    last = [row for row in read_records(directory.metrics).rows if row["kind"] == "evaluation"][-1]
    assert rank.evaluate(directory.path)["correct"] == last["correct"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            TwoTypes(),
            r"model=two_types: its parameters have 2 floating types \(2.weight is float64, 1.",
        ),
        (LazyInTraining(), r"model=lazy_in_training: auxiliary.weight, auxiliary.bias has no shape after a "),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(model: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        build(model, SPEC)
    with pytest.raises(ConfigError, match=words):
        config("ddp", model=model, dataset=Synthetic(samples=96))
    of_unknown_shape = config("ddp", model=model)
    with pytest.raises(ConfigError, match=words):
        simulated(of_unknown_shape)


def test_a_sweep_builds_a_model_once_to_check_it(monkeypatch: pytest.MonkeyPatch):
    built: list[Any] = []
    monkeypatch.setattr(model_building, "build", lambda model, spec: built.append(model))
    for eager in (True, False, True, False):
        model_building.check_build(Lazy(eager=eager), InputSpec(1, 5, 5, 4))
    assert built == [Lazy(eager=True), Lazy()]


def test_a_plug_in_of_two_types_is_refused_before_any_process(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "own" / "model").mkdir(parents=True)
    (here / "own" / "model" / "mine.yaml").write_text("# One's own.\n_target_: own_models.TwoTypes\n")
    assert code_of("--config-dir", "own", "dataset=digits", "model=mine", "cluster.ranks_per_node=2") == 2
    assert "model=two_types: its parameters have 2 floating types" in capsys.readouterr().err
    assert not list(Path("results").rglob("logs"))
