"""Section: page one. The answer of each comparison, its figure, the papers' claims and the checks."""

from functools import partial
from typing import TYPE_CHECKING

from .. import words
from ..answers import (
    figure_in_words,
    in_order,
    limits,
    paper_rows,
    points_words,
    recommendation,
    setting,
    until,
)
from ..claims.claim_tables import (
    claim_rows,
    fairness_rows,
    fairness_tables,
    remarks,
    sentences,
    speedup_remarks,
    speedup_rows,
    workload,
)
from ..claims.fairness import FairnessRow
from ..claims.judge import NO_ARM, JudgedClaim
from ..claims.paper_claims import gain_words
from ..claims.speedups import Speedups
from ..data.arms import Comparison, row_of
from ..plots.pictures import Plot
from ..section import Rows, Section, one_each, with_rows
from ..simulation_errors import where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Time saved by each arm"
CAPTION = (
    "Share of the baseline's time that an arm saves, with its interval; left of 0 it takes longer. Right:"
    " the final metric, arm minus baseline."
)
SIGNS = {"green": "✓", "amber": "!", "red": "✗"}
STACKED = 3  # comparisons that need no list of their answers before them


class AnswerSection(Section):
    """Tables `speedups`, `claims`, `fairness` and, for a paper, `paper`; the first block of the page."""

    order = 0
    template = """
{% if results.speedups | length > section.STACKED %}
<section><h1>{{ results.speedups | length }} comparisons</h1>
<ul>
{% for speedups in results.speedups %}
<li><a href="#answer-{{ loop.index }}">{{ section.title(speedups.comparison) }}</a>:
{{ section.recommendation(speedups) }}</li>
{% endfor %}
</ul></section>
{% endif %}
{% for speedups in results.speedups %}
{% set comparison = speedups.comparison %}
<article class="answer" id="answer-{{ loop.index }}">
<p class="kicker">{{ section.title(comparison) }}{{ page.of_study(comparison.study) }} ·
{{ comparison.world_in_words }} · baseline {{ speedups.baseline.label }}</p>
<{{ section.heading }} class="sentence">{{ section.recommendation(speedups) }}</{{ section.heading }}>
<p class="limits">{{ section.limits(speedups) }}</p>
{% if speedups.exploratory %}<p class="limits">{{ speedups.exploratory }}</p>{% endif %}
{{ page.figure(pictures[loop.index0], results.anchors([comparison])) }}
{% set papers = section.paper_rows(speedups, results.judged) %}
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
<span class="sign" title="{{ check.level }}">{{ section.SIGNS[check.level] }}</span>
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
<p class="kicker">{{ section.title(comparison) }}{{ page.of_study(comparison.study) }} ·
{{ comparison.world_in_words }}</p>
<{{ section.heading }} class="sentence">On {{ section.setting(comparison) }}, nothing is compared: a ratio
takes three runs or more of ddp, or of study.baseline, and of another arm.</{{ section.heading }}>
</article>
{% endfor %}
{% for speedups in results.speedups %}
<details><summary>The numbers of every arm{{ section.among(speedups.comparison) }}</summary>
{% for sentence in section.sentences(speedups) %}
<p class="soft">{{ sentence }}</p>
{% endfor %}
<div class="wide" role="region" aria-label="Speed-ups" tabindex="0">
<table class="prose"><caption>Share of the time of <strong>{{ speedups.baseline.label }}</strong> saved, and
times as fast, with {{ "%g" | format(100 * speedups.level) }} % intervals.
Points of final {{ speedups.comparison.metric.name }}: arm minus baseline.
Times as fast until the target = times as many samples a second × times fewer samples.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">Same epochs</th>
<th scope="col">{{ section.until(speedups) or "To a target" }}</th><th scope="col">Samples a second</th>
<th scope="col">Fewer samples</th><th scope="col">Percentage points</th>
<th scope="col" class="text">Remarks</th>
</tr></thead><tbody>
{% for line in section.in_order(speedups) %}
{% set why = speedups.not_comparable(line.arm) %}
<tr{{ ' class="out"' | safe if why }}><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}</th>
{% for ratio in (line.fixed_work, line.to_target) %}
<td>{{ words.saving(ratio) }}{% if ratio %}<small>{{ words.factor(ratio.point) }}</small>{% endif %}</td>
{% endfor %}
{% for ratio in (line.throughput, line.statistical) %}
<td>{{ words.factor(ratio.point) if ratio else words.MISSING }}</td>
{% endfor %}
<td>{{ section.points_words(line) }}</td>
<td class="text">{% if why %}<small class="bad">not comparable: {{ why }}</small>{% endif %}
{% for note in section.speedup_remarks(speedups, line) %}<small>{{ note }}</small>{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endfor %}
{% if section.compared %}
<details id="claims"><summary>Every claim of the papers, with its verdict and its fairness table</summary>
<div class="wide" role="region" aria-label="Claims" tabindex="0">
<table class="prose">
<caption>Each claim by its own measure and against its own comparator; the rules are docs/claims.md.
{% if section.not_compared %}
Not compared:
{% for judged in section.not_compared -%}
{{ judged.claim.id }} ({{ judged.verdict.reasons | join("; ") }}){{ ", " if not loop.last }}
{%- endfor %}.
{% endif %}
</caption>
<thead><tr><th scope="col">Claim</th><th scope="col">Claimed</th><th scope="col" class="text">Compared</th>
<th scope="col" class="text">Measured</th><th scope="col" class="text">Verdict</th>
<th scope="col" class="text">Remarks</th></tr></thead><tbody>
{% for judged in section.compared %}
<tr><th scope="row"><span title="{{ judged.claim.says }}">{{ judged.claim.id }}</span>
<small>{{ judged.claim.certainty }}: {{ judged.claim.source }}</small></th>
<td>{{ section.gain_words(judged.claim) }}</td>
<td class="text">{{ judged.arm }} against {{ judged.comparator }}
<small>{{ section.workload(judged) }}</small></td>
<td class="text">{{ judged.measured }}</td><td class="text"><strong>{{ judged.verdict.word }}</strong></td>
<td class="text">{% for remark in section.remarks(judged) %}<small>{{ remark }}</small>{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% for pair, table in section.fairness.items() %}
{% set differing = table | rejectattr("equal", "sameas", true) | list %}
<h3>{{ pair }}</h3>
<div class="wide" role="region" aria-label="Fairness table" tabindex="0">
<table><caption>What differs or was not recorded; {{ table | length - differing | length }} further lines are
equal on both sides (<a href="fairness.csv">fairness.csv</a>).</caption>
<thead><tr><th scope="col">Quantity</th><th scope="col" class="text">Baseline</th>
<th scope="col" class="text">Arm</th><th scope="col" class="text">Equal</th></tr></thead><tbody>
{% for row in table if row.equal is not sameas true or row.wrong %}
<tr><td>{{ row.quantity }}</td><td class="text settings-of">{{ row.baseline }}</td>
<td class="text settings-of">{{ row.arm }}</td><td class="text{{ ' bad' if row.forbids }}">
{%- if row.equal is none %}not recorded{% elif row.own %}its own
{%- elif row.wrong %}{{ row.wrong }}{% else %}no{% endif -%}
</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
</details>
{% endif %}
"""
    SIGNS, STACKED = SIGNS, STACKED
    gain_words, limits, in_order = staticmethod(gain_words), staticmethod(limits), staticmethod(in_order)
    paper_rows, points_words = staticmethod(paper_rows), staticmethod(points_words)
    recommendation, remarks = staticmethod(recommendation), staticmethod(remarks)
    sentences, setting, until = staticmethod(sentences), staticmethod(setting), staticmethod(until)
    speedup_remarks, workload = staticmethod(speedup_remarks), staticmethod(workload)

    @property
    def heading(self) -> str:
        """The page has one heading of the first order: its answer, or how many answers there are."""
        return "h1" if len(self.results.configured) == 1 else "h2"

    @property
    def without_ratios(self) -> list[Comparison]:
        """The comparisons that have too few runs for a ratio, or no baseline."""
        known = {id(speedups.comparison) for speedups in self.results.speedups}
        return [comparison for comparison in self.results.configured if id(comparison) not in known]

    def title(self, comparison: Comparison) -> str:
        """Workload and cluster, and of tuned and the paper's settings which, where the report has both."""
        row = row_of(comparison, self.results.comparisons)
        return ", ".join(part for part in (setting(comparison), row) if part)

    def among(self, comparison: Comparison) -> str:
        """Which comparison it is, where there are several."""
        return f": {self.title(comparison)}" if len(self.results.speedups) > 1 else ""

    @property
    def compared(self) -> list[JudgedClaim]:
        """The claims for which two arms were compared."""
        return [judged for judged in self.results.judged if judged.comparison is not None]

    @property
    def not_compared(self) -> list[JudgedClaim]:
        """The claims about an arm of the report for which nothing was compared."""
        judged = self.results.judged
        return [one for one in judged if one.comparison is None and NO_ARM not in one.verdict.reasons]

    @property
    def fairness(self) -> dict[str, list[FairnessRow]]:
        """The fairness table of each pair of arms."""
        tables = fairness_tables(self.compared).items()
        return {f"{arm} against {other} ({place})": table for (place, other, arm), table in tables}

    def tables(self) -> dict[str, Rows]:
        """`speedups`: a row per arm and comparison; `claims`: per claim, arm and comparison; `fairness`."""
        return with_rows(
            speedups=speedup_rows(self.results.speedups),
            claims=claim_rows(self.compared),
            fairness=fairness_rows(self.compared),
        )

    def printed(self) -> dict[str, Rows]:
        """`paper`, or `paper_1`, `paper_2`, …: the table for a paper of each comparison."""
        several = len(self.results.speedups) > 1
        return {
            f"paper_{number}" if several else "paper": paper_table(speedups)
            for number, speedups in enumerate(self.results.speedups, 1)
        }

    def plots(self) -> list[Plot]:
        return one_each(
            "speedups",
            self.results.speedups,
            title=TITLE,
            caption=CAPTION,
            corner=lambda speedups: where(speedups.comparison.world, speedups.comparison.size),
            draw=partial(draw, narrow=False),
            narrow=partial(draw, narrow=True),
            alternative=figure_in_words,
        )


def draw(speedups: Speedups, *, narrow: bool) -> "Figure":
    """The figure of page one; matplotlib is imported when it is drawn."""
    from ..plots.saving_lanes import lanes

    return lanes(speedups, narrow=narrow)


def paper_table(speedups: Speedups) -> Rows:
    """The six columns of a paper's table, all of text, a row per arm in the order of the figure."""
    return [
        {
            "arm": line.arm.label,
            "time saved [CI]": words.saving(line.fixed_work),
            f"time saved {until(speedups) or 'to target'} [CI]": words.saving(line.to_target),
            f"{speedups.comparison.metric.name}, points [CI]": points_words(line),
            "n": str(len(line.arm.counted)),
            "comparable": f"no: {why}" if (why := speedups.not_comparable(line.arm)) else "yes",
        }
        for line in in_order(speedups)
    ]
