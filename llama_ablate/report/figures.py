"""The figures of a report: functions of frames that return a matplotlib figure."""

import json
import math
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from llama_ablate.report import contrasts, scaling, tables, transfer, tuning
from llama_ablate.report.drawing import (
    BASELINE,
    MANY,
    canvas,
    colours,
    colours_of_lines,
    ends,
    legend,
    remark,
)
from llama_ablate.report.frames import Frames, TableFrames, rows
from llama_ablate.report.parts import Parts
from llama_ablate.results.plan import CONTEXTS
from llama_ablate.terminal import visible

_LEGEND = 48  # letters of a line in a legend of several labels
_MOST_ROWS = 40  # of effects: beyond, the ends alone are drawn
_WIDE = 10  # times the median width, beyond which an interval is cut
#: Colours that all eyes tell apart (Okabe & Ito 2008, Color Universal Design), and greys.
_VERDICTS = {
    "better": "#009e73",
    "worse": "#d55e00",
    "equivalent": "#0072b2",
    "inconclusive": "#808080",
    "diverged": "#cc79a7",
    "collapsed": "#e69f00",
    "failed": "#000000",
    "pending": "#b0b0b0",
}

FIGURES = Parts[Figure]("figure")


@FIGURES.register("learning_curves")
def learning_curves(frames: Frames) -> Figure | None:
    """Draw held-out loss against tokens: mean over seeds, band from lowest to highest seed.

    A run that did not end ok is drawn as far as it went, dotted, and ends in a cross. The positive
    control is left out of all figures of losses: it would set the scale.
    """
    palette, left_out = colours_of_lines(frames.table)
    frame = frames.table.curves(palette)
    if frame.empty:
        return None
    figure, axes = canvas(8, 4.8)
    ok = frame[frame["outcome"] == "ok"]
    sns.lineplot(
        ok,
        x="tokens",
        y="validation_loss_nats",
        hue="label",
        palette=palette,
        ax=axes,
        errorbar=("pi", 100),
        hue_order=[label for label in palette if label in set(ok["label"])],
    )
    named: set[str] = set()  # in the legend, once for all seeds
    for (label, _seed), run in frame[frame["outcome"] != "ok"].groupby(["label", "seed"]):
        name = f"{label}: {run['outcome'].iloc[0]}"
        axes.plot(
            run["tokens"].to_numpy(),
            run["validation_loss_nats"].to_numpy(),
            ":x",
            markevery=[-1],
            color=palette[str(label)],
            label="_" if name in named else name,
        )
        named.add(name)
    axes.set(xlabel="training tokens", ylabel="validation loss (nats per token)")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    _zoom(axes, frame["validation_loss_nats"])
    remark(axes, left_out)
    legend(axes)
    return figure


@FIGURES.register("effects", every_table=True)
def effects(frames: Frames) -> Figure | None:
    """Draw each variant's paired difference from the baseline with the interval that decides.

    Variants with a diverged or failed run are listed too, and say so. A factorial design has its
    factors drawn instead.
    """
    if len(contrasts.factors(frames.table)):
        return None
    frame = frames.table.comparison
    frame = frame[~frame["baseline"] & (frame["role"] != "positive")]
    frame, left_out = ends(frame, "difference_nats", _MOST_ROWS)
    figure, axes = canvas(8, 1.4 + 0.34 * max(1, len(frame)))
    for y, row in enumerate(rows(frame)):
        colour = _VERDICTS[row.verdict]
        if math.isfinite(row.difference_nats):
            if math.isfinite(row.low_nats):
                axes.plot([row.low_nats, row.high_nats], [y, y], color=colour, lw=2)
            axes.plot(row.difference_nats, y, "o", color=colour)
        if "ok" not in row.outcome or "," in row.outcome:
            right = row.high_nats if math.isfinite(row.high_nats) else 0.0
            axes.annotate(
                f" {row.outcome}", (max(0.0, right), y), va="center", color=colour, fontsize=8
            )
    axes.axvline(0, color=BASELINE, lw=1)
    axes.set_yticks(range(len(frame)), [visible(label) for label in frame["label"]])
    axes.set_ylim(len(frame) - 0.4, -0.6)
    base = frames.table.plan.baseline.label
    axes.set(xlabel=f"loss minus that of '{base}' (nats; left of the line is better)")
    _legend_of_verdicts(axes, frame["verdict"])
    remark(axes, left_out)
    return figure


