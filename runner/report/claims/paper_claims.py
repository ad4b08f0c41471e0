"""Claims of papers as data: the files of conf/claims, and of `claims/` in a folder of the user's own.

One file per paper, one record per claim. A claim is a factor c > 1 or a direction, judged by its own headline
against its own comparator. A condition that the source does not give is null: it is not known here, and
decides nothing. docs/claims.md describes the format.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ....strategies.errors import ConfigError, above, at_least, one_of
from ...config import groups
from ...config.typed import typed, unknown_key
from ...records.display import make_console, say

FOLDER = "claims"
QUANTIFIERS = ("typical", "up_to")
CERTAINTIES = ("abstract", "paper", "secondary")
QUALITY = ("accuracy", "top5", "miou", "pixel_accuracy", "loss")
HEADLINES: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "fixed_work": ("time of the same complete schedule, with quality not worse", ("faster",), QUALITY),
    "time_to_target": ("time to a target", ("faster",), QUALITY),
    "efficiency": ("computing efficiency", ("faster",), ("samples_per_s",)),
    "quality": ("final quality", ("better", "not_worse"), QUALITY),
    "quality_at_time": ("quality at equal training time", ("better",), QUALITY),
}
"""Each in words, with the directions of a claim without a number, and its metrics."""
OTHER_COMPARATORS = {  # arms of a study that are no strategy's defaults
    "native": "ddp, one process a node with all its cores",
    "plain_mean": "heterogeneous with strategy.weighting=uniform",
}
_ID = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where the claims of a file come from. `doi` and `arxiv` are numbers without an address before them."""

    title: str
    authors: str
    year: int
    published_in: str | None = None
    doi: str | None = None
    arxiv: str | None = None

    @property
    def reference(self) -> str:
        """The paper in one line, as lists of references have it."""
        doi, arxiv = self.doi and f"doi:{self.doi}", self.arxiv and f"arXiv:{self.arxiv}"
        parts = (self.authors, self.title, self.published_in, str(self.year), doi, arxiv)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class StatedConditions:
    """Conditions of a claim in the paper's words; None: the source does not state it."""

    model: str | None = None
    dataset: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    device: str | None = None
    network: str | None = None

    @property
    def words(self) -> str:
        """What is stated, in a line; "not stated" if nothing is."""
        stated = ((key.replace("_", " "), value) for key, value in asdict(self).items())
        return ", ".join(f"{key} {value}" for key, value in stated if value is not None) or "not stated"


@dataclass(frozen=True, kw_only=True)
class ClaimKeys:
    """The keys of a claim that hold one value each; `Claim` describes them."""

    id: str
    says: str
    headline: str
    quantifier: str = "typical"
    value: float | None = None
    less_time: float | None = None
    direction: str | None = None
    metric: str = "accuracy"
    quality_margin: float = 0.5
    arm: str
    comparator: str = "ddp"
    conditions: StatedConditions = field(default_factory=StatedConditions)
    source: str
    certainty: str


@dataclass(frozen=True, kw_only=True)
class Claim(ClaimKeys):
    """One claim, checked.

    `value` (a factor), `less_time` (a share: 0.34 is 34 % less) or `direction`: exactly one is given.
    `metric` is what quality is measured by: of `fixed_work` what must not suffer, of `time_to_target` what
    has the target. `quality_margin` is in percentage points (of a loss: hundredths): so much less counts as
    no loss. `arm` is a strategy, `comparator` one too or one of `OTHER_COMPARATORS`; `study` tests the claim.
    """

    paper: Paper
    study: str
    file: Path

    @property
    def gain(self) -> float | None:
        """The claimed factor c > 1 (time of the comparator over time of the arm); None for a direction."""
        return 1 / (1 - self.less_time) if self.less_time is not None else self.value


def gain_words(claim: Claim) -> str:
    """`up to 1.515 times (34 % less time)`, `20 times`, `faster, no number`."""
    if claim.gain is None:
        return f"{str(claim.direction).replace('_', ' ')}, no number"
    times = ("up to " if claim.quantifier == "up_to" else "") + f"{claim.gain:.4g} times"
    return times if claim.less_time is None else f"{times} ({100 * claim.less_time:.4g} % less time)"


def load(folders: Sequence[Path] = ()) -> list[Claim]:
    """All claims: the shipped ones, replaced and continued by those in `claims/` below each of `folders`.

    A record whose `id` is there already takes its place, whatever file it is in.

    Raises:
        ConfigError: a file is no such file; names it, the key, the value and what is allowed.
    """
    strategies = tuple(groups.entries("strategy", folders))
    claims = dict(_shipped())
    for folder in folders:
        claims |= _of_folder(folder, strategies)
    return list(claims.values())


@cache
def _shipped() -> Mapping[str, Claim]:
    return _of_folder(groups.CONF, tuple(groups.entries("strategy")))


def _of_folder(folder: Path, strategies: Sequence[str]) -> dict[str, Claim]:
    """The claims of a folder by their ids. Raises ConfigError where two have one."""
    claims: dict[str, Claim] = {}
    files = sorted((folder / FOLDER).glob("*.yaml"))
    for claim in (claim for file in files for claim in read(file, strategies)):
        if other := claims.get(claim.id):
            raise ConfigError(f"{claim.file}: id={claim.id}: is there already, in {other.file}")
        claims[claim.id] = claim
    return claims


