"""What the runs say of factors and of hypotheses, as data frames."""

import math
from typing import Any

import pandas as pd

from llama_ablate.evidence import Claim, contrasts, examine
from llama_ablate.report import frames
from llama_ablate.results import Store


def factors(store: Store) -> pd.DataFrame:
    """Return main effects and two-way interactions of a factorial design with two-level factors.

    Columns: `factor, levels, difference_nats, low_nats, high_nats, p_holm`. Empty for other
    designs, and until every variant has finished a seed that all have.
    """
    columns = ["factor", "levels", "difference_nats", "low_nats", "high_nats", "p_holm"]
    variants = store.plan["variants"]
    names = list(variants[0].get("levels") or {})
    two = all({v["levels"][name] for v in variants} == {0, 1} for name in names)
    values = frames.losses(store, frames.runs(store))
    seeds = set.intersection(*(set(of) for of in values.values()))
    if not names or not two or not seeds:
        return pd.DataFrame(columns=columns)
    levels = {v["id"]: [v["levels"][name] for name in names] for v in variants}
    written = {name: _levels(variants, name) for name in names}
    losses = {id_: [of[seed] for seed in sorted(seeds)] for id_, of in values.items()}
    found = [
        (" x ".join(c.factors), "; ".join(written[f] for f in c.factors),
         c.effect.mean, c.effect.low, c.effect.high, c.p_holm)
        for c in contrasts(levels, names, losses)
    ]  # fmt: skip
    return pd.DataFrame(found, columns=columns)


def _levels(variants: list[dict[str, Any]], name: str) -> str:
    """Write a factor's two values: what level 0 was, and what level 1."""
    shown = {v["levels"][name]: v["model"][name] for v in variants}
    names = [s["name"] if isinstance(s, dict) else str(s) for s in (shown[0], shown[1])]
    if names[0] == names[1]:
        names = [str(shown[0]), str(shown[1])]
    return " -> ".join(names)


def hypotheses(store: Store) -> pd.DataFrame:
    """Return one row for each hypothesis of the file: what was said, and what was found.

    Columns: `claim, source, said, difference_nats, low_nats, high_nats, finding, p_for, p_against,
    seeds_needed, n`.
    """
    plan, by_variant = store.plan, frames.losses(store, frames.runs(store))
    by_label = {v["label"]: by_variant[v["id"]] for v in plan["variants"]}
    base = next(v["label"] for v in plan["variants"] if v["baseline"])
    stated, claims = plan["experiment"].get("hypotheses", []), []
    for entry in stated:
        of, against = by_label[entry["variant"]], by_label[entry["against"] or base]
        seeds = [seed for seed in of if seed in against]
        claim = Claim(entry["direction"], frames.nats(entry["margin"]) or 0.0)
        claims.append((claim, [of[s] - against[s] for s in seeds]))
    rows = [
        {
            "claim": _claimed(entry, base),
            "source": entry["source"],
            "said": entry["said"],
            "difference_nats": tested.effect.mean,
            "low_nats": tested.effect.low,
            "high_nats": tested.effect.high,
            "finding": tested.finding,
            "p_for": tested.p_for,
            "p_against": tested.p_against,
            "seeds_needed": tested.seeds_needed or math.nan,
            "n": tested.effect.n,
        }
        for entry, tested in zip(stated, examine(claims), strict=True)
    ]
    return pd.DataFrame(rows)


def _claimed(entry: dict[str, Any], base: str) -> str:
    other, margin = entry["against"] or base, entry["margin"]
    if entry["direction"] == "equivalent":
        return f"{entry['variant']} equals {other} within {margin}"
    by = f" by more than {margin}" if margin else ""
    return f"{entry['variant']} is {entry['direction']} than {other}{by}"
