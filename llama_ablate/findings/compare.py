"""Comparison of pairs of variants: paired differences of a metric, with intervals and counts.

This module compares losses, tasks, guards, hypotheses, path steps and training lengths. Runs of two
variants are paired by seed, timings by process. The error of a loss difference includes the error
from the finite held-out text, clustered by document; the error of an accuracy difference includes
the error from the finite set of task items. A counted number, such as the bytes of a KV cache, has
no error.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from llama_ablate.evidence.intervals import (
    ALPHA,
    NO_BIAS,
    NOTHING,
    Array,
    bound_bias,
    scale_ends,
    simultaneous,
    widen,
)
from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.evidence.rates import compare_rates
from llama_ablate.evidence.text_error import StandardError, text_error
from llama_ablate.evidence.verdicts import SIDES, count_sides
from llama_ablate.findings.columns import iterate
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.table import HELD_OUT_SPLITS, SPLITS, Table, once
from llama_ablate.findings.tuning import unfinished
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import BITS, HELD_OUT
from llama_ablate.results.record import TRAINING

#: Ids of a variant and of the variant with which it is compared.
Pair = tuple[str, str]
#: Total nats and predicted tokens of each text cluster of a split, (2, clusters), by variant id and
#: seed; total bits and bytes if variants have tokenizers of their own.
Documents = Mapping[tuple[str, int], Array]
#: Values of a metric by variant id, and by seed or timing process.
Samples = Mapping[str, Mapping[int, float]]
#: Names of the quantities that store losses by document.
DOCUMENT_QUANTITIES = ("loss_by_document", "tokens_by_document")
#: Row of a variant that was not compared.
NOT_COMPARED = {**NOTHING, **dict.fromkeys(SIDES, 0), "why_not": ""}
_OTHER_ITEMS = "the runs have answered other items"


class Paired(NamedTuple):
    """Paired samples of two variants, with the standard error from held-out texts or task items."""

    first: dict[int, float]
    second: dict[int, float]
    error: StandardError | None = None
    #: Whether the numbers are shares of items.
    is_share: bool = False
    #: Reason why the samples cannot be compared; empty if they can.
    why_not: str = ""

    @property
    def differences(self) -> dict[int, float]:
        """Paired differences by seed or process."""
        return {key: value - self.second[key] for key, value in self.first.items()}


_NO_ERROR = StandardError(math.nan, math.nan)


@once
def find_comparable(table: Table) -> pd.DataFrame:
    """Return the runs at the chosen tuning point of each variant that has finished its trials."""
    runs = table.planned
    return runs[runs["use"].eq("reported") & ~runs["variant"].isin(unfinished(runs))]


@once
def find_samples(table: Table, metric: str) -> Samples:
    """Return a metric by variant id and seed, or by variant id and timing process.

    Diverged or collapsed runs count only for metrics that describe the training.
    """
    if metric not in table.planned:
        named = table.measured[table.measured["name"].eq(metric) & table.measured["run"].eq("")]
        return {
            row.variant: dict(enumerate(map(median, row.turns or ((row.value,),))))
            for row in iterate(named.iloc[::-1])
        }
    counted = ("ok", *UNSTABLE) if describes_training(table, metric) else ("ok",)
    runs = find_comparable(table)
    runs = runs[runs["outcome"].isin(counted)].dropna(subset=metric)
    return _list_by_seed(runs, metric)


@once
def find_losses(table: Table) -> Samples:
    """Return the reported losses by variant id and seed."""
    runs, none = find_comparable(table), pd.Series(dtype=float)
    is_known = np.isfinite(runs.get(table.loss, none).reindex(runs.index).astype(float))
    return _list_by_seed(runs[is_known & runs["outcome"].eq("ok")], table.loss)


def _list_by_seed(runs: pd.DataFrame, column: str) -> dict[str, dict[int, Any]]:
    """Return a column of runs by variant id and seed."""
    by_seed: dict[str, dict[int, Any]] = {}
    rows = zip(runs["variant"], runs["seed"], runs.get(column, ()), strict=False)
    for variant, seed, value in rows:
        by_seed.setdefault(variant, {})[seed] = value
    return by_seed


def loss_split(table: Table, metric: str | None) -> str:
    """Return the split on which a loss metric is measured; "" for any other metric.

    The metric None is the reported loss. A loss in another unit than the table's counts as another
    metric.
    """
    return next((s for s in SPLITS if (metric or table.loss) == f"{s}_{table.unit.number}"), "")


@once
def describes_training(table: Table, metric: str) -> bool:
    """Return whether a metric describes training instead of the trained model."""
    named = table.measured[table.measured["name"].eq(metric)]
    run_metrics = named.loc[named["run"].ne(""), "metric"]
    return len(named) > 0 and bool(run_metrics.eq(TRAINING).all())


def compare(
    table: Table,
    metric: str,
    pairs: Sequence[Pair],
    family: float | None = None,
    *,
    relative: bool = False,
    seeds: Mapping[str, Collection[int]] | None = None,
    shares: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Compare a metric of pairs of variants, with simultaneous intervals.

    `family` is the number of comparisons that share the error level, by default the number of
    pairs. If `relative`, values are compared by the logarithms of their ratios. `seeds` lists the
    seeds to include by variant id, `shares` the fraction of its error level that a row uses. The
    interval of a loss difference from the baseline is widened by the bias bound of the repeated
    baseline, which is the baseline trained again under another name. For the metrics `diverged` and
    `collapsed`, each variant's share of finished runs with this outcome is compared.

    Returns a row for each pair, with the pair as index: the columns of `NOTHING`, the outcomes of
    both sides (`SIDES`), and in `why_not` why they cannot be compared.
    """
    size, chosen = len(pairs) if family is None else family, seeds or {}
    index = pd.MultiIndex.from_tuples(pairs, names=["variant", "against"])
    counts = _count_sides(table, pairs, chosen)
    if metric in UNSTABLE:
        rates = [_compare_lost(table, metric, pair, ALPHA / size) for pair in pairs]
        return pd.DataFrame(rates, index).join(counts.set_axis(index)).assign(why_not="")
    samples = [_pair_samples(table, metric, pair, chosen.get(pair[0])) for pair in pairs]
    if relative:
        samples = [_take_logarithms(of) for of in samples]
    # A repeated baseline that is equal bit for bit has no error, on any text.
    is_equal = [
        a in table.plan.repeated and of.first == of.second
        for (a, _), of in zip(pairs, samples, strict=True)
    ]
    errors = [
        _NO_ERROR if equal or not of.error else of.error
        for equal, of in zip(is_equal, samples, strict=True)
    ]
    rows = simultaneous(
        pd.DataFrame([of.differences for of in samples], dtype=float).set_axis(index),
        pd.DataFrame([(error.se, error.df) for error in errors], index, columns=["se", "df"]),
        family=size,
        shares=[(shares or {}).get(variant, 1.0) for variant, _ in pairs],
    )
    if _is_counted(table, metric):
        rows = rows.assign(low=rows["mean"], high=rows["mean"])
    elif any(of.is_share for of in samples):  # relative differences are no shares
        rows = rows.assign(low=rows["low"].clip(lower=-1), high=rows["high"].clip(upper=1))
    elif loss_split(table, metric):
        rows = _widen_by_bias(table, rows)
    return rows.join(counts.set_axis(index)).assign(why_not=[of.why_not for of in samples])


