"""Comparisons over model sizes and training lengths, and best learning rates by size."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from llama_ablate.config.schema import Looks
from llama_ablate.evidence.trends import fit_gaps
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import index_rows, iterate, list_rows, make_frame
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import BRANCH, Frames
from llama_ablate.findings.stages import find_ranked, find_reported, find_runs
from llama_ablate.findings.table import Table, once
from llama_ablate.results.plan_document import BITS
from llama_ablate.results.record import TRAINING

DECIDED = ("better", "worse", "equivalent", "equal", "lower together", "higher together", "add up")
CONTRARY = ({"better", "worse"}, {"lower together", "higher together"})
#: A branch counts as half of a run if its share of the run's length lies between these values.
MIN_HALF, MAX_HALF = 0.4, 0.6
#: Branches of runs of different length count as one length if their tokens differ by less than this
#: share of a run.
_SAME_LENGTH = 0.02
#: Metrics with the losses at the end of a run and at its branches, for curves over model size.
_LADDER = ("perplexity", TRAINING)


def compare_sizes(frames: Frames) -> pd.DataFrame:
    """Return each variant's difference from the baseline at each model size, by variant.

    The frame is empty for an experiment without `sizes`.
    """
    trends = index_rows(_fit_trends(frames))
    rows: dict[str, list[dict[str, Any]]] = {}
    for rung in frames.rungs:
        compared = compare_variants(rung)
        compared = compared[~compared["baseline"] & compared["role"].eq("")]
        for row in list_rows(compared.dropna(subset="difference")):
            about = {"rung": rung.plan.name, "parameters": row["non_embedding"]}
            trend = trends.get(row["label"], {"trend": ""})
            rows.setdefault(row["label"], []).append({**row, **about, **trend})
    return make_frame([row for of in rows.values() for row in of], "sizes")


def list_points(table: Table) -> pd.DataFrame:
    """Return the reported losses of all variants and seeds, at the ends and branches of runs.

    The columns are `label`, `baseline`, `role`, `seed`, `parameters` (without embeddings), training
    `tokens`, `compute` in FLOPs, `loss`, `branch` and `rung`, the name of the table. A run that was
    too short has no points, since its final loss is unknown.
    """
    plan, values, shared = table.plan, table.measured, table.experiment
    variants, runs = {v.id: v for v in plan.variants}, {run.id: run for run in plan.runs}
    ranked = find_ranked(table)
    ok = ranked.loc[ranked["outcome"].eq("ok") & ~ranked["too_short"], "id"]
    is_loss = values["quantity"].eq("loss") & values["metric"].isin(_LADDER)
    is_whole = values["where"].isin(["split", BRANCH]) & values["split"].eq(table.split)
    rows = []
    for row in iterate(values[is_loss & is_whole & values["run"].isin(ok)]):
        variant, run = variants[row.variant], runs[row.run]
        context = variant.model.get("context", shared.model.context)
        length = run.steps * run.train.get("batch", shared.train.batch) * context
        tokens = length if row.where == "split" else int(row.tokens)
        rows.append(
            {
                "label": variant.label,
                "baseline": variant.baseline,
                "role": variant.role,
                "seed": run.seed,
                "parameters": variant.non_embedding,
                "tokens": tokens,
                "compute": variant.flops * tokens,
                "loss": plan.scale(variant, table.split) * row.value,
                "branch": tokens != length,
                "rung": plan.name,
            }
        )
    return make_frame(rows, "points").dropna(subset="loss")


def list_ladder(frames: Frames) -> pd.DataFrame:
    """Return the loss points of all model sizes; empty for an experiment without `sizes`."""
    return pd.concat([make_frame([], "points"), *map(list_points, frames.rungs)], ignore_index=True)


def _fit_trends(frames: Frames) -> pd.DataFrame:
    """Fit the trend of each variant's loss difference from the baseline over model sizes.

    Only seeds common to all sizes are used. A variant with fewer than two sizes or seeds has no
    trend.
    """
    points = list_ladder(frames)
    ends = points[~points["branch"].astype(bool) & points["role"].eq("")]
    is_base = ends["baseline"].astype(bool)
    keys = ["rung", "seed"]
    base = ends[is_base][[*keys, "loss"]].rename(columns={"loss": "base"})
    paired = ends[~is_base].merge(base, on=keys)
    paired = paired.assign(gap=paired["loss"] - paired["base"])
    gaps: dict[str, Mapping[float, list[float]]] = {}
    for label, rows in paired.groupby("label", sort=False):
        wide = rows.pivot_table("gap", "parameters", "seed").dropna(axis=1)
        if min(wide.shape) > 1:
            gaps[str(label)] = dict(zip(wide.index, wide.to_numpy().tolist(), strict=True))
    return fit_gaps(gaps, frames.table.margin)


def find_optima(frames: Frames) -> pd.DataFrame:
    """Return each variant's best learning rate at each model size.

    A row also holds the distance from the best rate at the first size, in points of the grid. The
    frame is empty unless the experiment has several sizes and tunes the learning rate.
    """
    rated, rows = list_rates(frames), []
    grid, first = sorted(rated["lr"].unique()), dict[str, int]()
    best = rated[rated["best"].astype(bool)].groupby(["label", "rung", "lr"], sort=False)["loss"]
    for row in list_rows(best.mean().reset_index()):
        at = grid.index(row["lr"])
        moved = at - first.setdefault(row["label"], at)
        rows.append({**row, "edge": at in (0, len(grid) - 1), "moved": moved})
    return make_frame(rows, "transfer")


def list_rates(frames: Frames) -> pd.DataFrame:
    """Return losses by variant, size, seed and learning rate; `best` marks the reported rates.

    The frame is empty unless the experiment has several sizes and tunes the learning rate.
    """
    parts = [pd.DataFrame(columns=["variant", "label", "seed", "lr", "loss", "rung", "best"])]
    for table in frames.rungs if "lr" in frames.plan.experiment.tune else ():
        runs = find_runs(table)
        points = tuning.best_points(table.planned, table.plan.repeated)
        best = {id_: json.loads(point)["lr"] for id_, point in points.items()}
        rated = tuning.rates(runs[runs["role"].eq("")], table.loss, table.chance)
        is_best = rated["lr"].eq(rated["variant"].map(best))
        parts.append(rated.assign(rung=table.plan.name, best=is_best))
    return pd.concat(parts[1:] or parts, ignore_index=True)


@once
def compare_lengths(table: Table) -> pd.DataFrame:
    """Return each variant's difference, or each factorial effect, at every training length.

    Losses at shorter lengths come from branches, which are copies of a run that are cooled down
    early. The intervals at branches are simultaneous over rows and lengths; their error from
    held-out text is that of the losses at the end, on the same text. The intervals at the full
    length are the table's. The frame is empty if runs have no branches.
    """
    end, views = table.plan.tokens_per_run, view_lengths(table)
    rows: list[dict[str, Any]] = []
    for tokens, view in [*views.items(), (end, table)] if views else ():
        effects = estimate_factors(view).rename(columns={"effect": "name"})
        compared = compare_variants(view).rename(columns={"label": "name"})
        compared = compared[~compared["baseline"] & compared["role"].eq("")]
        length_rows = list_rows(effects if len(effects) else compared)
        rows += [{**row, "tokens": tokens, "end": tokens == end} for row in length_rows]
    return make_frame(rows, "lengths")


@once
def view_lengths(table: Table) -> dict[int, Table]:
    """Return tables of the same comparison at shorter training lengths, by number of tokens.

    The losses come from branches, which are copies of runs that are cooled down early. The error
    level of the intervals is divided by the number of lengths. The mapping is empty if variants
    have different tokenizers, since losses at branches are then not comparable.
    """
    if table.unit == BITS:
        return {}
    values, names = table.measured, dict[int, list[str]]()
    branch_losses = values[values["where"].eq(BRANCH) & values["quantity"].eq("loss")]
    branch_losses = branch_losses[branch_losses["split"].eq(table.split)].drop_duplicates("name")
    for name, tokens in sorted(
        zip(branch_losses["name"], branch_losses["tokens"], strict=True), key=lambda of: of[1]
    ):
        # Runs of different length have branches of different length: one share is one length.
        limit = _SAME_LENGTH * table.plan.tokens_per_run
        near = (length for length in names if abs(tokens - length) < limit)
        names.setdefault(next(near, int(tokens)), []).append(name)
    experiment, runs = table.experiment, find_reported(table)
    seeds = Looks.model_construct(looks=[experiment.looks[-1]], spend=[1 / max(len(names), 1)])
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}  # looks count seeds
    changed = experiment.model_copy(update={"seeds": seeds, "race": None})
    at_place = runs.assign(seed=runs["seed"].map(place), tuned=tuning.NOT_TUNED, point="")
    return {
        tokens: replace(
            table,
            experiment=changed,
            planned=at_place.assign(**{table.loss: runs[of].bfill(axis=1).iloc[:, 0]}),
            measured=values[values["quantity"].ne("loss")],
            asked=(),
        )
        for tokens, of in names.items()
    }


def compare_half(rows: pd.DataFrame) -> dict[str, str]:
    """Compare each row's final verdict with its verdict at half the training length.

    `rows` are those of `compare_lengths`. The values are `same`; `turned` for opposite verdicts,
    such as better and worse; `was` with the earlier verdict for any other change; and `undecided`
    for an undecided verdict at half the length. The keys are row names. Return an empty mapping
    without a branch near half the length.
    """
    last = _find_last(rows)
    shares = rows["tokens"] / rows["tokens"].max()
    near = rows[~rows["end"].astype(bool) & shares.between(MIN_HALF, MAX_HALF)]
    near = near[near["tokens"].eq(near["tokens"].max())]
    return {
        name: _compare_verdicts(last[name], word)
        for name, word in zip(near["name"], near["verdict"], strict=True)
    }


def find_contrary(rows: pd.DataFrame) -> dict[str, int]:
    """Return the largest token count with a verdict opposite to the final verdict.

    The keys are row names. Rows without an opposite verdict are left out.
    """
    last, counts = _find_last(rows), dict[str, int]()
    for row in iterate(rows):
        if _compare_verdicts(last[row.name], row.verdict) == "turned":
            counts[row.name] = max(row.tokens, counts.get(row.name, 0))
    return counts


def _find_last(rows: pd.DataFrame) -> dict[str, str]:
    """Return the verdicts at the full length by row name."""
    at_end = rows[rows["end"].astype(bool)]
    return dict(zip(at_end["name"], at_end["verdict"], strict=True))


def _compare_verdicts(now: str, then: str) -> str:
    if then not in DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} in CONTRARY else f"was {then}"
