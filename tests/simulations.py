"""Simulate the rules of `llama_ablate.evidence`: power and false words of stacked tables.

    python -m tests.simulations    draws the tables of results/reference/simulations.md anew

Letters in names: T tables, M rows, N seeds, C cells, F items.
"""

import itertools
import math
import re
from functools import partial
from pathlib import Path

import numpy as np

from llama_ablate.evidence.factorial import Design, estimate_effects
from llama_ablate.evidence.intervals import ALPHA, estimate, estimate_unpaired
from llama_ablate.evidence.item_error import item_error, least_error
from llama_ablate.evidence.medians import WANTED_HALF_WIDTH, estimate_column
from llama_ablate.evidence.rates import compare_rates
from llama_ablate.evidence.sequential import spending
from llama_ablate.measure.turns import MAX_PROCESSES, PROCESSES, ROUNDS

PAGE = Path(__file__).parents[1] / "results" / "reference" / "simulations.md"
#: Tables a cell of the page, as it says.
TABLES = 4_000
SEEDS, ROWS, SHARES = (2, 3, 5, 8), (1, 2, 5, 10), (0.2, 0.6)
DOCUMENTS = 40
#: Distance of the two peaks of a run, in deviations of either, and the share of the second.
_PEAKS, _SECOND = 5.0, 0.25
USUAL = ("normal", "unequal", "skewed", "t with 3 df", "all arms two-peaked")
UNLIKE = ("baseline 5 times as noisy", "one arm 4 times as noisy", "baseline two-peaked")
#: Distances of a quarter of one arm's runs from its others, in deviations of the others.
OUTLIERS = {"outliers of 5 in one arm": 5.0, "outliers of 8 in one arm": 8.0}
#: Cost of a step from the best learning rate to the next, in deviations of a run, and the numbers
#: of rates and of reported seeds of a tuned arm.
COSTS, RATES, REPORTED = (0.25, 0.5, 1.0), 4, (4, 8, 16)
#: Grids: the levels of each axis, and whether half of the combinations were run.
GRIDS = {
    "2 x 2 x 2": ((2, 2, 2), False),
    "half of 2^5": ((2, 2, 2, 2, 2), True),
    "4 x 3 x 2": ((4, 3, 2), False),
}
#: Spread of the log variances of cells, and the deviation with which one factor's effect varies
#: over seeds, in deviations of a run.
OF_GRIDS = {
    "equal cells": (0.0, 0.0),
    "unequal cells": (1.0, 0.0),
    "effect varies by 1/2": (0.0, 0.5),
    "effect varies by 1": (0.0, 1.0),
    "effect varies by 2": (0.0, 2.0),
}


def _outliers(generator, shape, apart):
    """Draw runs of two kinds, with mean 0; either kind has deviation 1."""
    return generator.normal(size=shape) + apart * ((generator.random(shape) < _SECOND) - _SECOND)


def _two_peaks(generator, shape):
    """Draw runs of two kinds, with mean 0 and deviation 1."""
    spread = math.sqrt(1 + _PEAKS**2 * _SECOND * (1 - _SECOND))
    return _outliers(generator, shape, _PEAKS) / spread


def _draw(kind, generator, tables, rows, seeds):
    """Draw the arms' and the baseline's runs, (T, M, N) and (T, 1, N), by the kind of noise."""
    arms_shape, base_shape = (tables, rows, seeds), (tables, 1, seeds)
    arms, base = generator.normal(size=arms_shape), generator.normal(size=base_shape)
    if kind == "unequal":
        arms = arms * np.exp(generator.normal(size=(tables, rows, 1)) / 2)
        base = base * np.exp(generator.normal(size=(tables, 1, 1)) / 2)
    elif kind == "skewed":
        arms = generator.exponential(size=arms_shape) - 1
        base = generator.exponential(size=base_shape) - 1
    elif kind == "t with 3 df":
        arms, base = (generator.standard_t(3, s) / math.sqrt(3) for s in (arms_shape, base_shape))
    elif kind == "all arms two-peaked":
        arms, base = _two_peaks(generator, arms_shape), _two_peaks(generator, base_shape)
    elif kind == "baseline two-peaked":
        base = _two_peaks(generator, base_shape)
    elif kind == "baseline 5 times as noisy":
        base = 5 * base
    elif kind == "one arm 4 times as noisy":
        arms[:, 0] *= 4
    elif kind in OUTLIERS:
        arms[:, 0] = _outliers(generator, (tables, seeds), OUTLIERS[kind])
    return arms, base


