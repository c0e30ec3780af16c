"""The comparison of a table's variants with its baseline: paired effects, verdicts, costs."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from llama_ablate.evidence import (
    Ended,
    Interval,
    StandardError,
    Standing,
    Verdict,
    bias,
    judged,
    medians,
    paired_effect,
    seeds_to_decide,
    shape_alarm,
    simultaneous,
    summary,
)
from llama_ablate.evidence.medians import Timing, Turns
from llama_ablate.evidence.rates import p_of_rates, share
from llama_ablate.evidence.written import decimals, interval
from llama_ablate.findings import tuning
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.rows import (
    DIFFERENCE,
    ComparisonRow,
    MeasuredValues,
    MetricRow,
    Row,
    RunRow,
    cell,
    column,
    filled,
    grouped,
    has_number,
    mean_number,
    means,
    shared,
)
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedTable

#: The reported losses by variant's id and by seed.
Losses = dict[str, dict[int, float]]
#: Losses of a variant and of the baseline with the same seed.
Pairs = Sequence[tuple[float, float]]
_ALPHA = 0.05
#: The interval of the baseline's row, which has no difference.
NOTHING = Interval(
    mean=math.nan,
    low=math.nan,
    high=math.nan,
    n=0,
    p=math.nan,
    alpha=math.nan,
    df=math.nan,
    seed_se=math.nan,
    seed_df=math.nan,
    text_se=0.0,
    text_df=math.inf,
    pooled=False,
)


class Against(NamedTuple):
    """What variants are compared with: losses in pairs, and the text's errors, by variant's id."""

    pairs: Mapping[str, Pairs]
    text_errors: Mapping[str, StandardError]


#: Between which ends the bias lies of arms whose baseline, repeated, is equal bit for bit.
NO_BIAS = (0.0, 0.0)


def compare(
    table: PlannedTable,
    runs: Sequence[RunRow],
    metrics: MeasuredValues,
    pairs: Mapping[str, Pairs],
    standings: Mapping[str, Standing[Interval]],
    looks: int,
    margin: float | None,
    contexts: Sequence[int],
) -> list[ComparisonRow]:
    """Return one row for each variant: quality, paired difference, size, speed and memory.

    `standings` have each variant's interval by its id, which a row's verdict is read from, and
    which of the `looks` it is from; of the `contexts` whose state bytes are reported the first is
    the training context. A variant that is open at a look is `pending`. What was not
    measured is NaN. A variant none of whose runs ended `ok` keeps its row.
    """
    split = tuning.reported_split(runs)
    of_variant = grouped(runs, lambda run: run.variant)
    reported = {id_: [run for run in own if run.chosen] for id_, own in of_variant.items()}
    losses = losses_by_seed(table, chain(*reported.values()), f"{split}_{table.unit.number}")
    train_speeds, decode_speeds = _speeds(table, metrics)
    base = table.baseline.id
    base_ended = {run.seed: run.ended for run in reported.get(base, ())}
    of_base = {run.outcome for run in of_variant.get(base, ())}
    asked = contexts[1] if len(contexts) > 1 else None
    rows = []
    for variant in table.variants:
        id_ = variant.id
        own = reported.get(id_, [])
        at, row = standings.get(id_), standings[id_].row if id_ in standings else NOTHING
        first = Ended.of(run.ended for run in own)
        second = Ended.of(base_ended[run.seed] for run in own if run.seed in base_ended)
        counts = Counter(run.outcome for run in of_variant.get(id_, ()))
        word = _verdict(at, margin, first, second, {*counts}, of_base, paired=bool(pairs[id_]))
        if id_ in table.repeated and _is_equal(word, row):
            word = "equal"
        over_seeds = summary(list(losses[id_].values()))
        effect = paired_effect(*_sides(pairs[id_])) if at else None
        # Of an interval alone it is known how seeds narrow it.
        is_open = word == "inconclusive" and not first.lost + second.lost
        fewest, most = (is_open and seeds_to_decide(row, margin)) or (math.nan, math.nan)
        lost_low, lost_high = share(first.lost, first.runs) if first.runs else (math.nan, math.nan)
        text = table.text_per_token(variant)
        own_train, own_decode = (of.get(id_, _UNMEASURED) for of in (train_speeds, decode_speeds))
        train = _ratio(own_train, train_speeds.get(base, _UNMEASURED), text)
        decode = _ratio(own_decode, decode_speeds.get(base, _UNMEASURED), text)
        made = ComparisonRow(
            label=variant.label,
            baseline=variant.baseline,
            role=variant.role,
            point=own[0].point if own else "",
            outcome=outcomes(run.ended for run in own),
            unit=table.unit.name,
            n=len(pairs[id_]),
            loss=over_seeds.mean,
            sd=over_seeds.sd,
            difference=row.mean if at else 0.0,
            low=row.low,
            high=row.high,
            verdict=word,
            p_corrected=row.p,
            alpha=row.alpha,
            df=row.df,
            seed_se=row.seed_se,
            text_se=row.text_se if at else math.nan,
            pooled=row.pooled,
            seeds_low=fewest,
            seeds_high=most,
            correlation=effect.correlation if effect else math.nan,
            pairing_saves=effect.saved if effect else math.nan,
            ended=first.runs,
            too_short=first.too_short,
            lost=first.lost,
            lost_low=lost_low,
            lost_high=lost_high,
            lost_p_corrected=_p_of_lost(first, second, at),
            look=float(at.look + 1) if at else math.nan,
            looks=looks,
            finished=sum(counts[end] for end in FINAL),
            diverged=counts["diverged"],
            collapsed=counts["collapsed"],
            parameters=variant.parameters,
            active_parameters=variant.active,
            non_embedding=variant.non_embedding,
            residual=variant.residual,
            solved=variant.solved,
            flops_per_token=_known(variant.flops_per_token),
            train_tokens_per_s=own_train.value,
            train_speed_ratio=train.value,
            train_speed_low=train.low,
            train_speed_high=train.high,
            train_speed_turns=train.turns,
            train_speed_processes=train.processes,
            train_speed_spread=train.spread,
            decode_tokens_per_s=own_decode.value,
            decode_speed_ratio=decode.value,
            decode_speed_low=decode.low,
            decode_speed_high=decode.high,
            decode_speed_turns=decode.turns,
            decode_speed_processes=decode.processes,
            decode_speed_spread=decode.spread,
            context=contexts[0],
            kv_bytes_per_token=_known(variant.kv_bytes_per_token),
            state_bytes=_known(variant.state_bytes),
            asked_context=asked,
            asked_state_bytes=_known(variant.state_growth.get(asked or 0)),
            epochs=table.passes(variant) if any(v.mixture for v in table.variants) else None,
        )
        ok = [run for run in own if run.outcome == "ok"]
        rows.append(filled(made, {name: _mean(ok, split, name) for name in means(ComparisonRow)}))
    return with_decimals(with_timing_noise(rows))


def _known(count: int | None) -> float:
    return math.nan if count is None else count


def with_decimals(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return rows whose losses have as many decimals as the narrowest interval bears out."""
    known = [decimals(row.low, row.high) for row in rows if row.high > row.low]
    places = max(known, default=decimals(math.nan, math.nan))
    return [replace(row, places=places) for row in rows]


