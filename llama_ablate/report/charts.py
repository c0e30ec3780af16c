"""The page's interactive charts: functions of frames that return a chart, or None."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence import written
from llama_ablate.findings import contrasts, ladder, tuning
from llama_ablate.findings.frames import Frames, TableFrames, rows
from llama_ablate.findings.rows import frame as of_rows
from llama_ablate.report.chart import (
    OF_VARIANT,
    Chart,
    Row,
    Spec,
    among,
    by_variant,
    by_verdict,
    checkbox,
    coloured,
    either,
    faded,
    intervals,
    known,
    layer,
    lines_of,
    logarithmic,
    menu,
    number,
    of_means,
    told,
    view,
    widened,
    zero,
)
from llama_ablate.report.drawing import cast, over_seeds
from llama_ablate.report.parts import Parts
from llama_ablate.results.plan_document import PlannedVariant
from llama_ablate.terminal import plural

CHARTS = Parts[Chart]("chart")

_SAME = 0.01  # share by which costs differ that matching has made equal
#: What a variant costs: column of the comparison, and its title. Less of it is better.
_COSTS = {
    "train_time": "training time, multiple of the baseline's",
    "decode_time": "decoding time, multiple of the baseline's",
    "parameters": "parameters",
    "active_parameters": "parameters that a token passes",
    "flops_per_token": "FLOPs of a forward pass per token",
    "state_bytes": "bytes of the state of one sequence",
    "kv_bytes_per_token": "bytes that a token adds to the cache",
    "peak_memory_bytes": "peak memory in training, bytes",
}
_ENDS = ("low", "high")
_KEPT = (
    *("variant", "baseline", "role", "n", "loss", "difference", "low", "high", "interval"),
    *("verdict", "p", "speed", "non_embedding", *_COSTS),
    *(f"{cost}_{end}" for cost in ("train_time", "decode_time") for end in _ENDS),
)
#: The lowest difference up to a cost: what reaches it is on the frontier.
_BEST: Spec = {
    "window": [{"op": "min", "field": "difference", "as": "best"}],
    "sort": [{"field": "x"}, {"field": "difference"}],
    "frame": [None, 0],
}
_ON_FRONTIER = "datum.difference <= datum.best"


@CHARTS.register("effects", every_table=True)
def effects(frames: Frames) -> Chart | None:
    """Show each variant's paired difference in loss from the baseline; left of 0 is better.

    The mean (shape) with the interval that the verdict is read from, and each seed (tick).
    """
    table = frames.table
    if len(of_rows(contrasts.factors(table), contrasts.FactorRow)):
        return None
    every = variants(table)
    shown = [row for row in every if not row["baseline"] and row["role"] != "positive"]
    if not any(math.isfinite(row["difference"]) for row in shown):
        return None
    shown.sort(key=lambda row: (math.isnan(row["difference"]), row["difference"]))
    seeds = _by_seed(table)
    title = f"{_against(table)} ({table.unit.name}, {_count(row['n'] for row in shown)})"
    order = [row["variant"] for row in shown]
    spec = intervals(order, shown, seeds, title=title, margin=table.margin, told=OF_VARIANT)
    spec["description"] = "Differences in loss from the baseline, with intervals"
    spec["datasets"] = {"rows": every, "by_seed": seeds}
    return Chart(spec, "comparison", figures=["effects"])


@CHARTS.register("learning_curves", every_table=True)
def learning_curves(frames: Frames) -> Chart | None:
    """Show the difference in validation loss from the baseline's run of the same seed, by tokens.

    A thin line for each seed, a thick one for their mean; below 0 is better. Of the first 8,192
    validation tokens: the tables have whole splits.
    """
    table = frames.table
    points = _differences_by_tokens(table)
    if len({point["tokens"] for point in points}) < 2:
        return None
    half = max(point["tokens"] for point in points) / 2
    end, whole = (
        widened(point["difference"] for point in points if point["tokens"] >= after)
        for after in (half, 0)
    )
    x = number("tokens", table.unit.text, axis={"format": "~s"})
    y = number("difference", f"validation {_against(table)} ({table.unit.name})")
    y["scale"] = {"domain": either("zoom", end, whole), "nice": False}
    few = [label for label in cast(table).named if label != table.plan.baseline.label]
    order = [v.label for v in _others(table)]
    named = by_variant(order, few)
    some = [{"filter": among(few)}] if "detail" in named else []  # of many, only theirs by seed
    mean: Spec = {
        "aggregate": [
            {"op": "mean", "field": "difference", "as": "mean"},
            {"op": "count", "as": "n"},
        ],
        "groupby": ["variant", "tokens"],
    }
    thin, thick = (
        layer(
            "line",
            {"clip": True, "strokeWidth": width},
            where,
            **{"x": x, "y": {**y, "field": field}, "opacity": opacity, **named},
        )
        for width, where, field, opacity in (
            (0.8, some, "difference", faded(0.45, 0.05)),
            (2.6, [mean], "mean", faded()),
        )
    )
    thin["encoding"] |= {"detail": {"field": "run"}, "tooltip": told("variant", "run", "seed")}
    thick["encoding"] |= {"tooltip": told("variant", "n")}
    if some:
        thick["mark"]["strokeWidth"] = {"expr": f"{among(few)} ? 2.6 : 0.8"}
    spec = view(300, [zero("y"), thin, thick], of="curves")
    spec["params"] = [checkbox("zoom", "zoom to the end")]
    spec["description"] = "Paired differences in validation loss along training"
    spec["datasets"] = {"curves": points}
    return Chart(spec, "comparison", figures=["learning_curves"], log=["x"])


@CHARTS.register("costs", every_table=True)
def costs(frames: Frames) -> Chart | None:
    """Show the difference in loss from the baseline against a cost of your choice.

    With the interval of the difference and that of a measured cost. The stepped line joins the
    variants that nothing beats in both mean loss and cost (the Pareto frontier).
    """
    table = frames.table
    every = variants(table)
    shown = [row for row in every if not row["role"] and math.isfinite(row["difference"])]
    offered = {cost: title for cost, title in _COSTS.items() if _differ(shown, cost)}
    if not offered or len(shown) < 2:
        return None
    x = number("x", " ", scale={"zero": False, "padding": 12}, axis={"format": "~s"})
    y = number(
        "difference", f"{_against(table)} ({table.unit.name})", scale={"zero": False, "padding": 8}
    )
    at: Spec = {"x": x, "y": y}
    name_of_axis: Spec = {
        "x": {"expr": "width / 2"},
        "y": {"expr": "height + 34"},
        "text": {"expr": f"({json.dumps(offered)})[cost]"},
        "fontSize": 12,
    }
    one: list[Spec] = [{"window": [{"op": "row_number", "as": "k"}]}, {"filter": "datum.k === 1"}]
    frontier: Spec = {"interpolate": "step-after", "color": "#888888", "opacity": 0.6}
    named: list[Spec] = [_BEST, {"filter": f"{_ON_FRONTIER} || datum.variant === lit"}]
    whisker: Spec = {"strokeWidth": 2}
    measured: Spec = {"x": {**x, "field": "x_low"}, "x2": {"field": "x_high"}}
    shared: Spec = {"opacity": faded(), "tooltip": told(*OF_VARIANT)}
    shared["tooltip"].append(number("x", "cost", format=",.4~r"))
    layers = [
        layer("text", {**name_of_axis, "color": "currentColor"}, one),
        layer("line", frontier, [_BEST, {"filter": _ON_FRONTIER}], **at, order={"field": "x"}),
        layer("rule", whisker, [known("low")], x=x, y={**y, "field": "low"}, y2={"field": "high"}),
        layer("rule", whisker, [known("x_low")], y=y, **measured),
        layer("point", {"filled": True, "size": 90}, **at, **by_verdict(shown)),
        layer(
            "text",
            {"dy": -11, "fontSize": 10, "limit": 120},
            named,
            **at,
            text={"field": "variant"},
        ),
    ]
    for own in layers[2:5]:
        own["encoding"] = coloured(shown) | own["encoding"] | shared
    layers[5]["encoding"]["opacity"] = faded(1.0, 0.0)
    chosen = {"": "x", **{f"_{end}": f"x_{end}" for end in _ENDS}}
    spec = view(320, layers, of="rows", params=[menu("cost", "cost", offered)])
    spec["transform"] = [
        {"filter": "datum.role === '' && isValid(datum.difference)"},
        *({"calculate": f"datum[cost + '{end}']", "as": name} for end, name in chosen.items()),
        known("x"),
    ]
    spec["description"] = "Differences in loss against a cost, with the Pareto frontier"
    spec["datasets"] = {"rows": every}
    replaced = ["quality_vs_training_cost", "quality_vs_state"]
    return Chart(spec, "comparison", figures=replaced, log=["x"])


@CHARTS.register("factors", every_table=True)
def factors(frames: Frames) -> Chart | None:
    """Show what each factor does to the loss on average, and what two do beyond their sum.

    With simultaneous 95% intervals; left of 0 is better.
    """
    frame = of_rows(contrasts.factors(frames.table), contrasts.FactorRow)
    if frame.empty:
        return None
    shown = _named(frame.assign(label=frame["effect"]))
    order = [row["variant"] for row in shown]
    spec = intervals(
        order,
        shown,
        [],
        title=f"effect on the loss ({frames.table.unit.name})",
        margin=frames.table.margin,
        told=("variant", "interval", "p", "verdict"),
    )
    keys = ("variant", "difference", "low", "high", "interval", "p", "verdict")
    spec["datasets"] = {"rows": [{key: row[key] for key in keys} for row in shown]}
    spec["description"] = "Main effects and interactions, with intervals"
    return Chart(spec, "factors", figures=["factors"])


@CHARTS.register("interactions", every_table=True)
def interactions(frames: Frames) -> Chart | None:
    """Show what a factor does without another (ring) and with it (dot): alike where they add up."""
    frame = of_rows(contrasts.factors(frames.table), contrasts.FactorRow)
    shown = [
        {
            "pair": f"{row.changed}, {row.present} for {row.absent}",
            "without": row.with_absent,
            "with": row.with_present,
            "verdict": row.verdict,
            "interval": written.interval(row.difference, row.low, row.high),
        }
        for row in rows(frame[frame["changed"] != ""])
    ]
    if not shown:
        return None
    x = number("without", f"effect of the first on the loss ({frames.table.unit.name})")
    common: Spec = {
        "y": lines_of([row["pair"] for row in shown], "pair"),
        "tooltip": told("pair", "without", "with", "interval", "verdict"),
        **coloured(shown),
    }
    layers = [
        zero("x"),
        layer("rule", {"strokeWidth": 2}, x=x, x2={"field": "with"}, **common),
        layer("point", {"size": 70, "strokeWidth": 2}, x=x, **common),
        layer("point", {"size": 80, "filled": True}, x={**x, "field": "with"}, **common),
    ]
    spec = view(22 * len(shown), layers, of="pairs", datasets={"pairs": shown})
    spec["description"] = "Effects of factors without and with another"
    return Chart(spec, "factors")


@CHARTS.register("steps", every_table=True)
def steps(frames: Frames) -> Chart | None:
    """Show what each step of the path changes, from where the steps before it have led.

    The line is the step's own interval, simultaneous over the steps.
    """
    frame = of_rows(contrasts.steps(frames.table), contrasts.StepRow)
    if frame.empty or frame["marginal"].isna().all():
        return None
    before = (frame["cumulative"] - frame["marginal"]).fillna(0.0)
    shown = [
        {
            "variant": row.step,
            "from": start,
            "to": start + row.marginal,
            "low": start + row.marginal_low,
            "high": start + row.marginal_high,
            "this step": written.interval(row.marginal, row.marginal_low, row.marginal_high),
            "all so far": written.interval(row.cumulative, row.cumulative_low, row.cumulative_high),
            "p": row.p_corrected,
            "verdict": row.verdict,
        }
        for row, start in zip(rows(frame), before, strict=True)
    ]
    x = number("from", f"{_against(frames.table)} ({frames.table.unit.name})")
    common: Spec = {
        "y": lines_of([row["variant"] for row in shown]),
        "tooltip": told("variant", "this step", "all so far", "p", "verdict"),
    }
    bar: Spec = {**common, "opacity": faded(0.75), **coloured(shown)}
    line: Spec = {**common, "opacity": faded(), "x2": {"field": "high"}}
    layers = [
        zero("x"),
        layer("bar", {"height": {"band": 0.5}}, x=x, x2={"field": "to"}, **bar),
        layer("rule", {"color": "currentColor"}, [known("low")], x={**x, "field": "low"}, **line),
    ]
    spec = view(28 * len(shown), layers, of="steps", datasets={"steps": shown})
    spec["description"] = "Steps of the path, each from where the one before it ended"
    return Chart(spec, "steps", figures=["steps"])


@CHARTS.register("sensitivity", every_table=True)
def sensitivity(frames: Frames) -> Chart | None:
    """Show the loss against the learning rate: the mean over seeds with its 95% interval.

    A run that diverged, or that has no loss, stands at the loss of chance. The ring is the chosen
    rate.
    """
    table = frames.table
    if "lr" not in table.experiment.tune:
        return None
    losses = tuning.rates(table.runs, table.loss, table.chance)
    if losses.empty:
        return None
    tuned = table.reported.groupby("label", sort=False)["tuned"].first()
    chosen = {label: json.loads(point).get("lr") for label, point in tuned.items()}
    points = [
        {**_mean(row), "rate": row.lr, "chosen": chosen.get(row.label) == row.lr}
        for row in rows(over_seeds(losses, ["label", "lr"], "loss"))
    ]
    x = logarithmic("rate", "learning rate", "~g")
    spec = of_means(points, x, f"{table.split_name} loss ({table.unit.full})")
    ring = layer("point", {"size": 190, "strokeWidth": 2}, [{"filter": "datum.chosen"}])
    spec["layer"].append(ring | {"encoding": spec["layer"][-1]["encoding"]})
    spec["description"] = "Loss by learning rate"
    return Chart(spec, "tuning", figures=["sensitivity"], log=["y"])


@CHARTS.register("ladder")
def _ladder(frames: Frames) -> Chart | None:
    """Show the loss against the size: the mean over seeds with its 95% interval.

    The thin line is the law through the sizes, dotted where it is a projection; too few sizes have
    none.
    """
    if frames.ladder.empty:
        return None
    losses = ladder.at_end(frames.ladder)
    means = over_seeds(losses, ["label", "parameters"], "loss")
    points = [{**_mean(row), "size": row.parameters} for row in rows(means)]
    title = f"loss ({frames.table.unit.full})"
    spec = of_means(points, logarithmic("size", _SIZE), title)
    spec["description"] = "Loss by size"
    laws = _laws(losses, ladder.floor_of(frames.table))
    if laws:
        mean = spec["layer"][-1]["encoding"]
        line = {key: value for key, value in mean.items() if key in ("x", "color", "opacity")}
        line["y"] = mean["y"]
        dashes = {"domain": ["law", "projection"], "range": [[1, 0], [2, 4]]}
        line["strokeDash"] = {"field": "part", "legend": None, "scale": dashes}
        thin = layer("line", {"strokeWidth": 1}, **line)
        spec["layer"].append({"data": {"name": "laws"}, **thin})
        spec["datasets"]["laws"] = laws
        spec["resolve"] = {"scale": {"strokeDash": "independent"}}
    return Chart(spec, "ladder", figures=["ladder"], log=["y"])


def _mean(row: Any) -> Row:
    """Return a mean over seeds and its interval, of a row of `over_seeds`."""
    return {
        "variant": row.label,
        "loss": row.mean,
        "low": row.low,
        "high": row.high,
        "n": row.n,
    }


@CHARTS.register("gaps")
def gaps(frames: Frames) -> Chart | None:
    """Show each variant's difference from the baseline by size, with the interval of its table."""
    shown = [
        {**row, "size": row["non_embedding"]}
        for rung in frames.rungs
        for row in variants(rung)
        if not row["baseline"] and not row["role"] and math.isfinite(row["difference"])
    ]
    if len({row["size"] for row in shown}) < 2:
        return None
    y = number("difference", "loss minus the baseline's (nats)")
    named = by_variant(list(dict.fromkeys(row["variant"] for row in shown)))
    common: Spec = {
        "x": logarithmic("size", _SIZE),
        "opacity": faded(0.9),
        "tooltip": told(*OF_VARIANT),
        "color": named["color"],
    }
    layers = [
        zero("y"),
        layer("line", {}, y=y, **common | named),
        layer("rule", {}, [known("low")], y={**y, "field": "low"}, y2={"field": "high"}, **common),
        layer("point", {"filled": True, "size": 60}, y=y, **common),
    ]
    spec = view(300, layers, of="gaps", datasets={"gaps": shown})
    spec["description"] = "Differences from the baseline by size"
    return Chart(spec, "ladder")


