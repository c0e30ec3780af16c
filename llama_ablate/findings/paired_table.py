"""Table of an experiment, with its runs and values, and paired samples of two variants.

A table holds variants that are trained on one text and compared with one baseline. Runs of two
variants are paired by seed, timings by process. The error of a loss difference includes the error
from the finite held-out text, clustered by document; the error of an accuracy difference includes
the error from the finite set of task items.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llama_ablate.config import margins
from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence import (
    Difference,
    Ended,
    Interval,
    StandardError,
    Standing,
    bound_bias,
)
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings import tuning
from llama_ablate.findings.outcomes import Curves
from llama_ablate.findings.rows import grouped
from llama_ablate.findings.tuning import SPLITS
from llama_ablate.findings.values import (
    CLEARLY_BELOW,
    UNSTABLE,
    AttemptRow,
    MeasuredValues,
    MetricRow,
    RunRow,
)
from llama_ablate.results.plan_document import BITS, HELD_OUT, PlannedTable, Unit
from llama_ablate.results.record import TRAINING, Coordinate

#: Values of a variant by seed, or medians by process of an interleaved timing pass.
Samples = Mapping[int, float]
#: Total nats and predicted tokens of each text cluster of a split, (2, clusters), by variant id and
#: seed; total bits and bytes if variants have tokenizers of their own.
ByDocument = Mapping[str, Mapping[int, NDArray[np.float64]]]
#: Names of the quantities that store losses by document.
DOCUMENT_QUANTITIES = ("loss_by_document", "tokens_by_document")
_ACCURACY = "accuracy"
_TASK, _PRINT = "task", "fingerprint"  # names of coordinates
_VALIDATION = "validation_loss_nats"


@dataclass(frozen=True)
class Paired:
    """Paired samples of two variants, with the standard error from held-out texts or task items."""

    own: Samples = field(default_factory=dict)
    other: Samples = field(default_factory=dict)
    error: StandardError | None = None
    #: Whether both values were counted, so that their difference has no error.
    is_exact: bool = False
    #: Whether the numbers are shares of items.
    is_share: bool = False
    #: Reason why the samples cannot be compared; empty if they can.
    why_not: str = ""

    @property
    def is_equal(self) -> bool:
        """Equality: true if both variants have the same number in every pair."""
        return self.own == self.other

    def differences(self, *, relative: bool = False) -> list[float]:
        """Return the paired differences; if `relative`, log ratios of positive values."""
        both = [(value, self.other[key]) for key, value in self.own.items()]
        if relative:
            return [math.log(value / other) for value, other in both if value > 0 and other > 0]
        return [value - other for value, other in both]


@dataclass(frozen=True, eq=False)
class Answers:
    """Item scores of a task in one run, with a hash of the items."""

    scores: NDArray[np.float64]
    fingerprint: str
    #: Whether the scores are accuracies: 1 for a right answer, 0 or a share for a wrong answer.
    is_accuracy: bool
    #: Group index of each item; None without groups.
    groups: NDArray[np.float64] | None


#: Answers by metric name, variant id and seed.
ByItem = Mapping[str, Mapping[str, Mapping[int, Answers]]]


@dataclass(frozen=True, eq=False)
class PairedTable(ABC):
    """Table of an experiment: its runs, its measured values, and paired samples."""

    plan: PlannedTable
    experiment: Experiment
    planned: Sequence[RunRow]
    metrics: MeasuredValues
    attempts: Sequence[AttemptRow]
    #: Hardware and software of each run with a record, one row for each run.
    machines: pd.DataFrame
    #: Function that returns the learning curve of a run, by its id.
    curve: Curves
    #: Labels of variants in hypotheses that are about no row of the comparison.
    asked: Collection[str]
    #: Two-sided error level that the intervals of the comparison's rows share.
    level: float = field(default=ALPHA, kw_only=True)

    @property
    def margin(self) -> float | None:
        """Equivalence margin in the table's unit; None if the experiment states no margin."""
        return margins.loss_margin(self.experiment.margin)

    @cached_property
    def has_learned(self) -> bool:
        """Learning status: true if some variant's loss is clearly below the unigram loss.

        Variants with losses near the unigram loss are alike because they have learned no more than
        token frequencies.
        """
        gains = [
            run.number("unigram_loss_nats") - run.number(_VALIDATION)
            for run in self.planned
            if run.use == "reported" and run.outcome == "ok" and run.role != "positive"
        ]
        return not gains or not max(gains) < CLEARLY_BELOW  # NaN in records of older versions

    @property
    def equivalence(self) -> float | None:
        """Equivalence margin; None without a margin, or if no variant has learned the text."""
        return self.margin if self.has_learned else None

    @property
    def experiments(self) -> Mapping[str, str]:
        """Name of each variant's experiment, by variant id."""
        return dict.fromkeys((variant.id for variant in self.plan.variants), self.experiment.name)

    @cached_property
    def split(self) -> str:
        """Reported split: all held-out text, or test text if tuning used validation text."""
        return tuning.reported_split(self.planned)

    @property
    def split_name(self) -> str:
        """Name of the reported split for readers."""
        return "held-out" if self.split == HELD_OUT else self.split

    @property
    def unit(self) -> Unit:
        """Unit in which losses are compared."""
        return self.plan.unit

    @property
    def loss(self) -> str:
        """Name of the reported loss among a run's numbers."""
        return f"{self.split}_{self.unit.number}"

    @property
    def chance(self) -> float:
        """Loss of the baseline's model if all tokens were equally likely."""
        text = self.plan.text
        return math.log(text.vocab) * self.plan.scale(self.plan.baseline, self.split)

    @cached_property
    def mixes(self) -> bool:
        """Mixture status: true if any variant trains on a mixture of sources."""
        return any(variant.mixture for variant in self.plan.variants)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Names of all metrics measured on runs."""
        return frozenset(name for run in self.planned for name in run.numbers)

    @cached_property
    def at_point(self) -> Mapping[str, Mapping[int, RunRow]]:
        """Runs at the chosen tuning point of each variant, by variant id and seed.

        A tuning point is a combination of tuned values. A variant with unfinished tuning trials is
        left out.
        """
        unfinished = tuning.unfinished(self.planned)
        reported_runs = [
            r for r in self.planned if r.use == "reported" and r.variant not in unfinished
        ]
        return {
            variant: {run.seed: run for run in runs}
            for variant, runs in grouped(reported_runs, lambda run: run.variant).items()
        }

    @property
    @abstractmethod
    def standings(self) -> Mapping[str, Standing[Difference]]:
        """Last look of each variant except the baseline, and difference there, by variant id.

        A look is an interim analysis at a fixed number of seeds.
        """

    @property
    @abstractmethod
    def marked_runs(self) -> Sequence[RunRow]:
        """All planned runs, each marked with its use at the current stage."""

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Interval of each variant's difference from the baseline, by id."""
        return {id_: standing.row.interval for id_, standing in self.standings.items()}

    @property
    def kept_variants(self) -> set[str]:
        """Ids of the variants that run with all seeds and never stop early."""
        variants = [v for v in self.plan.variants if not v.role]
        if self.experiment.guard or self.plan.baseline.levels:
            return {variant.id for variant in variants}
        return {variant.id for variant in variants if variant.label in self.asked}

    @cached_property
    def runs(self) -> Sequence[RunRow]:
        """Planned runs that the table still needs, and runs that have ended."""
        return [run for run in self.marked_runs if run.is_needed or run.outcome != "pending"]

    @cached_property
    def reported(self) -> Sequence[RunRow]:
        """Runs that the comparison reports: up to the variant's last look, at its tuning point."""
        return [run for run in self.runs if run.is_reported]

    @cached_property
    def ranked(self) -> Sequence[RunRow]:
        """Reported runs of variants whose tuning trials have all ended."""
        return [run for run in self.reported if run.variant in self.at_point]

    def ended_of(self, variant: str) -> Ended:
        """Count the outcomes of a variant's reported runs, given its id."""
        return Ended.of(run.ended for run in self.reported if run.variant == variant)

    @cached_property
    def losses(self) -> dict[str, dict[int, float]]:
        """Reported losses of ranked runs with the outcome `ok`, by variant id and seed."""
        losses: dict[str, dict[int, float]] = {variant.id: {} for variant in self.plan.variants}
        for run in self.ranked:
            if run.outcome == "ok" and math.isfinite(loss := run.number(self.loss)):
                losses[run.variant][run.seed] = loss
        return losses

    def pair(
        self, metric: str, variant: str, against: str, seeds: Collection[int] | None = None
    ) -> Paired:
        """Pair a metric of two variants, by seed or by timing process."""
        own_samples, other = samples(self, variant, metric), samples(self, against, metric)
        shared = [key for key in own_samples if key in other and (seeds is None or key in seeds)]
        answers = [self.answers.get(metric, {}).get(id_, {}) for id_ in (variant, against)]
        why_not = ""
        if is_task := bool(answers[0] or answers[1]):
            prints = {s: {of[s].fingerprint for of in answers if s in of} for s in shared}
            alike = [seed for seed in shared if len(prints[seed]) == 1]
            if len(alike) < len(shared):
                why_not = "the runs have answered other items"
            shared = alike
        counted = self.metrics.named.get(metric, ())
        is_exact = not any(row.run or row.samples for row in counted)
        error = _item_error(answers, shared) if is_task else None
        if shared and (split := loss_split(self, metric)):
            weights = {variant: 1.0, against: -1.0}
            error = text_error_of(dict.fromkeys(shared, weights), self.documents(split))
        return Paired(
            {key: own_samples[key] for key in shared},
            {key: other[key] for key in shared},
            error if error and error.se > 0 else None,
            bool(counted) and is_exact,
            any(scored.is_accuracy for of in answers for scored in of.values()),
            why_not,
        )

    def documents(self, split: str) -> ByDocument:
        """Return the losses on a split by document, by variant id and seed."""
        if split not in self._documents:
            runs = [run for run in self.planned if run.use == "reported"]
            self._documents[split] = losses_by_document(self.metrics, runs, split, self.plan)
        return self._documents[split]

    @cached_property
    def _documents(self) -> dict[str, ByDocument]:
        return {}

    @cached_property
    def answers(self) -> ByItem:
        """Item scores of all tasks in the runs that ended ok."""
        ended = [run for by_seed in self.at_point.values() for run in by_seed.values()]
        return answers_by_item(self.metrics, [run for run in ended if run.outcome == "ok"])

    @cached_property
    def bias(self) -> tuple[float, float] | None:
        """Interval of the possible bias of all variants; None without a repeated baseline."""
        base = self.plan.baseline.id
        repeated = [self.pair(self.loss, id_, base) for id_ in self.plan.repeated]
        return bound_bias(
            [difference for samples in repeated for difference in samples.differences()]
        )


