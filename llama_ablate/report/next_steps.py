"""Suggested next steps: more seeds for inconclusive variants, and wider tuning grids."""

import json
from collections.abc import Iterator

from llama_ablate.findings import tuning
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.table import Table
from llama_ablate.terminal import listed


def next_steps(frames: Frames, command: str) -> list[str]:
    """Suggest further runs, each with the command line that adds them."""
    return [
        line
        for table in frames.tables
        for line in (*_more_seeds(table, command), *_more_points(table, command))
    ]


def _more_seeds(table: Table, command: str) -> Iterator[str]:
    """Suggest the smallest number of seeds that would decide an inconclusive variant.

    The suggestion states the minutes of further training. Yields nothing for experiments with
    planned interim analyses, or with a list of seeds.
    """
    if len(table.experiment.looks) > 1 or not isinstance(table.experiment.seeds, int):
        return
    rows = compare_variants(table)
    needs = rows[rows["verdict"].eq("inconclusive")].groupby("seeds_low")["label"].agg(list)
    present, runs = len(table.experiment.seed_list), find_runs(table)
    trained = runs.loc[runs["role"].eq(""), runs.columns == "train_s"]
    seed_s = trained.sum().sum() / present
    for fewest, labels in [*zip(needs.index, needs, strict=True)][:1]:
        seeds, names = int(fewest), [f"'{label}'" for label in labels]
        minutes = (seeds - present) * seed_s / 60
        yield (
            f"about {seeds} seeds would decide {listed(names)}: {minutes:.0f} min of "
            f"training more, by one worker (`{command} --set seeds={seeds}`)"
        )


def _more_points(table: Table, command: str) -> Iterator[str]:
    """Suggest a wider tuning grid if a best value is at the grid's end."""
    best = [json.loads(point) for point in tuning.best_points(find_runs(table), {}).values()]
    for key, tried_values in table.experiment.tune.items():
        numbers = {
            v for v in tried_values if isinstance(v, int | float) and not isinstance(v, bool)
        }
        grid = sorted(numbers)
        chosen = {point[key] for point in best}
        if len(grid) < 2 or len(numbers) < len(tried_values) or not min(grid) > 0:
            continue
        below = [grid[0] ** 2 / grid[1]] * (grid[0] in chosen)
        above = [grid[-1] ** 2 / grid[-2]] * (grid[-1] in chosen)
        if below or above:
            values = ", ".join(f"{value:.4g}" for value in (*below, *grid, *above))
            yield (
                f"the best {key} lies at the end of its grid: a further point reuses all runs "
                f"(`{command} --set tune.{key}='[{values}]'`)"
            )
