"""Columns of a report: formatted cells of its tables, and the frames that users open.

`findings/columns.yaml` declares the columns of tables: their titles, and formats or writers. Frames
for users are those of `llama_ablate.open`, `runs.csv` and `curves.csv`; the descriptions here are
the source of the documentation's list of columns, and a test compares the frames with them. Column
names are stable; new columns are added after the existing ones.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence import written
from llama_ablate.evidence.written import decimals, number
from llama_ablate.findings.answer import write_range
from llama_ablate.findings.columns import COLUMNS, Column, iterate, list_shown
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.table import Table
from llama_ablate.results import CURVE
from llama_ablate.results.plan_document import HELD_OUT, NATS
from llama_ablate.terminal import plural

#: Descriptions of a frame's columns by name, in the order of the columns.
Columns = Mapping[str, str]

#: Title of the column of differences, whose intervals are simultaneous over a table's rows.
DIFFERENCE = COLUMNS["comparison"]["difference"].title
#: Ratio of speeds of the same code from which the machine is too noisy to compare speeds.
_NOISY = 1.1
_EMPTY = ("", "-")
SPEEDS = ("train", "decode")  # beginnings of the columns of speeds

# ---- formatted cells


def cells(frame: pd.DataFrame, section: str) -> pd.DataFrame:
    """Return the rows of a section as a frame of texts, with the columns of narrow tables first."""
    if section == "comparison":
        noisy = {f"{kind}_noisy": is_noisy(frame, kind) for kind in SPEEDS}
        frame = frame.assign(**noisy)
    rows = [*iterate(frame)]
    texts = {}
    for name, column in _list_columns(frame, section):
        written_cells = [_write(row, name, column) for row in rows]
        if not column.optional or any(text not in _EMPTY for text in written_cells):
            texts[_fill_title(column, frame)] = written_cells
    return pd.DataFrame(texts)


def describe(frame: pd.DataFrame, section: str) -> dict[str, Column]:
    """Return the declarations of a section's formatted columns by their titles."""
    return {_fill_title(of, frame): of for _, of in _list_columns(frame, section)}


def _list_columns(frame: pd.DataFrame, section: str) -> Iterator[tuple[str, Column]]:
    """Yield the formatted columns whose condition holds in some row."""
    for name, column in list_shown(section):
        condition: Any = frame.eval(column.when, engine="python") if column.when else True
        if np.any(condition):
            yield name, column


def _fill_title(column: Column, frame: pd.DataFrame) -> str:
    """Return a column's title, with names in braces replaced by values of the first row."""
    names = [name for _, name, _, _ in Formatter().parse(column.title) if name]
    values = frame[names].iloc[0].to_dict() if names else {}
    numbers = {
        name: int(of) if isinstance(of, float) and of.is_integer() else of
        for name, of in values.items()
    }
    return column.title.format_map(numbers)


def _write(row: Any, name: str, column: Column) -> str:
    """Return the text of a cell."""
    if column.write:
        return WRITERS[column.write](row)
    value = getattr(row, name)
    return number(value, column.form) if isinstance(value, float) else format(value, column.form)


def is_noisy(rows: pd.DataFrame, kind: str) -> bool:
    """Return whether the repeated baseline's speed shows that speeds say nothing.

    It should be the baseline's: a ratio whose interval excludes 1, or of more than 10%, is noise.
    """
    repeats = rows[rows["role"].eq("aa")]
    ratio, low, high = (repeats[f"{kind}_speed_{name}"] for name in ("ratio", "low", "high"))
    is_off = (ratio > _NOISY) | (ratio < 1 / _NOISY) | (low > 1) | (high < 1)
    return bool(is_off.any())


def _write_difference(row: Any) -> str:
    is_base = getattr(row, "baseline", False)
    return "" if is_base else written.interval(row.difference, row.low, row.high)


def _write_loss(row: Any) -> str:
    """Return the mean loss; if runs are missing, with the number of averaged runs."""
    trained = row.ended - row.lost
    remark = f" (mean of the {trained} that trained)" if row.lost and trained else ""
    if row.verdict == "equal" and row.role:  # its seeds may be fewer than the baseline's
        remark = f" ({row.n} {plural(row.n, 'seed')})"
    return number(row.loss, f".{row.places}f") + remark


