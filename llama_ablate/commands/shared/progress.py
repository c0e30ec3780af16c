"""Progress of an experiment's runs as table cells.

The data come from records of finished runs and from the live notes that running workers write.
"""

import math
import time
from collections.abc import Mapping, Sequence

import pandas as pd

from llama_ablate import terminal
from llama_ablate.evidence.written import number
from llama_ablate.results import Results
from llama_ablate.results.snapshot import RunStatus

COLUMNS = ["run", "state", "done", "loss (nats)", "tokens/s", "left", "curve"]
_LOSS = "train_loss_nats"
_CURVE = 12  # characters
_SILENT_S = 60.0  # seconds without a new live note, after which a run is shown as silent


def cells(results: Results, runs: Sequence[RunStatus]) -> pd.DataFrame:
    """Return a data frame of formatted cells, one row per run.

    Columns are state, share done, training loss, tokens per second, remaining time, and a small
    loss curve.
    """
    rows = [_row(results, run) for run in runs]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(results: Results, run: RunStatus) -> dict[str, str]:
    row = dict.fromkeys(COLUMNS, "") | {"run": run.name, "state": run.outcome}
    if live := run.live:
        silent = time.time() - live.updated
        if live.step == live.steps:
            row["state"] += ", measuring"
        elif silent > _SILENT_S:
            row["state"] += f", silent {duration(silent)}"
        losses = [*(point.get(_LOSS, math.nan) for point in live.curve), live.train_loss]
        row["done"] = f"{live.step / live.steps:.0%}"
        row["tokens/s"] = f"{live.tokens_per_s:,.0f}"
        row["left"] = "" if live.seconds_left is None else duration(live.seconds_left)
    elif run.outcome not in ("pending", "running") and (ended := results.finished.get(run.id)):
        record, losses = ended.record(), [point[_LOSS] for point in ended.curve()]
        if record.train_s:
            row["tokens/s"] = f"{record.tokens_done / record.train_s:,.0f}"
    else:
        return row
    row["loss (nats)"] = number(losses[-1], ".3f") if losses else ""
    row["curve"] = terminal.small_curve(losses, _CURVE)
    return row


def seconds_left(results: Results, runs: Sequence[RunStatus]) -> float | None:
    """Estimate the remaining seconds of training at the total speed of the running runs.

    Returns None if no run is training, or if no speed is known yet.
    """
    notes = [run.live for run in runs if run.live]
    tokens_per_s = sum(note.tokens_per_s for note in notes)
    if not tokens_per_s:
        return None
    noted = {note.run: note.tokens for note in notes}
    open_ = {run.id for run in runs if run.outcome in ("pending", "running")}
    tokens = _tokens(results)
    return sum(tokens[run] - noted.get(run, 0) for run in open_) / tokens_per_s


def _tokens(results: Results) -> Mapping[str, int]:
    """Return the number of training tokens of each planned run, by run id."""
    return {
        run.id: run.steps * table.tokens_per_run // table.steps
        for table in results.plan.tables
        for run in table.runs
    }


def fitting(runs: Sequence[RunStatus], most: int) -> list[RunStatus]:
    """Choose at most `most` runs to show: running, some pending, and last-ended runs."""
    running = [run for run in runs if run.outcome == "running"][:most]
    waiting = [run for run in runs if run.outcome == "pending"]
    ended = [run for run in runs if run.outcome not in ("running", "pending")]
    room = most - len(running)
    waiting = waiting[: max(min(room, 3), room - len(ended))]
    ended = ended[max(0, len(ended) - (room - len(waiting))) :] if room > len(waiting) else []
    return [*running, *waiting, *ended]


def duration(seconds: float) -> str:
    """Format seconds as minutes or hours: `0:42`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
