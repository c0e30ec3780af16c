"""Comparison of variants: paired differences of a metric, with intervals and verdicts.

This module judges losses, tasks, guards, hypotheses, path steps, training lengths and speeds. Runs
of two variants are paired by seed, timings by process. The error of a loss difference includes the
error from the finite held-out text, clustered by document; the error of an accuracy difference
includes the error from the finite set of task items. A counted number, such as the bytes of a KV
cache, has no error.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from llama_ablate.evidence import (
    NOTHING,
    Difference,
    Ended,
    Interval,
    StandardError,
    simultaneous,
)
from llama_ablate.evidence.rates import rate_difference
from llama_ablate.findings.paired_table import Paired, PairedTable, loss_split
from llama_ablate.findings.values import UNSTABLE
from llama_ablate.results import FINAL

#: Ids of a variant and of the variant with which it is compared.
Pair = tuple[str, str]
NO_BIAS = (0.0, 0.0)


@dataclass(frozen=True)
class RowFamily:
    """Family of comparisons with simultaneous intervals (Bonferroni)."""

    pairs: Sequence[Pair]
    #: Number of comparisons that share the error level; by default the number of pairs.
    size: float | None = None
    #: Whether values are compared by the logarithms of their ratios.
    relative: bool = False
    #: By variant id: the seeds to include, and the fraction of its error level that a row uses.
    seeds: Mapping[str, Collection[int]] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)


def compare(
    table: PairedTable, metric: str, variant: str, against: str, family: RowFamily
) -> Difference:
    """Compare a metric of two variants, given their ids, within a family of comparisons."""
    return compare_all(table, metric, family)[variant, against]


def compare_all(table: PairedTable, metric: str, family: RowFamily) -> dict[Pair, Difference]:
    """Compare a metric for all variant pairs of a family.

    The interval of a loss difference from the baseline is widened by the bias bound of the repeated
    baseline, which is the baseline trained again under another name. For the metrics `diverged` and
    `collapsed`, each variant's share of finished runs with this outcome is compared.
    """
    ended = {pair: count_ended(table, *pair, family.seeds.get(pair[0])) for pair in family.pairs}
    size = len(family.pairs) if family.size is None else family.size
    if metric in UNSTABLE:
        shares = {pair: [_lost(table, id_, metric) for id_ in pair] for pair in family.pairs}
        return {
            pair: Difference(rate_difference(*both, family=size), *ended[pair])
            for pair, both in shares.items()
        }
    paired = {pair: table.pair(metric, *pair, family.seeds.get(pair[0])) for pair in family.pairs}
    differences = {
        pair: samples.differences(relative=family.relative) for pair, samples in paired.items()
    }
    intervals = simultaneous(
        differences,
        text_errors={
            pair: _scaled(samples, relative=family.relative)
            for pair, samples in paired.items()
            if samples.error and not (pair[0] in table.plan.repeated and samples.is_equal)
        },
        family=size,
        shares={pair: family.shares[pair[0]] for pair in paired if pair[0] in family.shares},
    )
    return {
        pair: Difference(
            _finish(intervals[pair], samples, bias_of(table, metric, *pair)),
            *ended[pair],
            samples.why_not,
        )
        for pair, samples in paired.items()
    }


def _finish(interval: Interval, paired: Paired, bias: tuple[float, float]) -> Interval:
    """Return an interval as it is reported.

    A difference of counts has no error, so both ends equal the mean. The interval of a difference
    of shares is clipped to [-1, 1]. Any other interval is widened by `bias`.
    """
    if paired.is_exact:
        return replace(interval, low=interval.mean, high=interval.mean)
    if paired.is_share:
        return replace(interval, low=max(interval.low, -1.0), high=min(interval.high, 1.0))
    return interval.widened(bias)


def _scaled(paired: Paired, *, relative: bool) -> StandardError:
    """Return the standard error of a difference from held-out texts or task items.

    If `relative`, the standard error is divided by the mean of the second variant.
    """
    error = paired.error or StandardError(0.0, math.inf)
    return replace(error, se=error.se / fmean(paired.other.values())) if relative else error


def bias_of(table: PairedTable, metric: str, variant: str, against: str) -> tuple[float, float]:
    """Return the interval of the possible bias of a difference.

    Only the loss difference between the baseline and a variant has a bias: the bias that all
    variants except the baseline may share. The interval is (0, 0) for any other difference.
    """
    base = table.plan.baseline.id
    sign = (against == base) - (variant == base)
    is_of_all = sign and {variant, against}.isdisjoint(table.plan.repeated)
    has_bias = is_of_all and loss_split(table, metric)
    return scale_ends(table.bias or NO_BIAS, sign) if has_bias else NO_BIAS


def scale_ends(ends: tuple[float, float], weight: float) -> tuple[float, float]:
    """Return the ends of an interval multiplied by a weight."""
    low, high = sorted(weight * end if end else 0.0 for end in ends)
    return low, high


def count_ended(
    table: PairedTable, variant: str, against: str, seeds: Collection[int] | None = None
) -> tuple[Ended, Ended]:
    """Count the outcomes of two variants' runs over their common seeds."""
    own_runs, other = (table.at_point.get(id_, {}) for id_ in (variant, against))
    both = [seed for seed in own_runs if seed in other and (seeds is None or seed in seeds)]
    return Ended.of(own_runs[s].ended for s in both), Ended.of(other[s].ended for s in both)


def _lost(table: PairedTable, variant: str, outcome: str) -> tuple[int, int]:
    """Return a variant's number of runs with an outcome, and number of finished runs."""
    runs = [run for run in table.runs if run.variant == variant and run.outcome in FINAL]
    return sum(run.outcome == outcome for run in runs), len(runs)


#: Difference of a variant that was not compared.
NO_DIFFERENCE = Difference(NOTHING, Ended.of(()), Ended.of(()))
