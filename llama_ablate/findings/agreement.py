"""Small against large: rows by length of training, and whether cheap settings rank arms alike."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVarTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llama_ablate.errors import ConfigError
from llama_ablate.evidence import simultaneous, written
from llama_ablate.evidence.agreement import FEWEST_ARMS, alike, share, with_seeds
from llama_ablate.findings import contrasts
from llama_ablate.findings.contrasts import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import ComparisonRow, Row, Thing, column, grouped, mean, shared
from llama_ablate.results.plan_document import BITS

#: Named as the results of a row that is over several.
ALL = "(all)"
#: The share of pairs ranked alike that a cheap setting must have.
WANTED = 0.8
_NEAR = 0.02  # of a run, within which branches of several results are one length
#: At which setting, and with how many seeds.
At = TypeVarTuple("At")
_FEWEST_SEEDS = 3  # two at a setting, and one at the largest
_DECIDED = ("better", "worse", "equivalent", "lower together", "higher together", "add up")
_CONTRARY = ({"better", "worse"}, {"lower together", "higher together"})
#: Shares of a run's length between which a branch is half of it.
_LEAST, _MOST = 0.4, 0.6


class Setting(NamedTuple):
    """A table at one size and length of training."""

    #: The table's name where sizes are compared, else "".
    size: str
    #: Of the full length.
    share: float
    tokens: int
    table: TableFrames


def settings(
    frames: Frames, table: TableFrames, *, by_length: bool, by_size: bool
) -> list[Setting]:
    """Return the settings of a table, or of a ladder's sizes; the last is the largest.

    Raises ConfigError where it is the only one.
    """
    if by_length and table.unit == BITS:
        raise ConfigError(f"'{frames.root}': variants with tokens of their own have no branches")
    rungs = [table]
    if by_size:
        rungs = sorted(frames.rungs, key=lambda rung: rung.plan.baseline.parameters)
        if len(rungs) < 2:
            raise ConfigError(
                f"'{frames.root}' has one size; allowed for --sizes: results of two `sizes` or more"
            )
    found = []
    for rung in rungs:
        whole = rung.plan.tokens_per_run
        views = {**(rung.lengths if by_length else {}), whole: rung}
        if by_length and len(views) < 2:
            raise ConfigError(
                f"'{frames.root}' has no branches; allowed for --lengths: results of runs with "
                "`train.branches`"
            )
        size = rung.plan.name if by_size else ""
        found += [Setting(size, n / whole, n, view) for n, view in views.items()]
    return found


class ArmPair(NamedTuple):
    """Two arms at a setting and at the largest."""

    results: str
    size: str
    share: float
    tokens: int
    #: Whether the setting is the largest.
    largest: bool
    first: str
    second: str
    #: The differences of losses there and at the largest, one for each seed that both arms have.
    small: NDArray[np.float64]
    large: NDArray[np.float64]
    #: Whether the pair's own 95% interval at the largest leaves out 0.
    decided: bool
    #: That a run of either trains with, the mean of both.
    flops: float


def pairs(results: str, found: Sequence[Setting]) -> list[ArmPair]:
    """Return each pair of arms, controls left out, at each setting.

    A pair without a seed in common is left out. Raises ConfigError where none has one at a smaller
    setting.
    """
    known = [_arms(setting.table) for setting in found]
    decided = _decided(found[-1].table)
    made = []
    for first, second in itertools.combinations(known[-1], 2):
        for setting, arms in zip(found, known, strict=True):
            if not {first, second} <= {*arms}:
                continue
            here, there = arms[first].minus(arms[second]), known[-1][first].minus(known[-1][second])
            if seeds := sorted(here.keys() & there.keys()):
                small, large = (np.asarray([of[seed] for seed in seeds]) for of in (here, there))
                flops = setting.tokens * (arms[first].flops + arms[second].flops) / 2
                where = (results, *setting[:3], setting is found[-1], first, second)
                made.append(ArmPair(*where, small, large, (first, second) in decided, flops))
    if all(pair.largest for pair in made):
        raise ConfigError(
            f"'{results}': no two arms have runs of one seed that ended ok at two settings"
        )
    return made


class _Arm(NamedTuple):
    id: str
    losses: dict[int, float]
    #: A token.
    flops: float

    def minus(self, other: "_Arm") -> dict[int, float]:
        """Return the differences of losses by seed."""
        return {n: self.losses[n] - other.losses[n] for n in self.losses if n in other.losses}


def _arms(table: TableFrames) -> dict[str, _Arm]:
    """Return the arms of a table by label, which is the same at every size; no controls."""
    arms = [variant for variant in table.plan.variants if not variant.role]
    return {v.label: _Arm(v.id, table.losses[v.id], v.flops) for v in arms}


def _decided(table: TableFrames) -> set[tuple[str, str]]:
    """Return the pairs of arms, by label, whose interval, each alone, leaves out 0."""
    arms = _arms(table)
    every = [*itertools.combinations(arms, 2)]
    texts = {label: table.text_errors(arm.id) for label, arm in arms.items()}
    known = simultaneous(
        {str(n): [*arms[a].minus(arms[b]).values()] for n, (a, b) in enumerate(every)},
        text_errors={
            str(n): texts[a][arms[b].id] for n, (a, b) in enumerate(every) if arms[b].id in texts[a]
        },
        family=1,
    )
    return {pair for pair, row in zip(every, known.values(), strict=True) if row.low * row.high > 0}


def joined(parts: Iterable[Sequence[ArmPair]]) -> list[ArmPair]:
    """Return the pairs of several results, in which lengths of nearly one share have one."""
    every = [pair for part in parts for pair in part]
    shares: dict[float, float] = {}
    first = -math.inf
    for one in sorted({pair.share for pair in every}):
        first = one if one - first > _NEAR else first
        shares[one] = round(first, 2)
    return [pair._replace(share=shares[pair.share]) for pair in every]


@dataclass(frozen=True)
class Ranked:
    """The share of pairs ranked alike at a setting, and that of the decided ones alone."""

    results: str
    size: str
    share: float
    tokens: int
    most_tokens: int
    arms: int
    pairs: int
    alike: float
    low: float
    high: float
    decided_arms: int
    decided_pairs: int
    decided_alike: float
    decided_low: float
    decided_high: float


def ranked(every: Sequence[ArmPair]) -> list[Ranked]:
    """Return the share of pairs ranked alike at each setting, for all results and for each."""
    smaller = [pair for pair in every if not pair.largest]
    rows = []
    for (results, size, part), own in _grouped(smaller, _setting):
        tokens, decided = [pair.tokens for pair in own], [pair for pair in own if pair.decided]
        shares = _share(own, map(_alike, own)) + _share(decided, map(_alike, decided))
        rows.append(Ranked(results, size, part, min(tokens), max(tokens), *shares))
    return rows


@dataclass(frozen=True)
class Repeated:
    """How often so many seeds at a setting rank a pair as the others do at the largest."""

    results: str
    size: str
    share: float
    largest: bool
    seeds: int
    arms: int
    pairs: int
    alike: float
    low: float
    high: float
    #: Of an arm with its seeds.
    flops: float


def by_seeds(every: Sequence[ArmPair]) -> list[Repeated]:
    """Return how often so many seeds at a setting rank a pair as the others do at the largest.

    Seeds are two or more, and at most half of those that there are, so that what is repeated is
    known no worse than what repeats it; of three, two. A pair with fewer gives all but one. The
    largest setting has rows, too: how often its own seeds repeat its order. None below three seeds.
    """
    most = {
        results: max(2, max(len(pair.small) for pair in own) // 2)
        for results, own in grouped(every, lambda pair: pair.results).items()
    }
    made = [
        (pair, seeds, min(seeds, len(pair.small) - 1))
        for pair in every
        if len(pair.small) >= _FEWEST_SEEDS
        for seeds in range(2, most[pair.results] + 1)
    ]
    rows = []
    for at, own in _grouped(
        made, lambda o: (o[0].results, o[0].size, o[0].share, o[0].largest, o[1])
    ):
        chances = [with_seeds(pair.small, pair.large, n) for pair, _, n in own]
        of = _share([pair for pair, *_ in own], chances)
        rows.append(Repeated(*at, *of, mean(n * pair.flops for pair, _, n in own)))
    return rows


@dataclass(frozen=True)
class Cheapest(Repeated):
    """The setting of fewest FLOPs that ranks alike in 80%, or the best."""

    #: Whether it does.
    enough: bool
    #: What the largest has with as many seeds.
    repeated: float


def cheapest(seeds: Sequence[Repeated]) -> list[Cheapest]:
    """Return of each results the setting of fewest FLOPs that ranks alike in 80%, or the best.

    Of settings that have all pairs.
    """
    found = []
    for of_results in grouped(seeds, lambda row: row.results).values():
        pairs = max(row.pairs for row in of_results)
        own = [row for row in of_results if row.pairs == pairs]
        enough = [row for row in own if row.alike >= WANTED]
        best = min(enough or own, key=lambda row: (0 if enough else -row.alike, row.flops))
        again = next(row.alike for row in own if row.largest and row.seeds == best.seeds)
        found.append(Cheapest(**vars(best), enough=bool(enough), repeated=again))
    return found


@dataclass(frozen=True)
class Turned:
    """A row or an effect that is better at a setting and worse at the largest, or the reverse."""

    results: str
    unit: str
    #: What the settings are called, from the smallest to the largest.
    settings: Sequence[str]
    name: str
    #: At each of the settings.
    differences: Sequence[float]


def turned(results: str, found: Sequence[Setting]) -> list[Turned]:
    """Return the rows or effects that are better at a setting and worse at the largest, or so."""
    last = len(found) - 1
    rows = [
        row
        for place, setting in enumerate(found)
        for row in effects(setting.table, place, end=place == last)
    ]
    names = [_named(setting.size, setting.share) for setting in found]
    unit = found[-1].table.unit.name
    return [
        Turned(results, unit, names, name, [row.difference for row in rows if row.name == name])
        for name in contrary(rows)
    ]


def _grouped(
    things: Sequence[Thing], key: Callable[[Thing], tuple[str, *At]]
) -> Iterator[tuple[tuple[str, *At], list[Thing]]]:
    """Group by results and what else a key has; before each of several results, all together."""
    groups = grouped(things, key)
    if len({results for results, *_ in groups}) > 1:
        yield from grouped(things, lambda one: (ALL, *key(one)[1:])).items()
    yield from groups.items()


def _setting(pair: ArmPair) -> tuple[str, str, float]:
    return pair.results, pair.size, pair.share


def _alike(pair: ArmPair) -> float:
    return float(alike(pair.small.mean(), pair.large.mean()))


_Share = tuple[int, int, float, float, float]


def _share(pairs: Sequence[ArmPair], ranked: Iterable[float]) -> _Share:
    """Return arms, pairs, and the share ranked alike with its interval.

    A label of two results is two.
    """
    first = [(pair.results, pair.first) for pair in pairs]
    second = [(pair.results, pair.second) for pair in pairs]
    codes = {name: code for code, name in enumerate(dict.fromkeys([*first, *second]))}
    of = share([codes[name] for name in first], [codes[name] for name in second], [*ranked])
    return of.arms, of.pairs, of.value, of.low, of.high


def cells(rows: Sequence[Ranked]) -> pd.DataFrame:
    """Return the shares of `ranked` as people read them."""
    tokens = ((f"{n / 1e6:.3g}M" for n in (row.tokens, row.most_tokens)) for row in rows)
    shown = {
        **_results(rows),
        **({"size": [row.size for row in rows]} if any(row.size for row in rows) else {}),
        "length": [f"{row.share:.0%}" for row in rows],
        "tokens": [" to ".join(dict.fromkeys(ends)) for ends in tokens],
        "arms": [row.arms for row in rows],
        "pairs": [row.pairs for row in rows],
        "ranked alike [95%]": [_cell(row.alike, row.low, row.high) for row in rows],
        "decided": [row.decided_pairs for row in rows],
        "decided, ranked alike [95%]": [
            _cell(row.decided_alike, row.decided_low, row.decided_high) for row in rows
        ],
    }
    return pd.DataFrame(shown)


def cheapest_cells(rows: Sequence[Cheapest]) -> pd.DataFrame:
    """Return the settings of `cheapest` as people read them."""
    shown = {
        **_results(rows),
        f"cheapest that ranks alike in {WANTED:.0%}": [
            f"{'none; best: ' * (not row.enough)}{_named(row.size, row.share)} of the length"
            for row in rows
        ],
        "seeds": [row.seeds for row in rows],
        "ranked alike [95%]": [_cell(row.alike, row.low, row.high) for row in rows],
        "the largest with as many": [f"{row.repeated:.0%}" for row in rows],
        "FLOPs an arm": [f"{row.flops:.2g}" for row in rows],
    }
    return pd.DataFrame(shown)


def _results(rows: Sequence[Ranked | Cheapest]) -> dict[str, list[str]]:
    """Return the column of the results' names, where there are several."""
    names = [row.results for row in rows]
    return {"results": names} if len({*names}) > 1 else {}