def samples(table: PairedTable, variant: str, metric: str) -> Samples:
    """Return a variant's samples of a metric, by seed or by timing process.

    Diverged or collapsed runs count only for metrics that describe the training.
    """
    if metric not in table.numbers:
        named = table.metrics.named.get(metric, ())
        rows = [row for row in named if row.variant == variant and not row.run]
        turns = (rows[0].by_process or ((rows[0].value,),)) if rows else ()
        return dict(enumerate(map(median, turns)))
    counts = ("ok", *UNSTABLE) if describes_training(table, metric) else ("ok",)
    return {
        seed: value
        for seed, run in table.at_point.get(variant, {}).items()
        if run.outcome in counts and not math.isnan(value := run.number(metric))
    }


def loss_split(table: PairedTable, metric: str | None) -> str:
    """Return the split on which a loss metric is measured; "" for any other metric.

    The metric None is the reported loss. A loss in another unit than the table's counts as another
    metric.
    """
    return next((s for s in SPLITS if (metric or table.loss) == f"{s}_{table.unit.number}"), "")


def describes_training(table: PairedTable, metric: str) -> bool:
    """Return whether a metric describes training instead of the trained model."""
    rows = table.metrics.named.get(metric, ())
    return bool(rows) and all(row.metric == TRAINING for row in rows if row.run)