_SIZE = "parameters without embeddings"


def variants(table: TableFrames) -> list[Spec]:
    """Return one row for each variant of a table's comparison, as charts call its columns.

    Speeds are times, as multiples of the baseline's: less is better, as of every other cost.
    """
    shown = _named(of_rows(table.comparison))
    for row in shown:
        for kind in ("train", "decode"):
            ratio, low, high = (row[f"{kind}_speed_{end}"] for end in ("ratio", *_ENDS))
            times = {"": 1 / ratio, "_low": 1 / high, "_high": 1 / low}
            row |= {f"{kind}_time{end}": time for end, time in times.items()}
        row["speed"] = written.number(row["train_speed_ratio"], ".2f", "x")
    return [{key: row[key] for key in _KEPT} for row in shown]


def _named(frame: pd.DataFrame) -> list[Spec]:
    """Return rows with the names that charts show."""
    shown = []
    for row in frame.rename(columns={"label": "variant", "p_corrected": "p"}).to_dict("records"):
        interval = written.interval(row["difference"], row["low"], row["high"])
        shown.append({str(key): value for key, value in row.items()} | {"interval": interval})
    return shown


def _others(table: TableFrames) -> list[PlannedVariant]:
    """Return the variants that are compared; a positive control would set the scale."""
    return [v for v in table.plan.variants if not v.baseline and v.role != "positive"]


