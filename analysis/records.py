"""Replay the rules by which search loops keep a change, and count their false records.

    python analysis/records.py NULLS CHANGES --sizes FIRST SECOND THIRD FOURTH --out records

Both folders are packs, or hold a `runs.csv`. The first has one model on many seeds: a null is that
model with draws of its own, so that its effect is 0. The second has that model and changes of it on
a few seeds. An effect is a mean difference of runs of a seed. A change is helpful or harmful if the
95% interval of its effect (Student's t; the first size, mean of both texts) excludes 0, else
unknown.

A replay draws candidates at random, a share of them nulls, and applies a rule to each candidate
until a number of runs is spent. A candidate's loss is its mean effect plus the noise of a null's
run. A change that is kept is part of the record from then on, and effects of changes add up. Rules
see the validation text alone. `claimed` is the gain that a rule saw when it kept a candidate, and
`gained` the mean gain of that candidate over all its seeds. False records (nulls and harmful
changes) are also judged by the same runs on the test text, which no rule saw.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from judge import lord, weights
from numpy.typing import NDArray
from scipy import stats

from llama_ablate.evidence.intervals import Array

TEXTS = ["validation_loss_nats", "test_loss_nats"]
WORLDS, REPLAYS = 200, 100  # resamples of candidates and seeds, and replays in each
RUNS = 300  # of candidates and of fresh baselines, in one replay
COUNTS = [
    *("candidates", "records", "false", "unknown", "helpful"),
    *("claimed", "gained", "gained on the other text", "offered"),
    *("false: claimed", "false: same run, other text", "false: other seeds"),
]
COLORS = ["tab:blue", "0.7", "tab:red"]
MIN_FALSE = 0.1  # false records of a replay, for their gains to be drawn
GATES = 4, 6  # pairs of runs at each gate of LORD++
MAX_LEVELS = 0.025, 0.05  # largest one-sided level of each gate, which is the root of the granted

Keep = Callable[[Array, Array], NDArray[np.bool_]]


@dataclass(frozen=True)
class Rule:
    """Rule of keeping a candidate, by losses of shape (replays, sizes, seeds)."""

    name: str
    keep: Keep
    sizes: int = 1
    seeds: int = 1


def is_lower(new: Array, old: Array) -> NDArray[np.bool_]:
    """Return whether the mean loss is lower at every size."""
    return (new.mean(2) < old.mean(2)).all(1)


def most_are_lower(new: Array, old: Array) -> NDArray[np.bool_]:
    """Return whether most runs have a lower loss than the record's run beside them."""
    return (new < old).mean((1, 2)) > 0.5


def is_lower_by_an_error(new: Array, old: Array) -> NDArray[np.bool_]:
    """Return whether the mean is lower by more than the standard error of the difference."""
    error = np.sqrt((new.var(2, ddof=1) + old.var(2, ddof=1)) / new.shape[2])
    return (old.mean(2) - new.mean(2) > error)[:, 0]


def p_value(new: Array, old: Array) -> Array:
    """Return the p values of one-sided Welch tests."""
    one, two = ((x.mean(2)[:, 0], x.std(2, ddof=1)[:, 0], x.shape[2]) for x in (new, old))
    test = stats.ttest_ind_from_stats(*one, *two, equal_var=False, alternative="less")
    return np.asarray(test.pvalue)


RULES = [
    Rule("one run is lower", is_lower),
    Rule("lower at two sizes", is_lower, sizes=2),
    Rule("lower at four sizes", is_lower, sizes=4),
    Rule("two of three runs are lower", most_are_lower, seeds=3),
    Rule("mean of 3, one standard error", is_lower_by_an_error, seeds=3),
    Rule("mean of 5, one standard error", is_lower_by_an_error, seeds=5),
    Rule("t test of 3, level .25", lambda new, old: p_value(new, old) < 0.25, seeds=3),
    Rule("t test of 3, level .05", lambda new, old: p_value(new, old) < 0.05, seeds=3),
]
ONLINE = "LORD++, two gates, fresh baselines"