def _pair_samples(
    table: Table, metric: str, pair: Pair, seeds: Collection[int] | None = None
) -> Paired:
    """Pair a metric of two variants, by seed or by timing process.

    A union pairs within each experiment that has both variants; a seed of several experiments
    counts once, with the values of the first.
    """
    parts = [part for part in table.parts if {*pair} <= {v.id for v in part.plan.variants}]
    if len(parts) == 1:
        return _pair_samples(parts[0], metric, pair, seeds)
    first, second = dict[int, float](), dict[int, float]()
    for part in reversed(parts or [table]):
        samples = find_samples(part, metric)
        a, b = (samples.get(id_, {}) for id_ in pair)
        shared = [key for key in a if key in b and (seeds is None or key in seeds)]
        first |= {key: a[key] for key in shared}
        second |= {key: b[key] for key in shared}
    answers = find_answers(table, metric)
    if any(id_ in answers for id_ in pair):
        return _pair_answers(answers, pair, first, second)
    error = None
    if first and (split := loss_split(table, metric)):
        weights = {pair[0]: 1.0, pair[1]: -1.0}
        error = find_text_error(dict.fromkeys(first, weights), find_documents(table, split))
        error = error if error and error.se > 0 else None
    return Paired(first, second, error)


def _take_logarithms(paired: Paired) -> Paired:
    """Return the logarithms of paired samples, without pairs that are not both above 0.

    The standard error is divided by the mean of the second variant.
    """
    keys = [key for key, value in paired.first.items() if value > 0 and paired.second[key] > 0]
    first, second = ({key: of[key] for key in keys} for of in (paired.first, paired.second))
    error = paired.error if keys else None
    if error:
        error = replace(error, se=error.se / fmean(second.values()))
    logs = [{key: math.log(value) for key, value in of.items()} for of in (first, second)]
    return Paired(logs[0], logs[1], error, why_not=paired.why_not)


