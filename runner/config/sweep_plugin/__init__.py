"""Hydra's sweeper of daso-bench: turns a sweep into composed configurations and starts nothing.

This folder is installed as the package `hydra_plugins.daso_bench`, because Hydra instantiates a sweeper only
from there. `register()` makes it known in an editable install, where Hydra's scan of `hydra_plugins` finds
nothing. What is done with the composed configurations is `runner/studies/`, after Hydra has returned.
"""

import copy
import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, flag_override
from omegaconf.errors import OmegaConfBaseException

from daso_bench.runner.config.overrides import key_of, quote

SETS = ("arm", "assumption", "size")


class CollectingSweeper(Sweeper):
    """A grid over the given values. Unlike Hydra's own it writes no multirun.yaml into the working directory,
    and a job that does not compose does not end the others.

    `sets` are dimensions of the grid whose points change several keys and have names: by `arm`, `assumption`
    or `size`, the overrides of each name as one text. The label `study.<set>` of a run is the name; in
    `params` or on the command line it chooses some. An `assumption` is a departure: the grid has a point
    without any, too.
    """

    def __init__(
        self,
        params: Mapping[str, str] | None = None,
        sets: Mapping[str, Mapping[str, str | None]] | None = None,
    ) -> None:
        self._params = dict(params or {})
        self._sets = {name: dict(points) for name, points in (sets or {}).items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra; `task_function` is a `compose.Collector`."""
        self._loader = hydra_context.config_loader
        self._collector: Any = task_function
        self._config = config
        self._groups: dict[str, bool] = {}

    def sweep(self, arguments: list[str]) -> None:
        """Hands every job of the grid to the collector, in order, or the reason why it does not compose.

        The grid is over the study's parameters and the collector's words, which win. The words come this way
        because Hydra would first compose those that it is given itself, and so refuse a key that only the
        strategies of the sweep have.
        """
        parser = OverridesParser.create(config_loader=self._loader)
        study = [f"{key}={value}" for key, value in self._params.items()]
        typed = {o.get_key_element(): o for o in parser.parse_overrides(list(self._collector.words))}
        swept = {o.get_key_element(): o for o in parser.parse_overrides(study)} | typed
        swept |= {key_of(key): swept.pop(key) for key in list(swept) if key_of(key).startswith("study.")}
        if "study" in map(key_of, typed):
            for name in SETS:
                if f"study.{name}" in typed and name not in self._sets:
                    raise HydraException(
                        f"study.{name}: the study has no {name}s by name to choose from; choose by the keys "
                        "it sweeps over, as in strategy=ddp,daso"
                    )
        choices: dict[str, list[list[str]]] = {}
        for key, override in swept.items():
            if key.removeprefix("study.") not in self._sets:
                choices[key] = [[choice] for choice in _choices(override)]
        for name, points in self._sets.items():
            choices[name] = _points(name, points, swept.get(f"study.{name}"), list(typed.values()))
        chosen: dict[tuple[str, ...], DictConfig] = {}
        for job in itertools.product(*choices.values()):
            overrides = list(itertools.chain(*job))
            try:
                config = self._composed(overrides, chosen)
            except (HydraException, OmegaConfBaseException) as error:
                self._collector.refuse(overrides, error)
            else:
                self._collector(config)

    def _composed(self, overrides: list[str], chosen: dict[tuple[str, ...], DictConfig]) -> DictConfig:
        """The configuration of one job.

        `chosen`: by the choices of groups, the configuration read from their files. Reading takes a third of
        a second, and a study has hundreds of jobs that differ in values only.
        """
        parsed = OverridesParser.create(config_loader=self._loader).parse_overrides(overrides)
        values = [o for o in parsed if not self._is_group(key_of(o.get_key_element()).partition("@")[0])]
        words = tuple(str(override.input_line) for override in parsed if override not in values)
        if words not in chosen:
            chosen[words] = self._loader.load_sweep_config(self._config, list(words))
            with flag_override(chosen[words], ["readonly", "struct"], False):
                # What the values of a run can refer to; the rest is Hydra's own, and much to copy.
                kept = {name: chosen[words].hydra[name] for name in ("runtime", "job")}
                chosen[words].hydra = {**kept, "overrides": {"task": []}}
        job = copy.deepcopy(chosen[words])
        # What Hydra itself does with values once the files are read.
        ConfigLoaderImpl._apply_overrides_to_config(values, job)
        job.hydra.overrides.task = list(overrides)
        return job

    def _is_group(self, key: str) -> bool:
        if key not in self._groups:
            self._groups[key] = bool(self._loader.get_group_options(key))
        return self._groups[key]


def _points(
    name: str, points: Mapping[str, str | None], chosen: Override | None, given: Sequence[Override]
) -> list[list[str]]:
    """The overrides of each point of a set, or of the `chosen` ones.

    A key that is `given` on the command line too is refused: the point's name would not say what it is.
    """
    if name not in SETS:
        raise HydraException(f"hydra.sweeper.sets.{name}: must be one of {', '.join(SETS)}")
    known: dict[str, str] = {"": ""} if name == "assumption" else {}
    known |= {point: changes or "" for point, changes in points.items()}
    names = list(known) if chosen is None else _texts(chosen)
    for point in names:
        if point not in known:
            raise HydraException(f"study.{name}={point}: the study has {', '.join(map(repr, known))}")
    overrides = []
    for point in names:
        words = shlex.split(known[point])
        for key, override in ((key_of(word), override) for word in words for override in given):
            typed_key = key_of(override.get_key_element())
            if key == typed_key or (isinstance(override.value(), dict) and key.startswith(f"{typed_key}.")):
                raise HydraException(
                    f"{override.input_line}: {point!r} of the study sets {key}; choose among its {name}s "
                    f"without it, with study.{name}=NAME,NAME"
                )
        overrides.append([*words, f"study.{name}={quote(point)}"])
    return overrides


def _texts(override: Override) -> list[str]:
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return [each.text if isinstance(each, QuotedString) else str(each) for each in values]


def _choices(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise HydraException(f"{override.input_line}: a sweep needs its values listed, as in {key}=a,b")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


@dataclass
class SweeperNode:
    """`hydra/sweeper=daso_bench`; `params` and `sets` are the sweep of a study."""

    _target_: str = f"{__name__}.{CollectingSweeper.__qualname__}"
    params: dict[str, str] = field(default_factory=dict)
    sets: dict[str, dict[str, str | None]] = field(default_factory=dict)


def register() -> None:
    """Make the sweeper known to Hydra; call before composing. Doing so twice changes nothing."""
    Plugins.instance().register(CollectingSweeper)
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="daso_bench", node=SweeperNode, provider="daso_bench")
