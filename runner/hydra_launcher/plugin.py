"""The sweeper expands `strategy=ddp,daso seed=0,1` into jobs; the launcher composes each and hands it on."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException


class Collector(Protocol):
    """What the task function given to Hydra must be: it gets each composed job, or the reason why not."""

    @property
    def words(self) -> Sequence[str]:
        """The overrides to sweep over. They come this way because Hydra would first compose those that it
        is given itself, and so refuse a key that only the strategies of the sweep have."""
        ...

    def __call__(self, config: DictConfig) -> None:
        """A composed job (with its `hydra` node, when it comes from a sweep)."""

    def refuse(self, overrides: Sequence[str], error: Exception) -> None:
        """A job that does not compose."""


class CollectingLauncher(Launcher):
    """Composes every job of a sweep; one that does not compose never stops the others."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's hand-over; `task_function` is a `Collector`."""
        self._context = hydra_context
        self._collector = cast(Collector, task_function)
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hands each job to the collector, in Hydra's order. The jobs have no return values."""
        for overrides in job_overrides:
            try:
                job = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            except (HydraException, OmegaConfBaseException) as error:
                self._collector.refuse(overrides, error)
            else:
                self._collector(job)
        return []


class CollectingSweeper(Sweeper):
    """A grid over the values given, like Hydra's own, without its two effects: it writes a multirun.yaml
    where the user stands, and one job that does not compose ends them all."""

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's hand-over."""
        self._context = hydra_context
        self._collector = cast(Collector, task_function)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Launches the grid of the study's parameters and the collector's words (which win) as one batch."""
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        study = [f"{key}={value}" for key, value in self._params.items()]
        choices = {
            override.get_key_element(): _choices(override)
            for override in parser.parse_overrides([*study, *self._collector.words])
        }
        return self._launcher.launch([list(job) for job in itertools.product(*choices.values())], 0)


def _choices(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise HydraException(f"{override.input_line}: a sweep needs its values listed, as in {key}=a,b")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


@dataclass
class LauncherNode:
    """`hydra/launcher=daso_bench`."""

    _target_: str = f"{__name__}.{CollectingLauncher.__qualname__}"


@dataclass
class SweeperNode:
    """`hydra/sweeper=daso_bench`; `params` are the sweep of a study."""

    _target_: str = f"{__name__}.{CollectingSweeper.__qualname__}"
    params: dict[str, str] = field(default_factory=dict)


def register() -> None:
    """Make both known to Hydra; call before composing. Doing so twice changes nothing."""
    plugins = Plugins.instance()
    for plugin in (CollectingLauncher, CollectingSweeper):
        plugins.register(plugin)
    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="daso_bench", node=LauncherNode, provider="daso_bench")
    store.store(group="hydra/sweeper", name="daso_bench", node=SweeperNode, provider="daso_bench")
