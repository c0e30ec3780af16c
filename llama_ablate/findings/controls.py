"""Checks of a comparison: controls of the experiment, and the size of its held-out text.

The repeated baseline is the baseline trained again under another name; its difference from the
baseline bounds the bias that all other variants may share. A positive control is a variant that is
known to be worse; it shows whether the experiment would detect a harm as large as the margin. A
control changes no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.evidence.verdicts import verdict
from llama_ablate.evidence.written import interval
from llama_ablate.findings.columns import iterate, list_rows, make_frame
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.table import HELD_OUT_SPLITS, Table, once
from llama_ablate.results.plan_document import HELD_OUT

#: Largest harm of a useful positive control, in margins.
_MAX_MARGINS = 10
_TOO_STRONG = "it does not show that small harm would be noticed"
_TOO_WEAK = "a harm so small decides nothing"


@once
def check_controls(table: Table) -> pd.DataFrame:
    """Check the controls of a table; return one row for each control.

    A repeated baseline holds (passes) if its losses equal the baseline's bit for bit, or if its
    difference from the baseline has a finite interval. A positive control holds if its own 95%
    interval lies above 0 and its mean difference is from one to ten margins. A baseline with other
    random draws is reported only, and cannot fail.
    """
    rows = []
    for variant, row in zip(table.plan.variants, list_rows(compare_variants(table)), strict=True):
        if variant.role == "positive":
            check = "positive", *_check_positive(row, table.margin)
        elif variant.id in table.plan.repeated:
            check = "repeat", *_check_repeat(row)
        elif variant.role:
            check = "redraw", "", _describe_redraw(row)
        else:
            continue
        rows.append(dict(zip(("control", "result", "why"), check, strict=True)))
        rows[-1]["label"] = variant.label
    return make_frame(rows, "controls")


def list_failing(table: Table) -> list[str]:
    """Return one sentence for each failing control, without a full stop."""
    rows = check_controls(table)
    rows = rows[rows["result"].eq("fails")]
    return [f"'{label}' {why}" for label, why in zip(rows["label"], rows["why"], strict=True)]


def _write_difference(row: Mapping[str, Any]) -> str:
    return f"{interval(row['difference'], row['low'], row['high'])} {row['unit']}"


def _check_repeat(row: Mapping[str, Any]) -> tuple[str, str]:
    if row["difference"] == row["low"] == row["high"] == 0:
        why = "equals the baseline bit for bit: the harness adds no difference between arms"
        return "holds", why
    if why := _explain_missing(row):
        return "fails", why
    if not math.isfinite(row["low"]):
        by = f"{row['difference']:+.2g} {row['unit']}"
        return "fails", f"differs by {by} in its one seed: nothing bounds that"
    return "holds", f"differs by {_write_difference(row)}: every row is wider by that"


def _check_positive(row: Mapping[str, Any], margin: float | None) -> tuple[str, str]:
    if why := _explain_missing(row):
        return "fails", why + f": {_TOO_STRONG}" * (row["verdict"] in UNSTABLE)
    if row["high"] < 0:
        return "fails", f"went the other way, it was better: {_write_difference(row)}"
    if not row["low"] > 0:
        return "fails", f"was not seen to harm: {_write_difference(row)}"
    why = f"harms by {row['difference']:.2g} {row['unit']}"
    if margin is None:
        return "holds", f"{why}; the experiment states no margin"
    margins = row["difference"] / margin
    strong, weak = margins > _MAX_MARGINS, margins < 1
    times = f"{margins:,.0f}" if strong else f"{margins:.2g}"
    why += f", {times} times the margin" + f": {_TOO_STRONG}" * strong + f": {_TOO_WEAK}" * weak
    return "fails" if strong or weak else "holds", why


def _describe_redraw(row: Mapping[str, Any]) -> str:
    leaves = "leaves out" if row["low"] > 0 or row["high"] < 0 else "holds"
    return _explain_missing(row) or f"{_write_difference(row)}, {leaves} 0"


def _explain_missing(row: Mapping[str, Any]) -> str:
    """Explain why a control has no loss to compare; "" if it has."""
    if row["verdict"] in (*UNSTABLE, "failed"):
        return str(row["verdict"])
    if row["verdict"] == "too short":
        return "is too short"
    return "has not finished" if math.isnan(row["difference"]) else ""


def find_text_limit(row: Mapping[str, Any], margin: float | None) -> float:
    """Compute the half width that an undecided interval would keep with infinitely many seeds.

    This half width comes from the error of the held-out text alone. Return NaN if the interval
    already decides the verdict, if more seeds could still decide the verdict, and if the text error
    is unknown or 0.
    """
    is_open = verdict(row["low"], row["high"], margin) == "inconclusive"
    if not is_open or not row["text_se"] > 0:
        return math.nan
    df = max(row["text_df"], row["seed_df"], LEAST_DF)
    half = float(quantile(1 - row["alpha"] / 2, df)) * row["text_se"]
    at_best = verdict(row["mean"] - half, row["mean"] + half, margin)
    return half if at_best == "inconclusive" else math.nan


def describe_splits(tables: Sequence[Table], text: str = "") -> pd.DataFrame:
    """Return a row for each held-out split of a text, with sizes and error variance shares.

    The share is the text error's part of the variance of a difference. The smallest and the largest
    share over the differences of all `tables` are given for the reported split alone. The frame is
    empty if no losses were stored by document, since the intervals then contain no text error.
    """
    table, values = tables[0], tables[0].measured
    stored = values[values["quantity"].eq("loss_by_document")].dropna(subset=["split", "cluster"])
    clustered = {row.split: (len(row.samples), str(row.cluster)) for row in iterate(stored)}
    planned, splits = table.plan.text, [of for of in table.plan.text.tokens if of != "train"]
    if table.split == HELD_OUT:
        parts = [clustered.get(part, (0, "")) for part in HELD_OUT_SPLITS]
        kind = parts[0][1] if parts[0][1] == parts[1][1] else "clusters"
        clustered |= {table.split: (sum(count for count, _ in parts), kind)} if clustered else {}
        splits.append(table.split)
    low, high = _find_shares(tables)
    rows = []
    for split in splits if clustered else ():
        tokens, size, documents = planned.size(split)
        clusters, cluster = clustered.get(split, (0, ""))
        is_reported = split == table.split
        rows.append(
            {
                "text": text,
                "split": split,
                "documents": documents,
                "bytes": size,
                "tokens": tokens,
                "clusters": clusters,
                "cluster": cluster,
                "share_low": low if is_reported else math.nan,
                "share_high": high if is_reported else math.nan,
            }
        )
    return make_frame(rows, "heldout")


def _find_shares(tables: Sequence[Table]) -> tuple[float, float]:
    """Return the smallest and largest share of the text error in a difference's variance."""
    errors = pd.concat([compare_variants(table)[["text_se", "seed_se"]] for table in tables])
    variances = errors.dropna() ** 2
    variances = variances[variances.sum(axis=1) > 0]
    shares = variances["text_se"] / variances.sum(axis=1)
    return float(shares.min()), float(shares.max())