def draw_tables(kind, seeds, rows, share, tables, effect=0.0):
    """Draw tables whose rows differ from the baseline by an effect, in true standard errors.

    The text has a `share` of the variance of a difference's mean; half of either part is the
    baseline's. Returns differences (T, M, N), the estimated errors of the text, their df.
    """
    generator = np.random.default_rng(1000 * seeds + rows)
    arms, base = _draw(kind, generator, tables, rows, seeds)
    differences = (arms - base) * math.sqrt((1 - share) * seeds / 2)
    documents = generator.normal(size=(tables, rows + 1, DOCUMENTS)) * math.sqrt(share / 2)
    simulate_rows = (documents[:, 1:] - documents[:, :1]) * math.sqrt(DOCUMENTS)
    text_se = simulate_rows.std(-1, ddof=1) / math.sqrt(DOCUMENTS)
    shift = effect + simulate_rows.mean(-1)
    return differences + shift[..., None], text_se, DOCUMENTS - 1.0


def false_unpaired(kind, seeds, tables):
    """Return the largest share of false tables over rows, of arms compared by their means."""
    shares = []
    for rows in ROWS:
        arms, base = _draw(kind, np.random.default_rng(seeds + rows), tables, rows, seeds)
        found = estimate_unpaired(np.concatenate([base, arms], axis=1), ALPHA / rows)
        shares.append(find_false(found).any(-1).mean())
    return float(max(shares))


#: Runs' times to a target: the spread of a variant's, and the share of the baseline's that reach
#: the target before training ends.
TIMES = {"all reach it": (0.1, 5.0), "a fifth does not": (0.1, 0.84)}
TIMES |= {
    "a fifth does not, spread twofold": (0.2, 0.84),
    "half does not, spread twofold": (0.2, 0),
}


def called_faster(kind, seeds, tables, *, of_those_that_reach):
    """Return how often a variant is called faster whose median time is the baseline's.

    With `of_those_that_reach`, times are compared over the pairs that both reach the target, in
    place of the rule of `compare_times`.
    """
    spread, end = TIMES[kind]
    generator = np.random.default_rng(seeds)
    logs = np.stack(
        [
            0.1 * generator.normal(size=(tables, seeds)),
            spread * generator.normal(size=(tables, seeds)),
        ]
    )
    logs = np.where(logs < 0.1 * end, logs, math.nan)
    reached, differences = (~np.isnan(logs)).sum(-1), logs[1] - logs[0]
    is_whole = (reached == seeds).all(0)
    found = estimate(differences[:, None], 0.0, math.inf)["high"][:, 0] < 0
    if of_those_that_reach:
        return float(found.mean())
    shares = [compare_rates((int(b), seeds), (int(a), seeds))["low"] > 0 for a, b in reached.T]
    return float(np.where(is_whole, found, shares).mean())


def find_false(found):
    """Return whether each interval of `estimate` leaves out 0."""
    return (found["low"] > 0) | (found["high"] < 0)


def power(seeds, rows, tables):
    """Return the share of rows that four true standard errors show, over both text shares."""
    found = []
    for share in SHARES:
        own = estimate(*draw_tables("normal", seeds, rows, share, tables, 4.0), ALPHA / rows)
        found.append((own["low"] > 0).mean())
    return float(np.mean(found))


def false_tables(kind, seeds, rows, share, tables):
    """Return the share of tables without a difference that have a word on any row."""
    found = estimate(*draw_tables(kind, seeds, rows, share, tables), ALPHA / rows)
    return float(find_false(found).any(-1).mean())