def _is_counted(table: Table, metric: str) -> bool:
    """Return whether a metric is a counted number of variants, whose difference has no error."""
    named = table.measured[table.measured["name"].eq(metric)]
    return len(named) > 0 and not (named["run"].ne("") | named["samples"].map(len).gt(0)).any()


@once
def _list_ended(table: Table) -> dict[str, dict[int, Any]]:
    """Return how the comparable runs ended, by variant id and seed."""
    return _list_by_seed(find_comparable(table), "ended")


def _count_sides(
    table: Table, pairs: Sequence[Pair], seeds: Mapping[str, Collection[int]]
) -> pd.DataFrame:
    """Count the outcomes of both sides of each pair over their common seeds."""
    ended, rows = _list_ended(table), []
    for pair in pairs:
        first, second = (ended.get(id_, {}) for id_ in pair)
        chosen = seeds.get(pair[0], first)
        both = [seed for seed in first if seed in second and seed in chosen]
        rows.append(count_sides([first[s] for s in both], [second[s] for s in both]))
    return pd.DataFrame(rows, columns=[*SIDES])


def _compare_lost(table: Table, outcome: str, pair: Pair, level: float) -> dict[str, Any]:
    """Compare two variants' shares of finished runs with an outcome, at every tuning point."""
    finished = table.planned[table.planned["outcome"].isin(FINAL)]
    ends = (finished.loc[finished["variant"].eq(id_), "outcome"] for id_ in pair)
    first, second = ((int(of.eq(outcome).sum()), len(of)) for of in ends)
    return compare_rates(first, second, level)


@once
def find_bias(table: Table) -> tuple[float, float] | None:
    """Return the interval of the possible bias of all variants; None without repeated baseline."""
    pairs = [_pair_samples(table, table.loss, (id_, table.base)) for id_ in table.plan.repeated]
    return bound_bias([value for pair in pairs for value in pair.differences.values()])


