"""What the doctor finds: what was seen, why it is wrong, and the one line that mends it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
Facts = Mapping[str, Any]
"""What one process says about itself (`facts.rank_facts`); JSON can hold it."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
NAMED_HOSTS = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (error), will hurt (warning), or is good to know (note).

    `what` was seen, with its numbers; `fix` is one line: a command or a KEY=VALUE.
    """

    severity: Severity
    topic: str
    what: str
    cause: str
    fix: str

    def __post_init__(self) -> None:
        assert self.severity in SEVERITIES, self.severity
        assert self.fix, "a finding that nobody can mend helps nobody"
        assert "\n" not in self.fix, self.fix

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, warnings, notes; in each the order they were found in, nothing twice."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


def troubles(findings: Iterable[Finding]) -> list[Finding]:
    """Errors and warnings: what makes the doctor's exit code 3."""
    return [finding for finding in findings if finding.severity != "note"]


def merged(found: Sequence[tuple[str, Finding]], hosts: int) -> list[Finding]:
    """Findings of processes on several of `hosts` hosts, the same trouble once, with where it was seen."""
    groups: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for host, finding in found:
        key = (finding.severity, finding.topic, finding.cause, finding.fix)
        groups.setdefault(key, []).append((host, finding))
    return [
        replace(group[0][1], what=f"{on([host for host, _ in group], hosts)}: {group[0][1].what}")
        for group in groups.values()
    ]


def on(hosts: Iterable[str], of: int) -> str:
    """`on n1`, `on n1, n2, n3 and 5 more (8 of 16 hosts)`."""
    names = list(dict.fromkeys(hosts))
    shown = ", ".join(names[:NAMED_HOSTS])
    if len(names) > NAMED_HOSTS:
        shown += f" and {len(names) - NAMED_HOSTS} more"
    return f"on {shown}" + (f" ({len(names)} of {of} hosts)" if len(names) > 1 else "")
