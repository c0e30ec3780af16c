"""Held-out text: its size, and its share of the error variance of differences."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llama_ablate.evidence import Interval, verdict
from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import Row, cell, column
from llama_ablate.findings.values import HELD_OUT_SPLITS
from llama_ablate.results.plan_document import HELD_OUT
from llama_ablate.terminal import plural


def by_text_alone(row: Interval, margin: float | None) -> float:
    """Compute the half width that an undecided interval would keep with infinitely many seeds.

    This half width comes from the error of the held-out text alone. Return NaN if the interval
    already decides the verdict, if more seeds could still decide the verdict, and if the text error
    is unknown or 0.
    """
    if verdict(row, margin) != "inconclusive" or not row.text_se > 0:
        return math.nan
    df = max(row.text_df, row.seed_df, LEAST_DF)
    half = float(quantile(1 - row.alpha / 2, df)) * row.text_se
    at_best = replace(row, low=row.mean - half, high=row.mean + half)
    return half if verdict(at_best, margin) == "inconclusive" else math.nan


@dataclass(frozen=True)
class SplitRow(Row):
    """Table row for a held-out split: its size, and its share of the error variance."""

    ORDER = ("text", "named", "show_documents", "show_bytes", "tokens", "between", "part")

    text: str = column("name of the text, where tables have several", "text", optional=True)
    split: str = column("`validation`, `test`, or both as `held_out`")

    @cell("split")
    def named(self) -> str:
        """Write the name of the split."""
        return "held-out" if self.split == HELD_OUT else self.split

    documents: int = column("number of its documents; 0 where the plan does not tell")
    bytes: int = column("its size")
    tokens: int = column("its size in the baseline's tokens")
    clusters: int = column("pieces of text that its losses are stored by; 0 where they are not")
    cluster: str = column("what such a piece is")
    share_low: float = column("least share that the text has of a difference's variance")
    share_high: float = column("most that it has")

    @cell("documents")
    def show_documents(self) -> str:
        """Write the number of documents."""
        return f"{self.documents:,}" if self.documents else "-"

    @cell("bytes")
    def show_bytes(self) -> str:
        """Write the size in bytes."""
        return f"{self.bytes:,}"

    @cell("error between")
    def between(self) -> str:
        """Write the number of text clusters (such as documents) behind the text error."""
        unit = self.cluster.removesuffix("s")
        return f"{self.clusters} {plural(self.clusters, unit)}" if self.clusters else "-"

    @cell("text's part of the variance")
    def part(self) -> str:
        """Write the text's share of the variance of the differences."""
        is_known = not math.isnan(self.share_low)
        return f"{self.share_low:.0%} to {self.share_high:.0%}" if is_known else ""


def splits(tables: Sequence[TableFrames], text: str = "") -> list[SplitRow]:
    """List the held-out splits of a text, with sizes and error variance shares.

    The share is the text error's part of the variance of a difference. The smallest and the largest
    share over the differences of all `tables` are given for the reported split alone. Return an
    empty list if no losses were stored by document, since the intervals then contain no text error.
    """
    table = tables[0]
    clustered = {
        row.coordinates["split"]: (len(row.samples), str(row.coordinates["cluster"]))
        for row in table.metrics
        if row.quantity == "loss_by_document" and {"split", "cluster"} <= row.coordinates.keys()
    }
    if not clustered:
        return []
    if is_one := table.split == HELD_OUT:
        parts = [clustered.get(part, (0, "")) for part in HELD_OUT_SPLITS]
        kind = parts[0][1] if parts[0][1] == parts[1][1] else "clusters"
        clustered[table.split] = (sum(count for count, _ in parts), kind)
    planned, rows = table.plan.text, []
    for name in [*(of for of in planned.tokens if of != "train"), *[table.split] * is_one]:
        tokens, size, documents = planned.size(name)
        clusters, cluster = clustered.get(name, (0, ""))
        reported = tables if name == table.split else ()
        low, high = _shares(row for table in reported for row in table.comparison)
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
    """Return the smallest and largest share of the text error in a difference's variance."""
    variances = [(row.text_se**2, row.seed_se**2) for row in comparison]
    shares = [
        text_part / (text_part + seed_part)
        for text_part, seed_part in variances
        if text_part + seed_part > 0
    ]
    return min(shares, default=math.nan), max(shares, default=math.nan)
