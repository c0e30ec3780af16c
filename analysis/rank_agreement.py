"""Count how often shorter runs, or smaller models, rank pairs of variants as the largest do.

    python analysis/rank_agreement.py results/reference/claims/e07-ffn-activation

Of runs with `train.branches`, every branch is a setting beside the end of the run; of a ladder of
`sizes`, every size is one. A pair of variants is ranked alike where its mean difference has the
sign that it has at the largest setting, on the same seeds. `decided` counts the pairs whose own 95%
interval at the largest leaves out 0. Intervals are of a bootstrap over variants: they hold for
other variants of these kinds, and for no other experiment, and take five variants.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import llama_ablate as la
from llama_ablate.findings.frames import Frames

MIN_VARIANTS = 5
DRAWS = 2000


def losses_by_setting(frames: Frames, table: str | None) -> pd.DataFrame:
    """Return losses with columns setting, variant and seed; the last setting is the largest."""
    of_table = frames.only(frames.named(table)).table.points
    losses = pd.DataFrame(frames.ladder if frames.ladder and table is None else of_table)
    if losses.empty:
        return losses
    losses = losses[losses["role"] == ""]
    losses["setting"] = [
        f"{rung + ', ' if rung else ''}{tokens / 1e6:.3g}M tokens"
        for rung, tokens in zip(losses["rung"], losses["tokens"], strict=True)
    ]
    return losses.sort_values(["compute", "tokens"])


def pairs_by_setting(losses: pd.DataFrame) -> pd.DataFrame:
    """List every pair of variants at every setting: ranked alike (0, 1/2 or 1), and decided."""
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
    """Write the share of pairs ranked alike, with its interval over variants."""
    if pairs.empty:
        return "-"
    names = sorted({*pairs["first"], *pairs["second"]})
    value = pairs["alike"].mean()
    if len(names) < MIN_VARIANTS:
        return f"{value:.0%} (too few variants)"
    if value in (0, 1):  # every draw would say the same
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
    """Print a row for each setting below the largest."""
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
