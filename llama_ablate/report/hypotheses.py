"""Hypotheses of the experiment file and their test results."""

import math
from typing import Any

import pandas as pd

from llama_ablate import evidence
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.report import controls
from llama_ablate.report.frames import Frames, TableFrames
from llama_ablate.report.stability import UNSTABLE

#: Numbers by seed, or by round of an interleaved pass.
Samples = dict[int, float]


def results(frames: Frames) -> pd.DataFrame:
    """Return one row for each hypothesis of the file: what was stated, and its test result.

    Columns: `hypothesis, table, source, said, unit, difference, low, high, result, why, p_for,
    p_against, seeds_needed, n`. The correction is over the whole list. Where a control of a table
    that a hypothesis is about fails, its result is `no verdict`.
    """
    stated = frames.plan.experiment.hypotheses
    tested = evidence.evaluate(
        [(_hypothesis(entry), list(_differences(entry, frames).values())) for entry in stated]
    )
    rows = []
    for entry, test in zip(stated, tested, strict=True):
        scale = _percent if entry.relative else float
        table = frames.named(entry.table)
        failing = _failing_controls(entry, frames)
        rows.append(
            {
                "hypothesis": _sentence(entry, table.plan.baseline.label),
                "table": table.plan.name,
                "source": entry.source,
                "said": entry.said,
                "unit": "%" if entry.relative else "nats" if _in_nats(entry) else "",
                "difference": scale(test.effect.mean),
                "low": scale(test.effect.low),
                "high": scale(test.effect.high),
                "result": "no verdict" if failing else test.result,
                "why": failing,
                "p_for": test.p_for,
                "p_against": test.p_against,
                "seeds_needed": test.seeds_needed or math.nan,
                "n": test.effect.n,
            }
        )
    return pd.DataFrame(rows)


def samples(table: TableFrames, label: str, name: str | None) -> Samples:
    """Return a number of a variant: by seed if it is of its runs, by round if of the variant.

    Empty where nothing of that name was measured, and where the variant was not tried at every
    tuned point. Runs are those at the chosen point. One that diverged, or collapsed without a loss
    that was measured, has the loss of chance, so that it counts against its variant.
    """
    loss = f"{table.split}_loss_nats"
    name = name or loss
    if name in table.ranked:
        runs = table.ranked[table.ranked["label"] == label].copy()
        if name == loss:
            lost = runs["outcome"].isin(UNSTABLE) & runs[name].isna()
            runs.loc[lost, name] = math.log(table.plan.text.vocab)
        runs = runs[runs[name].notna()]
        return {int(s): float(v) for s, v in zip(runs["seed"], runs[name], strict=True)}
    metrics = table.metrics
    own = metrics[(metrics["run"] == "") & (metrics["label"] == label) & (metrics["name"] == name)]
    return dict(enumerate(own["samples"].iloc[0])) if len(own) else {}


def _differences(entry: Hypothesis, frames: Frames) -> Samples:
    """Return a hypothesis' differences in its table, less those in the table `minus`."""
    values = _differences_in(entry, frames.named(entry.table))
    if entry.minus is None:
        return values
    less = _differences_in(entry, frames.named(entry.minus))
    return {key: value - less[key] for key, value in values.items() if key in less}


def _differences_in(entry: Hypothesis, table: TableFrames) -> Samples:
    """Return the number minus what it is compared with; of shares, the logarithm of the ratio."""
    own = samples(table, entry.variant, entry.measure)
    if entry.value is not None:
        return {key: value - entry.value for key, value in own.items()}
    other = samples(table, entry.against or table.plan.baseline.label, entry.measure)
    shared = [key for key in own if key in other]
    if entry.relative:  # a share of nothing is not defined
        positive = [key for key in shared if own[key] > 0 and other[key] > 0]
        return {key: math.log(own[key] / other[key]) for key in positive}
    return {key: own[key] - other[key] for key in shared}


def _failing_controls(entry: Hypothesis, frames: Frames) -> str:
    """Say which controls of a hypothesis' tables fail; nothing where all hold."""
    names = [entry.table] if entry.minus is None else [entry.table, entry.minus]
    checks = [controls.all_hold(frames.named(name).controls) for name in names]
    return next((check.why for check in checks if not check.holds), "")


def _hypothesis(entry: Hypothesis) -> evidence.Hypothesis:
    word: Any = entry.direction.removeprefix("not ")
    direction = {"lower": "better", "higher": "worse"}.get(word, word)
    share, margin = entry.size / 100, entry.size
    if entry.relative:  # of a logarithm: 5% lower is further than 5% higher
        margin = -math.log1p(-share) if direction == "better" else math.log1p(share)
    if entry.direction.startswith("not "):  # not worse by m: better than m worse
        return evidence.Hypothesis("worse" if direction == "better" else "better", -margin)
    return evidence.Hypothesis(direction, margin)


def _percent(logarithm: float) -> float:
    return 100 * math.expm1(logarithm)


def _in_nats(entry: Hypothesis) -> bool:
    return entry.measure is None or entry.measure.endswith("_nats")


def _sentence(entry: Hypothesis, baseline: str) -> str:
    """Write a hypothesis as a sentence: `relu is worse than swiglu by more than 0.01 nats`."""
    other = entry.against or baseline
    what = f" in {entry.measure}" if entry.measure else ""
    if entry.minus:
        what += f", beyond what it is in '{entry.minus}'"
    more = f" by more than {entry.margin}" if entry.size else ""
    if entry.value is not None:
        if entry.direction == "equivalent":
            return f"{entry.variant} is within {entry.margin} of {entry.value:g}{what}"
        return f"{entry.variant} is {entry.direction} than {entry.value:g}{more}{what}"
    if entry.direction == "equivalent":
        return f"{entry.variant} equals {other} within {entry.margin}{what}"
    if entry.direction.startswith("not "):
        more = f" by {entry.margin}"
    return f"{entry.variant} is {entry.direction} than {other}{more}{what}"