def _widen_by_bias(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Widen differences between the baseline and a variant by the bias that all variants share."""
    ends = find_bias(table) or NO_BIAS
    if ends == NO_BIAS:
        return rows
    signs = [
        (against == table.base) - (variant == table.base)
        if {variant, against}.isdisjoint(table.plan.repeated)
        else 0
        for variant, against in rows.index
    ]
    parts = [widen(rows[np.equal(signs, sign)], scale_ends(ends, sign)) for sign in {*signs}]
    return pd.concat(parts).loc[rows.index]


def pair_differences(table: Table, runs: pd.DataFrame) -> dict[str, list[float]]:
    """Return each variant's paired loss differences from the baseline, of reported runs."""
    reported = runs[runs["use"].eq("reported")]
    seeds = reported.groupby("variant")["seed"].agg(list).to_dict()
    return {
        variant.label: [
            *_pair_samples(
                table, table.loss, (variant.id, table.base), seeds.get(variant.id, [])
            ).differences.values()
        ]
        for variant in table.plan.variants
        if not variant.baseline
    }


# ---- errors from held-out texts and from task items


@once
def find_documents(table: Table, split: str) -> Documents:
    """Return the losses of runs on a split by document.

    Each array holds total nats and predicted tokens, (2, documents), or total bits and bytes if
    variants have different tokenizers.
    """
    stored = table.measured[table.measured["quantity"].isin(DOCUMENT_QUANTITIES)]
    rows = {(row.run, row.quantity, row.split): row.samples for row in iterate(stored)}
    splits = HELD_OUT_SPLITS if split == HELD_OUT else (split,)
    documents: dict[tuple[str, int], Array] = {}
    runs = table.planned[table.planned["use"].eq("reported")]
    for run in iterate(runs) if rows else ():
        each = [[rows.get((run.id, q, of), ()) for of in splits] for q in DOCUMENT_QUANTITIES]
        if all(len(part) for of in each for part in of):
            both = [np.concatenate([np.asarray(part, float) for part in of]) for of in each]
            documents[run.variant, run.seed] = np.stack(both)
    return _convert_to_bits(table, split, documents) if table.unit == BITS else documents


def _convert_to_bits(table: Table, split: str, documents: Documents) -> Documents:
    """Convert losses by document from nats and tokens to bits and bytes.

    A document's share of the split's bytes is approximated by its share of the baseline's tokens.
    Runs whose number of documents differs from the baseline's are left out.
    """
    base = next((of for (variant, _), of in documents.items() if variant == table.base), None)
    if base is None:
        return {}
    bytes_f = table.plan.text.size(split)[1] * base[1] / base[1].sum()
    return {
        key: np.stack([nats_f / math.log(2), bytes_f])
        for key, (nats_f, _) in documents.items()
        if len(nats_f) == len(bytes_f)
    }


def find_text_error(
    weights: Mapping[int, Mapping[str, float]], documents: Documents
) -> StandardError | None:
    """Compute the standard error from held-out text for a weighted sum of losses.

    `weights` maps each seed to the variants' weights by variant id. Return None if a variant lacks
    losses by document for a seed, if runs have different documents, and for fewer than two
    documents.
    """
    each = [[documents.get((v, seed)) for v in weights[seed]] for seed in sorted(weights)]
    stored = [both for row in each for both in row if both is not None]
    if len(stored) < sum(map(len, each)) or len({both[1].tobytes() for both in stored}) != 1:
        return None
    tokens = stored[0][1]
    if len(tokens) < 2:
        return None
    weight_rows = (np.array([*weights[seed].values()]) for seed in sorted(weights))
    nats = [np.array([both[0] for both in row if both is not None]) for row in each]
    return text_error([by @ row for by, row in zip(weight_rows, nats, strict=True)], tokens)


class Answers(NamedTuple):
    """Item scores of a task in one run, with a hash of the items."""

    scores: Array
    fingerprint: str
    #: Whether the scores are accuracies: 1 for a right answer, 0 or a share for a wrong answer.
    is_accuracy: bool
    #: Group index of each item; empty without groups.
    groups: Array


@once
def find_answers(table: Table, metric: str) -> Mapping[str, Mapping[int, Answers]]:
    """Return the item scores of a task's metric by variant id and seed, of runs that ended ok."""
    runs = find_comparable(table)
    seeds = runs[runs["outcome"].eq("ok")].set_index("id")["seed"].to_dict()
    values = table.measured
    rows = values[values["name"].eq(metric) & values["task"].notna() & values["run"].isin(seeds)]
    rows = rows[rows["samples"].map(len).gt(1) & rows["quantity"].ne("groups")]
    if rows.empty:
        return {}
    task_rows = values[values["task"].eq(rows["task"].iloc[0])]
    prints = task_rows.dropna(subset="fingerprint").set_index("run")["fingerprint"].to_dict()
    groups = task_rows[task_rows["quantity"].eq("groups")].set_index("run")["samples"].to_dict()
    answers: dict[str, dict[int, Answers]] = {}
    for row in iterate(rows):
        of = np.array(groups.get(row.run, ()), float)
        answers.setdefault(row.variant, {})[seeds[row.run]] = Answers(
            np.array(row.samples, float),
            str(prints.get(row.run, "")),
            row.quantity.startswith("accuracy"),
            of if len(of) == len(row.samples) else of[:0],
        )
    return answers


def _pair_answers(
    answers: Mapping[str, Mapping[int, Answers]],
    pair: Pair,
    first: Mapping[int, float],
    second: Mapping[int, float],
) -> Paired:
    """Pair the scores of runs that answered the same items, with the error from the items."""
    pair_answers = answers.get(pair[0], {}), answers.get(pair[1], {})
    prints = {s: {of[s].fingerprint for of in pair_answers if s in of} for s in first}
    alike = [seed for seed in first if len(prints[seed]) == 1]
    is_share = any(scored.is_accuracy for of in pair_answers for scored in of.values())
    return Paired(
        {seed: first[seed] for seed in alike},
        {seed: second[seed] for seed in alike},
        _find_item_error(*pair_answers, alike),
        is_share,
        "" if len(alike) == len(first) else _OTHER_ITEMS,
    )


def _find_item_error(
    first: Mapping[int, Answers], second: Mapping[int, Answers], seeds: Sequence[int]
) -> StandardError | None:
    """Return the standard error of a score difference due to the choice of items.

    Return None without seeds, and if runs of different seeds answered different items.
    """
    if not seeds or len({first[seed].fingerprint for seed in seeds}) > 1:
        return None
    answers = first[seeds[0]]
    least = least_error(len(answers.scores)) if answers.is_accuracy else 0.0
    differences = np.array([first[seed].scores - second[seed].scores for seed in seeds])
    if len({*answers.groups}) > 1:
        differences = by_group(differences, answers.groups)
    error = item_error(differences, least=least)
    return error if error.se > 0 else None