def worst_false(kind, seeds, tables):
    """Return the largest share of false tables over rows and shares of the text."""
    each = itertools.product(ROWS, SHARES)
    return max(false_tables(kind, seeds, rows, share, tables) for rows, share in each)


def false_grids(grid, kind, seeds, tables):
    """Return the share of grids without an effect that show one, main effects and interactions."""
    axes, is_half = GRIDS[grid]
    cells = [c for c in itertools.product(*map(range, axes)) if not is_half or sum(c) % 2 == 0]
    design = Design.of(tuple(cells), tuple(f"axis {i}" for i in range(len(axes))))
    spread, varies = OF_GRIDS[kind]
    generator = np.random.default_rng(seeds)
    deviation = np.exp(spread * generator.normal(size=(tables, len(cells), 1)) / 2)
    losses = deviation * generator.normal(size=(tables, len(cells), seeds))
    of_level = generator.normal(size=(tables, axes[0], seeds)) * varies / math.sqrt(2)
    losses += of_level[:, [cell[0] for cell in cells]]
    level = ALPHA / len(design.weights)
    found = estimate_effects(design, losses, np.full(len(cells), seeds), 0.0, math.inf, level)
    return float(find_false(found).any(-1).mean())


def false_tasks(items, seeds, rows, tables):
    """Return the share of tables of equal accuracies that have a word on any row.

    An item has its difficulty, which a variant changes by chance, and a run of it has luck.
    """
    generator, wrong = np.random.default_rng(items + seeds), 0
    for _ in range(tables):
        shape = (rows + 1, seeds, items)
        skill = generator.normal(size=items) + 0.5 * generator.normal(size=(rows + 1, 1, items))
        of_run = 0.1 * generator.normal(size=(rows + 1, seeds, 1))
        right = (skill + of_run + generator.normal(size=shape) > 0).astype(float)
        differences = right[1:] - right[0]
        errors = [item_error(own, least=least_error(items)) for own in differences]
        se, df = np.array([(error.se, error.df) for error in errors]).T
        found = estimate(differences.mean(-1), se, df, ALPHA / rows)
        wrong += bool(find_false(found).any())
    return wrong / tables


def false_tuned(cost, choosing, reported, tables):
    """Return the share of tuned arms with a word that equal the baseline at their best rates.

    Of the rates each costs so much more than the one before. An arm and the baseline choose their
    rates on seeds of their own; half of a run's variance is its seed's, which cancels.
    """
    generator = np.random.default_rng(choosing)
    costs = cost * np.arange(RATES)
    tried = costs[:, None] + generator.normal(size=(tables, 2, RATES, choosing)) / math.sqrt(2)
    chosen = costs[tried.mean(-1).argmin(-1)]
    return _judge_pair(generator, chosen[:, 1] - chosen[:, 0], reported)


def false_beyond_grid(cost, reported, tables):
    """Return the share of arms with a word whose best rate lies beyond the grid, at a cost."""
    return _judge_pair(np.random.default_rng(reported), np.full(tables, cost), reported)


def _judge_pair(generator, differences, seeds):
    """Return how often one arm alone differs from the baseline, given its true differences."""
    noise = generator.normal(size=(len(differences), 1, seeds))
    found = estimate(differences[:, None, None] + noise, 0.0, math.inf)
    return float(find_false(found).mean())


def follow_looks(differences, looks):
    """Return the rows of tables at the last looks of their arms, and the indices of these looks.

    `differences` has the shape (T, M, seeds). At each look, the arms that are still undecided take
    its seeds; decided arms keep their seeds and their rows.
    """
    at, rows = np.zeros(differences.shape[:2], int), {}
    shares, is_open = np.array(spending(looks)), np.ones(at.shape, bool)
    for look in range(len(looks)):
        at[is_open] = look
        taken = np.arange(differences.shape[-1]) < np.array(looks)[at][..., None]
        level = ALPHA * shares[at] / at.shape[1]
        now = estimate(np.where(taken, differences, math.nan), 0.0, math.inf, level)
        rows = {key: np.where(is_open, now[key], rows.get(key, now[key])) for key in now}
        is_open &= ~find_false(rows)
    return rows, at


