"""The one comparison: paired differences of a number between variants, with intervals and words.

Losses, tasks, guards, hypotheses, steps, lengths and speeds are all judged here. Runs are paired by
seed, what was timed of a variant by process. The error of a loss has a part from the held-out text,
clustered by document, and that of a task one from its items. A number that is counted is exact.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence import (
    NOTHING,
    Ended,
    Interval,
    StandardError,
    Verdict,
    judged,
    medians,
    simultaneous,
)
from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.evidence.medians import Timing, Turns
from llama_ablate.evidence.rates import rate_difference
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings.tuning import SPLITS
from llama_ablate.findings.values import UNSTABLE, MeasuredValues, MetricRow, RunRow
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import BITS, HELD_OUT, PlannedTable
from llama_ablate.results.record import TRAINING, Coordinate

if TYPE_CHECKING:
    from llama_ablate.findings.frames import TableFrames

#: The ids of a variant and of that which it is compared with.
Pair = tuple[str, str]
#: Numbers by seed, or medians by process of an interleaved pass.
Samples = Mapping[int, float]
#: Total nats and predicted tokens of each cluster of a split (total bits and bytes where variants
#: differ in their tokens), (2, clusters), by variant's id and by seed.
ByDocument = Mapping[str, Mapping[int, NDArray[np.float64]]]
#: Quantities of the losses by document.
OF_DOCUMENTS = ("loss_by_document", "tokens_by_document")
NO_BIAS = (0.0, 0.0)
_ACCURACY = "accuracy"
_TASK, _PRINT = "task", "fingerprint"  # coordinates


@dataclass(frozen=True)
class RowFamily:
    """Comparisons whose intervals hold all at once (Bonferroni)."""

    pairs: Sequence[Pair]
    #: How many share the error; by default the pairs.
    size: float | None = None
    #: Whether numbers are compared by the logarithms of their ratios.
    relative: bool = False
    #: Of a variant by its id: the seeds that count, and the share of its error that it spends.
    seeds: Mapping[str, Collection[int]] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Paired:
    """Samples of two variants over what they share, with the error from texts or items."""

    own: Samples = field(default_factory=dict)
    other: Samples = field(default_factory=dict)
    error: StandardError | None = None
    #: Whether both were counted, so that their difference has no error.
    is_exact: bool = False
    #: Whether the numbers are shares of items.
    is_share: bool = False
    #: Why they do not compare; else empty.
    why_not: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether both are the same number in each pair."""
        return self.own == self.other

    def differences(self, *, relative: bool = False) -> list[float]:
        """Return the differences, or the logarithms of the ratios of positive values."""
        both = [(own, self.other[key]) for key, own in self.own.items()]
        if relative:
            return [math.log(own / other) for own, other in both if own > 0 and other > 0]
        return [own - other for own, other in both]


@dataclass(frozen=True)
class Difference:
    """A difference with its interval, and how the runs of both sides ended."""

    interval: Interval
    own: Ended
    other: Ended
    #: Why it cannot be told; else empty.
    why_not: str = ""

    def __neg__(self) -> "Difference":
        """Return the difference taken the other way round."""
        return Difference(-self.interval, self.other, self.own, self.why_not)

    def judged(self, margin: float | None = None) -> Verdict:
        """Return the verdict, lower being better."""
        return judged(self.interval, margin, self.own, self.other)


def compare(
    table: "TableFrames", metric: str, variant: str, against: str, family: RowFamily
) -> Difference:
    """Compare a number of two variants, by their ids, as one of a family of comparisons."""
    return compare_all(table, metric, family)[variant, against]