def losses_by_seed(table: PlannedTable, runs: Iterable[RunRow], name: str) -> Losses:
    """Return the losses of the runs that ended ok: the numbers of a name."""
    losses: Losses = {variant.id: {} for variant in table.variants}
    for run in runs:
        if run.outcome == "ok" and math.isfinite(loss := run.number(name)):
            losses[run.variant][run.seed] = loss
    return losses


def only(losses: Losses, seeds: Collection[int]) -> Losses:
    """Return the losses of some seeds alone."""
    return {id_: {s: own[s] for s in seeds if s in own} for id_, own in losses.items()}


def pairs_by_seed(
    table: PlannedTable, losses: Losses, against: str | None = None
) -> dict[str, Pairs]:
    """Pair each variant's losses with another's, by default the baseline's, over common seeds."""
    base = losses[against or table.baseline.id]
    return {
        id_: [(loss, base[seed]) for seed, loss in own.items() if seed in base]
        for id_, own in losses.items()
    }


def intervals(
    table: PlannedTable,
    pairs: Mapping[str, Pairs],
    text_errors: Mapping[str, StandardError],
    shares: Mapping[str, float],
    again: Sequence[Against] = (),
) -> dict[str, Interval]:
    """Return the interval of each variant's difference from the baseline, by its id.

    Those of the table's rows hold all at once, as many rows as were planned; a control's (`role`)
    holds alone, as it is no row that can win. `shares` are the parts of its error that each spends.
    A row's holds that of its comparison with each further baseline (`again`), too. Every interval
    is widened by the bias that the repeated baseline leaves possible.
    """
    others = [variant for variant in table.variants if not variant.baseline]
    controls = [variant.id for variant in others if variant.role]
    ranked = [variant.id for variant in others if not variant.role]

    prior = expected(table)

    def held_at_once(family: Iterable[str], of: Against) -> dict[str, Interval]:
        differences = {id_: [a - b for a, b in of.pairs.get(id_, ())] for id_ in family}
        return simultaneous(differences, text_errors=of.text_errors, shares=shares, expected=prior)

    first = Against(pairs, text_errors)
    known = held_at_once(ranked, first)
    for further in again:
        known |= {id_: known[id_].hull(row) for id_, row in held_at_once(ranked, further).items()}
    for control in controls:
        known |= held_at_once([control], first)
    shift = bias_of(table, pairs)
    return {
        id_: _exact(interval, shift)
        if id_ in table.repeated
        else interval.widened(shift or NO_BIAS)
        for id_, interval in known.items()
    }