def is_timed(table: PairedTable, metric: str | None) -> bool:
    """Return whether a metric has samples from several processes, as speeds and times have."""
    return any(len(row.by_process) > 1 for row in table.metrics.named.get(metric or "", ()))


def losses_by_document(
    metrics: MeasuredValues, runs: Sequence[RunRow], split: str, table: PlannedTable
) -> ByDocument:
    """Return the losses of runs by document, by variant id and seed.

    Each array holds total nats and predicted tokens, (2, documents), or total bits and bytes if
    variants have different tokenizers.
    """
    rows = {
        (row.run, row.quantity, row.coordinates["split"]): row.samples
        for row in metrics
        if row.quantity in DOCUMENT_QUANTITIES
    }
    splits = ("validation", "test") if split == HELD_OUT else (split,)
    documents: dict[str, dict[int, NDArray[np.float64]]] = {}
    for run in runs:
        each = [
            [rows.get((run.id, quantity, of)) for of in splits] for quantity in DOCUMENT_QUANTITIES
        ]
        if all(map(all, each)):
            both = [np.concatenate([np.asarray(part, float) for part in of]) for of in each]
            documents.setdefault(run.variant, {})[run.seed] = np.stack(both)
    return _in_bits(documents, table, split) if table.unit == BITS else documents


