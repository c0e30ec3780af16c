"""Statistical power of a plan, from a pilot's noise: half widths, seeds, documents."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from llama_ablate.config import margins
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import Interval, StandardError
from llama_ablate.evidence.factorial import FactorEffect, weights
from llama_ablate.evidence.intervals import NO_TEXT_ERROR
from llama_ablate.evidence.power import (
    DOCUMENTS,
    SEEDS,
    USUAL_SD,
    DrawnTables,
    Noise,
    expected_half_width,
    fewest,
    simulate_factors,
    simulate_rows,
    with_looks,
)
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.findings import effects
from llama_ablate.findings.frames import TableFrames
from llama_ablate.results.plan_document import HELD_OUT, PlanDocument, PlannedTable, PlannedVariant

#: A standard deviation with fewer degrees of freedom is pooled with the other rows'.
_MIN_DF = 4.0
_MAX_SEEDS = 500  # largest number of seeds to suggest


@dataclass(frozen=True)
class Pilot:
    """Noise of paired differences, estimated from a pilot experiment's finished runs."""

    #: Noise by variant label; `rest` is the noise of any other row.
    rows: Mapping[str, Noise]
    rest: Noise
    #: For a factorial design: the standard deviation of a cell over seeds, and the noise by effect.
    residual: StandardError
    texts: Mapping[FactorEffect, Noise]
    #: Number of documents of the held-out text behind the text errors; 0 if unknown.
    documents: int

    @staticmethod
    def can_be(table: TableFrames) -> bool:
        """Return whether any variant differs from the baseline over two or more seeds."""
        return bool(_noisy_rows(table))

    @classmethod
    def of(cls, pilot: TableFrames, root: object) -> "Pilot":
        """Estimate the noise from the runs and documents of finished results.

        Raises ConfigError, which names the results folder `root`, if no variant differs from the
        baseline over two or more seeds.
        """
        noisy = _noisy_rows(pilot)
        if not noisy:
            raise ConfigError(
                f"'{root}' has no variant that differs from its baseline over two seeds or more of "
                "its first table: no noise to plan with"
            )
        seeds = _join([_over_seeds(row) for row in noisy.values()])
        rows = {
            label: Noise(row_seeds, *_text_noise(row))
            for (label, row), row_seeds in zip(noisy.items(), seeds, strict=True)
        }
        text = _mean([noise.text for noise in rows.values()])
        rest = Noise(_mean([noise.seeds for noise in rows.values()]), text, text.df)
        every = [
            contrast for contrast in effects.find_contrasts(pilot) if contrast.interval.seed_se > 0
        ]
        texts = {
            contrast.effect: Noise(rest.seeds, *_text_noise(contrast.interval))
            for contrast in every
        }
        residual = StandardError(rest.seeds.se / math.sqrt(2), rest.seeds.df)
        if pooled := [contrast for contrast in every if contrast.interval.pooled] or every:
            weighed = [
                sum(weight**2 for weight in contrast.weights.values()) for contrast in pooled
            ]
            squares = [contrast.interval.seed_se**2 * contrast.interval.n for contrast in pooled]
            residual = StandardError(
                math.sqrt(np.median(np.divide(squares, weighed))),
                float(np.median([contrast.interval.seed_df for contrast in pooled])),
            )
        return cls(rows, rest, residual, texts, _documents(pilot.plan, pilot.split))


@dataclass(frozen=True)
class Promise:
    """Expected precision of a plan's rows, and the seeds and documents needed."""

    #: One mapping for each row: `row`, its name; `half_width`, with the 5 and 95% quantiles
    #: `half_low` and `half_high`; `detectable`, the effect that is detected with a power of 0.8;
    #: `power`, the probability to detect the effect; `seeds_needed` and `documents_needed`, each
    #: with the other as planned, None if no number tried is enough; `together`, seeds and documents
    #: if neither alone is enough. With looks also `expected_seeds`, the mean number of seeds at
    #: which the row stops; `seeds_needed` is then for the last look, with the other looks in
    #: proportion.
    rows: list[dict[str, Any]]
    #: With looks: the mean number of runs of the plan, without controls; else None.
    runs: float | None