def _write_verdict(row: Any) -> str:
    """Write the verdict with lost runs, `not worse`, and broken guards of a better variant."""
    if row.verdict == "inconclusive" and row.lost:
        return f"{row.verdict}: runs were lost"
    if row.not_worse and row.verdict in ("inconclusive", "worse"):
        return f"{row.verdict}, not worse"
    guarded = row.verdict == "better" and row.guard
    return f"{row.verdict}, {row.guard}" if guarded else row.verdict


def _write_speed(row: Any, kind: str) -> str:
    """Return a speed ratio: `*` if its interval excludes 1, `~` without an interval."""
    names = ("ratio", "low", "high", "turns")
    ratio, low, high, turns = (getattr(row, f"{kind}_speed_{name}") for name in names)
    if math.isnan(ratio):
        return ""
    if getattr(row, f"{kind}_noisy") and not row.baseline:
        value, *interval = written.times(ratio, low, high).split(" ", 1)
        return " ".join([value, "noisy machine", *interval])
    text = written.describe_ratio(ratio, low, high)
    return text if turns or row.baseline else f"~{text}"


def _write_outcomes(row: Any) -> str:
    """Return the outcomes of runs with the share of lost runs; "" if all are `ok`."""
    if row.outcome.endswith(" ok") and "," not in row.outcome:
        return ""
    if not row.lost:
        return str(row.outcome)
    lost = written.share(row.lost / row.ended, row.lost_low, row.lost_high)
    return f"{row.outcome}: {lost}"


def _write_bits(row: Any) -> str:
    return number(row.bits_per_byte, f".{row.places}f") if row.unit == NATS.name else ""


def _write_perplexity(row: Any) -> str:
    """Return the perplexity with the decimals of the loss; "" for losses in bits per byte."""
    value = row.perplexity
    if row.unit != NATS.name:
        return ""
    if not 0 < value < math.inf:
        return number(value, "g")
    return f"{value:,.{max(0, row.places - math.floor(math.log10(value)))}f}"


def _write_match(row: Any) -> str:
    """Return the deviation from the matched budget, and the width (or other size) solved for."""
    changed = row.solved.removeprefix("feed-forward ")
    return f"{row.residual:+.2%}" + f" ({changed})" * bool(changed)


def _write_interaction(row: Any) -> str:
    """Return the effect of one change with and without another change."""
    if not row.changed or math.isnan(row.difference):
        return ""
    form = f"+z.{decimals(row.low, row.high)}f"
    there = f"{row.with_present:{form}} with {row.present}"
    return f"{row.changed}: {there}, {row.with_absent:{form}} with {row.absent}"


def _write_ends(row: Any, name: str) -> str:
    """Return a difference with its interval; "" for NaN."""
    mean, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return "" if math.isnan(mean) else written.interval(mean, low, high)


def _write_measured(row: Any) -> str:
    is_base = getattr(row, "baseline", False)
    return "" if is_base else written.measured(row.difference, row.low, row.high, row.unit)


def _write_remark(row: Any) -> str:
    """Return the reason for a missing result, remarks, and the seeds needed for a result."""
    more = written.seeds(row.seeds_low)
    return "; ".join(filter(None, (row.why, row.remark, f"{more} would decide" * bool(more))))


def _write_clusters(row: Any) -> str:
    unit = plural(row.clusters, row.cluster.removesuffix("s"))
    return f"{row.clusters} {unit}" if row.clusters else "-"


def _write_text_share(row: Any) -> str:
    is_known = not math.isnan(row.share_low)
    return f"{row.share_low:.0%} to {row.share_high:.0%}" if is_known else ""


def _write_trials(row: Any) -> str:
    """Return the number of finished trials, and how many trials diverged or collapsed."""
    lost = [f"{getattr(row, word)} {word}" for word in UNSTABLE if getattr(row, word)]
    return ", ".join([f"{row.finished} of {row.trials}", *lost])


def _write_sensitivity(row: Any) -> str:
    is_known = not math.isnan(row.sensitivity)
    return written.interval(row.sensitivity, row.low, row.high, sign="") if is_known else ""


def _write_lost(row: Any, word: str) -> str:
    return written.share(*(getattr(row, f"{word}_{end}") for end in ("share", "low", "high")))


