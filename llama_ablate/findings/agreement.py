"""Whether smaller sizes and shorter lengths of training rank pairs of arms as the largest does."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from llama_ablate.errors import ConfigError
from llama_ablate.evidence import simultaneous, written
from llama_ablate.evidence.agreement import FEWEST_ARMS, alike, share, with_seeds
from llama_ablate.findings import lengths
from llama_ablate.findings.frames import Frames, TableFrames, rows
from llama_ablate.results.plan_document import BITS

#: Named as the results of a row that is over several.
ALL = "(all)"
#: The share of pairs ranked alike that a cheap setting must have.
WANTED = 0.8
_NEAR = 0.02  # of a run, within which branches of several results are one length
_SETTING = ["size", "share"]
_FEWEST_SEEDS = 3  # two at a setting, and one at the largest


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


def pairs(results: str, found: Sequence[Setting]) -> pd.DataFrame:
    """Return a row for each pair of arms, controls left out, at each setting.

    Columns: `results, size, share, tokens, largest, first, second, small, large, decided, flops`.
    `small` and `large` are the differences of losses at the setting and at the largest, one for
    each seed that both arms have at both. `decided`: at the largest the pair's own 95% interval
    leaves out 0. `flops` are those that a run of either trains with, the mean of both. A pair
    without a seed in common has no row. Raises ConfigError where none has one at a smaller setting.
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
                sides = (np.asarray([of[seed] for seed in seeds]) for of in (here, there))
                flops = setting.tokens * (arms[first].flops + arms[second].flops) / 2
                where = (results, *setting[:3], setting is found[-1], first, second)
                made.append((*where, *sides, (first, second) in decided, flops))
    columns = ("results", *_SETTING, "tokens", "largest", "first", "second", "small", "large")
    frame = pd.DataFrame(made, columns=[*columns, "decided", "flops"])
    if frame["largest"].all():
        raise ConfigError(
            f"'{results}': no two arms have runs of one seed that ended ok at two settings"
        )
    return frame


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


def joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the pairs of several results, in which lengths of nearly one share have one."""
    frame = pd.concat(parts, ignore_index=True)
    known: list[float] = []
    for one in sorted(frame["share"].unique()):
        if not known or one - known[-1] > _NEAR:
            known.append(one)
    near = np.asarray(known)[np.searchsorted(known, frame["share"], side="right") - 1]
    return frame.assign(share=np.round(near, 2))


def ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of pairs ranked alike at each setting, for all results and for each.

    Columns: `results, size, share, tokens, most_tokens, arms, pairs, alike, low, high`, and those
    from `arms` on of the decided pairs alone, with `decided_` before them.
    """
    smaller = frame[~frame["largest"]]
    means = [[own.mean() for own in smaller[side]] for side in ("small", "large")]
    smaller = smaller.assign(alike=alike(*means))
    keys = ["results", *_SETTING]
    return pd.DataFrame(
        {
            **dict(zip(keys, key, strict=True)),
            "tokens": own["tokens"].min(),
            "most_tokens": own["tokens"].max(),
            **_share(own),
            **{f"decided_{name}": value for name, value in _share(own[own["decided"]]).items()},
        }
        for key, own in _grouped(smaller, keys)
    )