def promise(plan: PlanDocument, pilot: Pilot, effect: float) -> Promise:
    """Simulate a plan's rows, and estimate their precision for a true effect of `effect`."""
    experiment = plan.experiment
    documents, factor = _text_of(plan, pilot)
    count = len(experiment.seed_list)
    names, draw = _design(plan, pilot)
    planned = draw(count, factor)
    (low, middle, high), power = planned.half_widths(), planned.power(effect)
    stops = runs = None
    if len(experiment.looks) > 1 and not plan.tables[0].baseline.levels:
        shares = experiment.spend or spending(experiment.looks)
        margin = margins.loss_margin(experiment.margin)
        noises = _noises(plan, pilot, factor)
        stopped = with_looks(noises, effect, experiment.looks, shares, margin)
        (low, middle, high), power = stopped.half_widths(), stopped.power
        stops = stopped.seeds.mean(0)
        # The baseline runs as long as the last variant that stops.
        runs_expected = float((stopped.seeds.sum(1) + stopped.seeds.max(1)).mean())
        race = sum(run.seed in experiment.race_seeds for run in plan.runs.values())
        runs = runs_expected * len(plan.tables) + race
    powers = []
    for i, name in enumerate(names):
        seeds = fewest(lambda n: draw(int(n), factor), effect, SEEDS, i)
        more = fewest(lambda times: draw(count, factor * times), effect, DOCUMENTS, i)
        together = None
        if math.isinf(seeds) and math.isinf(more):
            together = _together(draw, factor, effect, i, documents)
        powers.append(
            {
                "row": name,
                "half_width": float(middle[i]),
                "half_low": float(low[i]),
                "half_high": float(high[i]),
                "detectable": float(planned.detectable()[i]),
                "power": float(power[i]),
                "seeds_needed": None if math.isinf(seeds) else int(seeds),
                "documents_needed": _count(documents * more),
                "together": together,
                **({} if stops is None else {"expected_seeds": float(stops[i])}),
            }
        )
    return Promise(powers, runs)


def expect(plan: PlanDocument, pilot: Pilot | None, margin: float) -> dict[str, Any]:
    """Compute the expected half width of a row's interval, and the number of seeds needed.

    The closed form uses the pilot's noise; without a pilot it uses the noise `USUAL_SD`, which is
    accurate to a factor of two. `seeds_needed` is the fewest seeds with a half width below
    `margin`, or None if no number of seeds tried is enough.
    """
    noise = pilot.rest if pilot else Noise(StandardError(USUAL_SD, math.inf))
    if pilot:
        noise = noise.with_documents(_text_of(plan, pilot)[1])
    table, seeds = plan.tables[0], len(plan.experiment.seed_list)
    rows, cells, sd_factor = max(len(_rows(table)), 1), 2, 1.0
    if factors := list(table.baseline.levels):
        levels = {v.id: list(v.levels.values()) for v in table.variants if not v.role}
        each = [float((weight**2).sum()) for weight in weights(levels, factors).values()]
        rows, cells = len(each), len(levels)
        sd_factor = math.sqrt(float(np.median(each)) / 2)

    def half(count: int) -> float:
        return expected_half_width(count, rows, noise, cells=cells, spread=sd_factor)

    width = half(seeds) if seeds > 1 else math.nan
    needed = next((n for n in range(2, _MAX_SEEDS) if half(n) < margin), None)
    return {
        "half_width": width,
        "half_low": width / 2,
        "half_high": width * 2,
        "is_enough": width < margin,
        "seeds_needed": needed,
    }


def _text_of(plan: PlanDocument, pilot: Pilot) -> tuple[int, float]:
    """Return the reported text's number of documents, and its ratio to the pilot's number.

    An experiment that tunes reports test text alone.
    """
    table = plan.tables[0]
    is_chosen = plan.experiment.tune and "test" in table.text.tokens
    documents = _documents(table, "test" if is_chosen else HELD_OUT)
    return documents, documents / pilot.documents if documents and pilot.documents else 1.0


