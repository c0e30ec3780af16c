"""What an experiment will be able to tell: its own rules, simulated with noise known before it.

A half width depends on the seeds, on the documents of the held-out text, on what the other rows of
the table say of the noise, and on the looks. No formula has them all, so tables are drawn and the
functions that judge real ones judge them.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.factorial import FactorEffect, contrasts
from llama_ablate.evidence.intervals import EXACT, Interval, simultaneous
from llama_ablate.evidence.sequential import is_settled, standings
from llama_ablate.evidence.text_error import StandardError

#: Power that is asked for.
WANTED = 0.8
#: Tables that are drawn: a power is then good to 0.02, a half width to a few percent.
TABLES = 400
#: Numbers of seeds, and factors on the held-out documents, that are tried.
SEEDS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
DOCUMENTS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclass(frozen=True)
class OfText:
    """The standard error from the held-out text: what it may be, and how well it will be known."""

    may_be: StandardError = EXACT
    #: Degrees of freedom of its estimate in the experiment to come.
    df: float = math.inf

    def with_documents(self, factor: float) -> "OfText":
        """Return the error that so many times the documents leave."""
        may_be = replace(self.may_be, se=self.may_be.se / math.sqrt(factor))
        return OfText(may_be, self.df * factor)


@dataclass(frozen=True)
class Noise:
    """The noise of a difference, in nats per token or bits per byte: estimates with their df.

    `seeds` is the standard deviation of the paired differences over seeds.
    """

    seeds: StandardError
    text: OfText = OfText()
    #: What the plan expects of the row, and its intervals take as prior.
    expected: StandardError | None = None
    #: Whether `seeds` is off by the same factor in all such rows: a memory's, not a pilot's.
    alike: bool = False

    def with_documents(self, factor: float) -> "Noise":
        """Return the noise with so many times the documents."""
        return replace(self, text=self.text.with_documents(factor))


@dataclass(frozen=True)
class DrawnTables:
    """Tables of rows that differ by nothing: what stands in the way of seeing an effect.

    Both are (tables, rows).
    """

    #: The least effect that leaves out 0 on its own side, at one of the looks.
    needed: NDArray[np.float64]
    #: Half widths of the intervals, at the last look.
    halves: NDArray[np.float64]

    def power(self, effect: float) -> NDArray[np.float64]:
        """Return the chance of each row to leave out 0 on the side of a true effect, (rows,)."""
        return np.asarray((abs(effect) > self.needed).mean(0), float)

    def detectable(self, wanted: float = WANTED) -> NDArray[np.float64]:
        """Return the true effect that each row shows with a power, (rows,)."""
        return np.quantile(self.needed, wanted, axis=0)

    def half_widths(self) -> NDArray[np.float64]:
        """Return the 5, 50 and 95% quantiles of each row's half width, (3, rows)."""
        return np.quantile(self.halves, (0.05, 0.5, 0.95), axis=0)


def of_rows(
    noise: Sequence[Noise],
    looks: Sequence[int],
    shares: Sequence[float] = (1.0,),
    *,
    known: bool = False,
    tables: int = TABLES,
) -> DrawnTables:
    """Draw tables of variants against a baseline: rows share its seeds, and so half their noise.

    `looks` are the numbers of seeds at which they are judged, once or at each look with its share
    of the error. What stops an arm that will hardly be decided is left out.
    """

    def judged(generator: np.random.Generator) -> tuple[list[float], list[float]]:
        values, errors = _values(noise, looks[-1], 0.0, generator, known=known)
        needed = np.full(len(noise), math.inf)
        for seeds, share in zip(looks, shares, strict=True):
            rows = simultaneous(
                {row: own[:seeds] for row, own in values.items()},
                text_errors=errors,
                shares=dict.fromkeys(values, share),
                expected=_prior(noise),
            ).values()
            needed = np.minimum(needed, [row.high - 2 * row.mean for row in rows])
        return list(needed), [(row.high - row.low) / 2 for row in rows]

    return _drawn(judged, tables)


def of_factors(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    residual: StandardError,
    texts: Mapping[FactorEffect, OfText],
    seeds: int,
    *,
    alpha: float = 0.05,
    known: bool = False,
    tables: int = TABLES,
) -> DrawnTables:
    """Draw factorial designs, whose rows are `factorial.contrasts`.

    `residual` is the standard deviation of a cell over seeds, less what a seed shifts in all cells.
    """

    def judged(generator: np.random.Generator) -> tuple[list[float], list[float]]:
        (sd,) = _true([residual], generator, known=known)
        losses = {cell: sd * generator.standard_normal(seeds) for cell in levels}
        of_texts = _true([text.may_be for text in texts.values()], generator, known=known)
        true = dict(zip(texts, of_texts, strict=True))
        errors = {
            names: _estimated(true[names], text.df, generator) for names, text in texts.items()
        }
        found = contrasts(levels, factors, losses, text_errors=errors, alpha=alpha)
        shifts = {names: se * generator.standard_normal() for names, se in true.items()}
        halves = [(one.interval.high - one.interval.low) / 2 for one in found]
        means = [one.interval.mean + shifts.get(one.effect, 0.0) for one in found]
        return [half - mean for half, mean in zip(halves, means, strict=True)], halves

    return _drawn(judged, tables)