def by_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how often so many seeds at a setting rank a pair as the others do at the largest.

    Columns: `results, size, share, largest, seeds, arms, pairs, alike, low, high, flops`, the last
    of an arm with its seeds. Seeds are two or more, and at most half of those that there are, so
    that what is repeated is known no worse than what repeats it; of three, two. A pair with fewer
    gives all but one. The largest setting has rows, too: how often its own seeds repeat its order.
    Empty below three seeds.
    """
    made: list[tuple[Any, ...]] = []
    counts = frame["small"].map(len)
    most = (counts.groupby(frame["results"]).max() // 2).clip(lower=2).to_dict()
    for pair in rows(frame):
        total = len(pair.small)
        for seeds in range(2, most[pair.results] + 1) if total >= _FEWEST_SEEDS else ():
            n = min(seeds, total - 1)
            chance = with_seeds(pair.small, pair.large, n)
            at = (pair.results, pair.size, pair.share, pair.largest, seeds)
            made.append((*at, pair.first, pair.second, chance, n * pair.flops))
    keys = ["results", *_SETTING, "largest", "seeds"]
    found = pd.DataFrame(made, columns=[*keys, "first", "second", "alike", "flops"])
    return pd.DataFrame(
        {**dict(zip(keys, key, strict=True)), **_share(own), "flops": own["flops"].mean()}
        for key, own in _grouped(found, keys)
    )


def cheapest(seeds: pd.DataFrame) -> pd.DataFrame:
    """Return of each results the setting of fewest FLOPs that ranks alike in 80%, or the best.

    Those are rows of `seeds` as `by_seeds` returns it, of settings that have all pairs, with
    whether they are `enough`, and what the largest has with as many seeds, `repeated`.
    """
    found = []
    for _, of_results in seeds.groupby("results", sort=False) if len(seeds) else ():
        own = of_results[of_results["pairs"] == of_results["pairs"].max()]
        enough = own[own["alike"] >= WANTED]
        order = own.sort_values(["alike", "flops"], ascending=[False, True])
        row = (order if enough.empty else enough.sort_values("flops")).head(1)
        again = own[own["largest"] & (own["seeds"] == row["seeds"].iloc[0])]
        found.append(row.assign(enough=len(enough) > 0, repeated=again["alike"].iloc[0]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


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
        for row in lengths.effects(setting.table, place, end=place == last)
    ]
    names = [_named(setting.size, setting.share) for setting in found]
    unit = found[-1].table.unit.name
    return [
        Turned(results, unit, names, name, [row.difference for row in rows if row.name == name])
        for name in lengths.turned(rows)
    ]


def _grouped(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Group pairs by keys, of which `results` is one; before each of several, all together."""
    arms = {side: frame["results"] + "\n" + frame[side] for side in ("first", "second")}
    frame = frame.assign(**arms)  # those of one label in two results are two
    parts = [frame.assign(results=ALL), frame] if _several(frame) else [frame]
    for part in parts:
        yield from part.groupby(keys, sort=False)


def _several(frame: pd.DataFrame) -> bool:
    return len({*frame["results"]}) > 1


def _share(own: pd.DataFrame) -> dict[str, float]:
    """Return the share of pairs ranked alike with its interval: `arms, pairs, alike, low, high`."""
    codes, _ = pd.factorize(pd.concat([own["first"], own["second"]]))
    of = share(codes[: len(own)], codes[len(own) :], own["alike"])
    return {"arms": of.arms, "pairs": of.pairs, "alike": of.value, "low": of.low, "high": of.high}


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of `ranked` as people read them."""
    ends = zip(frame["tokens"] / 1e6, frame["most_tokens"] / 1e6, strict=True)
    shown = {
        **({"results": frame["results"]} if _several(frame) else {}),
        **({"size": frame["size"]} if frame["size"].any() else {}),
        "length": [f"{share:.0%}" for share in frame["share"]],
        "tokens": [" to ".join(dict.fromkeys(f"{n:.3g}M" for n in of)) for of in ends],
        "arms": frame["arms"],
        "pairs": frame["pairs"],
        "ranked alike [95%]": [_cell(row.alike, row.low, row.high) for row in rows(frame)],
        "decided": frame["decided_pairs"],
        "decided, ranked alike [95%]": [
            _cell(row.decided_alike, row.decided_low, row.decided_high) for row in rows(frame)
        ],
    }
    return pd.DataFrame(shown)


def cheapest_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of `cheapest` as people read them."""
    shown = {
        **({"results": frame["results"]} if _several(frame) else {}),
        f"cheapest that ranks alike in {WANTED:.0%}": [
            f"{'none; best: ' * (not row.enough)}{_named(row.size, row.share)} of the length"
            for row in rows(frame)
        ],
        "seeds": frame["seeds"],
        "ranked alike [95%]": [_cell(row.alike, row.low, row.high) for row in rows(frame)],
        "the largest with as many": [f"{value:.0%}" for value in frame["repeated"]],
        "FLOPs an arm": [f"{value:.2g}" for value in frame["flops"]],
    }
    return pd.DataFrame(shown)


def _named(size: str, share: float) -> str:
    """Name a setting."""
    return f"{size}, {share:.0%}" if size else f"{share:.0%}"


def _cell(value: float, low: float, high: float) -> str:
    """Write a share with its interval."""
    if math.isnan(value):
        return "-"
    return f"{value:.0%} (too few arms)" if math.isnan(low) else written.share(value, low, high)


def remarks(best: pd.DataFrame, changed: Sequence[Turned]) -> list[str]:
    """Say what the shares are of, what their intervals hold for, and what `turned` returned."""
    told = [
        "Ranked alike: the sign of the difference of two arms' mean losses is that at the largest "
        "setting, on the same seeds. The intervals take arms, which pairs share, as drawn one by "
        "one: they hold for other arms of these kinds, and for no other experiment, and take "
        f"{FEWEST_ARMS} arms. Decided: the pair's own 95% interval at the largest setting leaves "
        "out 0."
    ]
    if len(best):
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