@FIGURES.register("factors", every_table=True)
def factors(frames: Frames) -> Figure | None:
    """Draw what each factor does to the loss, and two together, with simultaneous 95% intervals.

    Main effects stand above the line, interactions of two below, each sorted by size. The grey band
    is the margin within which an effect is equivalent to none. An interval of more than ten times
    the usual width is cut at the frame.
    """
    frame = contrasts.factors(frames.table)
    if frame.empty:
        return None
    main = int((frame["changed"] == "").sum())
    left_out = len(frame) - _MOST_ROWS
    frame = frame[:_MOST_ROWS]
    figure, axes = canvas(8, 1.4 + 0.3 * len(frame))
    for y, row in enumerate(rows(frame)):
        colour = _VERDICTS[row.verdict]
        if math.isfinite(row.low_nats):
            axes.plot([row.low_nats, row.high_nats], [y, y], color=colour, lw=2)
        axes.plot(row.difference_nats, y, "D" if row.changed else "o", ms=5, color=colour)
    axes.axvline(0, color=BASELINE, lw=1)
    axes.axhline(main - 0.5, color=BASELINE, lw=0.6)
    if frames.table.margin:
        axes.axvspan(-frames.table.margin, frames.table.margin, color="#bbbbbb", alpha=0.3, lw=0)
    axes.set_yticks(range(len(frame)), [visible(label) for label in frame["effect"]])
    axes.set_ylim(len(frame) - 0.4, -0.6)
    width = frame["high_nats"] - frame["low_nats"]
    usual = frame[width <= _WIDE * width.median()]
    if len(usual) < len(frame) and len(usual):
        low, high = usual["low_nats"].min(), usual["high_nats"].max()
        axes.set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set(xlabel="effect on the loss (nats; left of the line is better)")
    axes.locator_params(axis="x", nbins=6)
    _legend_of_verdicts(axes, frame["verdict"])
    if left_out > 0:
        remark(axes, f"the {left_out:,} smallest interactions are left out")
    return figure


@FIGURES.register("quality_vs_training_cost")
def quality_vs_training_cost(frames: Frames) -> Figure | None:
    """Draw held-out loss against the measured time to train on a million tokens."""
    cost = 1e6 / frames.table.comparison["train_tokens_per_s"]
    return _scatter(frames.table, cost, "seconds of training per million tokens, measured")


@FIGURES.register("quality_vs_kv_bytes")
def quality_vs_kv_bytes(frames: Frames) -> Figure | None:
    """Draw held-out loss against the bytes that a token adds to the key/value cache."""
    cost = frames.table.comparison["kv_bytes_per_token"]
    figure = _scatter(frames.table, cost, "KV-cache bytes per token (16-bit)")
    if figure:
        figure.axes[0].set_xlim(left=0)
    return figure


