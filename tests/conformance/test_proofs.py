"""The built-in strategies follow their equations, identities and golden traffic; what is wrong is named."""

from dataclasses import replace
from typing import Any

import equations
import golden_traffic
import identities
import pytest
from numpy_optimizers import ADAMW, NESTEROV
from proof import Case, builtin, declared, strategies
from proofs import Proof, all_proofs
from references.local_sgd import IDENTITIES
from world import NoReference

from daso_bench.runner.conformance.checks import Failed
from daso_bench.strategies.daso import DASO, Transfer
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.local_sgd import LocalSGD
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import WORLD


@pytest.mark.parametrize("proof", all_proofs(), ids=lambda proof: proof.name)
def test_built_in_strategies_are_proven(proof: Proof):
    """`python tests/conformance/golden_traffic.py NAME` writes the golden traffic of a strategy anew."""
    proof.run()


@pytest.mark.parametrize("strategy", strategies())
def test_every_built_in_strategy_has_several_cases_and_an_identity(strategy: str):
    assert len({case.name for case in declared(strategy, "CASES")}) >= 2
    assert declared(strategy, "IDENTITIES")
    assert declared(strategy, "MIXING")


class Twice(LocalSGD):
    """Averages a step too late, once."""

    def after_step(self, progress: Progress) -> None:
        if progress.step == 11:
            self.since -= 1
        super().after_step(progress)


class Nudges(DDP):
    """Adds to one parameter on rank 1 after one step."""

    def after_step(self, progress: Progress) -> None:
        if progress.step == 6 and self.comm.rank == 1:
            dict(self.replica.model.named_parameters())["odd"].data[0] += 1e-9


@pytest.mark.parametrize(
    ("strategy", "kind", "case", "ranks", "sentence"),
    [
        (
            "local_sgd",
            Twice,
            Case(),
            (2, 1),
            r"after step 12, rank 0: \w+(\[\d+\])? is .* must be .* allowed 1e-12",
        ),
        ("ddp", Nudges, Case(dtype="float32", odd="float64"), (1, 1), r"after step 7, rank 1: odd\[0\] is"),
    ],
)
def test_the_first_step_rank_and_element_that_differ_from_the_reference_are_named(
    strategy: str, kind: Any, case: Case, ranks: tuple[int, ...], sentence: str
):
    with pytest.raises(Failed, match=f"^{sentence}"):
        equations.require(strategy, kind, builtin(strategy).config, case, ranks)


def test_tolerance_goes_by_the_type_of_the_parameter():
    """1e-9 is nothing to a float32 parameter."""
    equations.require("ddp", Nudges, DDP.Config(), Case(odd="float32"), (1, 1))


def test_a_strategy_without_a_reference_is_named():
    with pytest.raises(NoReference, match="mine"):
        equations.require("mine", DDP, DDP.Config(), Case(), (1, 1))


# ------------------------------------------------------------------ identities and mixing


EVERY_STEP = IDENTITIES[0]


def test_an_identity_that_does_not_hold_is_named():
    with pytest.raises(Failed, match=r"^local_sgd sync_every=1 is ddp, to 1e-12.*rank 0, after step 12: \w+"):
        identities.require("local_sgd", EVERY_STEP, Twice, (1, 1), NESTEROV)


def test_an_identity_that_must_break_is_refused_where_it_holds():
    broken = replace(EVERY_STEP, breaks=(NESTEROV,), recipes=())
    identities.require("local_sgd", replace(broken, breaks=(ADAMW,)), LocalSGD, (1, 1), ADAMW)
    with pytest.raises(Failed, match="equal to 1e-03, must not be"):
        identities.require("local_sgd", broken, LocalSGD, (1, 1), NESTEROV)


class Overwrites(LocalSGD):
    """Takes rank 0's model for the mean."""

    def setup(self, replica: Any, comm: Any, progress: Progress) -> None:
        super().setup(replica, comm, progress)
        self.mean = lambda flat: comm.broadcast(flat, 0, WORLD).wait()  # pyright: ignore[reportAttributeAccessIssue] (a mean of a test)


def test_mixing_that_moves_the_mean_is_found():
    with pytest.raises(Failed, match="mean over ranks after step 3"):
        identities.keeps_mean(Overwrites, {"sync_every": 3}, (2, 1))


# ------------------------------------------------------------------ traffic


class ExtraBarrier(DDP):
    """Calls a barrier in its fifth step."""

    def after_step(self, progress: Progress) -> None:
        if progress.step == 4:
            self.comm.barrier(WORLD)


class WaitsAtOnce(DASO):
    """Waits for a transfer where it starts."""

    def _start(self, batch: int, wait: int) -> None:
        super()._start(batch, wait)
        transfer: Transfer = self.pending[-1]
        transfer.wait_pending()


@pytest.mark.parametrize(
    ("strategy", "kind", "sentence"),
    [
        ("ddp", ExtraBarrier, r"1,1: rank 0: control\.barrier is \[1, 0\], must be None"),
        ("daso", WaitsAtOnce, r"1,1: rank 0: end_ns is \[\d+, \d+\], must be \[454000000, 1080720000\]"),
    ],
)
def test_a_call_or_a_wait_too_many_is_found_by_the_golden_numbers(strategy: str, kind: Any, sentence: str):
    with pytest.raises(Failed, match=sentence):
        golden_traffic.require(strategy, kind)