@dataclass(frozen=True)
class Stopped:
    """Tables with looks whose arms differ from the baseline by an effect."""

    #: The chance of each row to leave out 0 on the side of the effect, (rows,).
    power: NDArray[np.float64]
    #: At how many seeds each row stops, and its half width there, (tables, rows).
    seeds: NDArray[np.float64]
    halves: NDArray[np.float64]

    def half_widths(self) -> NDArray[np.float64]:
        """Return the 5, 50 and 95% quantiles of each row's half width, (3, rows)."""
        return np.quantile(self.halves, (0.05, 0.5, 0.95), axis=0)


def with_looks(
    noise: Sequence[Noise],
    effect: float,
    looks: Sequence[int],
    shares: Sequence[float],
    margin: float | None = None,
    *,
    known: bool = False,
    tables: int = TABLES,
) -> Stopped:
    """Draw tables whose seeds come in looks, and stop each arm where the real rules would."""

    def stopped(_arm: str, look: int, row: Interval) -> bool:
        return is_settled(row, look, looks, shares, margin)

    def table(generator: np.random.Generator) -> list[tuple[int, Interval]]:
        values, errors = _values(noise, looks[-1], effect, generator, known=known)
        prior = _prior(noise)

        def judge(at: Mapping[str, int]) -> dict[str, Interval]:
            taken = {arm: own[: looks[at[arm]]] if arm in at else [] for arm, own in values.items()}
            spent = {arm: shares[look] for arm, look in at.items()}
            return simultaneous(taken, text_errors=errors, shares=spent, expected=prior)

        first = dict.fromkeys(values, 0)
        stands = standings(len(looks), first, lambda *_: "complete", judge, stopped)
        return [(at.look, at.row) for at in stands.values()]

    generator = np.random.default_rng(0)
    every = [table(generator) for _ in range(tables)]
    shown = [[row.low > 0 if effect > 0 else row.high < 0 for _, row in rows] for rows in every]
    return Stopped(
        np.mean(shown, axis=0),
        np.array([[looks[look] for look, _ in rows] for rows in every], float),
        np.array([[(row.high - row.low) / 2 for _, row in rows] for rows in every]),
    )


def fewest(
    draw: Callable[[float], DrawnTables],
    effect: float,
    among: Sequence[float],
    row: int,
    wanted: float = WANTED,
) -> float:
    """Return the smallest of some sizes with which a row shows an effect; infinite for none.

    `draw` returns tables of a size: so many seeds, or so many times the documents.
    """
    at = bisect_left(among, wanted, key=lambda size: draw(size).power(effect)[row])
    return among[at] if at < len(among) else math.inf


def _drawn(
    judged: Callable[[np.random.Generator], tuple[list[float], list[float]]], tables: int
) -> DrawnTables:
    generator = np.random.default_rng(0)
    needed, halves = zip(*(judged(generator) for _ in range(tables)), strict=True)
    return DrawnTables(np.array(needed), np.array(halves))


def _values(
    noise: Sequence[Noise],
    seeds: int,
    effect: float,
    generator: np.random.Generator,
    *,
    known: bool,
) -> tuple[dict[str, list[float]], dict[str, StandardError]]:
    """Draw the differences of each row by seed, and what is estimated of the text's error.

    Half of the variance of each row is the baseline's; the text shifts all seeds of a row alike.
    """
    sds = _true([one.seeds for one in noise], generator, known=known)
    if not known and all(one.alike for one in noise):  # off by one factor, that of the first
        sds = np.array([one.seeds.se for one in noise]) * sds[0] / noise[0].seeds.se
    texts = _true([one.text.may_be for one in noise], generator, known=known)
    parts = generator.standard_normal((len(noise) + 1, seeds)) / math.sqrt(2)
    shifts = effect + texts * generator.standard_normal(len(noise))
    differences = shifts[:, None] + sds[:, None] * (parts[:-1] + parts[-1])
    values = {str(i): list(map(float, own)) for i, own in enumerate(differences)}
    errors = {
        str(i): _estimated(se, one.text.df, generator)
        for i, (se, one) in enumerate(zip(texts, noise, strict=True))
    }
    return values, errors


def _prior(noise: Sequence[Noise]) -> dict[str, StandardError]:
    return {str(i): one.expected for i, one in enumerate(noise) if one.expected}


def _true(
    estimates: Sequence[StandardError], generator: np.random.Generator, *, known: bool
) -> NDArray[np.float64]:
    """Draw what estimates may be of: variances are scaled inverse chi-squared, with their df."""
    return np.array(
        [
            one.se
            if known or math.isinf(one.df)
            else one.se * math.sqrt(one.df / generator.chisquare(one.df))
            for one in estimates
        ]
    )


def _estimated(se: float, df: float, generator: np.random.Generator) -> StandardError:
    if not se or math.isinf(df):
        return StandardError(float(se), df)
    return StandardError(float(se * math.sqrt(generator.chisquare(df) / df)), df)