def expected(table: PlannedTable) -> dict[str, StandardError]:
    """Return what was expected of the noise of each row before it ran, by its variant's id."""
    return {
        variant.id: StandardError(variant.noise.sd, variant.noise.df)
        for variant in table.variants
        if variant.noise
    }


def further_baselines(table: PlannedTable, losses: Losses) -> tuple[list[str], float | None]:
    """Return the arms that rows are compared with beside the baseline, by id, and why: a p value.

    They are the baseline with other draws, where its runs and theirs together are not normal, such
    as of two kinds. None, and no p, elsewhere.
    """
    arms = [id_ for id_ in table.redrawn if losses[id_]]
    every = [loss for id_ in (table.baseline.id, *arms) for loss in losses[id_].values()]
    p = shape_alarm(every) if arms else None
    return ([], None) if p is None else (arms, p)


def against_others(
    table: PlannedTable,
    losses: Losses,
    text_errors: Callable[[str], Mapping[str, StandardError]],
) -> list[Against]:
    """Return what rows are compared with beside the baseline: each of `further_baselines`.

    `text_errors` returns the text's part of the error of differences from a variant.
    """
    return [
        Against(pairs_by_seed(table, losses, other), text_errors(other))
        for other in further_baselines(table, losses)[0]
    ]


def bias_of(table: PlannedTable, pairs: Mapping[str, Pairs]) -> tuple[float, float] | None:
    """Return by how much all arms but the baseline may be off alike; None where nothing tells."""
    return bias([a - b for id_ in table.repeated for a, b in pairs.get(id_, ())])


def _exact(interval: Interval, shift: tuple[float, float] | None) -> Interval:
    """Return the interval of a repeated baseline: where it is equal bit for bit, 0 alone."""
    return replace(interval, low=0.0, high=0.0, p=1.0) if shift == NO_BIAS else interval


def outcomes(values: Iterable[str]) -> str:
    """Count how runs ended in words: `3 ok`, or `2 ok, 1 diverged`."""
    counts = Counter(values)
    order = sorted(counts, key=lambda outcome: (outcome != "ok", outcome))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)


@dataclass(frozen=True)
class WinnerRow(Row):
    """The variant of the lowest loss in a table."""

    table: str = column("name of the table", "table")
    winner: str = column("label of the variant", "winner")
    difference: float = column("its difference from the baseline")
    low: float = column("lower end of its interval")
    high: float = column("upper end of it")

    @cell(DIFFERENCE)
    def of_difference(self) -> str:
        """Write the difference with its interval."""
        return interval(self.difference, self.low, self.high)

    verdict: str = column("what the interval says", "verdict")
    flips: bool = column("whether it is not the first table's winner")

    @cell("flips")
    def flipped(self) -> str:
        """Write whether it is another than the first table's."""
        return "flips" if self.flips else ""


def winners(tables: Mapping[str, Sequence[ComparisonRow]]) -> list[WinnerRow]:
    """Return one row for each table of an experiment that has several: who wins there.

    `tables` maps names to comparisons. The winner has the lowest paired difference from the
    baseline of all variants that are no controls and have all seeds, or all of their look, none of
    them lost or too short.
    """
    found: list[WinnerRow] = []
    for name, rows in tables.items() if len(tables) > 1 else ():
        most = max((row.n for row in rows if row.baseline), default=0)
        # With looks a variant that was decided has fewer seeds than the baseline, and all it needs.
        fair = [
            row
            for row in rows
            if not (row.role or row.lost or row.too_short or math.isnan(row.difference))
            and (row.n == most or row.looks > 1)
            and row.verdict not in ("too short", "pending")
        ]
        if fair:
            best = min(fair, key=lambda row: row.difference)
            found.append(
                WinnerRow(
                    table=name,
                    winner=best.label,
                    **shared(WinnerRow, best),
                    flips=bool(found) and best.label != found[0].winner,
                )
            )
    return found