def _by_seed(table: TableFrames) -> list[Spec]:
    """Return each reported run's difference from the baseline's run of the same seed."""
    verdicts = dict(
        zip(of_rows(table.comparison)["label"], of_rows(table.comparison)["verdict"], strict=True)
    )
    runs = {(run.variant, run.seed): run.id for run in rows(table.ranked)}
    base = table.losses[table.plan.baseline.id]
    return [
        {
            "variant": variant.label,
            "seed": seed,
            "run": runs[variant.id, seed],
            "difference": loss - base[seed],
            "verdict": verdicts[variant.label],
        }
        for variant in _others(table)
        for seed, loss in table.losses[variant.id].items()
        if seed in base
    ]


def _differences_by_tokens(table: TableFrames) -> list[Spec]:
    """Return the differences in validation loss from the baseline, where both were evaluated."""
    base = table.plan.baseline.label
    curves = table.curves([base, *(variant.label for variant in _others(table))])
    curves = curves[curves["outcome"] == "ok"]
    against = curves[curves["label"] == base].set_index(["seed", "read"])["loss"]
    against = against[~against.index.duplicated()].rename("against")
    paired = curves[curves["label"] != base].join(against, on=["seed", "read"]).dropna()
    runs = {(run.label, run.seed): run.id for run in rows(table.reported)}
    return [
        {
            "variant": row.label,
            "run": runs[row.label, row.seed],
            "seed": row.seed,
            "tokens": row.read,
            "difference": round(row.loss - row.against, 5),
        }
        for row in rows(paired)
    ]