def _design(
    plan: PlanDocument, pilot: Pilot
) -> tuple[list[str], Callable[[int, float], DrawnTables]]:
    """Return the names of a plan's rows, and a function that simulates the rows.

    The arguments of the function are a number of seeds, and a factor on the number of documents.
    """
    table = plan.tables[0]
    factors = list(table.baseline.levels)
    if factors:
        cells = [variant for variant in table.variants if not variant.role]
        levels = {cell.id: list(cell.levels.values()) for cell in cells}
        terms = list(weights(levels, factors))
        unknown = Noise(pilot.rest.seeds, NO_TEXT_ERROR)

        @cache
        def factorial(seeds: int, factor: float) -> DrawnTables:
            texts = {of: pilot.texts.get(of, unknown).with_documents(factor) for of in terms}
            return simulate_factors(levels, factors, pilot.residual, texts, seeds)

        names = effects.level_names(table, plan.experiment)
        return [effects.name_effect(effect, names) for effect in terms], factorial
    looks = plan.experiment.looks
    shares = plan.experiment.spend or spending(looks)

    @cache
    def rows(seeds: int, factor: float) -> DrawnTables:
        return simulate_rows(_noises(plan, pilot, factor), *_scaled(looks, shares, seeds))

    return [variant.label for variant in _rows(table)], rows


def _scaled(
    looks: Sequence[int], shares: Sequence[float], last: int
) -> tuple[list[int], list[float]]:
    """Scale the looks to `last` final seeds; return the looks with their error shares."""
    spent: dict[int, float] = {}
    for look, share in zip(looks, shares, strict=True):
        seeds = max(2, round(look * last / looks[-1]))
        spent[seeds] = spent.get(seeds, 0.0) + share
    return list(spent), list(spent.values())


def _noises(plan: PlanDocument, pilot: Pilot, factor: float) -> list[Noise]:
    return [
        pilot.rows.get(variant.label, pilot.rest).with_documents(factor)
        for variant in _rows(plan.tables[0])
    ]


def _together(
    draw: Callable[[int, float], DrawnTables],
    factor: float,
    effect: float,
    row: int,
    documents: int,
) -> dict[str, int | None] | None:
    """Find the fewest documents with which some number of seeds detects the effect.

    Return the number of seeds and of documents; None if no combination tried is enough.
    """
    for times in DOCUMENTS[1:]:

        def with_more(seeds: float, times: float = factor * times) -> DrawnTables:
            return draw(int(seeds), times)

        if math.isfinite(seeds := fewest(with_more, effect, SEEDS, row)):
            return {"seeds": int(seeds), "documents": _count(documents * times)}
    return None


def _documents(table: PlannedTable, split: str) -> int:
    return table.text.size(split)[2]


def _text_noise(row: Interval) -> tuple[StandardError, float]:
    df = max(row.text_df, LEAST_DF)
    return StandardError(row.text_se, df), df


def _count(documents: float) -> int | None:
    return math.ceil(documents) if documents and math.isfinite(documents) else None


def _rows(table: PlannedTable) -> list[PlannedVariant]:
    return [v for v in table.variants if not (v.baseline or v.role)]


def _noisy_rows(table: TableFrames) -> dict[str, Interval]:
    return {
        variant.label: row
        for variant in _rows(table.plan)
        if (row := table.intervals[variant.id]).n > 1 and row.seed_se > 0
    }


def _over_seeds(row: Interval) -> StandardError:
    return StandardError(row.seed_se * math.sqrt(row.n), row.seed_df)


def _join(own: Sequence[StandardError]) -> list[StandardError]:
    """Pool standard deviations that have few degrees of freedom with the other rows'.

    An estimate with one degree of freedom is too uncertain alone. The rows of a table are similar
    enough to improve each other's estimates.
    """
    joined = []
    for i, item in enumerate(own):
        others = [*own[:i], *own[i + 1 :]]
        if not others or item.df >= _MIN_DF:
            joined.append(item)
            continue
        df = min(sum(other.df for other in others), _MIN_DF)
        square = (item.df * item.se**2 + df * _mean(others).se ** 2) / (item.df + df)
        joined.append(StandardError(math.sqrt(square), item.df + df))
    return joined


def _mean(errors: Sequence[StandardError]) -> StandardError:
    """Return the root mean square of errors, with their median degrees of freedom."""
    square = np.mean([error.se**2 for error in errors])
    return StandardError(math.sqrt(square), float(np.median([error.df for error in errors])))
