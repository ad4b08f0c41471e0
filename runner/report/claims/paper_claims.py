"""Claims of papers as data: the files of conf/claims, and of `claims/` in a folder of the user's own.

One file per paper, one record per claim. A claim is a factor c > 1 or a direction, judged by its own headline
against its own comparator. A condition that the source does not give is null: it is not known here, and
decides nothing. docs/claims.md describes the format.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ....strategies.errors import ConfigError, above, at_least, nearest, one_of
from ...config import groups
from ...config.typed import typed

FOLDER = "claims"
QUANTIFIERS = ("typical", "up_to")
CERTAINTIES = ("abstract", "paper", "secondary")
DIRECTIONS = {  # of a claim without a number, by its headline
    "fixed_work": ("faster",),
    "time_to_target": ("faster",),
    "efficiency": ("faster",),
    "quality": ("better", "not_worse"),
    "quality_at_time": ("better",),
}
HEADLINES = tuple(DIRECTIONS)
QUALITY = ("accuracy", "top5", "miou", "pixel_accuracy", "loss")
METRICS = dict.fromkeys(HEADLINES, QUALITY) | {"efficiency": ("samples_per_s",)}
OTHER_COMPARATORS = {  # arms of a study that are no strategy's defaults
    "native": "ddp, one process a node with all its cores",
    "plain_mean": "heterogeneous with strategy.weighting=uniform",
}
_WORDS = {  # of headlines and directions
    "fixed_work": "time of the same complete schedule, with quality that is not worse",
    "time_to_target": "time to a target",
    "efficiency": "computing efficiency",
    "quality": "final quality",
    "quality_at_time": "quality at equal training time",
    "not_worse": "not worse",
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
        numbers = [f"doi:{self.doi}"] if self.doi else []
        numbers += [f"arXiv:{self.arxiv}"] if self.arxiv else []
        place = [self.published_in] if self.published_in else []
        return ", ".join([self.authors, self.title, *place, str(self.year), *numbers])


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
        stated = {key: value for key, value in asdict(self).items() if value is not None}
        words = [f"{key.replace('_', ' ')} {value}" for key, value in stated.items()]
        return ", ".join(words) or "not stated"


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a paper's table. `points`: of a quality headline, arm less comparator, percentage points."""

    source: str
    value: float | None = None
    less_time: float | None = None
    points: float | None = None
    conditions: StatedConditions = field(default_factory=StatedConditions)

    @property
    def gain(self) -> float | None:
        """The factor c, or None for points."""
        return _gain(self.value, self.less_time)


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
    rows: tuple[TableRow, ...] = ()
    file: Path

    @property
    def gain(self) -> float | None:
        """The claimed factor c > 1 (time of the comparator over time of the arm); None for a direction."""
        return _gain(self.value, self.less_time)


def gain_words(claim: Claim) -> str:
    """`up to 1.515 times (34 % less time)`, `20 times`, `faster, no number`."""
    if claim.gain is None:
        return f"{in_words(str(claim.direction))}, no number"
    return ("up to " if claim.quantifier == "up_to" else "") + _times(claim.gain, claim.less_time)


def row_words(row: TableRow) -> str:
    """As `gain_words`, of one row."""
    return f"{row.points:+g} points" if row.gain is None else _times(row.gain, row.less_time)


def in_words(name: str) -> str:
    """A headline or a direction as text."""
    return _WORDS.get(name, name)


def _times(gain: float, less_time: float | None) -> str:
    times = f"{gain:.4g} times"
    return times if less_time is None else f"{times} ({100 * less_time:.4g} % less time)"


def load(folders: Sequence[Path] = ()) -> list[Claim]:
    """All claims: the shipped ones, replaced and continued by those in `claims/` below each of `folders`.

    A record whose `id` is there already takes its place, whatever file it is in.

    Raises:
        ConfigError: a file is no such file; names it, the key, the value and what is allowed.
    """
    strategies = list(groups.entries("strategy", folders))
    claims: dict[str, Claim] = {}
    for folder in (groups.CONF, *folders):
        of_folder: dict[str, Claim] = {}
        for file in sorted((folder / FOLDER).glob("*.yaml")):
            for claim in read(file, strategies):
                if claim.id in of_folder:
                    raise ConfigError(
                        f"{file}: id={claim.id}: is there already, in {of_folder[claim.id].file}"
                    )
                of_folder[claim.id] = claim
        claims |= of_folder
    return list(claims.values())


def read(file: Path, strategies: Sequence[str]) -> list[Claim]:
    """The claims of one file; `strategies` are the names that may be compared. Raises ConfigError."""
    try:
        return list(_claims(_tree(file), file, strategies))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _tree(file: Path) -> dict[str, Any]:
    try:
        loaded = OmegaConf.load(file)  # refuses a duplicate key, as Hydra does
        tree = OmegaConf.to_container(loaded) if isinstance(loaded, DictConfig) else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ConfigError("must hold the keys paper, study and claims")
    return {str(key): value for key, value in tree.items()}


