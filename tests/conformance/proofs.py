"""All proofs of the built-in strategies: each is a test, and `make mutants` runs them on each fault."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import equations
import golden_traffic
import identities
from proof import Case, Identity, Mixing, builtin, declared, skewed, spelt, strategies, with_keys

from daso_bench.runner.conformance import lifecycle
from daso_bench.runner.conformance.checks import Candidate, Failed, RanksOfNodes
from daso_bench.runner.conformance.communication_checks import largest_delay
from daso_bench.runner.conformance.kit import CONTRACT_CHECKS
from daso_bench.runner.conformance.trial import places_of, plain


def drains_evenly(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As the contract's `drains`, with ranks of one speed."""
    lifecycle.require_drained(plain(candidate, ranks), "at the end")


def resumes_twice(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As the contract's `resumes`, at two places."""
    lifecycle.require_resumes(candidate, ranks, places_of(candidate, ranks)[7:-1:7])


def stops_twice(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """As the contract's `stops anywhere`, at two places."""
    lifecycle.require_stops(candidate, ranks, places_of(candidate, ranks)[4:14:6])


BRIEFLY = {
    "drains": drains_evenly,
    "copies": lifecycle.copies,
    "resumes": resumes_twice,
    "stops": stops_twice,
}
"""What of the contract is tried with the keys of `VARIANTS`."""


@dataclass(frozen=True)
class Proof:
    """One comparison; `run` raises Failed, with a sentence, where it does not hold."""

    name: str
    run: Callable[[], None]


def all_proofs() -> list[Proof]:
    """The proofs of all built-in strategies."""
    return [proof for strategy in strategies() for proof in proofs_of(strategy)]


def proofs_of(strategy: str) -> Iterator[Proof]:
    """Everything that is proven of one built-in strategy."""

    def proof(kind: str, what: str, ranks: RanksOfNodes, run: Callable[..., None], *arguments: Any) -> Proof:
        name = f"{strategy}: {kind}: {what} on {','.join(map(str, ranks))}"
        return Proof(name, partial(run, strategy, *arguments, ranks))

    yield Proof(f"{strategy}: traffic", partial(golden_traffic.require, strategy))
    for ranks in ((1,), (2, 2)):
        yield proof("equations", "as configured", ranks, as_configured)
    for case in declared(strategy, "CASES"):
        for ranks in case.ranks:
            yield proof("equations", case.name, ranks, equation, case)
    for identity in declared(strategy, "IDENTITIES"):
        for ranks in identity.ranks:
            yield proof("identities", identity.sentence(strategy), ranks, identical, identity)
    for mixing in declared(strategy, "MIXING"):
        for ranks in mixing.ranks:
            yield proof("mixing", mixing.holds.__doc__ or "", ranks, mixes, mixing)
    ranks = (1, 1) if strategy == "daso" else (2, 1)  # daso refuses unlike nodes
    yield proof("contract", "as configured", ranks, contract_as_configured)
    for keys in declared(strategy, "VARIANTS"):
        yield proof("contract", spelt(strategy, keys), (2, 2), contract_in_brief, keys)


def as_configured(strategy: str, ranks: RanksOfNodes) -> None:
    """The strategy with its defaults, on ranks of unlike speed, follows its NumPy reference."""
    candidate = builtin(strategy)
    case = Case(step_ns=skewed, round_ns=2900, epochs=5)
    equations.require(strategy, candidate.strategy_class, candidate.config, case, ranks)


def equation(strategy: str, case: Case, ranks: RanksOfNodes) -> None:
    """The strategy follows its NumPy reference in `case`."""
    kind = builtin(strategy).strategy_class
    equations.require(strategy, kind, kind.Config(**case.keys), case, ranks)


def identical(strategy: str, identity: Identity, ranks: RanksOfNodes) -> None:
    """The identity holds with its optimizers, and breaks with those that must break it."""
    for recipe in (*identity.recipes, *identity.breaks):
        identities.require(strategy, identity, builtin(strategy).strategy_class, ranks, recipe)


def mixes(strategy: str, mixing: Mixing, ranks: RanksOfNodes) -> None:
    """The mixing alone does what it must."""
    mixing.holds(builtin(strategy).strategy_class, mixing.keys, ranks)


def contract_as_configured(strategy: str, ranks: RanksOfNodes) -> None:
    """All of the contract holds, and a stop request is agreed on as soon as the strategy promises."""
    candidate = builtin(strategy)
    for name, check in CONTRACT_CHECKS.items():
        try:
            check(candidate, ranks)
        except Failed as error:
            raise Failed(f"{name}: {error}") from error
    for nodes in dict.fromkeys([ranks, (1, 1)]):
        delay, bound = largest_delay(candidate, nodes), stop_request_bound(candidate, sum(nodes))
        if isinstance(delay, int) and bound is not None and delay > bound:
            raise Failed(
                f"on {nodes} a stop request is agreed on {delay} steps later, must be within {bound}"
            )


def stop_request_bound(candidate: Candidate, ranks: int) -> int | None:
    """Steps within which a built-in strategy promises to agree on a stop request; None: no promise."""
    config, name = candidate.config, candidate.builtin
    if name in ("ddp", "placebo", "hsgd", "heterogeneous"):
        return 0
    if name == "daso":
        # A request made just after a start travels with the next one, which is merged W batches later; a
        # start that the epoch's end would overwrite is left to the epoch's last average, which comes no
        # later.
        return config.sync_every - 1 + config.wait_batches
    if name in ("local_sgd", "post_local_sgd", "diloco", "slowmo", "ednncomm"):
        fixed = isinstance(config.sync_every, int) and getattr(config, "period_rule", "constant") != "qsr"
        return config.sync_every - 1 if fixed else None
    if name == "sgp":
        return config.reach(ranks) if ranks > 1 else 0
    return None


def contract_in_brief(strategy: str, keys: Mapping[str, Any], ranks: RanksOfNodes) -> None:
    """The contract holds with further keys too, in its main points."""
    # What a schedule of periods remembers shows after some of the steps alone: resumed after every step.
    thorough = {"resumes": lifecycle.resumes} if "period_rule" in keys else {}
    for name, check in (BRIEFLY | thorough).items():
        try:
            check(with_keys(builtin(strategy), keys), ranks)
        except Failed as error:
            raise Failed(f"{name}: {error}") from error