def _verdict(
    at: Standing[Interval] | None,
    margin: float | None,
    own: Ended,
    base: Ended,
    every: set[str],
    of_base: set[str],
    *,
    paired: bool,
) -> Verdict:
    """Return a variant's verdict, as it is judged; failed and unfinished runs may be one before.

    `own` and `base` are how its reported runs and the baseline's of the same seeds ended, `every`
    and `of_base` the outcomes of all its runs and of all the baseline's. Failed and unfinished runs
    are a verdict where no seed is `paired`.
    """
    if at is None:
        return "baseline"
    word = judged(at.row, margin, own, base)
    if word in UNSTABLE and not at.is_open:
        return word
    if not paired and every - {*FINAL, "pending"}:
        return "failed"
    if at.is_open or (not paired and (every | of_base) - {*FINAL}):
        return "pending"
    # No loss is measured where none of the runs was lost, and there is no pair.
    measured = paired or own.lost + base.lost
    return "no verdict" if word == "inconclusive" and not measured else word


def _is_equal(word: Verdict, row: Interval) -> bool:
    """Return whether a repeated baseline equals the baseline, bit for bit or within the margin."""
    return row.mean == row.low == row.high == 0 or word == "equivalent"


def _p_of_lost(own: Ended, base: Ended, at: Standing[Interval] | None) -> float:
    """Return the p of the share of lost runs against the baseline's, corrected for the rows."""
    if at is None or not ((own.lost or base.lost) and own.runs and base.runs):
        return math.nan
    rows = _ALPHA / at.row.alpha  # that share the error, and looks
    return min(1.0, rows * p_of_rates((own.lost, own.runs), (base.lost, base.runs)))


def _sides(pairs: Pairs) -> tuple[list[float], list[float]]:
    return [own for own, _ in pairs], [base for _, base in pairs]


#: What stands for a value that was not measured.
_UNMEASURED = MetricRow(variant="", label="", metric="", name="", quantity="", value=math.nan)
#: Measured values by the variant's id.
_OfVariants = Mapping[str, MetricRow]


def _speeds(table: PlannedTable, metrics: MeasuredValues) -> tuple[_OfVariants, _OfVariants]:
    """Return the training and the decode speed of the variants that have them.

    The decode speed is with the cache, at the largest batch and the longest context at which the
    baseline was measured.
    """
    of_variants = metrics.of_variants
    decode = [
        (size, row)
        for row in of_variants
        if row.quantity == "decode_speed" and (size := _decoding(row.coordinates))
    ]
    of_base = (one for one in decode if one[1].variant == table.baseline.id)
    _, largest = max(of_base, key=itemgetter(0), default=(None, _UNMEASURED))
    return (
        {row.variant: row for row in of_variants if row.name == "train_tokens_per_s"},
        {row.variant: row for _, row in decode if row.coordinates == largest.coordinates},
    )


def _decoding(at: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the batch and context of a speed of decoding with the cache; None of any other."""
    batch, context = at.get("batch"), at.get("context")
    if at.get("cache") == "cached" and isinstance(batch, int) and isinstance(context, int):
        return batch, context
    return None


def _ratio(own: MetricRow, base: MetricRow, text: float) -> Timing:
    """Return the ratio of a speed to the baseline's; of its own without an interval.

    It is of text: `text` is how much more of it a token holds than one of the baseline's.
    """
    ratio = speed_ratio(own.by_process, base.by_process)
    low, high = (math.nan, math.nan) if own is base else (text * ratio.low, text * ratio.high)
    return replace(ratio, value=text * ratio.value, low=low, high=high)


def with_timing_noise(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Widen the intervals of speeds by those of the baseline's own code under another name.

    A process has its place in memory and its minutes: the same code twice differs by more than its
    turns say.
    """
    again = [row for row in rows if row.role == "aa"]
    train_low, decode_low = (
        min([1.0, *(low for low in lows if not math.isnan(low))])
        for lows in ([a.train_speed_low for a in again], [a.decode_speed_low for a in again])
    )
    train_high, decode_high = (
        max([1.0, *(high for high in highs if not math.isnan(high))])
        for highs in ([a.train_speed_high for a in again], [a.decode_speed_high for a in again])
    )
    return [
        row
        if row.role == "aa"
        else replace(
            row,
            train_speed_low=row.train_speed_low / train_high,
            train_speed_high=row.train_speed_high / train_low,
            decode_speed_low=row.decode_speed_low / decode_high,
            decode_speed_high=row.decode_speed_high / decode_low,
        )
        for row in rows
    ]


def speed_ratio(own: Turns, base: Turns) -> Timing:
    """Return the ratio of two speeds, turn by turn; NaN where they have no turns in common."""
    turns = [*map(len, own)]
    if not own or turns != [*map(len, base)] or not all(v > 0 for v in chain(*own, *base)):
        return Timing(math.nan, math.nan, math.nan, 0, 0)
    return medians.ratio(own, base)


def _mean(runs: Sequence[RunRow], split: str, name: str) -> float:
    """Return the mean of a number over runs, of a split's first; NaN where no run has it."""
    of_split = f"{split}_{name}"
    chosen = of_split if has_number(runs, of_split) else name
    return mean_number(runs, chosen)