def draw_unequal(count, arms, seeds, *, r, heavy=False, seed=0):
    """Draw paired differences of tables without effects, and their standard deviations.

    All arms share a baseline; variances differ as much as in the records (log-variance 1).
    """
    generator = np.random.default_rng(seed)
    shared = generator.standard_normal((count, 1, seeds))
    own = generator.standard_normal((count, arms, seeds))
    if heavy:
        own = generator.standard_t(5, own.shape) * math.sqrt(3 / 5)
    sd, sd_base = (np.exp(generator.normal(0, 0.5, (count, n, 1))) for n in (arms, 1))
    differences = sd * (math.sqrt(r) * shared + math.sqrt(1 - r) * own) - sd_base * shared
    return differences, np.sqrt(sd**2 * (1 - r) + (sd * math.sqrt(r) - sd_base) ** 2)


#: Noise of speeds. Each turn of a process has its luck (0.05), each process its place in memory
#: (0.02), and all arms drift together.
OF_SPEEDS = (
    *("white", "places in memory", "bursts", "AR(1) 0.8", "AR(1) 0.95"),
    *("t with 3 df", "skewed", "one arm 4 times as noisy", "unequal arms"),
)
ARMS = (3, 6, 16)


def draw_speeds(kind, arms, tables):
    """Draw the logarithms of arms' ratios to the baseline, (T, M, processes): medians of turns."""
    generator = np.random.default_rng(arms)
    shape = (tables, MAX_PROCESSES, ROUNDS, arms + 1)
    place = 0.02 * generator.normal(size=(tables, MAX_PROCESSES, 1, arms + 1))
    luck = 0.05 * generator.normal(size=shape)
    if kind == "places in memory":
        place, luck = 2 * place, 0.2 * luck
    elif kind == "t with 3 df":
        luck = 0.05 * generator.standard_t(3, shape) / math.sqrt(3)
    elif kind == "skewed":
        luck = 0.05 * (generator.exponential(size=shape) - 1)
    elif kind.startswith("AR"):
        luck = _shuffled(generator, _autoregressive(generator, shape, float(kind.split()[1])))
    elif kind == "bursts":
        luck = luck + 0.3 * _shuffled(generator, _bursts(generator, shape))
    elif kind == "one arm 4 times as noisy":
        place[..., 1], luck[..., 1] = 4 * place[..., 1], 4 * luck[..., 1]
    elif kind == "unequal arms":
        scale = np.exp(0.5 * generator.normal(size=(tables, 1, 1, arms + 1)))
        place, luck = scale * place, scale * luck
    times = place + luck
    return np.median(times[..., 1:] - times[..., :1], axis=2).swapaxes(-1, -2)


def _autoregressive(generator, shape, share):
    """Draw timings of which each keeps a share of the luck of the one before, in their order."""
    length = math.prod(shape[2:])
    drawn = 0.05 * generator.normal(size=(*shape[:2], length))
    for at in range(1, length):
        drawn[..., at] *= math.sqrt(1 - share**2)
        drawn[..., at] += share * drawn[..., at - 1]
    return drawn.reshape(shape)


def _bursts(generator, shape):
    """Draw which timings another program slows: up to a turn in a row, in half of the processes."""
    length, place = math.prod(shape[2:]), np.arange(math.prod(shape[2:]))
    start = generator.integers(0, length, (*shape[:2], 1))
    end = start + generator.integers(1, shape[-1] + 1, start.shape)
    slowed = (start <= place) & (place < end) & (generator.random(start.shape) < 0.5)
    return slowed.reshape(shape).astype(float)


def _shuffled(generator, timings):
    """Return timings as the arms get them, which take turns in a random order."""
    order = np.argsort(generator.random(timings.shape), -1)
    return np.take_along_axis(timings, order, -1)