def compare_all(table: "TableFrames", metric: str, family: RowFamily) -> dict[Pair, Difference]:
    """Compare a number of all pairs of a family.

    The interval of a loss against the baseline's is widened by the bias that the repeated baseline
    leaves possible. For `diverged` and `collapsed` the shares of all finished runs are compared.
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
    differences = {pair: own.differences(relative=family.relative) for pair, own in paired.items()}
    found = simultaneous(
        differences,
        text_errors={
            pair: _scaled(own, relative=family.relative)
            for pair, own in paired.items()
            if own.error and not (pair[0] in table.plan.repeated and own.is_equal)
        },
        family=size,
        shares={pair: family.shares[pair[0]] for pair in paired if pair[0] in family.shares},
    )
    return {
        pair: Difference(
            _finish(found[pair], own, bias_of(table, metric, *pair)), *ended[pair], own.why_not
        )
        for pair, own in paired.items()
    }


def _finish(interval: Interval, paired: Paired, bias: tuple[float, float]) -> Interval:
    """Return an interval as it is reported: exact, of a share, or widened by a bias."""
    if paired.is_exact:
        return replace(interval, low=interval.mean, high=interval.mean)
    if paired.is_share:
        return replace(interval, low=max(interval.low, -1.0), high=min(interval.high, 1.0))
    return interval.widened(bias)


def _scaled(paired: Paired, *, relative: bool) -> StandardError:
    """Return the error from texts or items, of ratios as a share of the other's mean."""
    error = paired.error or StandardError(0.0, math.inf)
    return replace(error, se=error.se / fmean(paired.other.values())) if relative else error


def bias_of(table: "TableFrames", metric: str, variant: str, against: str) -> tuple[float, float]:
    """Return the ends of the bias that is possible in a difference.

    Of a loss against the baseline's it is that of all arms but the baseline. Of a speed it is how
    the same code differs under another name, which tells of either variant.
    """
    base = table.plan.baseline.id
    sign = (against == base) - (variant == base)
    if not {variant, against}.isdisjoint(table.plan.repeated):
        return NO_BIAS
    if loss_split(table, metric):
        return scale_ends(table.bias or NO_BIAS, sign) if sign else NO_BIAS
    again = [v.id for v in table.plan.variants if v.role == "aa"]
    if not again or not is_timed(table, metric):
        return NO_BIAS
    differences = table.pair(metric, again[0], base).differences(relative=True)
    noise = simultaneous({"": differences})[""]
    if math.isnan(noise.low):
        return NO_BIAS
    low, high = noise.low, noise.high
    if not sign:
        low, high = min(low, -high), max(high, -low)
    scale = fmean(samples(table, against, metric).values())
    return scale_ends((low, high), -scale if variant == base else scale)


def scale_ends(ends: tuple[float, float], weight: float) -> tuple[float, float]:
    """Return the ends of an interval multiplied by a weight."""
    low, high = sorted(weight * end if end else 0.0 for end in ends)
    return low, high


def count_ended(
    table: "TableFrames", variant: str, against: str, seeds: Collection[int] | None = None
) -> tuple[Ended, Ended]:
    """Count how the runs of two variants ended at their points, over the seeds of both."""
    own, other = (table.at_point.get(id_, {}) for id_ in (variant, against))
    both = [seed for seed in own if seed in other and (seeds is None or seed in seeds)]
    return Ended.of(own[s].ended for s in both), Ended.of(other[s].ended for s in both)


def _lost(table: "TableFrames", variant: str, outcome: str) -> tuple[int, int]:
    """Return how many runs of a variant ended so, of all that finished at any tuned point."""
    runs = [run for run in table.runs if run.variant == variant and run.outcome in FINAL]
    return sum(run.outcome == outcome for run in runs), len(runs)