def _named(size: str, share: float) -> str:
    """Name a setting."""
    return f"{size}, {share:.0%}" if size else f"{share:.0%}"


def _cell(value: float, low: float, high: float) -> str:
    """Write a share with its interval."""
    if math.isnan(value):
        return "-"
    return f"{value:.0%} (too few arms)" if math.isnan(low) else written.share(value, low, high)


def remarks(best: Sequence[Cheapest], changed: Sequence[Turned]) -> list[str]:
    """Say what the shares are of, what their intervals hold for, and what `turned` returned."""
    told = [
        "Ranked alike: the sign of the difference of two arms' mean losses is that at the largest "
        "setting, on the same seeds. The intervals take arms, which pairs share, as drawn one by "
        "one: they hold for other arms of these kinds, and for no other experiment, and take "
        f"{FEWEST_ARMS} arms. Decided: the pair's own 95% interval at the largest setting leaves "
        "out 0."
    ]
    if best:
        told.append(
            "Cheapest: by FLOPs, of two seeds up to half of those there are, each time against the "
            "other seeds at the largest setting: none is on both sides. The noise of these others "
            "lowers a share, that of the largest setting against itself too."
        )
    else:
        told.append("The cheapest setting is named from three seeds on.")
    for row in changed:
        steps = zip(row.differences, row.settings, strict=True)
        values = ", ".join(f"{value:+.3f} ({at})" for value, at in steps)
        told.append(f"Turned: {row.name} in {row.results}: {values} {row.unit}.")
    return told


