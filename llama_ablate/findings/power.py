"""What a plan will be able to tell: half widths, seeds and documents for a difference.

The noise is that of a pilot's runs and documents; without a pilot, that of the memory of noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from llama_ablate.config import margins
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import Interval, StandardError
from llama_ablate.evidence.factorial import FactorEffect, weights
from llama_ablate.evidence.noise import NoiseMemory
from llama_ablate.evidence.power import (
    DOCUMENTS,
    SEEDS,
    TABLES,
    DrawnTables,
    Noise,
    OfText,
    fewest,
    of_factors,
    of_rows,
    with_looks,
)
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.findings import comparison, contrasts, noise
from llama_ablate.findings.frames import TableFrames
from llama_ablate.results.plan_document import HELD_OUT, PlanDocument, PlannedTable, PlannedVariant

_FEW_TABLES = 100
_FEW_DF = 4.0  # of a deviation, below which the other rows' are joined with it


@dataclass(frozen=True)
class Known:
    """What is known of the noise of a table's rows before they run."""

    #: By label; of any other row, `rest`.
    rows: Mapping[str, Noise]
    rest: Noise
    #: Of a cell of a factorial design, and of the text's error of its effects: those known, others.
    residual: StandardError
    texts: Mapping[FactorEffect, OfText]
    text: OfText
    #: Documents of the held-out text that the text's errors are of; 0 where that is not known.
    documents: int

    @classmethod
    def of_pilot(cls, pilot: TableFrames, kept: NoiseMemory | None, root: object) -> "Known":
        """Read it off the runs and documents of finished results.

        The text's error of an effect that the pilot has not measured is that of a memory: it
        depends on what is changed. Raises ConfigError where no variant has two seeds that the
        baseline has too.
        """
        found = {
            variant.label: row
            for variant in _rows(pilot.plan)
            if (row := pilot.intervals[variant.id]).n > 1 and row.seed_se > 0
        }
        if not found:
            raise ConfigError(
                f"'{root}' has no variant that differs from its baseline over two seeds or more of "
                "its first table: no noise to plan with"
            )
        seeds = _joined([_over_seeds(row) for row in found.values()])
        rows = {
            label: Noise(own, _of_text(row))
            for (label, row), own in zip(found.items(), seeds, strict=True)
        }
        effects = [one for one in contrasts.effects(pilot) if one.interval.seed_se > 0]
        texts = {one.effect: _of_text(one.interval) for one in effects}
        text = _mean([noise.text.may_be for noise in rows.values()])
        rest = Noise(_mean([noise.seeds for noise in rows.values()]), OfText(text, text.df))
        residual = StandardError(rest.seeds.se / math.sqrt(2), rest.seeds.df)
        if effects:
            every = [one for one in effects if one.interval.pooled] or effects
            weighed = [sum(weight**2 for weight in one.weights.values()) for one in every]
            rows_of = [one.interval for one in every]
            squares = [row.seed_se**2 * row.n for row in rows_of]
            residual = StandardError(
                math.sqrt(np.median(np.divide(squares, weighed))),
                float(np.median([row.seed_df for row in rows_of])),
            )
        documents = _documents(pilot.plan, pilot.split)
        other = _remembered(pilot.plan, documents, kept) or rest.text
        return cls(rows, rest, residual, texts, other, documents)

    @classmethod
    def of_memory(cls, plan: PlannedTable, kept: NoiseMemory) -> "Known | None":
        """Take what a memory of noise expects of a table's rows; None where it says nothing."""
        expected, variants = comparison.expected(plan), _rows(plan)
        if any(variant.id not in expected for variant in variants):
            return None
        documents = _documents(plan, HELD_OUT)
        text = _remembered(plan, documents, kept) or OfText()
        rows = {v.label: Noise(expected[v.id], text, alike=True) for v in variants}
        rest = Noise(_mean([noise.seeds for noise in rows.values()]), text, alike=True)
        residual = StandardError(rest.seeds.se / math.sqrt(2), rest.seeds.df)
        return cls(rows, rest, residual, {}, text, documents)