@FIGURES.register("cache_growth")
def cache_growth(frames: Frames) -> Figure | None:
    """Draw the bytes of the state against the context; variants with equal states share a line.

    Keys and values grow with every token, those of a window until it is full, a recurrence does
    not. Computed in closed form, which `kv_cache` checks on live tensors.
    """
    figure, axes = canvas(8, 4.2)
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant in frames.table.plan.variants:
        at = variant.state_growth  # plans of older versions know what a token adds alone
        sizes = tuple(at.get(n, n * variant.kv_bytes_per_token) for n in CONTEXTS)
        groups.setdefault(sizes, []).append(variant.label)
    shown = sorted(groups.items(), key=lambda group: group[0][-1])
    if len(shown) > MANY:
        remark(
            axes,
            f"{len(shown) - MANY:,} of {len(shown):,} sizes are left out: drawn are the "
            "smallest and the largest",
        )
        shown = shown[: MANY // 2] + shown[-MANY // 2 :]
    for colour, (sizes, labels) in zip(sns.color_palette("husl", len(shown)), shown, strict=True):
        most = f"{tables.size(sizes[-1])} at {CONTEXTS[-1]:,}: {tables.listed(labels, 4)}"
        axes.plot(CONTEXTS, sizes, "o-", ms=3, color=colour, label=textwrap.fill(most, _LEGEND))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{int(n):,}"))
    axes.yaxis.set_major_formatter(FuncFormatter(_binary))
    axes.set(xlabel="context (tokens)", ylabel="state of one sequence (16-bit)")
    legend(axes)
    return figure


@FIGURES.register("sensitivity")
def sensitivity(frames: Frames) -> Figure | None:
    """Draw the loss against the learning rate: mean over seeds, band from lowest to highest seed.

    A run that diverged or collapsed stands at the loss of chance. The ring marks the rate that was
    chosen, on the validation loss.
    """
    table = frames.table
    if "lr" not in table.experiment.tune:
        return None
    palette, left_out = colours_of_lines(table)
    losses = tuning.rates(table.runs, table.split, math.log(table.plan.text.vocab))
    losses = losses[losses["label"].isin(list(palette))]
    if losses.empty:
        return None
    figure, axes = canvas(8, 4.8)
    sns.lineplot(
        losses,
        x="lr",
        y="loss_nats",
        hue="label",
        hue_order=[label for label in palette if label in set(losses["label"])],
        palette=palette,
        errorbar=("pi", 100),
        marker="o",
        ax=axes,
    )
    chosen = table.reported.groupby("label", sort=False)["tuned"].first()
    rate = {label: json.loads(point)["lr"] for label, point in chosen.items()}
    means = losses.groupby(["label", "lr"], sort=False)["loss_nats"].mean().reset_index()
    for row in rows(means[means["lr"] == means["label"].map(rate)]):
        axes.plot(row.lr, row.loss_nats, "o", ms=11, mfc="none", color=palette[row.label])
    axes.set_xscale("log")
    axes.set(xlabel="learning rate", ylabel=f"{table.split} loss (nats per token)")
    remark(axes, left_out)
    legend(axes)
    return figure


@FIGURES.register("ladder")
def ladder(frames: Frames) -> Figure | None:
    """Draw the loss of each variant against its parameters, with the law through its rungs.

    The line is the fitted law; beyond the largest size it is dotted, a projection. Too few sizes
    have no law, and a law that cannot be checked on its largest size no projection.
    """
    if frames.ladder.empty:
        return None
    palette, left_out = colours_of_lines(frames.table)
    losses = scaling.at_end(frames.ladder)
    losses = losses[losses["label"].isin(list(palette))]
    floor = scaling.floor_of(frames.table)
    figure, axes = canvas(8, 4.8)
    for label, own in losses.groupby("label", sort=False):
        colour = palette[str(label)]
        axes.plot(own["parameters"], own["loss_nats"], ".", color=colour, alpha=0.6)
        means = own.groupby("parameters")["loss_nats"].mean()
        axes.plot(means.index, means, "o", color=colour, label=str(label))
        law = scaling.law_through(means, floor)
        if law is None:
            continue
        smallest, largest = float(means.index.min()), float(means.index.max())
        lines = [(np.geomspace(smallest, largest, 50), "-")]
        if scaling.can_be_checked(len(means), floor):
            lines.append((np.geomspace(largest, 10 * largest, 50), ":"))
        for x, style in lines:
            axes.plot(x, [law(size) for size in x], style, color=colour, lw=1)
    axes.set_xscale("log")
    axes.set(xlabel="non-embedding parameters", ylabel="loss (nats per token)")
    remark(axes, left_out)
    legend(axes)
    return figure


FIGURES.register("transfer")(transfer.figure)


def _scatter(table: TableFrames, cost: "pd.Series[float]", title: str) -> Figure | None:
    """Draw loss against a cost, a point a variant with the spread over its seeds."""
    frame = table.comparison.assign(cost=cost)
    frame = frame[frame["role"] != "positive"]
    shown = frame[frame["loss_nats"].notna() & frame["cost"].notna()]
    if shown.empty:
        return None
    figure, axes = canvas(8, 4.8)
    palette = colours(table)
    named = len(palette) <= MANY + 1
    for _, own in shown.groupby("label" if named else "baseline", sort=False):
        label = str(own["label"].iloc[0])
        axes.errorbar(
            own["cost"],
            own["loss_nats"],
            yerr=own["sd_nats"].fillna(0.0),
            fmt="o",
            capsize=3,
            color=palette[label],
            label=label,
        )
    lost: Sequence[str] = list(frame.loc[frame["loss_nats"].isna(), "label"])
    if lost:
        remark(axes, f"without a loss: {tables.listed(lost)}")
    axes.set(xlabel=title, ylabel=f"{table.split} loss (nats per token, ± sd over seeds)")
    if named:
        legend(axes)
    return figure


def _legend_of_verdicts(axes: Axes, verdicts: "pd.Series[str]") -> None:
    handles = [
        mpl.lines.Line2D([], [], color=colour, marker="o", label=verdict)
        for verdict, colour in _VERDICTS.items()
        if verdict in set(verdicts)
    ]
    if handles:
        axes.legend(handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _zoom(axes: Axes, losses: "pd.Series[float]") -> None:
    """Leave the first steep fall out of sight where it would flatten all that follows."""
    if len(losses) > 20:
        low, high = float(losses.min()), float(losses.quantile(0.9))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))


def _short(value: float, _position: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _binary(value: float, _position: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):g} {unit}"
    return f"{value:g} B"
