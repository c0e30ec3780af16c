"""Held-out text: how much of it there is, and what it adds to the error of every difference."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llama_ablate.evidence import Interval, verdict
from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.text_error import LEAST_DF, StandardError, text_error
from llama_ablate.findings.comparison import Losses
from llama_ablate.results.plan_document import HELD_OUT, PlannedTable, PlannedText
from llama_ablate.results.record import Measurement, Value

#: Total nats and predicted tokens of each cluster of a split (total bits and bytes where variants
#: differ in their tokens), (2, clusters), by variant's id and by seed.
ByDocument = Mapping[str, Mapping[int, NDArray[np.float64]]]
#: Quantities of the losses by document.
OF_DOCUMENTS = ("loss_by_document", "tokens_by_document")
_SPLIT = (
    "split",
    "documents",
    "bytes",
    "tokens",
    "clusters",
    "cluster",
    "share_low",
    "share_high",
)
#: The splits that are one text where nothing was chosen by the loss on one of them.
_PARTS = ("validation", "test")
#: What a mean over two texts weighs those of each by, and what makes its error.
_OF_TOKENS = ("loss", "floor", "excess_loss", "skill_accuracy")
_ERRORS = ("loss_se", "excess_loss_se")


def pooled(metrics: Mapping[str, Measurement], text: PlannedText) -> dict[str, Measurement]:
    """Return a run's metrics with its losses on validation and test text as on one split, too.

    The two are disjoint texts of one distribution: where nothing was chosen by the loss on one, an
    experiment has both to report.
    """
    if not text.tokens.keys() >= {*_PARTS}:
        return dict(metrics)
    return {
        name: replace(measured, rows=(*measured.rows, *_pooled(measured.rows, text)))
        for name, measured in metrics.items()
    }


def _pooled(rows: Sequence[Value], text: PlannedText) -> Iterator[Value]:
    """Yield the means over both splits of what was measured on each, by tokens or by bytes."""
    by_name = {row.name: row for row in rows}
    tokens, size = (np.array([text.size(part)[i] for part in _PARTS], float) for i in (0, 1))
    predicted = [by_name.get(f"{part}_predicted_tokens") for part in _PARTS]
    if all(predicted):
        tokens = np.array([row.value for row in predicted if row])
    for test in rows:
        own = by_name.get(test.name.replace("test", "validation", 1))
        if test.coordinates.get("split") != "test" or own is None:
            continue
        values = np.array([own.value, test.value])
        if test.quantity in _OF_TOKENS:
            value = np.average(values, weights=tokens)
        elif test.quantity == "bits_per_byte":
            value = np.average(values, weights=size)
        elif test.quantity == "perplexity":
            value = np.exp(np.average(np.log(values), weights=tokens))
        elif test.quantity in _ERRORS:
            value = np.linalg.norm(values * tokens) / tokens.sum()
        else:
            continue
        yield replace(
            test,
            name=test.name.replace("test", HELD_OUT, 1),
            value=float(value),
            coordinates=dict(test.coordinates) | {"split": HELD_OUT},
        )


def by_document(metrics: pd.DataFrame, runs: pd.DataFrame, split: str) -> ByDocument:
    """Return the losses of some runs by document, but for those of records of older versions."""
    kept = metrics[metrics["quantity"].isin(OF_DOCUMENTS) & metrics["run"].isin(runs["id"])]
    columns = (kept[column] for column in ("run", "quantity", "coordinates", "samples"))
    rows: dict[tuple[str, str, str], Sequence[float]] = {
        (run, quantity, where["split"]): samples
        for run, quantity, where, samples in zip(*columns, strict=True)
    }
    splits = _PARTS if split == HELD_OUT else (split,)
    documents: dict[str, dict[int, NDArray[np.float64]]] = {}
    for run, variant, seed in zip(runs["id"], runs["variant"], runs["seed"], strict=True):
        each = [[rows.get((run, quantity, of)) for of in splits] for quantity in OF_DOCUMENTS]
        if all(map(all, each)):
            both = [np.concatenate([np.asarray(part, float) for part in of]) for of in each]
            documents.setdefault(variant, {})[int(seed)] = np.stack(both)
    return documents


def in_bits(documents: ByDocument, table: PlannedTable, split: str) -> ByDocument:
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


def text_errors(documents: ByDocument, losses: Losses, against: str) -> dict[str, StandardError]:
    """Return the text's part of the error of each variant's difference from another, by id.

    Over the seeds that both have in `losses`. A variant is left out where one of those has no
    losses by document, or other documents than the rest.
    """
    errors = {}
    for variant, own in losses.items():
        if variant == against or not (seeds := own.keys() & losses.get(against, {}).keys()):
            continue
        error = text_error_of({variant: 1.0, against: -1.0}, documents, sorted(seeds))
        if error is not None:
            errors[variant] = error
    return errors


def text_error_of(
    weights: Mapping[str, float], documents: ByDocument, seeds: Sequence[int]
) -> StandardError | None:
    """Return the text's part of the error of a weighted sum of variants' losses over some seeds.

    None where a variant has no losses by document for one of them, or other documents than the
    rest.
    """
    each = [[documents.get(variant, {}).get(seed) for variant in weights] for seed in seeds]
    every = [both for of_seed in each for both in of_seed if both is not None]
    if len(every) < len(seeds) * len(weights) or len({both[1].tobytes() for both in every}) > 1:
        return None
    tokens = every[0][1]
    if len(tokens) < 2:
        return None
    nats = np.reshape([both[0] for both in every], (len(seeds), len(weights), len(tokens)))
    return text_error(np.einsum("v,svf->sf", list(weights.values()), nats), tokens)


def by_text_alone(row: Interval, margin: float | None) -> float:
    """Return the half width that a row has of the text alone, were there seeds without end.

    NaN where it is decided, where seeds could still decide it, and where the text's part is unknown
    or 0.
    """
    if verdict(row, margin) != "inconclusive" or not row.text_se > 0:
        return math.nan
    half = quantile(1 - row.alpha / 2, max(row.text_df, row.seed_df, LEAST_DF)) * row.text_se
    at_best = replace(row, low=row.mean - half, high=row.mean + half)
    return half if verdict(at_best, margin) == "inconclusive" else math.nan


def splits(
    table: PlannedTable, metrics: pd.DataFrame, comparison: pd.DataFrame, split: str
) -> pd.DataFrame:
    """Return one row for each held-out split of a table: its size and its part of the error.

    Columns: `split, documents, bytes, tokens, clusters, cluster, share_low, share_high`. Documents
    are 0 where the plan does not tell; a split has clusters where its losses were measured by
    document. The shares are the least and the most that the text has of the variance of the
    differences, for the `split` that is reported; NaN for others. Empty where no losses were stored
    by document: the intervals have no part of the text's then.
    """
    kept = metrics[metrics["quantity"] == OF_DOCUMENTS[0]]
    clustered = {
        where["split"]: (len(samples), where["cluster"])
        for where, samples in zip(kept["coordinates"], kept["samples"], strict=True)
        if {"split", "cluster"} <= where.keys()
    }
    if not clustered:
        return pd.DataFrame()
    if is_one := split == HELD_OUT:
        parts = [clustered.get(part, (0, "")) for part in _PARTS]
        kind = parts[0][1] if parts[0][1] == parts[1][1] else "clusters"
        clustered[split] = (sum(count for count, _ in parts), kind)
    shares = {split: _shares(comparison)}
    rows = []
    for name in [*(of for of in table.text.tokens if of != "train"), *[split] * is_one]:
        tokens, size, documents = table.text.size(name)
        of_variance = shares.get(name, (math.nan, math.nan))
        row = (name, documents, size, tokens, *clustered.get(name, (0, "")), *of_variance)
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_SPLIT))


def _shares(comparison: pd.DataFrame) -> tuple[float, float]:
    """Return the least and the most that the text has of the variance of a difference."""
    total = comparison["seed_se"] ** 2 + comparison["text_se"] ** 2
    shares = (comparison["text_se"] ** 2 / total)[total > 0]
    return float(shares.min()), float(shares.max())