#: Writers of cells, each of a row, by their names in `columns.yaml`.
WRITERS: Mapping[str, Callable[[Any], str]] = {
    "loss": _write_loss,
    "difference": _write_difference,
    "verdict": _write_verdict,
    **{f"{kind}_speed": partial(_write_speed, kind=kind) for kind in SPEEDS},
    "outcomes": _write_outcomes,
    "seeds": lambda row: "" if row.looks > 1 else written.seeds(row.seeds_low),
    "excess": lambda row: number(row.excess_nats, f"+.{row.places}f"),
    "bits": _write_bits,
    "perplexity": _write_perplexity,
    "match": _write_match,
    "interaction": _write_interaction,
    "range": write_range,
    **{name: partial(_write_ends, name=name) for name in ("marginal", "cumulative")},
    "value": lambda row: number(row.value, ".3f") if row.task else written.plain(row.value, 4),
    "measured": _write_measured,
    "limit": lambda row: f"{row.worse_by} {row.worse}".strip(),
    "remark": _write_remark,
    "split": lambda row: "held-out" if row.split == HELD_OUT else row.split,
    "documents": lambda row: f"{row.documents:,}" if row.documents else "-",
    "clusters": _write_clusters,
    "text_share": _write_text_share,
    "trials": _write_trials,
    "sensitivity": _write_sensitivity,
    "reached": lambda row: f"{row.reached} of {row.runs}",
    "ratio": lambda row: written.times(row.ratio, row.low, row.high),
    **{word: partial(_write_lost, word=word) for word in UNSTABLE},
}

# ---- frames for users

#: Names for users, in Python and in CSV files, of the columns that identify a variant.
RENAMED = {"variant": "variant_id", "label": "variant"}
_OWNER: Columns = {
    "experiment": "name of the experiment",
    "table": "name of the table; empty if there is only one",
    "variant": "label of the variant",
    "variant_id": "hash of the variant's architecture and train config",
}
#: Names of columns of findings in frames that start with the columns of `_OWNER`.
_NAMES = {**RENAMED, "id": "run"}


def _describe(section: str, *first: str) -> Columns:
    """Return the descriptions of a section's columns by name.

    The order is: the columns of `_OWNER`, the columns named in `first`, all other columns.
    """
    abouts = {_NAMES.get(name, name): column.about for name, column in COLUMNS[section].items()}
    return {**_OWNER, **{name: abouts[name] for name in first}, **abouts, **_OWNER}


TABLES: Columns = {
    "experiment": _OWNER["experiment"],
    "table": _OWNER["table"],
    "baseline": "label of the variant that the others are compared with",
    "corpus": "where the text comes from",
    "text": "fingerprint of the text as tokens: equal where the tokens are",
    "vocab": "of the baseline's model: entries of the vocabulary",
    "dim": "of the baseline's model: width",
    "layers": "of the baseline's model: layers",
    "heads": "of the baseline's model: query heads",
    "context": "of the baseline's model: training context in tokens",
    "unit": "unit of losses: `nats` per token, or `bits/byte`",
    "match": "what is held equal to the baseline's: `parameters`, `flops`, ..., or `none`",
    "budget": "what a run's length is counted in: `tokens`, `flops` or `seconds`",
    "steps": "of each run of the baseline: optimizer steps",
    "tokens_per_run": "of each run of the baseline: training tokens",
    "variants": "number of variants, the baseline and controls included",
    "runs": "number of runs that are needed or have ended",
    "finished": "number of them that ended `ok`, `diverged` or `collapsed`",
}
RUNS: Columns = _describe("runs")
_RUN = ("seed", "run", "point", "use", "outcome")
CURVES: Columns = {
    **_OWNER,
    **{name: RUNS[name] for name in _RUN},
    "step": "numbers so far: optimizer steps",
    "tokens": "numbers so far: training tokens",
    "lr": "learning rate of the step",
    "train_loss_nats": "cross-entropy of the training batch, nats per token",
    "grad_norm": "norm of the gradient before clipping",
    "validation_loss_nats": "loss on the first 8,192 tokens of the validation split",
    "train_s": "seconds of training so far",
}
METRICS: Columns = {
    **_describe("metrics", "seed", "run"),
    "samples": "number of values behind it: turns of a timing, documents of a loss, or 1",
    "lowest": "lowest of them",
    "highest": "highest of them",
}
COMPARISON: Columns = _describe("comparison")