@dataclass(frozen=True)
class Promise:
    """How well the rows of a plan's first table will be known, and what it takes."""

    #: Of each: `row`, its name; `half_width` with the 5 and 95% ends `half_low` and `half_high`;
    #: `detectable`, what is seen with a power of 0.8; `power`, the chance to see the effect;
    #: `seeds_needed` and `documents_needed`, with the other as planned, None where no number tried
    #: is enough; `together`, seeds and documents where neither alone is. With looks also
    #: `expected_seeds`, at which it stops; `seeds_needed` are those of the last look, the others
    #: in proportion.
    rows: list[dict[str, Any]]
    #: With looks: how many runs the plan takes on average, without controls.
    runs: float | None


def promise(plan: PlanDocument, known: Known, effect: float) -> Promise:
    """Return what a plan promises of its rows, were all of them to differ by an effect."""
    experiment = plan.experiment
    documents, held = _text_of(plan, known)
    count = len(experiment.seed_list)
    names, draw = _design(plan, known)
    planned = draw(count, held)
    (low, middle, high), power = planned.half_widths(), planned.power(effect)
    stops = runs = None
    if len(experiment.looks) > 1 and not plan.tables[0].baseline.levels:
        shares = experiment.spend or spending(experiment.looks)
        margin = margins.of_loss(experiment.margin)
        noises = _noises(plan, known, held)
        stopped = with_looks(noises, effect, experiment.looks, shares, margin)
        (low, middle, high), power = stopped.half_widths(), stopped.power
        stops = stopped.seeds.mean(0)
        # The baseline goes on as far as any other arm.
        own = float((stopped.seeds.sum(1) + stopped.seeds.max(1)).mean())
        race = sum(run.seed in experiment.race_seeds for run in plan.runs.values())
        runs = own * len(plan.tables) + race
    found = []
    for i, name in enumerate(names):
        seeds = fewest(lambda n: draw(int(n), held), effect, SEEDS, i)
        more = fewest(lambda factor: draw(count, held * factor), effect, DOCUMENTS, i)
        together = None
        if math.isinf(seeds) and math.isinf(more):
            together = _together(draw, held, effect, i, documents)
        found.append(
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
    return Promise(found, runs)


def glance(plan: PlanDocument, known: Known, effect: float) -> dict[str, float | None]:
    """Return how wide rows will be, at least and at most, and how many documents an effect needs.

    `half_low` and `half_high` are the least and the most median half width of a row;
    `documents_needed` are for every row, None where no number tried is enough. From fewer tables
    than `promise` draws.
    """
    documents, held = _text_of(plan, known)
    names, draw = _design(plan, known, tables=_FEW_TABLES)
    count = len(plan.experiment.seed_list)
    middle = draw(count, held).half_widths()[1]
    more = max(
        fewest(lambda factor: draw(count, held * factor), effect, DOCUMENTS, i)
        for i in range(len(names))
    )
    return {
        "half_low": float(middle.min()),
        "half_high": float(middle.max()),
        "documents": documents,
        "documents_needed": _count(documents * more),
    }


def _text_of(plan: PlanDocument, known: Known) -> tuple[int, float]:
    """Return the documents of the text that is reported, and how many times those that are known.

    Where something is chosen by validation, test text is reported.
    """
    table = plan.tables[0]
    is_chosen = plan.experiment.tune and "test" in table.text.tokens
    documents = _documents(table, "test" if is_chosen else HELD_OUT)
    return documents, documents / known.documents if documents and known.documents else 1.0


def _design(
    plan: PlanDocument, known: Known, tables: int = TABLES
) -> tuple[list[str], Callable[[int, float], DrawnTables]]:
    """Return the names of a plan's rows, and what draws its tables: by seeds and documents."""
    table = plan.tables[0]
    cells = [variant for variant in table.variants if not variant.role]
    factors = list(table.baseline.levels)
    looks = plan.experiment.looks
    shares = plan.experiment.spend or spending(looks)
    if factors:
        levels = {cell.id: list(cell.levels.values()) for cell in cells}
        effects = list(weights(levels, factors))
        texts = {of: known.texts.get(of, known.text) for of in effects}

        @cache
        def factorial(seeds: int, held: float) -> DrawnTables:
            own = {of: text.with_documents(held) for of, text in texts.items()}
            residual, alpha = known.residual, 0.05 * shares[-1]  # as at the last look
            return of_factors(levels, factors, residual, own, seeds, alpha=alpha, tables=tables)

        names = contrasts.level_names(table, plan.experiment)
        return [contrasts.name_of(effect, names) for effect in effects], factorial

    @cache
    def rows(seeds: int, held: float) -> DrawnTables:
        at, of = _scaled(looks, shares, seeds)
        return of_rows(_noises(plan, known, held), at, of, tables=tables)

    return [variant.label for variant in _rows(table)], rows


def _scaled(
    looks: Sequence[int], shares: Sequence[float], last: int
) -> tuple[list[int], list[float]]:
    """Return looks with another last number of seeds, and what each spends."""
    spent: dict[int, float] = {}
    for look, share in zip(looks, shares, strict=True):
        seeds = max(2, round(look * last / looks[-1]))
        spent[seeds] = spent.get(seeds, 0.0) + share
    return list(spent), list(spent.values())


def _noises(plan: PlanDocument, known: Known, held: float) -> list[Noise]:
    """Return the noise of each row; what is expected of it is no part of a step's interval."""
    table, is_path = plan.tables[0], plan.experiment.variants.design == "path"
    expected = {} if is_path else comparison.expected(table)
    return [
        replace(
            known.rows.get(variant.label, known.rest).with_documents(held),
            expected=expected.get(variant.id),
        )
        for variant in _rows(table)
    ]


def _together(
    draw: Callable[[int, float], DrawnTables], held: float, effect: float, row: int, documents: int
) -> dict[str, int | None] | None:
    """Return the least of more documents with which some number of seeds is enough."""
    for factor in DOCUMENTS[1:]:

        def with_more(seeds: float, times: float = held * factor) -> DrawnTables:
            return draw(int(seeds), times)

        if math.isfinite(seeds := fewest(with_more, effect, SEEDS, row)):
            return {"seeds": int(seeds), "documents": _count(documents * factor)}
    return None


def _documents(table: PlannedTable, split: str) -> int:
    return table.text.size(split)[2]


def _remembered(table: PlannedTable, documents: int, kept: NoiseMemory | None) -> OfText | None:
    found = kept.text(noise.corpus(table), documents) if kept else None
    return OfText(found, max(LEAST_DF, documents / 2)) if found else None


def _of_text(row: Interval) -> OfText:
    df = max(row.text_df, LEAST_DF)
    return OfText(StandardError(row.text_se, df), df)


def _count(documents: float) -> int | None:
    return math.ceil(documents) if documents and math.isfinite(documents) else None


def _rows(table: PlannedTable) -> list[PlannedVariant]:
    return [v for v in table.variants if not (v.baseline or v.role)]


def _over_seeds(row: Interval) -> StandardError:
    return StandardError(row.seed_se * math.sqrt(row.n), row.seed_df)


def _joined(own: Sequence[StandardError]) -> list[StandardError]:
    """Return deviations of few degrees of freedom joined with those of the other rows.

    One degree of freedom alone may be of any deviation; the rows of a table are alike enough to
    say more of each other than that.
    """
    joined = []
    for i, one in enumerate(own):
        others = [*own[:i], *own[i + 1 :]]
        if not others or one.df >= _FEW_DF:
            joined.append(one)
            continue
        df = min(sum(other.df for other in others), _FEW_DF)
        square = (one.df * one.se**2 + df * _mean(others).se ** 2) / (one.df + df)
        joined.append(StandardError(math.sqrt(square), one.df + df))
    return joined


def _mean(errors: Sequence[StandardError]) -> StandardError:
    """Return the root mean square of errors, with the median of their degrees of freedom."""
    square = np.mean([error.se**2 for error in errors])
    return StandardError(math.sqrt(square), float(np.median([error.df for error in errors])))
