"""Section: the claims of the papers, what was measured of them, and whether the comparison was fair."""

from functools import cached_property

from ..claims.claim_tables import claim_rows, fairness_rows, fairness_tables, remarks, workload
from ..claims.fairness import FairnessRow
from ..claims.judge import NO_ARM, JudgedClaim
from ..claims.paper_claims import gain_words
from ..section import Rows, Section, with_rows


class VerdictSection(Section):
    """Tables `claims` and `fairness`."""

    order = 60
    template = """
{% if section.compared %}
<section id="claims">
<h2>What the papers claim, and what was measured</h2>
<div class="wide" role="region" aria-label="Claims" tabindex="0">
<table class="sortable prose">
<caption>Each claim by its own measure and against its own comparator; the rules are docs/claims.md. "Not
testable here" is a result.
Claims that no arm here is about: {{ section.without_arm | join(", ") or "none" }}.
{% if section.not_compared %}
Claims of which an arm is here, and which were not compared:
{% for judged in section.not_compared -%}
{{ judged.claim.id }} ({{ judged.verdict.reasons | join("; ") }}){{ ", " if not loop.last }}
{%- endfor %}.
{% endif %}
</caption>
<thead><tr><th scope="col">Claim</th><th scope="col">Claimed</th><th scope="col" class="text">Compared</th>
<th scope="col" class="text">Measured</th><th scope="col" class="text">Verdict</th>
<th scope="col" class="text">Remarks</th></tr></thead>
{% for judged in section.compared %}
<tbody><tr class="arm"><th scope="row"><span title="{{ judged.claim.says }}">{{ judged.claim.id }}</span>
<small>{{ judged.claim.certainty }}: {{ judged.claim.source }}</small></th>
<td>{{ section.gain_words(judged.claim) }}</td>
<td class="text">{{ judged.arm }} against {{ judged.comparator }}
<small>{{ section.workload(judged) }}</small></td>
<td class="text">{{ judged.measured }}</td><td class="text"><strong>{{ judged.verdict.word }}</strong></td>
<td class="text">{% for remark in section.remarks(judged) %}<small>{{ remark }}</small>{% endfor %}</td>
</tr></tbody>
{% endfor %}
</table>
</div>
</section>
{% endif %}
{% if section.fairness %}
<section id="fairness">
<h2>Was it fair?</h2>
<p class="soft">What both sides of a comparison must have in common, from their records:
<a href="fairness.csv">fairness.csv</a> has every line. A difference that is not the strategy's own forbids a
verdict.</p>
{% for pair, table in section.fairness.items() %}
{% set forbidding = table | selectattr("forbids") | list %}
{% set not_recorded = table | selectattr("equal", "none") | list | length %}
<details{{ " open" if forbidding }}><summary>{{ pair }}:
{% if forbidding -%}
<span class="bad">{{ words.count(forbidding | length, "difference") }}</span>
{%- else %}equal in all that is recorded{% endif -%}
{% if not_recorded %}, {{ not_recorded }} not recorded{% endif %}</summary>
<div class="wide" role="region" aria-label="Fairness table" tabindex="0">
<table><thead><tr><th scope="col">Quantity</th><th scope="col" class="text">Baseline</th>
<th scope="col" class="text">Arm</th><th scope="col" class="text">Equal</th></tr></thead><tbody>
{% for row in table if row.equal is not sameas true or row.wrong %}
<tr><td>{{ row.quantity }}</td><td class="text settings-of">{{ row.baseline }}</td>
<td class="text settings-of">{{ row.arm }}</td><td class="text{{ ' bad' if row.forbids }}">
{%- if row.forbids %}{{ row.sentence }}{% elif row.equal is none %}not recorded
{%- else %}its own{% endif -%}
</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">{{ table | selectattr("equal", "sameas", true) | list | length }} further lines are
equal on both sides.</p>
</details>
{% endfor %}
</section>
{% endif %}
"""
    gain_words = staticmethod(gain_words)
    remarks = staticmethod(remarks)
    workload = staticmethod(workload)

    @cached_property
    def compared(self) -> list[JudgedClaim]:
        """The claims for which two arms were compared."""
        return [judged for judged in self.results.judged if judged.comparison is not None]

    @property
    def without_arm(self) -> list[str]:
        """The claims that are about no arm of the report."""
        return [judged.claim.id for judged in self.results.judged if NO_ARM in judged.verdict.reasons]

    @property
    def not_compared(self) -> list[JudgedClaim]:
        """The claims about an arm of the report for which nothing was compared."""
        return [
            judged
            for judged in self.results.judged
            if judged.comparison is None and NO_ARM not in judged.verdict.reasons
        ]

    @property
    def fairness(self) -> dict[str, list[FairnessRow]]:
        """The fairness table of each pair of arms."""
        return {
            f"{arm} against {other} ({where})": table for (where, other, arm), table in self._tables.items()
        }

    @cached_property
    def _tables(self) -> dict[tuple[str, str, str], list[FairnessRow]]:
        return fairness_tables(self.results.speedups, self.compared)

    def tables(self) -> dict[str, Rows]:
        """`claims`: a row per claim, arm and comparison; `fairness`: a row per line of each ledger."""
        return with_rows(claims=claim_rows(self.compared), fairness=fairness_rows(self._tables))
