"""Check "model error": how far virtual time is off, and that every interval of times holds it."""

from ..claims.arm_speedup import error_of_model
from ..claims.speedups import Speedups
from ..statistics.model_error import ALL, ModelError
from ..words import significant
from .check import Check


def check(study: Speedups) -> Check:
    """Amber in virtual time: times are simulated; the details say what each arm's interval holds."""
    errors = {
        line.arm.label: error for line in study.lines if (error := error_of_model(study.against, line.arm))
    }
    if not errors:
        return Check(name="model error", level="green", sentence="times were measured, not simulated")
    typical = _percent(max(error.typical for error in errors.values()))
    p95 = _percent(max(error.p95 for error in errors.values()))
    return Check(
        name="model error",
        level="amber",
        sentence=(
            "times are simulated, and every interval holds the model error: "
            f"half of all errors are below {typical}, 95 % below {p95}"
        ),
        details=tuple(f"{label}: {_used(error)}" for label, error in errors.items()),
    )


def _used(error: ModelError) -> str:
    of = error.kind if error.kind == ALL else f"{error.kind} itself"
    size = f"typical error {_percent(error.typical)}, 95 % below {_percent(error.p95)}"
    known = (
        "no bias is known at its ratio, so the interval carries the whole error"
        if error.carried
        else f"their mean error of {error.bias:+.1%} is taken off the ratio"
    )
    return f"{error.count} validated pairs of {of}; {known}; {size}."


def _percent(share: float) -> str:
    return f"{significant(100 * share, 2)} %"
