"""Equations and identities: what is right passes, what is wrong is named where it goes wrong."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from daso_bench.runner.config.groups import CONF
from daso_bench.runner.conformance import identities
from daso_bench.runner.conformance.cases import CASES, Case
from daso_bench.runner.conformance.checks import Candidate, Failed
from daso_bench.runner.conformance.equations import checks, require
from daso_bench.runner.conformance.identities import PROPERTIES, builtin
from daso_bench.runner.conformance.identity_table import IDENTITIES, Identity
from daso_bench.runner.conformance.references import REFERENCES, NoReference
from daso_bench.runner.conformance.references.optimizers import ADAMW, NESTEROV
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.local_sgd import LocalSGD
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import WORLD

NAMES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_has_a_reference_cases_and_identities(name: str):
    assert name in REFERENCES
    assert CASES[name]
    mentioned = {one.left for one in IDENTITIES} | {key for one in PROPERTIES for key in one.strategies}
    assert name in mentioned
    assert len({case.name for case in CASES[name]}) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_first_case_of_every_strategy(name: str):
    case = CASES[name][0]
    kind = builtin(name)
    require(name, kind, kind.Config(**case.keys), case, case.ranks[-1])


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_as_configured_on_one_rank(name: str):
    own = checks(candidate(name))[0]
    assert own.run(candidate(name), (1,)) is None


class Twice(LocalSGD):
    """Averages a step too late, once."""

    def after_step(self, progress: Progress) -> None:
        if progress.step == 11:
            self.since -= 1
        super().after_step(progress)


def test_the_first_step_rank_and_parameter_that_are_wrong_are_named():
    case = Case(keys={"sync_every": 4}, ranks=((2, 1),))
    with pytest.raises(Failed, match=r"^after step 12, rank 0: \w+(\[\d+\])? is .* must be .* allowed 1e-12"):
        require("local_sgd", Twice, LocalSGD.Config(sync_every=4), case, (2, 1))


class Nudges(DDP):
    """Adds to one parameter on rank 1 after one step."""

    parameter, by = "odd", 1e-9

    def after_step(self, progress: Progress) -> None:
        if progress.step == 6 and self.comm.rank == 1:
            dict(self.replica.model.named_parameters())[self.parameter].data[0] += self.by


def test_tolerance_goes_by_the_type_of_the_parameter():
    config = DDP.Config()
    mixed = Case(dtype="float32", odd="float64")
    with pytest.raises(Failed, match=r"^after step 7, rank 1: odd\[0\] is"):
        require("ddp", Nudges, config, mixed, (1, 1))
    # The same nudge is nothing to a float32 parameter.
    require("ddp", Nudges, config, replace(mixed, dtype="float64", odd="float32"), (1, 1))


class Mistaken(DDP):
    """Leaves one rank's buffers as they were."""

    def after_step(self, progress: Progress) -> None:
        if progress.step == 3 and self.comm.rank == 1:
            buffers: Tensor = self.replica.buffers.pack()
            self.replica.buffers.unpack(buffers + 1e-6)


def test_buffers_are_compared_too():
    with pytest.raises(Failed, match=r"^after step 4, rank 1: buffers\[0\]"):
        require("ddp", Mistaken, DDP.Config(), Case(), (1, 1))


class Short(LocalSGD):
    """Skips the last, partial round."""

    def finalize(self) -> None:
        return


def test_the_end_is_compared_too():
    with pytest.raises(Failed, match=r"^at the end, rank"):
        require("local_sgd", Short, LocalSGD.Config(sync_every=4), Case(), (1, 1))


def candidate(name: str, kind: type[Strategy] | None = None, **keys: Any) -> Candidate:
    kind = kind or builtin(name)
    return Candidate(name, kind, kind.Config(**keys), name)


def test_a_candidates_own_keys_come_first_and_unknown_rules_are_told():
    first, *others = checks(candidate("heterogeneous", max_batch=(2,)))
    assert (first.name, first.ranks) == ("as configured", None)
    assert len(others) == len(CASES["heterogeneous"])
    with pytest.raises(ConfigError, match="max_batch"):
        first.run(candidate("heterogeneous", max_batch=(2,)), (1, 1))
    assert checks(Candidate("mine", DDP, DDP.Config())) == []
    with pytest.raises(NoReference, match="mine"):
        require("mine", DDP, DDP.Config(), Case(), (1, 1))


# ------------------------------------------------------------------ identities


def of(name: str, left: str) -> Identity:
    return next(one for one in IDENTITIES if (one.name, one.left) == (name, left))


@pytest.mark.parametrize("name", NAMES)
def test_a_first_identity_of_every_strategy(name: str):
    first = identities.checks(candidate(name))[0]
    assert first.ranks
    first.run(candidate(name), first.ranks[0])


def test_an_identity_that_breaks_is_named():
    one = of("every step", "local_sgd")
    with pytest.raises(Failed, match=r"^local_sgd sync_every=1 is ddp, to 1e-12.*rank 0, after step 12: \w+"):
        identities.require(one, Twice, (1, 1), NESTEROV)


def test_an_identity_that_may_not_hold_is_refused_where_it_does():
    one = replace(of("every step", "local_sgd"), breaks=(NESTEROV,), recipes=())
    identities.require(replace(one, breaks=(ADAMW,)), LocalSGD, (1, 1), ADAMW)
    with pytest.raises(Failed, match="equal to 1e-03, must not be"):
        identities.require(one, LocalSGD, (1, 1), NESTEROV)


def test_bitwise_is_stricter_than_close():
    one = of("one big batch", "ddp")
    identities.require(one, DDP, (2, 1), NESTEROV)
    with pytest.raises(Failed, match="bit for bit"):
        identities.require(replace(one, bitwise=True), DDP, (2, 1), NESTEROV)


class Overwrites(LocalSGD):
    """Takes rank 0's model for the mean."""

    def setup(self, replica: Any, comm: Any, progress: Progress) -> None:
        super().setup(replica, comm, progress)
        self.mean = lambda flat: comm.broadcast(flat, 0, WORLD).wait()  # pyright: ignore[reportAttributeAccessIssue] (a mean of a test)


def test_mixing_that_moves_the_mean_is_found():
    for check in identities.checks(candidate("local_sgd", Overwrites)):
        if check.name == "keeps the mean":
            with pytest.raises(Failed, match="mean over ranks after step 3"):
                check.run(candidate("local_sgd", Overwrites), (2, 1))
