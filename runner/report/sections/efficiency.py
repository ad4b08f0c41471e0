"""Section: computing efficiency, all cores together over one core alone."""

from functools import cached_property

from ..claims.arm_speedup import rated
from ..claims.core_efficiency import Matrix, efficiency_words, matrix
from ..data.means import TIME_SHARES
from ..section import Rows, Section, with_rows


class EfficiencySection(Section):
    """Table `efficiency`: all arms of each comparison that has runs of one core alone."""

    order = 30
    template = """
{% for matrix in section.matrices %}
<section>
<h2>Computing efficiency {{ page.workload(matrix.comparison, matrix.comparison.size) }}</h2>
<p>{{ matrix.sentence }}</p>
<div class="wide" role="region" aria-label="Computing efficiency" tabindex="0">
<table class="sortable">
<caption>Samples per second over {{ matrix.cores }} cores times what one core does alone
({{ "%.4g" | format(matrix.alone) }} samples/s, the others idle), with
{{ "%g" | format(100 * matrix.level) }} % intervals; and where training time went, means over ranks.
Numbers: <a href="efficiency.csv">efficiency.csv</a>.</caption>
<thead><tr><th scope="col">Arm</th><th scope="col">Samples/s</th><th scope="col">Efficiency</th>
<th scope="col">Compute</th><th scope="col">Data</th><th scope="col">Blocked inside nodes</th>
<th scope="col">Blocked between nodes</th><th scope="col">Other</th></tr></thead>
<tbody>
{% for line in matrix.lines %}
<tr><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}</th>
<td>{{ words.rate(line.samples_per_s) }}</td><td>{{ section.efficiency_words(line) }}</td>
{% for part in section.parts %}
<td>{% if line.shares %}{{ "%.1f" | format(100 * line.shares[part]) }} %{% else %}not recorded{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
"""
    parts = TIME_SHARES
    efficiency_words = staticmethod(efficiency_words)

    @cached_property
    def matrices(self) -> list[Matrix]:
        return [made for made in map(matrix, self.results.comparisons) if isinstance(made, Matrix)]

    def tables(self) -> dict[str, Rows]:
        """`efficiency`: a row per arm."""
        return with_rows(
            efficiency=[
                {
                    **made.comparison.place,
                    "arm": line.arm.label,
                    "runs": len(rated(line.arm)),
                    "cores": made.cores,
                    "samples_per_s": line.samples_per_s,
                    "one_core_samples_per_s": made.alone,
                    "efficiency": line.value,
                    "efficiency_low": line.interval.low if line.interval else None,
                    "efficiency_high": line.interval.high if line.interval else None,
                    "level": made.level,
                    **{
                        f"share_{part.replace(' ', '_')}": (line.shares or {}).get(part)
                        for part in TIME_SHARES
                    },
                }
                for made in self.matrices
                for line in made.lines
            ]
        )