def _in_bits(documents: ByDocument, table: PlannedTable, split: str) -> ByDocument:
    """Convert losses by document from nats and tokens to bits and bytes.

    A document's share of the split's bytes is approximated by its share of the baseline's tokens.
    Runs whose number of documents differs from the baseline's are left out.
    """
    base = next(iter(documents.get(table.baseline.id, {}).values()), None)
    if base is None:
        return {}
    bytes_f = table.text.size(split)[1] * base[1] / base[1].sum()
    return {
        variant: {
            seed: np.stack([nats_F / math.log(2), bytes_f])
            for seed, (nats_F, _) in by_seed.items()
            if len(nats_F) == len(bytes_f)
        }
        for variant, by_seed in documents.items()
    }


def text_error_of(
    weights: Mapping[int, Mapping[str, float]], documents: ByDocument
) -> StandardError | None:
    """Compute the standard error from held-out text for a weighted sum of losses.

    `weights` maps each seed to the variants' weights by variant id. Return None if a variant lacks
    losses by document for a seed, if runs have different documents, and for fewer than two
    documents.
    """
    each = [[documents.get(v, {}).get(seed) for v in weights[seed]] for seed in sorted(weights)]
    pairs = [both for row in each for both in row if both is not None]
    if len(pairs) < sum(map(len, each)) or len({both[1].tobytes() for both in pairs}) != 1:
        return None
    tokens = pairs[0][1]
    if len(tokens) < 2:
        return None
    weight_rows = (np.array([*weights[seed].values()]) for seed in sorted(weights))
    nats = [np.array([both[0] for both in row if both is not None]) for row in each]
    return text_error([by @ row for by, row in zip(weight_rows, nats, strict=True)], tokens)


def answers_by_item(metrics: MeasuredValues, runs: Sequence[RunRow]) -> ByItem:
    """Return the item scores of runs, by metric name, variant id and seed."""
    seeds = {run.id: run.seed for run in runs}
    rows = [row for row in metrics if _TASK in row.coordinates and row.run in seeds]
    prints = {_task_key(r): str(r.coordinates[_PRINT]) for r in rows if _PRINT in r.coordinates}
    groups = {_task_key(r): np.array(r.samples, float) for r in rows if r.quantity == "groups"}
    by_item: dict[str, dict[str, dict[int, Answers]]] = {}
    for row in rows:
        if len(row.samples) > 1 and row.quantity != "groups":
            of = groups.get(_task_key(row))
            answers = Answers(
                np.array(row.samples, float),
                prints.get(_task_key(row), ""),
                row.quantity.startswith(_ACCURACY),
                of if of is not None and len(of) == len(row.samples) else None,
            )
            by_item.setdefault(row.name, {}).setdefault(row.variant, {})[seeds[row.run]] = answers
    return by_item


def _task_key(row: MetricRow) -> tuple[str, Coordinate]:
    return row.run, row.coordinates[_TASK]


def _item_error(
    answers: Sequence[Mapping[int, Answers]], seeds: Sequence[int]
) -> StandardError | None:
    """Return the standard error of a score difference due to the choice of items.

    Return None without seeds, and if runs of different seeds answered different items.
    """
    own_answers, other = answers
    if not seeds or len({own_answers[seed].fingerprint for seed in seeds}) > 1:
        return None
    first = own_answers[seeds[0]]
    least = least_error(len(first.scores)) if first.is_accuracy else 0.0
    differences = np.array([own_answers[seed].scores - other[seed].scores for seed in seeds])
    if first.groups is not None and len(set(first.groups)) > 1:
        differences = by_group(differences, first.groups)
    return item_error(differences, least=least)