class Online:
    """LORD++ with two gates of unpaired runs on one text, in many replays at once.

    `analysis/judge.py` has levels of the same rule, and pairs runs by seed.
    """

    def __init__(self, replays: int) -> None:
        self.shares = weights(-(-RUNS // (2 * GATES[0])))  # of as many tests as can be paid
        self.accepted: list[list[int]] = [[] for _ in range(replays)]
        self.tests = 0

    def judge(self, new: Array, old: Array) -> tuple[NDArray[np.bool_], NDArray[np.int_]]:
        """Judge one candidate in each replay; return whether it is kept, and its runs."""
        self.tests += 1
        granted = [lord(self.tests, at, self.shares, 0.05, 0.025) for at in self.accepted]
        one, two = np.minimum(np.sqrt(granted), np.array(MAX_LEVELS)[:, None])
        first = p_value(new[:, :, : GATES[0]], old[:, :, : GATES[0]]) < one
        kept = first & (p_value(new[:, :, GATES[0] :], old[:, :, GATES[0] :]) < two)
        for replay in np.flatnonzero(kept):
            self.accepted[replay].append(self.tests)
        return kept, 2 * (GATES[0] + GATES[1] * first)


@dataclass(frozen=True)
class Runs:
    """Differences of losses, in nats; the first size is what counts."""

    #: Losses of nulls less their mean, (runs, sizes, texts).
    null: Array
    #: Losses of changes less that of the seed's baseline, (changes, seeds, sizes, texts).
    change: Array
    #: -1 for a harmful change, 0 for an unknown one, 1 for a helpful one.
    truth: NDArray[np.int_]

    @classmethod
    def read(cls, nulls: Path, changes: Path, sizes: list[str]) -> "Runs":
        """Read two packs; `sizes` are names of tables."""
        (null,) = read_losses(nulls, sizes, baseline=True)
        base = read_losses(changes, sizes, baseline=True)
        change = read_losses(changes, sizes, baseline=False) - base
        effects = change[:, :, 0].mean(-1)  # over texts
        p = stats.ttest_1samp(effects, 0, axis=1).pvalue
        truth = np.where(p < 0.05, -np.sign(effects.mean(1)), 0).astype(int)
        return cls(null - null.mean(0), change, truth)


def read_losses(pack: Path, sizes: list[str], *, baseline: bool) -> Array:
    """Read reported losses of the baseline, or of all others, (variants, seeds, sizes, texts)."""
    runs = pd.read_csv(pack / "runs.csv")
    runs = runs[(runs["use"] == "reported") & runs["role"].isna() & (runs["baseline"] == baseline)]
    wide = runs.pivot_table(TEXTS, ["variant", "seed"], "table")
    if missing := {*sizes} - {*wide.columns.levels[1]}:
        there = ", ".join(map(repr, wide.columns.levels[1]))
        raise ValueError(f"{pack}: no runs of size '{min(missing)}'; there are: {there or 'none'}")
    wide = wide[[(text, size) for size in sizes for text in TEXTS]]
    return wide.to_numpy().reshape(*map(len, wide.index.levels), len(sizes), len(TEXTS))


def replay(
    rule: Rule | None, runs: Runs, seed: np.random.Generator, null_share: float = 0.5
) -> pd.DataFrame:
    """Replay a rule, or LORD++ for None; return the counts of each world, a mean of its replays.

    A world has changes, their seeds and runs of nulls drawn with replacement.
    """
    replays = WORLDS * REPLAYS
    world = np.repeat(np.arange(WORLDS), REPLAYS)
    some = seed.integers(len(runs.change), size=(WORLDS, len(runs.change)))
    seeds = seed.integers(runs.change.shape[1], size=(WORLDS, 1, runs.change.shape[1]))
    effects = runs.change[some[..., None], seeds].mean(2)  # (worlds, changes, sizes, texts)
    effects = np.concatenate([effects, np.zeros_like(effects)], 1)
    truths = np.hstack([runs.truth[some], np.full(some.shape, -1)])
    noises = runs.null[seed.integers(len(runs.null), size=(WORLDS, len(runs.null)))]
    shape = (rule.sizes, rule.seeds) if rule else (1, sum(GATES))

    def draw() -> Array:
        """Draw the noise of a candidate's runs, (replays, sizes, seeds, texts)."""
        drawn = seed.integers(noises.shape[1], size=(replays, *shape))
        return noises[world[:, None, None], drawn, np.arange(shape[0])[:, None]]

    record, online = draw(), Online(replays)
    counts, spent = np.zeros((replays, len(COUNTS))), np.zeros(replays)
    while (going := spent < RUNS).any():
        if not rule:
            record = draw()
        is_null = seed.random(replays) < null_share
        at, noise = seed.integers(some.shape[1], size=replays) + is_null * some.shape[1], draw()
        effect, truth = effects[world, at], truths[world, at]
        new = effect[:, : shape[0], None] + noise
        losses = new[..., 0], record[..., 0]
        kept, cost = (rule.keep(*losses), np.prod(shape)) if rule else online.judge(*losses)
        kept &= going
        gain, claimed = -effect[:, 0], (record - new)[:, 0].mean(1)  # (replays, texts)
        of_kept = [kept, *(kept & (truth == kind) for kind in (-1, 0, 1))]
        gains = [kept * claimed[:, 0], *(kept * gain.T), going * (truth == 1) * gain[:, 0]]
        of_false = of_kept[1] * np.column_stack([claimed, gain[:, 0]]).T
        counts += np.stack([going, *of_kept, *gains, *of_false], 1)
        spent += going * cost
        record = np.where(kept[:, None, None, None], noise, record)
    return pd.DataFrame(counts.reshape(WORLDS, REPLAYS, -1).mean(1), columns=COUNTS)


def tabulate(counts: pd.DataFrame) -> pd.Series:
    """Return a rule's row of the table: means, and 95% intervals over worlds."""
    shown = counts.drop(columns=["helpful", "offered"])
    shown.insert(4, "share false", counts["false"] / counts["records"])
    shown.insert(5, "gain kept", counts["gained"] / counts["offered"])
    of_false = [column for column in counts if column.startswith("false:")]
    shown[of_false] = counts[of_false].div(counts["false"], axis=0)
    low, high = shown.quantile([0.025, 0.975]).to_numpy()
    estimates = zip(shown, shown.mean(), low, high, strict=True)
    return pd.Series({name: f"{mean:.3g} [{a:.3g}, {b:.3g}]" for name, mean, a, b in estimates})


def draw_figure(counts: pd.DataFrame, file: Path) -> None:
    """Draw each rule's records by truth, and the gain of a false record as seen and as it is."""
    mean = counts.groupby("rule", sort=False).mean()
    sns.set_style("whitegrid")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    mean[["helpful", "unknown", "false"]].plot.barh(stacked=True, ax=left, color=COLORS)
    left.set(xlabel=f"records in {RUNS} runs", ylabel="")
    of_false = mean.filter(like="false: ").div(mean["false"], axis=0)
    of_false[mean["false"] < MIN_FALSE] = np.nan
    for (name, gain), marker in zip(of_false.items(), "xo^", strict=True):
        right.plot(gain, np.arange(len(gain)), marker, label=str(name).removeprefix("false: "))
    right.set(xlabel="gain of a false record (nats)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3)
    left.invert_yaxis()
    figure.savefig(file, dpi=100)


def main() -> None:
    """Print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nulls", type=Path, help="pack of one model on many seeds")
    parser.add_argument("changes", type=Path, help="pack of changes of that model")
    parser.add_argument("--sizes", nargs=4, required=True, help="tables, that which counts first")
    parser.add_argument(
        "--out", type=Path, default=Path("records"), help="files' name, less ending"
    )
    parser.add_argument("--null-share", type=float, default=0.5, help="of all candidates")
    options = parser.parse_args()
    if not 0 <= options.null_share <= 1:
        parser.error(f"--null-share: {options.null_share:g} is not from 0 to 1")
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder '{options.out.parent}'")
    try:
        runs = Runs.read(options.nulls, options.changes, options.sizes)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    seed = np.random.default_rng(0)
    of_rules = {
        rule.name if rule else ONLINE: replay(rule, runs, seed, options.null_share)
        for rule in [*RULES, None]
    }
    table = pd.DataFrame({name: tabulate(counts) for name, counts in of_rules.items()}).T
    print(table.to_string())
    table.to_csv(options.out.with_suffix(".csv"), index_label="rule")
    draw_figure(pd.concat(of_rules, names=["rule"]).reset_index(), options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
