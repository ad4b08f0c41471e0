"""Section: page one. The answer of each comparison, its figure, the papers' claims and the checks."""

from functools import partial

from .. import answers, words
from ..answers import in_order, paper_table
from ..claims.claim_tables import claim_rows, fairness_rows, speedup_rows
from ..claims.judge import NO_ARM, JudgedClaim
from ..claims.speedups import Speedups
from ..data.arms import Comparison, computed_on
from ..plots.pictures import Plot
from ..plots.saving_lanes import lanes
from ..plots.style import swatch
from ..section import Rows, Section, numbered

CAPTION = (
    "Share of the baseline's time that an arm saves, with its interval; left of 0 it takes longer. Right:"
    " the final metric, arm minus baseline."
)
NO_OPEN_MARK = " An arm without an open mark has no ratio of times to the target."


class AnswerSection(Section):
    """Tables `speedups`, `claims`, `fairness` and, for a paper, `paper`; the first block of the page."""

    order = 0
    answers = answers
    template = """
{% set signs = {"green": "✓", "amber": "!", "red": "✗"} %}
{% if results.speedups | length > 3 %}
<section><h1>{{ results.speedups | length }} comparisons</h1>
<ul>
{% for speedups in results.speedups %}
<li><a href="#answer-{{ loop.index }}">{{ results.title(speedups.comparison) }}</a>:
{{ section.answers.recommendation(speedups) }}</li>
{% endfor %}
</ul></section>
{% endif %}
{% for speedups in results.speedups %}
{% set comparison = speedups.comparison %}
<article class="answer" id="answer-{{ loop.index }}">
<p class="kicker">{{ results.title(comparison, with_world=False) }}{{ page.of_study(comparison.study) }} ·
{{ comparison.world_in_words }} · baseline: {{ speedups.baseline.label }} ·
{{ section.answers.runs(speedups) }} · {{ "%g" | format(100 * speedups.level) }} % intervals</p>
<{{ section.heading }} class="sentence">
{{- section.answers.recommendation(speedups) | replace(" %", "\u00a0%") }}</{{ section.heading }}>
{% set undecided = section.answers.undecided(speedups, results.judged) %}
{% for limit in (section.answers.limits(speedups), undecided, speedups.exploratory) if limit %}
<p class="limits">{{ limit | replace(" %", "\u00a0%") }}</p>
{% endfor %}
{{ page.figure(pictures[loop.index0], results.anchors([comparison])) }}
{% set papers = section.answers.paper_rows(speedups, results.judged) %}
{% if papers %}
<div class="wide" role="region" aria-label="Claims of the papers" tabindex="0">
<table class="papers"><thead><tr><th scope="col">Paper</th><th scope="col" class="text">Claims</th>
<th scope="col" class="text">Measured here</th><th scope="col" class="text">Verdict</th></tr></thead><tbody>
{% for row in papers %}
<tr><th scope="row" title="{{ row.title }}">{{ row.paper }}</th><td class="text">{{ row.claims }}</td>
<td class="text">{{ row.measured }}</td><td class="text">{{ row.verdict }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<ul class="strip" aria-label="Checks">
{% for check in speedups.checks %}
<li class="{{ check.level }}">
<span class="sign" title="{{ check.level }}">{{ signs[check.level] }}</span>
{% if check.details %}
<details><summary><strong>{{ check.name }}</strong>: {{ check.sentence }}</summary>
<ul>{% for detail in check.details %}<li>{{ detail }}</li>{% endfor %}</ul></details>
{% else %}
<span><strong>{{ check.name }}</strong>: {{ check.sentence }}</span>
{% endif %}
</li>
{% endfor %}
</ul>
</article>
{% endfor %}
{% for comparison in section.without_ratios %}
<article class="answer">
<p class="kicker">{{ results.title(comparison, with_world=False) }}
{{- page.of_study(comparison.study) }} · {{ comparison.world_in_words }}</p>
<{{ section.heading }} class="sentence">On {{ section.answers.setting(comparison) }}, nothing is compared:
a ratio takes three runs or more of ddp, or of study.baseline, and of another arm.</{{ section.heading }}>
</article>
{% endfor %}
{% if section.not_compared %}
<details><summary>Claims of papers that were not compared ({{ section.not_compared | length }})</summary><ul>
{% for judged in section.not_compared %}
<li>{{ judged.claim.id }}: {{ judged.verdict.reasons | join("; ") }}</li>
{% endfor %}
</ul></details>
{% endif %}
{% for speedups in results.speedups if speedups.lines %}
<details><summary>The numbers of every arm
{{- ": " ~ speedups.comparison.study ~ ", " ~ results.title(speedups.comparison)
  if results.speedups | length > 1 }}</summary>
{% call page.table("Numbers of every arm", section.numbers(speedups), text=("remarks",)) %}
Share of the time of <strong>{{ speedups.baseline.label }}</strong> that is saved, with
{{ "%g" | format(100 * speedups.level) }} % intervals; points: arm minus baseline.
{% if speedups.budget_s %} A run that has not reached the target counts as a failure after
{{ words.seconds(speedups.budget_s) }} of training.{% endif %}
{% endcall %}</details>
{% endfor %}
"""

    @property
    def heading(self) -> str:
        """The page has one heading of the first order: its answer, or how many answers there are."""
        return "h1" if len(self.results.configured) == 1 else "h2"

    @property
    def without_ratios(self) -> list[Comparison]:
        """The comparisons that have too few runs for a ratio, or no baseline."""
        known = {id(speedups.comparison) for speedups in self.results.speedups}
        return [comparison for comparison in self.results.configured if id(comparison) not in known]

    def numbers(self, speedups: Speedups) -> Rows:
        """The table of a comparison for a paper, with the looks of its arms and remarks."""
        return [
            {**row, "arm": swatch(line.arm.index) + row["arm"], "remarks": "; ".join(line.notes)}
            for row, line in zip(paper_table(speedups), in_order(speedups), strict=True)
        ]

    @property
    def not_compared(self) -> list[JudgedClaim]:
        """The claims about an arm of the report for which nothing was compared."""
        judged = self.results.judged
        return [one for one in judged if one.comparison is None and NO_ARM not in one.verdict.reasons]

    def tables(self) -> dict[str, Rows]:
        """`speedups`: a row per arm and comparison; `claims`: per claim, arm and comparison; `fairness`."""
        compared = [judged for judged in self.results.judged if judged.comparison is not None]
        return {
            "speedups": speedup_rows(self.results.speedups),
            "claims": claim_rows(compared),
            "fairness": fairness_rows(self.results.speedups, compared),
        }

    def printed(self) -> dict[str, Rows]:
        """`paper`, or `paper_1`, `paper_2`, …: the table for a paper of each comparison."""
        return {name: paper_table(speedups) for name, speedups in numbered("paper", self.results.speedups)}

    def plots(self) -> list[Plot]:
        return [
            Plot(
                file=file,
                title="Time saved by each arm",
                caption=CAPTION + NO_OPEN_MARK * (speedups.budget_s is not None),
                table="speedups",
                corner=words.world(
                    speedups.comparison.world,
                    speedups.comparison.size,
                    computed_on(speedups.comparison.runs),
                ),
                alternative=answers.figure_in_words(speedups),
                draw=(partial(lanes, speedups), partial(lanes, speedups, narrow=True)),
            )
            for file, speedups in numbered("speedups", self.results.speedups)
        ]