def pair(
    table: "TableFrames",
    metric: str,
    variant: str,
    against: str,
    seeds: Collection[int] | None = None,
) -> Paired:
    """Pair a number of two variants, by their ids, by seed or by process."""
    own, other = samples(table, variant, metric), samples(table, against, metric)
    shared = [key for key in own if key in other and (seeds is None or key in seeds)]
    answers = [table.answers.get(metric, {}).get(id_, {}) for id_ in (variant, against)]
    why_not = ""
    if is_task := bool(answers[0] or answers[1]):
        alike = [s for s in shared if len({of[s].fingerprint for of in answers if s in of}) == 1]
        if len(alike) < len(shared):
            why_not = "the runs have answered other items"
        shared = alike
    counted = table.metrics.named.get(metric, ())
    is_exact = not any(row.run or row.samples for row in counted)
    error = _of_items(answers, shared) if is_task else None
    if shared and (split := loss_split(table, metric)):
        weights: dict[int, Mapping[str, float]] = {s: {variant: 1.0, against: -1.0} for s in shared}
        error = text_error_of(weights, table.documents(split))
    return Paired(
        {key: own[key] for key in shared},
        {key: other[key] for key in shared},
        error if error and error.se > 0 else None,
        bool(counted) and is_exact,
        any(one.is_accuracy for of in answers for one in of.values()),
        why_not,
    )


def samples(table: "TableFrames", variant: str, metric: str) -> Samples:
    """Return a variant's samples of a number: by seed, or by process for what is a variant's own.

    Runs that diverged or collapsed have those alone that describe the training.
    """
    if metric not in table.numbers:
        named = table.metrics.named.get(metric, ())
        own = [row for row in named if row.variant == variant and not row.run]
        turns = (own[0].by_process or ((own[0].value,),)) if own else ()
        return dict(enumerate(map(median, turns)))
    counts = ("ok", *UNSTABLE) if describes_training(table, metric) else ("ok",)
    return {
        seed: value
        for seed, run in table.at_point.get(variant, {}).items()
        if run.outcome in counts and not math.isnan(value := run.number(metric))
    }


def loss_split(table: "TableFrames", metric: str | None) -> str:
    """Return the split of a loss in the table's unit by its name; "" for any other number."""
    return next((s for s in SPLITS if (metric or table.loss) == f"{s}_{table.unit.number}"), "")


def describes_training(table: "TableFrames", metric: str) -> bool:
    """Return whether a number of runs describes training, not the trained model."""
    own = table.metrics.named.get(metric, ())
    return bool(own) and all(row.metric == TRAINING for row in own if row.run)


def is_timed(table: "TableFrames", metric: str | None) -> bool:
    """Return whether a number is a speed or a time, which several processes took."""
    return any(len(row.by_process) > 1 for row in table.metrics.named.get(metric or "", ()))


def losses_by_document(
    metrics: MeasuredValues, runs: Sequence[RunRow], split: str, table: PlannedTable
) -> ByDocument:
    """Return the losses of runs by document; bits and bytes where variants differ in tokens."""
    rows = {
        (row.run, row.quantity, row.coordinates["split"]): row.samples
        for row in metrics
        if row.quantity in OF_DOCUMENTS
    }
    splits = ("validation", "test") if split == HELD_OUT else (split,)
    documents: dict[str, dict[int, NDArray[np.float64]]] = {}
    for run in runs:
        each = [[rows.get((run.id, quantity, of)) for of in splits] for quantity in OF_DOCUMENTS]
        if all(map(all, each)):
            both = [np.concatenate([np.asarray(part, float) for part in of]) for of in each]
            documents.setdefault(run.variant, {})[run.seed] = np.stack(both)
    return _in_bits(documents, table, split) if table.unit == BITS else documents


def _in_bits(documents: ByDocument, table: PlannedTable, split: str) -> ByDocument:
    """Return total bits in place of nats, and bytes in place of tokens.

    A document's share of the split's bytes is taken to be its share of the baseline's tokens. Runs
    that have other documents than the baseline's are left out.
    """
    base = next(iter(documents.get(table.baseline.id, {}).values()), None)
    if base is None:
        return {}
    bytes_f = table.text.size(split)[1] * base[1] / base[1].sum()
    return {
        variant: {
            seed: np.stack([nats_F / math.log(2), bytes_f])
            for seed, (nats_F, _) in of_seed.items()
            if len(nats_F) == len(bytes_f)
        }
        for variant, of_seed in documents.items()
    }