def judge_columns(logs):
    """Judge columns of speeds as a pass does: a further process where an interval is too wide."""
    tables, arms, most = logs.shape
    mean, half = (np.zeros((tables, arms)) for _ in range(2))
    is_open = np.ones(tables, bool)
    for processes in range(PROCESSES, most + 1):
        mean[is_open], half[is_open] = estimate_column(logs[is_open, :, :processes])
        is_open &= half.max(-1) > math.log1p(WANTED_HALF_WIDTH)
    return mean, half


def false_speeds(kind, arms, tables):
    """Return the share of columns of identical arms in which any has a word."""
    mean, half = judge_columns(draw_speeds(kind, arms, tables))
    return float((np.abs(mean) > half).any(-1).mean())


def power_of_speed(kind, tables):
    """Return how often one arm of seven is shown that is a tenth faster."""
    logs = draw_speeds(kind, 7, tables)
    logs[:, 0] += math.log(1.1)
    mean, half = judge_columns(logs)
    return float((mean[:, 0] > half[:, 0]).mean())


def _percent(shares, digits=1):
    return [f"{100 * share:.{digits}f}" for share in shares]


def draw_all():
    """Yield the tables of the page in their order: a title, heads, and cells by row."""
    seeds = [f"{n} seeds" for n in SEEDS]
    heads = [f"{rows} rows" if rows > 1 else "1 row" for rows in ROWS]
    shown = {n: _percent((power(n, rows, TABLES) for rows in ROWS), 0) for n in SEEDS}
    yield "seeds", heads, shown
    kinds = (*USUAL, *UNLIKE, *OUTLIERS)
    yield "noise", seeds, {k: _percent(worst_false(k, n, TABLES) for n in SEEDS) for k in kinds}
    few = ["3 seeds", "5 seeds", "20 seeds"]
    kinds = (*USUAL, *UNLIKE)
    means = {k: _percent(false_unpaired(k, n, TABLES) for n in (3, 5, 20)) for k in kinds}
    yield "noise", few, means
    for name, those in {"by the rule": False, "by those that reach it": True}.items():
        call = partial(called_faster, tables=TABLES, of_those_that_reach=those)
        yield name, few, {k: _percent(call(k, n) for n in (3, 5, 20)) for k in TIMES}
    tuned = {
        f"{cost:g}, {choosing}": _percent(
            (false_tuned(cost, choosing, n, TABLES) for n in REPORTED), 0
        )
        for choosing, cost in itertools.product((1, 2), COSTS)
    }
    tuned["beyond the grid"] = _percent((false_beyond_grid(1, n, TABLES) for n in REPORTED), 0)
    yield "cost, choosing seeds", [f"{n} seeds" for n in REPORTED], tuned
    for kind in OF_GRIDS:
        each = {g: _percent(false_grids(g, kind, n, TABLES) for n in SEEDS) for g in GRIDS}
        yield kind, seeds, each
    tasks = {
        f"{items}, {rows}": _percent(false_tasks(items, n, rows, TABLES // 8) for n in SEEDS)
        for items, rows in itertools.product((40, 200), (1, 3, 10))
    }
    yield "items, rows", seeds, tasks
    speeds = {
        kind: _percent(false_speeds(kind, arms, TABLES) for arms in ARMS)
        + _percent([power_of_speed(kind, TABLES)], 0)
        for kind in OF_SPEEDS
    }
    yield "noise", [*(f"{arms} arms" for arms in ARMS), "shown"], speeds


def page():
    """Return the page with its tables drawn anew; its sentences stay."""
    drawn = []
    for title, heads, rows in draw_all():
        each = [[title, *heads], *([name, *cells] for name, cells in rows.items())]
        head, *below = (f"| {' | '.join(map(str, row))} |" for row in each)
        drawn.append("\n".join([head, "|---" * len(each[0]) + "|", *below]) + "\n")
    new = iter(drawn)
    return re.sub(r"(?m)(^\|.*\n?)+", lambda _old: next(new), PAGE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
