"""What a plan can detect, against what its arms can gain: one sentence an arm, before a run is started.

An arm whose ceiling lies below the smallest ratio that the plan detects is no test. Source: docs/method.md,
"Power before the run".
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ...datasets.data import SPLITS, Data
from ...strategies.errors import ConfigError
from ...strategies.topology import Topology
from ..communication.link_costs import ClusterNetwork
from ..config.launchers import SimulatedConfig
from ..config.model_building import input_spec
from ..config.run_config import RunConfig
from ..records.rows import TrainIntervalRow
from ..records.target_crossing import crossing
from ..report import simulation_errors
from ..report.claims import convergence_points
from ..report.claims.bounds import bound_of, reduced, schedule_words
from ..report.claims.convergence_points import GROUPS, Reference, match, of_same_task
from ..report.data.arms import Arm
from ..report.data.load import Run, load_runs
from ..report.statistics.planning import detectable
from ..report.statistics.welch import FEWEST_RUNS, t_limit
from ..simulation import timing_only
from ..simulation.simulated_world import simulate
from ..training.device_model import ClusterDevice, Profile

STEPS = 20  # of the simulation that gives a bound
MOST_RANKS = 64  # of it: more take longer than a plan may
UNKNOWN = "unknown before a pilot"


@dataclass(frozen=True, kw_only=True)
class KnownBaseline:
    """What is known of a baseline before its study runs; None: nothing.

    `bound`: what no saving of communication exceeds. `sd`: of ln of one run's time to the target, without a
    target of all its work; `source`: what it is from. `steps`: to the target.
    """

    bound: float | None
    sd: float | None
    source: str
    steps: float | None


def power_sentences(runs: Sequence[RunConfig], config_dir: Path | None) -> list[str]:
    """For each size of a planned study: what decides its power, and each arm's ceiling and what is detected.

    `config_dir`: a folder of the user's own with stored points. Empty where no arm has three runs, which a
    ratio takes. Raises ConfigError for a file of points that is wrong.
    """
    references = convergence_points.load([config_dir] if config_dir else [])
    studies: dict[tuple[Path, str, str, bool], list[RunConfig]] = defaultdict(list)
    for run in runs:
        study = run.study
        studies[run.path.parent, study.size, study.assumption, bool(study.tuned)].append(run)
    sentences: list[str] = []
    for (_, size, assumption, _), members in studies.items():
        arms: dict[str, list[RunConfig]] = defaultdict(list)
        for run in members:
            if not run.study.role:
                arms[run.arm_id].append(run)
        base = baseline_among(members)
        count = 0 if base is None else len(arms[base.arm_id])
        others = [arm for name, arm in arms.items() if base and name != base.arm_id]
        counts = [min(count, len(arm)) for arm in others]
        if base is None or max(counts, default=0) < FEWEST_RUNS:
            continue
        known, error = known_baseline(base, references), model_error_sd(base)
        headline = "all work" if base.train.target is None else "time to target"
        spread = UNKNOWN if known.sd is None else f"{100 * known.sd:.2g} % ({known.source})"
        modelled = f", model error {100 * error:.2g} %" if error else ""
        of = "".join(f"{word}: " for word in (size, assumption) if word)
        sentences.append(f"{of}power in {headline}, spread {spread}{modelled}")
        for arm, runs_of_both in zip(others, counts, strict=True):
            sentences.append(f"  {_sentence(arm[0], runs_of_both, known, error)}")
    return sentences


def _sentence(arm: RunConfig, count: int, known: KnownBaseline, error: float) -> str:
    """`count`: runs of each of both. `error`: of the model, see `model_error_sd`."""
    plan = arm.plan()
    steps = known.steps or plan.steps
    share = arm.strategy_class.communication_share(arm.strategy, plan, round(steps)) if steps else 0.0
    most = None if known.bound is None else reduced(known.bound, share)
    why = f" ({schedule_words(share)})" if share else ""
    ceiling = f"ceiling {UNKNOWN}" if most is None else f"at most {most:.2f}× here{why}"
    # The error of the model is the same in all runs, so that more of them do not average it out.
    sd = math.sqrt((known.sd or 0.0) ** 2 + count * error**2 / 2)
    if count < FEWEST_RUNS:
        detects, least = f"{count} of {FEWEST_RUNS} runs that a ratio needs", math.inf
    elif sd == 0 or (most is None and known.sd is None):
        detects, least = f"what {count} runs detect is {UNKNOWN}", None
    else:
        least = detectable(count, sd, level=arm.study.level)
        detects = f"{count} runs detect {'' if known.sd else 'no less than '}{least:.2f}×"
    word = ""
    if least is not None and most is not None and most < least:
        word = ": it cannot decide"
    elif least is not None and most is not None and known.sd is not None:
        word = ": it can decide"
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
    batch = base.train.global_batch_size
    if target is None:
        seconds = [run.train_s for run in runs if run.train_s]
        return KnownBaseline(bound=bound, sd=_sd(seconds), source=f"{len(seconds)} runs", steps=None)
    found = [crossing(run.evaluations, target, metric=base.train.target_metric) for run in runs]
    met = [each for each in found if each is not None]
    if len(met) >= FEWEST_RUNS:
        samples = fmean(each.scored_samples for each in met)
        source = f"{len(met)} runs"
        return KnownBaseline(
            bound=bound, sd=_sd([each.scored_s for each in met]), source=source, steps=samples / batch
        )
    stored = match(base.tree, references) or next(iter(of_same_task(base.tree, references)), None)
    if stored is None:
        return KnownBaseline(bound=bound, sd=None, source="", steps=None)
    source, steps = f"{len(stored.samples)} stored runs of {stored.name}", fmean(stored.samples) / batch
    return KnownBaseline(bound=bound, sd=_sd(stored.samples), source=source, steps=steps)


def modelled_bound(base: RunConfig) -> float | None:
    """The bound of a baseline in virtual time, from a few steps of which only times are simulated.

    None in real time, and where it would take long or cannot be known before the data are loaded.
    """
    samples, spec = base.dataset.info().samples, input_spec(base.dataset)
    if not base.launcher.virtual or samples is None or spec is None or base.cluster.ranks > MOST_RANKS:
        return None
    train = dataclasses.replace(
        base.train, target=None, stop="budget", max_steps=STEPS, max_seconds=None, precision="fp32"
    )
    launcher = SimulatedConfig(timing_only=True)
    try:
        configs = [
            dataclasses.replace(base, train=train, launcher=launcher, seed=base.seed + number)
            for number in range(2)  # a bound is a mean of two runs or more
        ]
        profile = timing_only.profile_of(configs[0], spec)
    except ConfigError:  # it sends what depends on trained numbers, or a model without known operations
        return None
    data = timing_only.ghost_data(base.dataset.name, *(samples[split] for split in SPLITS))
    runs = [_simulated(config, data, profile) for config in configs]
    return bound_of(Arm(label="", index=0, runs=runs)).value


def _simulated(config: RunConfig, data: Data, profile: Profile) -> Run:
    """The run, as a report would read it, from a simulation of times alone."""
    device = config.cluster.device
    run = simulate(
        timing_only.without_numbers(config, profile),
        data,
        network=ClusterNetwork(config.cluster.links, Topology.of(config.cluster.ranks_of_nodes)),
        device=lambda rank: ClusterDevice(device, rank, profile, config.seed),
        profile=profile,
        timing_only=True,
    )
    return Run(
        place="",
        config=config.tree,
        environment={},
        status={"status": "finished"},
        evaluations=[],
        summary=run.results[0].summary or {},
        rank_rows=[
            (rank, TrainIntervalRow.read(row))
            for rank, recorded in enumerate(run.rank_rows)
            for row in recorded.rows
            if row["kind"] == TrainIntervalRow.kind
        ],
        replaced_rows=0,
        damage=[],
    )


def model_error_sd(config: RunConfig) -> float:
    """Standard deviation of ln of a simulated ratio around the measured one; 0 where times are measured."""
    known = simulation_errors.reference() if config.launcher.virtual else None
    return known.errors["speed-up"]["p95"] / float(t_limit(0.95, math.inf)) if known else 0.0


def _finished(base: RunConfig) -> list[Run]:
    """Finished runs with these settings, of the study, its pilots or its reference: of what has most."""
    found: list[list[Run]] = [[]]
    tree = base.tree
    for suffix in ("", "_pilot", "_reference"):
        with suppress(ConfigError):
            runs = load_runs(base.results_dir / f"{base.study.name}{suffix}", "")
            same = ("strategy", "cluster", *GROUPS)
            found.append(
                [
                    run
                    for run in runs
                    if run.state == "finished"
                    and not run.role
                    and all(run.config.get(group) == tree[group] for group in same)
                    and run.name("launcher") == base.launcher.name
                ]
            )
    return max(found, key=len)


def _sd(values: Sequence[float]) -> float | None:
    """Of their logarithms; None below 3."""
    return stdev(map(math.log, values)) if len(values) >= FEWEST_RUNS else None