def _claims(tree: Mapping[str, Any], file: Path, strategies: Sequence[str]) -> Iterator[Claim]:
    known = ("paper", "study", "claims")
    for key in tree:
        if key not in known:
            near = nearest(key, known)
            hint = f" (did you mean {near}?)" if near else ""
            raise ConfigError(f"{key}: unknown key{hint}; known: {', '.join(known)}")
    for key in known:
        if tree.get(key) is None:
            raise ConfigError(f"{key}: must be given")
    paper = _paper(tree["paper"])
    study = _words("study", tree["study"])
    for place, node in enumerate(_list("claims", tree["claims"])):
        where = f"claims[{place}]"
        plain = _mapping(where, node)
        rows = plain.pop("rows", None)
        record = typed(ClaimKeys, plain, where)
        _check(record, where, strategies)
        given = {key.name: getattr(record, key.name) for key in fields(ClaimKeys)}
        yield Claim(
            **given, paper=paper, study=study, rows=_rows(rows, f"{where}.rows", record.headline), file=file
        )


def _paper(node: Any) -> Paper:
    arxiv = _mapping("paper", node).get("arxiv")
    if isinstance(arxiv, int | float):
        raise ConfigError(
            f'paper.arxiv={arxiv}: must be quoted, as "2104.05588": a number loses its last zeros'
        )
    return typed(Paper, node, "paper")


def _rows(node: Any, where: str, headline: str) -> tuple[TableRow, ...]:
    rows: list[TableRow] = []
    for place, entry in enumerate(_list(where, [] if node is None else node)):
        here = f"{where}[{place}]"
        row = typed(TableRow, _mapping(here, entry), here)
        _words(f"{here}.source", row.source)
        keys = ("value", "less_time") if _is_ratio(headline) else ("points",)
        _one_given(row, here, ("value", "less_time", "points"), keys, headline)
        _check_numbers(row, here)
        _check_conditions(row.conditions, f"{here}.conditions")
        rows.append(row)
    return tuple(rows)


def _check(record: ClaimKeys, where: str, strategies: Sequence[str]) -> None:
    if not _ID.fullmatch(record.id):
        raise ConfigError(f"{where}.id={record.id}: must be small letters, digits and _, a letter first")
    for key in ("says", "source"):
        _words(f"{where}.{key}", getattr(record, key))
    one_of(f"{where}.headline", record.headline, HEADLINES)
    one_of(f"{where}.quantifier", record.quantifier, QUANTIFIERS)
    one_of(f"{where}.certainty", record.certainty, CERTAINTIES)
    _fits(f"{where}.metric", record.metric, METRICS[record.headline], record.headline)
    one_of(f"{where}.arm", record.arm, strategies)
    one_of(f"{where}.comparator", record.comparator, (*strategies, *OTHER_COMPARATORS))
    if record.comparator == record.arm:
        raise ConfigError(f"{where}.comparator={record.arm}: must be another than {where}.arm")
    numbers = ("value", "less_time")
    keys = (*numbers, "direction") if _is_ratio(record.headline) else ("direction",)
    _one_given(record, where, (*numbers, "direction"), keys, record.headline)
    if record.direction is not None:
        _fits(f"{where}.direction", record.direction, DIRECTIONS[record.headline], record.headline)
        if record.quantifier == "up_to":
            raise ConfigError(
                f"{where}.quantifier=up_to: needs a number, value or less_time; a direction has none"
            )
    _check_numbers(record, where)
    above(f"{where}.quality_margin", record.quality_margin, 0)
    _finite(f"{where}.quality_margin", record.quality_margin)
    _check_conditions(record.conditions, f"{where}.conditions")


def _fits(where: str, value: str, allowed: Sequence[str], headline: str) -> None:
    if value not in allowed:
        raise ConfigError(f"{where}={value}: headline={headline} takes {' or '.join(allowed)}")


def _is_ratio(headline: str) -> bool:
    """Whether it judges a ratio, which a paper may give as a number."""
    return "faster" in DIRECTIONS[headline]


def _one_given(
    part: ClaimKeys | TableRow, where: str, keys: Sequence[str], allowed: Sequence[str], headline: str
) -> None:
    """Refuse all but exactly one of `keys`, and one outside `allowed`."""
    given = [key for key in keys if getattr(part, key) is not None]
    for key in given:
        if key not in allowed:
            raise ConfigError(
                f"{where}.{key}={getattr(part, key)}: headline={headline} takes "
                f"{' or '.join(allowed)} instead"
            )
    if len(given) != 1:
        has = " and ".join(given) or "none"
        raise ConfigError(f"{where}: must give exactly one of {', '.join(allowed)}; has {has}")


def _check_numbers(part: ClaimKeys | TableRow, where: str) -> None:
    if part.value is not None:
        above(f"{where}.value", part.value, 1)
        _finite(f"{where}.value", part.value)
    if part.less_time is not None and not 0 < part.less_time < 1:
        raise ConfigError(
            f"{where}.less_time={part.less_time}: must be above 0 and below 1 (a share: 0.34 for 34 % less)"
        )
    if isinstance(part, TableRow) and part.points is not None:
        _finite(f"{where}.points", part.points)


def _check_conditions(conditions: StatedConditions, where: str) -> None:
    for key in ("nodes", "devices_per_node"):
        if getattr(conditions, key) is not None:
            at_least(f"{where}.{key}", getattr(conditions, key), 1)


def _gain(value: float | None, less_time: float | None) -> float | None:
    return 1 / (1 - less_time) if less_time is not None else value


def _finite(where: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{where}={value}: must be finite")


def _words(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}={value!r}: must be text, and not empty")
    return value


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}={value}: must hold keys and values, not a single value")
    return {str(key): entry for key, entry in value.items()}


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}={value}: must be a list, each entry behind a dash")
    return value
