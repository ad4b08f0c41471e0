"""What a plan can detect, against what its arms can gain: one sentence an arm, before a run is started.

Source: docs/method.md, "Power before the run".
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import betaincinv, nctdtr

from ...datasets.data import SPLITS
from ...strategies.errors import ConfigError
from ...strategies.topology import Topology
from ..communication.link_costs import ClusterNetwork
from ..config.launchers import SimulatedConfig
from ..config.model_building import input_spec
from ..config.run_config import RunConfig
from ..records.rows import TrainIntervalRow
from ..records.target_crossing import crossing
from ..report.claims import convergence_points
from ..report.claims.bounds import bound_of, reduced, schedule_words
from ..report.claims.convergence_points import GROUPS, Reference, match, of_same_task
from ..report.data.arms import Arm
from ..report.data.load import Run, load_runs
from ..report.statistics.model_error import model_error
from ..report.statistics.welch import FEWEST_RUNS, LEVEL, POWER, model_variance, t_limit
from ..simulation import timing_only
from ..simulation.simulated_world import simulate
from ..training.device_model import ClusterDevice

STEPS, MOST_RANKS = 20, 64  # of a simulation that gives a bound: more take longer than a plan may
UNKNOWN = "unknown before a pilot"


@dataclass(frozen=True, kw_only=True)
class KnownBaseline:
    """What is known of a baseline before its study runs.

    `bound`: what no saving of communication exceeds, None: not known. `values`: seconds or samples of runs to
    the target, without a target seconds of all work; `source`: what they are from. `steps`: to the target.
    """

    bound: float | None
    values: Sequence[float]
    source: str
    steps: float | None

    @property
    def sd(self) -> float | None:
        """Standard deviation of ln of `values`; None below 3."""
        return stdev(map(math.log, self.values)) if len(self.values) >= FEWEST_RUNS else None


def power_sentences(runs: Iterable[RunConfig], config_dir: Path | None) -> list[str]:
    """For each size of a planned study: what decides its power, and each arm's ceiling and what is detected.

    `config_dir`: a folder of the user's own with stored points. Empty where no arm has three runs, which a
    ratio takes. Raises ConfigError for a file of points that is wrong.
    """
    references = convergence_points.load([config_dir] if config_dir else [])
    studies: dict[Any, dict[str, list[RunConfig]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if not (study := run.study).role:
            place = run.path.parent, study.size, study.assumption, bool(study.tuned)
            studies[place][run.arm_id].append(run)
    sentences: list[str] = []
    for arms in studies.values():
        base = baseline_among(arm[0] for arm in arms.values())
        others = {name: arm for name, arm in arms.items() if base is not None and name != base.arm_id}
        most = max(map(len, others.values()), default=0)
        if base is None or min(most, len(arms[base.arm_id])) < FEWEST_RUNS:
            continue
        known = known_baseline(base, references)
        headline = "all work" if base.train.target is None else "time to target"
        spread = UNKNOWN if known.sd is None else f"{100 * known.sd:.2g} % ({known.source})"
        of = "".join(f"{word}: " for word in (base.study.size, base.study.assumption) if word)
        sentences.append(f"{of}power in {headline}, spread {spread}")
        for arm in others.values():
            count = min(len(arm), len(arms[base.arm_id]))
            sentences.append(f"  {_sentence(arm[0], base, count, known)}")
    return sentences


def _sentence(arm: RunConfig, base: RunConfig, count: int, known: KnownBaseline) -> str:
    """`count`: runs of each of both."""
    plan = arm.plan()
    steps = known.steps or plan.steps
    share = arm.strategy_class.communication_share(arm.strategy, plan, round(steps)) if steps else 0.0
    most = None if known.bound is None else reduced(known.bound, share)
    why = f" ({schedule_words(share)})" if share else ""
    ceiling = f"ceiling {UNKNOWN}" if most is None else f"at most {most:.2f}× here{why}"
    # The error of the model is the same in all runs, so that more of them do not average it out.
    sd = math.hypot(known.sd or 0.0, model_error_sd(arm, base, most) * math.sqrt(count / 2))
    least, detects = 1.0, f"what {count} runs detect is {UNKNOWN}"
    if count < FEWEST_RUNS:
        least, detects = math.inf, f"{count} of {FEWEST_RUNS} runs that a ratio needs"
    elif sd:
        least = detectable(count, sd, level=arm.study.level)
        detects = f"{count} runs detect {'' if known.sd else 'no less than '}{least:.2f}×"
    word = ""
    if most is not None and (most < least or known.sd is not None):
        word = f": it can{'not' * (most < least)} decide"
    return f"{arm.study.arm or arm.strategy_name}: {ceiling}; {detects}{word}"


def baseline_among(configs: Iterable[RunConfig]) -> RunConfig | None:
    """The baseline's first run: the arm that the study names, else the first with `ddp`."""
    arms = [config for config in configs if not config.study.role]
    named = (c for c in arms if c.study.baseline and c.study.arm == c.study.baseline)
    return next(named, next((config for config in arms if config.strategy_name == "ddp"), None))