def text_error_of(
    weights: Mapping[int, Mapping[str, float]], documents: ByDocument
) -> StandardError | None:
    """Return the text's part of the error of a weighted sum of variants' losses, by seed.

    None where a variant has no losses by document for one of them, or other documents than the
    rest.
    """
    each = [[documents.get(v, {}).get(seed) for v in weights[seed]] for seed in sorted(weights)]
    known = [both for of_seed in each for both in of_seed if both is not None]
    if len(known) < sum(map(len, each)) or len({both[1].tobytes() for both in known}) != 1:
        return None
    tokens = known[0][1]
    if len(tokens) < 2:
        return None
    own = (np.array([*weights[seed].values()]) for seed in sorted(weights))
    nats = [np.array([both[0] for both in of_seed if both is not None]) for of_seed in each]
    return text_error([by @ of_seed for by, of_seed in zip(own, nats, strict=True)], tokens)


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores of the items in one run, with a hash of the items."""

    scores: NDArray[np.float64]
    fingerprint: str
    #: Whether a score is 1 where the item is right, and 0 or a share where it is not.
    is_accuracy: bool
    #: Group index of each item; None without groups.
    groups: NDArray[np.float64] | None


#: Answers by the name of the number, the variant's id, and the seed.
ByItem = Mapping[str, Mapping[str, Mapping[int, Answers]]]


def answers_by_item(metrics: MeasuredValues, runs: Sequence[RunRow]) -> ByItem:
    """Return the scores of each item in some runs, by the name of their mean."""
    seeds = {run.id: run.seed for run in runs}
    rows = [row for row in metrics if _TASK in row.coordinates and row.run in seeds]
    prints = {_of_task(r): str(r.coordinates[_PRINT]) for r in rows if _PRINT in r.coordinates}
    groups = {_of_task(r): np.array(r.samples, float) for r in rows if r.quantity == "groups"}
    found: dict[str, dict[str, dict[int, Answers]]] = {}
    for row in rows:
        if len(row.samples) > 1 and row.quantity != "groups":
            of = groups.get(_of_task(row))
            answers = Answers(
                np.array(row.samples, float),
                prints.get(_of_task(row), ""),
                row.quantity.startswith(_ACCURACY),
                of if of is not None and len(of) == len(row.samples) else None,
            )
            found.setdefault(row.name, {}).setdefault(row.variant, {})[seeds[row.run]] = answers
    return found


def _of_task(row: MetricRow) -> tuple[str, Coordinate]:
    return row.run, row.coordinates[_TASK]


def _of_items(
    answers: Sequence[Mapping[int, Answers]], seeds: Sequence[int]
) -> StandardError | None:
    """Return the error of a difference due to items; None without items.

    It is also None where the runs of different seeds have answered different items.
    """
    own, other = answers
    if not seeds or len({own[seed].fingerprint for seed in seeds}) > 1:
        return None
    one = own[seeds[0]]
    least = least_error(len(one.scores)) if one.is_accuracy else 0.0
    differences = np.array([own[seed].scores - other[seed].scores for seed in seeds])
    if one.groups is not None and len(set(one.groups)) > 1:
        differences = by_group(differences, one.groups)
    return item_error(differences, least=least)


def compare_speeds(own: Turns, base: Turns) -> Timing:
    """Compare two speeds turn by turn: their ratio, NaN where they have no turns in common."""
    turns = [*map(len, own)]
    if not own or turns != [*map(len, base)] or not all(v > 0 for v in chain(*own, *base)):
        return Timing(math.nan, math.nan, math.nan, 0, 0)
    return medians.ratio(own, base)


#: Difference of a variant that was not compared.
NO_DIFFERENCE = Difference(NOTHING, Ended.of(()), Ended.of(()))