def read(file: Path, strategies: Sequence[str]) -> list[Claim]:
    """The claims of one file; `strategies` are the names that may be compared. Raises ConfigError."""
    tree = read_keys(file, ("paper", "study", "claims"))
    try:
        return list(_claims(tree, file, strategies))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def read_keys(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """What a YAML file says under `keys`: all of them, and no other. Raises ConfigError with its name."""
    try:
        loaded = OmegaConf.load(file)  # refuses a duplicate key, as Hydra does
        tree = OmegaConf.to_container(loaded) if isinstance(loaded, DictConfig) else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: must hold the keys {', '.join(keys)}")
    for key in tree:
        if key not in keys:
            raise ConfigError(f"{file}: {unknown_key('', str(key), keys)}")
    for key in keys:
        if tree.get(key) is None:
            raise ConfigError(f"{file}: {key}: must be given")
    return {str(key): value for key, value in tree.items()}


def _claims(tree: Mapping[str, Any], file: Path, strategies: Sequence[str]) -> Iterator[Claim]:
    arxiv = tree["paper"].get("arxiv") if isinstance(tree["paper"], dict) else None
    if isinstance(arxiv, int | float):
        raise ConfigError(
            f'paper.arxiv={arxiv}: must be quoted, as "2104.05588": a number loses its last zeros'
        )
    paper = typed(Paper, tree["paper"], "paper")
    _check_words("study", tree["study"])
    if not isinstance(tree["claims"], list):
        raise ConfigError(f"claims={tree['claims']}: must be a list, each entry behind a dash")
    for place, node in enumerate(tree["claims"]):
        where = f"claims[{place}]"
        record = typed(ClaimKeys, node, where)
        _check(record, where, strategies)
        yield Claim(**vars(record), paper=paper, study=tree["study"], file=file)


def _check(record: ClaimKeys, where: str, strategies: Sequence[str]) -> None:
    if not _ID.fullmatch(record.id):
        raise ConfigError(f"{where}.id={record.id}: must be small letters, digits and _, a letter first")
    for key in ("says", "source"):
        _check_words(f"{where}.{key}", getattr(record, key))
    one_of(f"{where}.headline", record.headline, HEADLINES)
    one_of(f"{where}.quantifier", record.quantifier, QUANTIFIERS)
    one_of(f"{where}.certainty", record.certainty, CERTAINTIES)
    one_of(f"{where}.arm", record.arm, strategies)
    one_of(f"{where}.comparator", record.comparator, (*strategies, *OTHER_COMPARATORS))
    if record.comparator == record.arm:
        raise ConfigError(f"{where}.comparator={record.arm}: must be another than {where}.arm")
    _, directions, metrics = HEADLINES[record.headline]
    for key, value, known in (
        ("metric", record.metric, metrics),
        ("direction", record.direction, directions),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"{where}.{key}={value}: headline={record.headline} takes {' or '.join(known)}")
    _check_gain(record, where, number_allowed="faster" in directions)
    for key, limit in (("value", 1), ("quality_margin", 0)):
        if (number := getattr(record, key)) is not None:
            above(f"{where}.{key}", number, limit)
            if not math.isfinite(number):
                raise ConfigError(f"{where}.{key}={number}: must be finite")
    for key in ("nodes", "devices_per_node"):
        if (count := getattr(record.conditions, key)) is not None:
            at_least(f"{where}.conditions.{key}", count, 1)


def _check_gain(record: ClaimKeys, where: str, *, number_allowed: bool) -> None:
    """Refuse all but exactly one of value, less_time and direction."""
    keys = ("value", "less_time", "direction")
    given = [key for key in keys if getattr(record, key) is not None]
    if len(given) != 1 or (given != ["direction"] and not number_allowed):
        allowed = f"exactly one of {', '.join(keys)}" if number_allowed else "direction alone"
        has = " and ".join(given) or "none"
        raise ConfigError(f"{where}: headline={record.headline} takes {allowed}; has {has}")
    if record.direction is not None and record.quantifier == "up_to":
        raise ConfigError(
            f"{where}.quantifier=up_to: needs a number, value or less_time; a direction has none"
        )
    if record.less_time is not None and not 0 < record.less_time < 1:
        raise ConfigError(
            f"{where}.less_time={record.less_time}: must be above 0 and below 1 (a share: 0.34 for 34 % less)"
        )


def _check_words(where: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}={value!r}: must be text, and not empty")


def show(config_dir: Path | None) -> int:
    """`daso-bench claims`: print all claims, also of `claims/` in `config_dir`, with the command that tests
    each; returns the exit code. Raises ConfigError."""
    folders = [config_dir] if config_dir else []
    console, reference = make_console(), ""
    for claim in load(folders):
        if claim.paper.reference != reference:
            reference = claim.paper.reference
            say(console, reference, "bold")
        for key, value in parts(claim, folders).items():
            say(console, f"{key:<12}{value}")
        say(console, "")
    return 0


def parts(claim: Claim, folders: Sequence[Path] = ()) -> dict[str, str]:
    """The parts of a claim: name and text of each. `folders`: of the user's own."""
    explained = OTHER_COMPARATORS.get(claim.comparator)
    return {
        "claim": claim.id,
        "says": claim.says,
        "gain": gain_words(claim),
        "judged by": HEADLINES[claim.headline][0],
        "against": claim.comparator + (f": {explained}" if explained else ""),
        "stated in": f"{claim.source} (certainty: {claim.certainty})",
        "conditions": claim.conditions.words,
        "test it": command(claim, folders),
    }


def command(claim: Claim, folders: Sequence[Path] = ()) -> str:
    """The command that tests `claim`, with the folder that has its file or its study."""
    study = Path("study") / f"{claim.study}.yaml"
    needed = [folder for folder in folders if (folder / study).is_file() or claim.file.is_relative_to(folder)]
    options = [word for folder in needed for word in ("--config-dir", str(folder))]
    return shlex.join(["daso-bench", *options, f"+study={claim.study}"])
