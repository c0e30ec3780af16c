"""Hypotheses of the file, held against what the runs measured."""

import math
from typing import Any

import pandas as pd

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence import Claim, examine
from llama_ablate.report import frames, tested
from llama_ablate.report.steadied import UNSTABLE
from llama_ablate.results import Store

Samples = dict[int, float]


def hypotheses(store: Store) -> pd.DataFrame:
    """Return one row for each hypothesis of the file: what was said, and what was found.

    Columns: `claim, table, source, said, unit, difference, low, high, finding, why,
    p_for, p_against, seeds_needed, n`. The correction is over the whole list. Where a control of
    a table that a hypothesis is about fails, its finding is `no verdict`.
    """
    entries = store.plan["experiment"].get("hypotheses", [])
    stated = [Hypothesis.model_validate(entry) for entry in entries]
    tables = {table.plan.get("table", ""): table for table in store.tables}
    asked = [entry.table or next(iter(tables)) for entry in stated]
    seen = {*asked, *(entry.minus for entry in stated if entry.minus)}
    held = {name: tested.believed(tables[name]) for name in seen}
    claims = []
    for entry, name in zip(stated, asked, strict=True):
        values = _differences(entry, tables[name])
        if entry.minus:
            less = _differences(entry, tables[entry.minus])
            values = {key: values[key] - less[key] for key in values if key in less}
        claims.append((_claim(entry), list(values.values())))
    rows = []
    for entry, name, found in zip(stated, asked, examine(claims), strict=True):
        scale = _shares if entry.relative else float
        failing = [n for n in (name, entry.minus) if n is not None and not held[n][0]]
        rows.append(
            {
                "claim": _claimed(entry, frames.baseline(tables[name].plan)["label"]),
                "table": name,
                "source": entry.source,
                "said": entry.said,
                "unit": "%" if entry.relative else "nats" if _in_nats(entry) else "",
                "difference": scale(found.effect.mean),
                "low": scale(found.effect.low),
                "high": scale(found.effect.high),
                "finding": "no verdict" if failing else found.finding,
                "why": held[failing[0]][1] if failing else "",
                "p_for": found.p_for,
                "p_against": found.p_against,
                "seeds_needed": found.seeds_needed or math.nan,
                "n": found.effect.n,
            }
        )
    return pd.DataFrame(rows)


def samples(store: Store, label: str, measure: str | None) -> Samples:
    """Return a number of a variant: by seed if it is of its runs, by turn if of the variant.

    Empty where nothing of that name was measured, and where the variant was not tried at all that
    is tuned. Runs are those at the chosen point. One that diverged, or collapsed without a loss
    that was measured, has the loss of chance, so that it speaks against its variant.
    """
    frame = frames.ranked(frames.runs(store))
    loss = f"{frames.reported_split(frame)}_loss_nats"
    name = measure or loss
    if name in frame:
        of = frame[frame["label"] == label].copy()
        if name == loss:
            chance = math.log(store.plan["data"]["vocab"])
            of.loc[of["outcome"].isin(UNSTABLE) & of[name].isna(), name] = chance
        of = of[of[name].notna()]
        return {int(s): float(v) for s, v in zip(of["seed"], of[name], strict=True)}
    variant = next(v for v in store.plan["variants"] if v["label"] == label)
    for metric in store.variant_metrics(variant["id"]).values():
        for value in metric.rows:
            if value.name == name:
                return dict(enumerate(value.samples))
    return {}


def _differences(entry: Hypothesis, table: Store) -> Samples:
    """Return the number minus what it is compared with; of shares, the logarithm of the ratio."""
    of = samples(table, entry.variant, entry.measure)
    if entry.value is not None:
        return {key: value - entry.value for key, value in of.items()}
    other = entry.against or frames.baseline(table.plan)["label"]
    against = samples(table, other, entry.measure)
    shared = [key for key in of if key in against]
    if entry.relative:  # of nothing there is no share
        return {k: math.log(of[k] / against[k]) for k in shared if of[k] > 0 and against[k] > 0}
    return {key: of[key] - against[key] for key in shared}


def _claim(entry: Hypothesis) -> Claim:
    said: Any = entry.direction.removeprefix("not ")
    direction = {"lower": "better", "higher": "worse"}.get(said, said)
    share, margin = entry.size / 100, entry.size
    if entry.relative:  # of a logarithm: 5% lower is further than 5% higher
        margin = -math.log1p(-share) if direction == "better" else math.log1p(share)
    if entry.direction.startswith("not "):  # not worse by m: better than m worse
        return Claim("worse" if direction == "better" else "better", -margin)
    return Claim(direction, margin)


def _shares(logarithm: float) -> float:
    return 100 * math.expm1(logarithm)


def _in_nats(entry: Hypothesis) -> bool:
    return entry.measure is None or entry.measure.endswith("_nats")


def _claimed(entry: Hypothesis, base: str) -> str:
    other = entry.against or base
    what = f" in {entry.measure}" if entry.measure else ""
    if entry.minus:
        what += f", beyond what it is in '{entry.minus}'"
    if entry.value is not None:
        by = (
            f" by more than {entry.margin}"
            if entry.size and entry.direction != "equivalent"
            else ""
        )
        how = (
            f"within {entry.margin} of"
            if entry.direction == "equivalent"
            else f"{entry.direction} than"
        )
        return f"{entry.variant} is {how} {entry.value:g}{by}{what}"
    if entry.direction == "equivalent":
        return f"{entry.variant} equals {other} within {entry.margin}{what}"
    by = f" by {'' if entry.direction.startswith('not ') else 'more than '}{entry.margin}"
    by = by if entry.size else ""
    return f"{entry.variant} is {entry.direction} than {other}{by}{what}"