def tables(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table."""
    return _frame([_table(frames, table) for table in frames.tables], TABLES)


def runs(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table and run.

    The columns of `RUNS` are followed by a column for each metric value.
    """
    return _joined([_runs(frames, table) for table in frames.tables], RUNS)


def curves(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table, run and learning-curve point.

    The columns of `CURVES` are followed by a column for each further loss.
    """
    return pd.concat(curve_parts(frames), ignore_index=True)


def curve_parts(frames: Frames) -> Iterator[pd.DataFrame]:
    """Yield the frame of `curves` in parts, to limit memory.

    For thousands of runs, the whole frame would take a gigabyte.
    """
    tables = [(_runs(frames, table), *_points(table)) for table in frames.tables]
    names = {name: None for _, _, points in tables for name in points}
    for about, places, points in tables:
        for at in range(0, max(1, len(places)), _MANY):
            part = about[[*_OWNER, *_RUN]].take(places[at : at + _MANY]).reset_index(drop=True)
            for name in names:
                part[name] = points[name][at : at + _MANY] if name in points else math.nan
            yield _frame(part.astype({"step": int, "tokens": int}), CURVES)


def metrics(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per measured value.

    The columns of `METRICS` are followed by a column for each coordinate, such as `layer`.
    """
    return _joined([_metrics(frames, table) for table in frames.tables], METRICS)


def comparison(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table and variant, and columns `COMPARISON`."""
    return _joined([_comparison(frames, table) for table in frames.tables], COMPARISON)


#: Functions that yield the parts of a report's further CSV files, by file name.
FILES: Mapping[str, Callable[[Frames], Iterable[pd.DataFrame]]] = {
    "runs": lambda frames: [runs(frames)],
    "curves": curve_parts,
}
_MANY = 10_000  # curve points per part


def _table(frames: Frames, table: Table) -> dict[str, object]:
    plan, text = table.plan, table.plan.text
    return {
        "experiment": frames.plan.experiment.name,
        "table": plan.name,
        "baseline": plan.baseline.label,
        "corpus": text.corpus,
        "text": text.fingerprint,
        "vocab": text.vocab,
        **plan.size,
        "context": frames.plan.experiment.model.context,
        "unit": table.unit.name,
        "match": plan.match,
        "budget": plan.budget,
        "steps": plan.steps,
        "tokens_per_run": plan.tokens_per_run,
        "variants": len(plan.variants),
        "runs": len(find_runs(table)),
        "finished": compare_variants(table)["finished"].sum(),
    }


def _runs(frames: Frames, table: Table) -> pd.DataFrame:
    runs = find_runs(table)
    runs = runs.assign(loss=runs.get(table.loss, math.nan)).drop(columns=["tuned", "ended"])
    return _owned(frames, runs, table)


def _points(table: Table) -> "tuple[array[int], dict[str, array[float]]]":
    """Return all curve points of a table: run indices, and values by column."""
    places, points = array("q"), {name: array("d") for name in CURVE}
    for place, run in enumerate(find_runs(table)["id"]):
        for point in table.curve(run):
            for name in point.keys() - points.keys():
                points[name] = array("d", [math.nan]) * len(places)
            places.append(place)
            for name, values in points.items():
                values.append(point.get(name, math.nan))
    return places, points


def _metrics(frames: Frames, table: Table) -> pd.DataFrame:
    values = table.measured
    pairs = zip(values["samples"], values["value"], strict=True)
    each = [samples if len(samples) else [value] for samples, value in pairs]
    described = values.assign(
        samples=[*map(len, each)],
        lowest=[*map(min, each)],
        highest=[*map(max, each)],
        seed=values["seed"].astype("Int64"),
    )
    described = described.drop(columns=["turns", "where"])
    # The frame has a column for each coordinate of the whole experiment.
    return _owned(frames, described.dropna(axis="columns", how="all"), table)


def _comparison(frames: Frames, table: Table) -> pd.DataFrame:
    ids = [variant.id for variant in table.plan.variants]
    frame = _owned(frames, compare_variants(table).assign(variant=ids), table)
    return frame.assign(experiment=[table.experiments[id_] for id_ in ids])


def _owned(frames: Frames, frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Add the columns `experiment` and `table` to a frame, and rename columns by `_NAMES`."""
    named = frame.rename(columns=_NAMES)
    return named.assign(experiment=frames.plan.experiment.name, table=table.plan.name)


def _joined(parts: Sequence[pd.DataFrame], columns: Columns) -> pd.DataFrame:
    """Concatenate the frames of all comparison tables, with the documented columns first."""
    filled = [part for part in parts if len(part)]
    return _frame(pd.concat(filled, ignore_index=True) if filled else parts[0], columns)


def _frame(values: pd.DataFrame | Sequence[Mapping[str, object]], columns: Columns) -> pd.DataFrame:
    """Return a frame with the documented columns first, followed by all others."""
    frame = pd.DataFrame(values)
    others = [column for column in frame.columns if column not in columns]
    return frame.reindex(columns=[*columns, *others])
