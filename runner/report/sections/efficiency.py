"""Section: computing efficiency, all cores together over one core alone."""

from functools import cached_property
from typing import Any

from ..claims.arm_speedup import rated
from ..claims.core_efficiency import Efficient, Matrix, efficiency_words, matrix
from ..data.arms import ONE_CORE, Comparison
from ..data.means import TIME_SHARES
from ..section import Rows, Section


class EfficiencySection(Section):
    """Table `efficiency`: all arms of each comparison that has runs of one core alone."""

    order = 30
    template = """
{% for matrix in section.matrices %}
<section>
<h2>Computing efficiency {{ page.workload(matrix.comparison, matrix.comparison.size) }}</h2>
<p>{{ matrix.sentence }}</p>
<p>Efficiency: samples per second over {{ matrix.cores }} cores times what one core does alone
({{ "%.4g" | format(matrix.alone) }} samples/s, the others idle), with
{{ "%g" | format(100 * matrix.level) }} % intervals. Where training time went:
<a href="efficiency.csv">efficiency.csv</a>.</p>
<ul>
{% for line in matrix.lines %}
<li>{{ swatch(line.arm.index) }}<strong>{{ line.arm.label }}</strong>: {{ section.efficiency_words(line) }}
({{ words.number(line.samples_per_s) }} samples/s)</li>
{% endfor %}
</ul>
</section>
{% endfor %}
{% for comparison, why in section.made if why is string %}
<p class="soft">No computing efficiency {{ page.workload(comparison, comparison.size) }}: {{ why }}.</p>
{% endfor %}
"""
    efficiency_words = staticmethod(efficiency_words)

    @cached_property
    def made(self) -> list[tuple[Comparison, Matrix | str]]:
        """Of each comparison that has runs of one core its matrix, or why it has none."""
        return [
            (comparison, matrix(comparison))
            for comparison in self.results.comparisons
            if any(arm.runs[0].role == ONE_CORE for arm in comparison.arms)
        ]

    @property
    def matrices(self) -> list[Matrix]:
        return [each for _, each in self.made if isinstance(each, Matrix)]

    def tables(self) -> dict[str, Rows]:
        """`efficiency`: a row per arm."""
        return {"efficiency": [_row(each, line) for each in self.matrices for line in each.lines]}


def _row(of: Matrix, line: Efficient) -> dict[str, Any]:
    shares = line.shares or {}
    return {
        **of.comparison.place,
        "arm": line.arm.label,
        "runs": len(rated(line.arm)),
        "cores": of.cores,
        "samples_per_s": line.samples_per_s,
        "one_core_samples_per_s": of.alone,
        "efficiency": line.value,
        "efficiency_low": line.interval.low,
        "efficiency_high": line.interval.high,
        "level": of.level,
        **{f"share_{part.replace(' ', '_')}": shares.get(part) for part in TIME_SHARES},
    }