def known_baseline(base: RunConfig, references: Sequence[Reference]) -> KnownBaseline:
    """From finished runs of the study or its pilots; without them from stored points and modelled costs."""
    runs, target = _finished(base), base.train.target
    bound = bound_of(Arm(label="", index=0, runs=runs)).value if runs else modelled_bound(base)
    if target is None:
        seconds = [run.train_s for run in runs if run.train_s]
        return KnownBaseline(bound=bound, values=seconds, source=f"{len(seconds)} runs", steps=None)
    found = (crossing(run.evaluations, target, metric=base.train.target_metric) for run in runs)
    met = [each for each in found if each is not None]
    values, samples = [each.scored_s for each in met], [each.scored_samples for each in met]
    source = f"{len(met)} runs"
    stored = match(base.tree, references) or next(iter(of_same_task(base.tree, references)), None)
    if len(met) < FEWEST_RUNS and stored is not None:
        values = samples = list(stored.samples)
        source = f"{len(samples)} stored runs of {stored.name}"
    steps = fmean(samples) / base.train.global_batch_size if samples else None
    return KnownBaseline(bound=bound, values=values, source=source, steps=steps)


def modelled_bound(base: RunConfig) -> float | None:
    """The bound of a baseline in virtual time, from a few steps of which only times are simulated.

    None in real time, and where it would take long or cannot be known before the data are loaded.
    """
    samples, spec = base.dataset.expected_info().samples, input_spec(base.dataset)
    if not base.launcher.virtual or samples is None or spec is None or base.cluster.ranks > MOST_RANKS:
        return None
    data = timing_only.ghost_data(base.dataset.name, *(samples[split] for split in SPLITS))
    changes = {"target": None, "stop": "budget", "max_steps": STEPS, "max_seconds": None, "precision": "fp32"}
    train, launcher = dataclasses.replace(base.train, **changes), SimulatedConfig(timing_only=True)
    runs: list[Run] = []
    for seed in (base.seed, base.seed + 1):  # a bound is a mean of two runs or more
        try:
            config = dataclasses.replace(base, train=train, launcher=launcher, seed=seed)
            profile = timing_only.profile_of(config, spec)
        except ConfigError:  # what it sends depends on trained numbers, or its operations are not known
            return None
        run = simulate(
            timing_only.without_numbers(config, profile),
            data,
            network=ClusterNetwork(config.cluster.links, Topology.of(config.cluster.ranks_of_nodes)),
            device=lambda rank: ClusterDevice(base.cluster.device, rank, profile, seed),  # noqa: B023
            profile=profile,
            timing_only=True,
        )
        kind = TrainIntervalRow.kind
        rows = [(rank, row) for rank, of_rank in enumerate(run.rank_rows) for row in of_rank.rows]
        recorded = Run(
            place="",
            config=config.tree,
            status={"status": "finished"},
            summary=run.results[0].summary or {},
            rank_rows=[(rank, TrainIntervalRow.read(row)) for rank, row in rows if row["kind"] == kind],
        )
        runs.append(recorded)
    return bound_of(Arm(label="", index=0, runs=runs)).value


def model_error_sd(arm: RunConfig, base: RunConfig, ratio: float | None) -> float:
    """Standard deviation of ln of a simulated ratio around the measured one; 0 where times are measured.

    As reports take it, for an arm that is `ratio` times as fast: its ceiling, None where that is unknown.
    """
    if not arm.launcher.virtual:
        return 0.0
    level, log_ratio = arm.study.level, None if ratio is None else math.log(ratio)
    error = model_error(arm.strategy_name, base.strategy_name, log_ratio, level=level)
    return math.sqrt(model_variance(error, level=level))


def _finished(base: RunConfig) -> list[Run]:
    """Finished runs with these settings, of the study, its pilots or its reference: of what has most."""
    found: list[list[Run]] = [[]]
    groups = ("strategy", "cluster", *GROUPS)
    own = {group: base.tree[group] for group in groups}
    for suffix in ("", "_pilot", "_reference"):
        with suppress(ConfigError):
            runs = load_runs(base.results_dir / f"{base.study.name}{suffix}", "")
            alike = [run for run in runs if own == {group: run.config.get(group) for group in groups}]
            world = [run for run in alike if run.name("launcher") == base.launcher.name]
            found.append([run for run in world if run.state == "finished" and not run.role])
    return max(found, key=len)


def power(difference: float, sd: float, runs: int, *, level: float = LEVEL) -> float:
    """The chance that Welch's interval of `level` misses 0 when two means truly differ by `difference`.

    `sd`: of single runs on both sides, in the same unit (ln T); `runs`: per arm, 2 or more.

    Exact for log-normal times. For equal n and equal spread, t = D / error is noncentral t with 2n - 2
    degrees of freedom and independent of u = s_1² / (s_1² + s_2²), which follows Beta((n-1)/2, (n-1)/2) and
    alone sets Welch's degrees of freedom, (n-1) / (u² + (1-u)²). So power is the mean over u of a tail of
    that distribution (own derivation). Source: docs/method.md, "Planning tables".
    """
    half = (runs - 1) / 2
    u = betaincinv(half, half, (np.arange(400) + 0.5) / 400)  # at the midpoints of 400 equal shares
    limits = t_limit(level, (runs - 1) / (u**2 + (1 - u) ** 2))
    noncentrality = abs(difference) / (sd * math.sqrt(2 / runs))
    # scipy gives NaN for tails that are too small for a float: these are 0.
    missed = np.nan_to_num(nctdtr(2 * runs - 2, noncentrality, limits))
    other_side = np.nan_to_num(nctdtr(2 * runs - 2, noncentrality, -limits))
    return float((1 - missed + other_side).mean())


def detectable(runs: int, sd: float, *, level: float = LEVEL) -> float:
    """The smallest true ratio that `runs` runs per arm show at 80 % power: "this plan could detect ≥ x".

    `sd`: of ln T, for a finished study the root mean square of both arms'. Within 1e-6.
    """
    low, high = 0.0, sd
    while power(high, sd, runs, level=level) < POWER:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, sd, runs, level=level) >= POWER else (middle, high)
    return math.exp(high)