def _laws(losses: pd.DataFrame, floor: float | None) -> list[Spec]:
    """Return points along the law through each variant's sizes, and along its projection."""
    points = []
    for label, own in losses.groupby("label", sort=False):
        means = own.groupby("parameters")["loss"].mean()
        law = ladder.law_through(means, floor)
        if law is None:
            continue
        smallest, largest = float(means.index.min()), float(means.index.max())
        parts = {"law": np.geomspace(smallest, largest, 24)}
        if ladder.can_be_checked(len(means), floor):
            parts["projection"] = np.geomspace(largest, 10 * largest, 24)
        points += [
            {"variant": str(label), "part": part, "size": float(size), "loss": law(float(size))}
            for part, sizes in parts.items()
            for size in sizes
        ]
    return points


def _differ(shown: Iterable[Spec], cost: str) -> bool:
    """Return whether variants differ in a cost by more than matching leaves."""
    values = [row[cost] for row in shown if math.isfinite(row[cost])]
    return bool(values) and max(values) - min(values) > _SAME * max(values)


def _against(table: TableFrames) -> str:
    return f"loss minus that of {table.plan.baseline.label}"


def _count(counts: Iterable[float]) -> str:
    """Write from how many seeds means are."""
    seen = sorted({int(n) for n in counts if n and math.isfinite(n)})
    if not seen:
        return "no seeds"
    more = f" to {seen[-1]}" if len(seen) > 1 else ""
    return f"n = {seen[0]}{more} {plural(seen[-1], 'seed')}"