@dataclass(frozen=True)
class LengthRow(Row):
    """What a row of a table, or an effect of a factorial design, is after so many tokens."""

    name: str = column("label of the variant, or the effect in words")
    tokens: int = column("training tokens")
    end: bool = column("whether that is the whole length")
    difference: float = column("mean difference from the baseline; below 0 is better")
    low: float = column("lower end of its interval")
    high: float = column("upper end of it")
    verdict: str = column("what the interval says")


def by_length(table: TableFrames) -> list[LengthRow]:
    """Return what each row of a table, or each effect of a factorial design, is at every length.

    A branch is the run cooled down early, so each is the same comparison after fewer tokens. The
    intervals of the branches hold at once over rows and lengths, without the text's error; those of
    the end are the table's. None where runs have no branches.
    """
    end = table.plan.tokens_per_run
    every = [*table.lengths.items(), (end, table)] if table.lengths else []
    return [row for tokens, view in every for row in effects(view, tokens, end=tokens == end)]


def at_half(rows: Sequence[LengthRow]) -> dict[str, str]:
    """Say of each row by length whether half the length gave the same verdict.

    `same`; `turned` where better was worse; `was` with the word for any other; `undecided` where
    half the length did not decide. Empty without a branch near half of the length.
    """
    last = {row.name: row.verdict for row in rows if row.end}
    whole = max((row.tokens for row in rows), default=0)
    near = [row for row in rows if not row.end and _LEAST <= row.tokens / whole <= _MOST]
    half = max((row.tokens for row in near), default=0)
    return {row.name: _word(last[row.name], row.verdict) for row in near if row.tokens == half}


def contrary(rows: Sequence[LengthRow]) -> dict[str, int]:
    """Return up to how many tokens a decided row had the contrary verdict, by its name."""
    last = {row.name: row.verdict for row in rows if row.end}
    found: dict[str, int] = {}
    for row in rows:
        if _word(last[row.name], row.verdict) == "turned":
            found[row.name] = max(row.tokens, found.get(row.name, 0))
    return found


def _word(now: str, then: str) -> str:
    if then not in _DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} in _CONTRARY else f"was {then}"


def effects(table: TableFrames, tokens: int, *, end: bool) -> list[LengthRow]:
    """Return the effects of a factorial design, or the rows of a table's variants."""
    compared = [row for row in table.comparison if not row.baseline and not row.role]
    return [
        LengthRow(name=name_of(row), tokens=tokens, end=end, **shared(LengthRow, row))
        for row in contrasts.factors(table) or compared
    ]


def name_of(row: FactorRow | ComparisonRow) -> str:
    """Return what a row is called by: its effect, or its variant."""
    return row.effect if isinstance(row, FactorRow) else row.label
