"""Held-out text: how much of it there is, and what it adds to the error of every difference."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence import Interval, verdict
from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.text_error import LEAST_DF, StandardError, text_error
from llama_ablate.findings.comparison import Losses
from llama_ablate.findings.rows import ComparisonRow, MeasuredValues, Row, RunRow, cell, column
from llama_ablate.results.plan_document import HELD_OUT, PlannedTable, PlannedText
from llama_ablate.results.record import Measurement, Value
from llama_ablate.terminal import plural

#: Total nats and predicted tokens of each cluster of a split (total bits and bytes where variants
#: differ in their tokens), (2, clusters), by variant's id and by seed.
ByDocument = Mapping[str, Mapping[int, NDArray[np.float64]]]
#: Quantities of the losses by document.
OF_DOCUMENTS = ("loss_by_document", "tokens_by_document")
#: The splits that are one text where nothing was chosen by the loss on one of them.
_PARTS = ("validation", "test")
#: What a mean over two texts weighs those of each by, and what makes its error.
_OF_TOKENS = ("loss", "floor", "excess_loss")
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


def by_document(metrics: MeasuredValues, runs: Sequence[RunRow], split: str) -> ByDocument:
    """Return the losses of some runs by document, but for those of records of older versions."""
    rows = {
        (row.run, row.quantity, row.coordinates["split"]): row.samples
        for row in metrics
        if row.quantity in OF_DOCUMENTS
    }
    splits = _PARTS if split == HELD_OUT else (split,)
    documents: dict[str, dict[int, NDArray[np.float64]]] = {}
    for run in runs:
        each = [[rows.get((run.id, quantity, of)) for of in splits] for quantity in OF_DOCUMENTS]
        if all(map(all, each)):
            both = [np.concatenate([np.asarray(part, float) for part in of]) for of in each]
            documents.setdefault(run.variant, {})[run.seed] = np.stack(both)
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
        error = text_error_of({seed: {variant: 1.0, against: -1.0} for seed in seeds}, documents)
        if error is not None:
            errors[variant] = error
    return errors


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


@dataclass(frozen=True)
class SplitRow(Row):
    """A held-out split of a table."""

    text: str = column("name of the text, where tables have several", "text", optional=True)
    split: str = column("`validation`, `test`, or both as `held_out`")

    @cell("split")
    def named(self) -> str:
        """Write the split."""
        return "held-out" if self.split == HELD_OUT else self.split

    documents: int = column("number of its documents; 0 where the plan does not tell")
    bytes: int = column("its size")
    tokens: int = column("its size in the baseline's tokens")
    clusters: int = column("pieces of text that its losses are stored by; 0 where they are not")
    cluster: str = column("what such a piece is")
    share_low: float = column("least share that the text has of a difference's variance")
    share_high: float = column("most that it has")

    @cell("documents")
    def of_documents(self) -> str:
        """Write the number of documents."""
        return f"{self.documents:,}" if self.documents else "-"

    @cell("bytes")
    def size(self) -> str:
        """Write the size."""
        return f"{self.bytes:,}"

    @cell("error between")
    def between(self) -> str:
        """Write between how many pieces of text the error is computed."""
        one = self.cluster.removesuffix("s")
        return f"{self.clusters} {plural(self.clusters, one)}" if self.clusters else "-"

    @cell("text's part of the variance")
    def part(self) -> str:
        """Write the text's share of the variance of the differences."""
        known = not math.isnan(self.share_low)
        return f"{self.share_low:.0%} to {self.share_high:.0%}" if known else ""


def splits(
    table: PlannedTable,
    metrics: MeasuredValues,
    comparison: Iterable[ComparisonRow],
    split: str,
    text: str = "",
) -> list[SplitRow]:
    """Return one row for each held-out split of a table: its size and its part of the error.

    The shares are of the differences of a `comparison`, for the `split` that is reported. None
    where no losses were stored by document: the intervals have no part of the text's then.
    """
    clustered = {
        row.coordinates["split"]: (len(row.samples), str(row.coordinates["cluster"]))
        for row in metrics
        if row.quantity == OF_DOCUMENTS[0] and {"split", "cluster"} <= row.coordinates.keys()
    }
    if not clustered:
        return []
    if is_one := split == HELD_OUT:
        parts = [clustered.get(part, (0, "")) for part in _PARTS]
        kind = parts[0][1] if parts[0][1] == parts[1][1] else "clusters"
        clustered[split] = (sum(count for count, _ in parts), kind)
    rows = []
    for name in [*(of for of in table.text.tokens if of != "train"), *[split] * is_one]:
        tokens, size, documents = table.text.size(name)
        clusters, cluster = clustered.get(name, (0, ""))
        low, high = _shares(comparison) if name == split else (math.nan, math.nan)
        rows.append(
            SplitRow(
                text=text,
                split=name,
                documents=documents,
                bytes=size,
                tokens=tokens,
                clusters=clusters,
                cluster=cluster,
                share_low=low,
                share_high=high,
            )
        )
    return rows


def _shares(comparison: Iterable[ComparisonRow]) -> tuple[float, float]:
    """Return the least and the most that the text has of the variance of a difference."""
    variances = [(row.text_se**2, row.seed_se**2) for row in comparison]
    shares = [
        of_text / (of_text + of_seeds) for of_text, of_seeds in variances if of_text + of_seeds > 0
    ]
    return min(shares, default=math.nan), max(shares, default=math.nan)
