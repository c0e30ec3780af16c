"""Count how often shorter runs or smaller models rank variants like the largest.

    python analysis/rank_agreement.py results/reference/claims/e07-ffn-activation

A setting is a training length or a model size. With `train.branches`, every branch (a run whose
schedule ended early) and the full run are settings; in an experiment with `sizes`, every model size
is a setting. A pair of variants is ranked alike if its mean difference in loss has the same sign at
a setting and at the largest setting, on the same seeds. `decided` counts the pairs whose own 95%
interval at the largest setting excludes 0. Intervals are computed by a bootstrap over variants,
which needs five variants: they hold for other variants of these kinds, not for other experiments.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import llama_ablate as la
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.sizes import list_ladder, list_points

MIN_VARIANTS = 5
DRAWS = 2000


def losses_by_setting(frames: Frames, table: str | None) -> pd.DataFrame:
    """Return losses by setting, variant and seed, ordered from smallest to largest setting."""
    losses = list_ladder(frames)
    if table is not None or losses.empty:
        losses = list_points(frames.named(table))
    losses = losses[losses["role"].eq("")]
    losses["setting"] = [
        f"{rung + ', ' if rung else ''}{tokens / 1e6:.3g}M tokens"
        for rung, tokens in zip(losses["rung"], losses["tokens"], strict=True)
    ]
    return losses.sort_values(["compute", "tokens"])


def pairs_by_setting(losses: pd.DataFrame) -> pd.DataFrame:
    """Return a row for every pair of variants at every setting except the largest.

    `alike` is 1 for the same sign as at the largest setting, 0 for the opposite sign, and 1/2 for a
    difference of 0. `decided` says whether the pair is decided at the largest setting.
    """
    settings = [*dict.fromkeys(losses["setting"])]
    grids = {at: own.pivot_table("loss", "seed", "label") for at, own in losses.groupby("setting")}
    largest, rows = grids[settings[-1]], []
    for first, second in itertools.combinations(largest.columns, 2):
        there = (largest[first] - largest[second]).dropna()
        decided = len(there) > 1 and stats.ttest_1samp(there, 0).pvalue < 0.05
        for at in settings[:-1]:
            if not {first, second} <= {*grids[at].columns}:
                continue
            here = (grids[at][first] - grids[at][second]).dropna()
            seeds = here.index.intersection(there.index)
            if len(seeds):
                signs = np.sign(here[seeds].mean()) * np.sign(there[seeds].mean())
                rows.append((at, first, second, (1 + signs) / 2, decided))
    return pd.DataFrame(rows, columns=["setting", "first", "second", "alike", "decided"])


def share(pairs: pd.DataFrame) -> str:
    """Format the share of pairs that are ranked alike, with its interval over variants."""
    if pairs.empty:
        return "-"
    names = sorted({*pairs["first"], *pairs["second"]})
    value = pairs["alike"].mean()
    if len(names) < MIN_VARIANTS:
        return f"{value:.0%} (too few variants)"
    if value in (0, 1):  # all bootstrap samples would give the same value
        return f"{value:.0%} (all pairs)"
    first, second = (pairs[end].map(names.index).to_numpy() for end in ("first", "second"))
    counts = np.random.default_rng(0).multinomial(
        len(names), np.full(len(names), 1 / len(names)), DRAWS
    )
    weights = counts[:, first] * counts[:, second]
    drawn = weights.any(1)
    shares = weights[drawn] @ pairs["alike"].to_numpy() / weights[drawn].sum(1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return f"{value:.0%} [{low:.0%}, {high:.0%}]"


def main() -> None:
    """Print a table with a row for each setting except the largest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--table", help="one of several tables: its lengths, not the sizes")
    options = parser.parse_args()
    try:
        losses = losses_by_setting(la.open(options.results).frames, options.table)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    pairs = losses if losses.empty else pairs_by_setting(losses)
    if pairs.empty:
        what = "has no branches, no second size, or no two variants with a common seed"
        parser.exit(2, f"{parser.prog}: '{options.results}' {what}\n")
    rows = [
        {
            "setting": at,
            "pairs": len(own),
            "ranked alike [95%]": share(own),
            "decided": int(own["decided"].sum()),
            "decided, ranked alike [95%]": share(own[own["decided"]]),
        }
        for at, own in pairs.groupby("setting", sort=False)
    ]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
