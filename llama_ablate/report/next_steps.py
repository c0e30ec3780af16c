"""Suggested next steps: more seeds for inconclusive variants, and wider tuning grids."""

import json
import math
from collections.abc import Iterator

from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.terminal import listed


def next_steps(frames: Frames, command: str) -> list[str]:
    """Suggest further runs, each with the command line that adds them."""
    return [
        line
        for table in frames.tables
        for line in (*_more_seeds(table, command), *_more_points(table, command))
    ]


def _more_seeds(table: TableFrames, command: str) -> Iterator[str]:
    """Suggest the smallest number of seeds that would decide an inconclusive variant.

    The suggestion states the minutes of further training. Yields nothing for experiments with
    planned interim analyses, or with a list of seeds.
    """
    if len(table.experiment.looks) > 1 or not isinstance(table.experiment.seeds, int):
        return
    needs: dict[int, list[str]] = {}
    for row in table.comparison:
        if row.verdict == "inconclusive" and not math.isnan(row.seeds_low):
            needs.setdefault(int(row.seeds_low), []).append(f"'{row.label}'")
    present = len(table.experiment.seed_list)
    trained = [run.number("train_s") for run in table.runs if not run.role]
    seed_s = sum(seconds for seconds in trained if not math.isnan(seconds)) / present
    for seeds in sorted(needs)[:1]:
        minutes = (seeds - present) * seed_s / 60
        yield (
            f"about {seeds} seeds would decide {listed(needs[seeds])}: {minutes:.0f} min of "
            f"training more, by one worker (`{command} --set seeds={seeds}`)"
        )


def _more_points(table: TableFrames, command: str) -> Iterator[str]:
    """Suggest a wider tuning grid if a best value is at the grid's end."""
    best = [json.loads(point) for point in tuning.best_points(table.runs, {}).values()]
    for key, tried_values in table.experiment.tune.items():
        numbers = {
            v for v in tried_values if isinstance(v, int | float) and not isinstance(v, bool)
        }
        grid = sorted(numbers)
        chosen = {point[key] for point in best}
        if len(grid) < tuning.MIN_GRID or len(numbers) < len(tried_values) or not min(grid) > 0:
            continue
        below = [grid[0] ** 2 / grid[1]] * (grid[0] in chosen)
        above = [grid[-1] ** 2 / grid[-2]] * (grid[-1] in chosen)
        if below or above:
            values = ", ".join(f"{value:.4g}" for value in (*below, *grid, *above))
            yield (
                f"the best {key} lies at the end of its grid: a further point reuses all runs "
                f"(`{command} --set tune.{key}='[{values}]'`)"
            )
