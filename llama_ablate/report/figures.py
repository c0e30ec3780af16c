"""The figures of a report: functions of frames that return a matplotlib figure, or several."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from llama_ablate.findings import contrasts, ladder, tuning
from llama_ablate.findings.frames import Frames, TableFrames, rows
from llama_ablate.findings.rows import frame as of_rows
from llama_ablate.report import quantities, tables, transfer
from llama_ablate.report.drawing import (
    BASELINE,
    FAINT,
    MANY,
    Cast,
    bars,
    binary,
    canvas,
    cast,
    differ,
    ends,
    grid,
    legend,
    lines,
    note,
    over,
    over_seeds,
    remark,
    small,
    styles,
)
from llama_ablate.report.parts import Parts
from llama_ablate.results.plan_document import CONTEXTS
from llama_ablate.terminal import listed, visible

_LEGEND = 48  # letters of a line in a legend of several labels
_MOST_ROWS = 40  # of effects: beyond, the ends alone are drawn
_BEYOND = 2  # variants at most, which leave the frame for the others' sake
_ROOM = 1.15  # between the farthest mark and the frame
#: Colour and marker of each verdict: colours that all eyes tell apart (Okabe & Ito 2008, Color
#: Universal Design), and for better and worse shapes that point to their side of the line.
_VERDICTS = {
    "better": ("#0072b2", "<"),
    "worse": ("#d55e00", ">"),
    "equivalent": ("#009e73", "s"),
    "inconclusive": ("#808080", "o"),
    "too short": ("#808080", "^"),
    "diverged": ("#cc79a7", "X"),
    "collapsed": ("#e69f00", "v"),
    "failed": ("#000000", "x"),
    "pending": ("#b0b0b0", "d"),
}

FIGURES = Parts[Figure]("figure")


@FIGURES.register("learning_curves", every_table=True)
def learning_curves(frames: Frames) -> Figure | None:
    """Draw loss on the first 8,192 validation tokens, and beside it what each variant differs by.

    Lines are means over seeds, differences are paired by seed. A run that did not end ok is drawn
    as far as it went, dotted, and ends in a cross. The positive control is left out of all figures
    of losses: it would set the scale.
    """
    table = frames.table
    shown = cast(table)
    frame = table.curves(shown.all)
    if frame.empty:
        return None
    ok = frame[frame["outcome"] == "ok"]
    paired = _paired(ok, table.plan.baseline.label)
    figure, panels = grid(1 if paired.empty else 2, 5.2, 4.6)
    means = over_seeds(ok, ["label", "read"], "loss")
    lines(panels[0], means.assign(low=math.nan, high=math.nan), "read", shown)
    named: set[str] = set()  # in the legend, once for all seeds
    for (label, _seed), run in frame[frame["outcome"] != "ok"].groupby(["label", "seed"]):
        name = f"{label}: {run['outcome'].iloc[0]}"
        panels[0].plot(
            run["read"].to_numpy(),
            run["loss"].to_numpy(),
            ":x",
            markevery=[-1],
            color=shown[str(label)].colour,
            label="_" if name in named else name,
        )
        named.add(name)
    _zoom(panels[0], frame["loss"])
    panels[0].set(ylabel=f"validation loss ({table.unit.full})")
    if not paired.empty:
        differences = over_seeds(paired, ["label", "read"], "difference")
        lines(panels[1], differences, "read", shown)
        panels[1].axhline(0, color=BASELINE, lw=1)
        panels[1].set(ylabel=f"minus the baseline's ({table.unit.name}; below is better)")
        _zoom_to_small(panels[1], differences)
        note(figure, f"Differences: {over(differences['n'])}")
    for axes in panels:
        axes.set(xlabel=table.unit.text)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
    remark(panels[0], shown.remark)
    legend(*panels)
    return figure


def _paired(losses: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return losses minus the baseline's of the same seed, at as many tokens."""
    at = ["seed", "read"]
    of_base = losses.loc[losses["label"] == base, [*at, "loss"]]
    both = losses[losses["label"] != base].merge(of_base, on=at, suffixes=("", "_of_base"))
    return both.assign(difference=both["loss"] - both["loss_of_base"])


def _zoom_to_small(axes: Axes, differences: pd.DataFrame) -> None:
    """Leave out of sight how training began, and effects beside which the others are nothing."""
    last = differences.sort_values("read").groupby("label", sort=False).tail(1)
    last = last.dropna()
    reach = small(last["low"], last["high"])
    outside = [] if reach is None else list(last.loc[last["mean"].abs() > reach, "label"])
    outside = outside if len(outside) <= _BEYOND else []
    later = differences[differences["read"] > differences["read"].max() / 4]
    inside = later[~later["label"].isin(outside)]
    ends_of_bars = pd.concat([inside["low"].fillna(inside["mean"]), inside["high"], inside["mean"]])
    low, high = min(0.0, ends_of_bars.min()), max(0.0, ends_of_bars.max())
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    if outside:
        remark(axes, f"beyond the frame: {listed(outside, 3)}")


@FIGURES.register("effects", every_table=True)
def effects(frames: Frames) -> Figure | None:
    """Draw each variant's paired difference from the baseline with the interval that decides.

    Variants with a diverged or failed run are listed too, and say so. A factorial design has its
    factors drawn instead. Thin strokes above a bar are its seeds. Where one effect hides the
    others, a second panel shows the small ones.
    """
    if len(of_rows(contrasts.factors(frames.table), contrasts.FactorRow)):
        return None
    frame = of_rows(frames.table.comparison)
    frame = frame[~frame["baseline"] & (frame["role"] != "positive")]
    frame, left_out = ends(frame, "difference", _MOST_ROWS)
    base = frames.table.plan.baseline.label
    figure = _forest(
        frame.assign(name=frame["label"]),
        f"loss minus that of '{base}' ({frames.table.unit.name}; left of the line is better)",
        frames.table.differences(),
    )
    remark(figure.axes[0], left_out)
    note(figure, _decided(frame))
    return figure


def _decided(frame: pd.DataFrame) -> str:
    """Say what the bars of a comparison's differences are."""
    return over(frame["n"]).replace("intervals over", "intervals that hold for all rows at once,")


@FIGURES.register("factors", every_table=True)
def factors(frames: Frames) -> Figure | None:
    """Draw what each factor does to the loss, and two together, with simultaneous 95% intervals.

    Main effects stand above the line, interactions of two below, hollow, each sorted by size. The
    grey band is the margin within which an effect is equivalent to none. Where one effect hides the
    others, a second panel shows the small ones.
    """
    frame = of_rows(contrasts.factors(frames.table), contrasts.FactorRow)
    if frame.empty:
        return None
    main = int((frame["changed"] == "").sum())
    left_out = len(frame) - _MOST_ROWS
    frame = frame[:_MOST_ROWS]
    figure = _forest(
        frame.assign(name=frame["effect"], hollow=frame["changed"] != ""),
        f"effect on the loss ({frames.table.unit.name}; left of the line is better)",
        {},
    )
    for axes in figure.axes:
        axes.axhline(main - 0.5, color=BASELINE, lw=0.6)
        if frames.table.margin:
            margin = frames.table.margin
            axes.axvspan(-margin, margin, color="#bbbbbb", alpha=0.3, lw=0)
    if left_out > 0:
        remark(figure.axes[0], f"the {left_out:,} smallest interactions are left out")
    runs = of_rows(frames.table.comparison)["n"].sum()
    note(figure, f"Bars are 95% intervals that hold for all rows at once, n = {runs} runs.")
    return figure


@FIGURES.register("steps", every_table=True)
def steps(frames: Frames) -> Figure | None:
    """Draw what each step of a path changes against the step before it."""
    frame = of_rows(contrasts.steps(frames.table), contrasts.StepRow)
    if frame.empty or frame["marginal"].isna().all():
        return None
    ends = {f"marginal_{end}": end for end in ("low", "high")}
    named = frame.rename(columns={"step": "name", "marginal": "difference", **ends})
    columns = ["name", "difference", "low", "high", "verdict"]
    figure = _forest(
        named[columns], f"loss minus that of the step before ({frames.table.unit.name})", {}
    )
    note(figure, _decided(frame))
    return figure


def _forest(frame: pd.DataFrame, title: str, seeds: Mapping[str, Sequence[float]]) -> Figure:
    """Draw a row for each effect: its interval, a mark whose shape and colour say its verdict.

    Columns: `name, difference, low, high, verdict`, where there are any `outcome`
    (what else to say of a row) and `hollow` marks. `seeds` are the differences of single seeds.
    """
    low, high = (frame[c].fillna(frame["difference"]) for c in ("low", "high"))
    reach = small(low, high)
    panels = 1 if reach is None else 2
    height = 1.4 + 0.34 * max(1, len(frame))
    figure, columns = grid(panels, 6.0 if panels == 1 else 4.5, height, rows=frame["name"])
    for axes in columns:
        for y, row in enumerate(rows(frame)):
            _effect(axes, y, row, seeds.get(row.name, ()))
        axes.axvline(0, color=BASELINE, lw=1)
        axes.locator_params(axis="x", nbins=6)
    figure.supxlabel(title, fontsize="medium")
    columns[0].set_yticks(range(len(frame)), [visible(name) for name in frame["name"]])
    columns[0].set_ylim(len(frame) - 0.4, -0.6)
    if reach is not None:
        _only_small(columns[1], frame["difference"], _ROOM * reach)
    _legend_of_verdicts(columns[-1], frame["verdict"])
    return figure


def _effect(axes: Axes, y: int, row: Any, seeds: Sequence[float]) -> None:
    """Draw one effect."""
    colour, marker = _VERDICTS[row.verdict]
    if math.isfinite(row.difference):
        if math.isfinite(row.low):
            axes.plot([row.low, row.high], [y, y], color=colour, lw=2)
        fill = "none" if getattr(row, "hollow", False) else "full"
        axes.plot(row.difference, y, marker, ms=6, color=colour, fillstyle=fill)
        above = [y - 0.28] * len(seeds)
        axes.plot(seeds, above, "|", ms=5, mew=0.8, color=colour, alpha=0.7)
    outcome = getattr(row, "outcome", "ok")
    if "ok" not in outcome or "," in outcome:
        right = row.high if math.isfinite(row.high) else 0.0
        at = (max(0.0, right), y)
        axes.annotate(f" {outcome}", at, va="center", color=colour, fontsize=8, clip_on=True)


def _only_small(axes: Axes, effects: "pd.Series[float]", reach: float) -> None:
    """Show a panel from -reach to reach, and write the effects beyond at its edges."""
    axes.set_xlim(-reach, reach)
    axes.set_title("the small ones, enlarged", fontsize=9)
    for y, effect in enumerate(effects):
        if abs(effect) > reach:
            right = effect > 0
            axes.annotate(
                f"{effect:+.3g} \N{RIGHTWARDS ARROW}"
                if right
                else f"\N{LEFTWARDS ARROW} {effect:+.3g}",
                (0.98 if right else 0.02, y),
                xycoords=("axes fraction", "data"),
                ha="right" if right else "left",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )


@FIGURES.register("quality_vs_training_cost", every_table=True)
def quality_vs_training_cost(frames: Frames) -> Figure | None:
    """Draw what each variant changes of the loss against the time that it trains for.

    The time of a token is measured, relative to the baseline's.
    """
    ratio, low, high = (
        of_rows(frames.table.comparison)[f"train_speed_{end}"] for end in ("ratio", "low", "high")
    )
    cost = pd.DataFrame({"cost": 1 / ratio, "cost_low": 1 / high, "cost_high": 1 / low})
    return _against(frames.table, cost, "time to train on a token, times the baseline's")


@FIGURES.register("quality_vs_state", every_table=True)
def quality_vs_state(frames: Frames) -> Figure | None:
    """Draw what each variant changes of the loss against the bytes that it keeps of a sequence.

    Of a sequence of the training context, in 16-bit numbers: keys and values, or another state.
    """
    comparison, context = of_rows(frames.table.comparison), frames.plan.experiment.model.context
    # Plans of older versions know what a token adds alone.
    known = comparison["state_bytes"].fillna(comparison["kv_bytes_per_token"] * context)
    cost = pd.DataFrame({"cost": known, "cost_low": math.nan, "cost_high": math.nan})
    figure = _against(frames.table, cost, f"state of {context:,} tokens (16-bit)")
    for axes in figure.axes if figure else ():
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(binary))
        axes.locator_params(axis="x", nbins=5)
    return figure


def _against(table: TableFrames, cost: pd.DataFrame, title: str) -> Figure | None:
    """Draw paired differences against a cost (`cost, cost_low, cost_high`), a mark a variant.

    None where the cost is that of all, or unknown.
    """
    shown = cast(table)
    frame = of_rows(table.comparison).join(cost)
    frame = frame[frame["label"].isin(shown.all)]
    lost = list(frame.loc[frame["difference"].isna(), "label"])
    frame = frame[frame["difference"].notna() & frame["cost"].notna()]
    if len(frame) < 2 or not differ(frame["cost"]):
        return None
    others = frame[~frame["baseline"]]
    ends_of_bars = (others[c].fillna(others["difference"]) for c in ("low", "high"))
    reach = small(*ends_of_bars)
    figure, panels = grid(1 if reach is None else 2, 5.6, 4.6)
    rows = {row["label"]: row for _, row in frame.iterrows()}
    for axes in panels:
        for label in filter(rows.__contains__, shown.all):
            _point(axes, rows[label], shown, label)
        axes.axhline(0, color=BASELINE, lw=0.8, zorder=1)
        axes.set(xlabel=title)
    panels[0].set(
        ylabel=f"{table.split_name} loss minus the baseline's ({table.unit.name}; below is better)"
    )
    if reach is not None:
        panels[1].set_ylim(-_ROOM * reach, _ROOM * reach)
        panels[1].set_title("the small ones, enlarged", fontsize=9)
    remark(panels[0], shown.remark or (f"without a loss: {listed(lost)}" if lost else ""))
    legend(*panels)
    note(figure, _decided(others))
    return figure


def _point(axes: Axes, row: "pd.Series[Any]", shown: Cast, label: str) -> None:
    """Draw a variant's difference and cost with their intervals; one of the many as a dot."""
    if label not in shown.named:
        axes.plot(row["cost"], row["difference"], ".", color=FAINT, zorder=1)
        return
    style = shown[label]
    axes.errorbar(
        row["cost"],
        row["difference"],
        yerr=_beside(row["difference"], row["low"], row["high"]),
        xerr=_beside(row["cost"], row["cost_low"], row["cost_high"]),
        fmt=style.marker,
        ms=7,
        elinewidth=1,
        color=style.colour,
        fillstyle="none" if style.dash != "-" else "full",
        label=label,
    )


def _beside(value: float, low: float, high: float) -> list[list[float]] | None:
    """Return how far an interval reaches to both sides; None where there is none."""
    return None if math.isnan(low) else [[value - low], [high - value]]


@FIGURES.register("cache_growth")
def cache_growth(frames: Frames) -> Figure | None:
    """Draw the bytes of the state against the context; variants with equal states share a line.

    Keys and values grow with every token, those of a window until it is full, a recurrence does
    not. Computed in closed form, which `kv_cache` checks on live tensors. None where all are equal.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant in frames.table.plan.variants:
        at = variant.state_growth  # plans of older versions know what a token adds alone
        sizes = tuple(at.get(n, n * variant.kv_bytes_per_token) for n in CONTEXTS)
        groups.setdefault(sizes, []).append(variant.label)
    shown = sorted(groups.items(), key=lambda group: group[0][-1])
    if len(shown) < 2:
        return None
    figure, axes = canvas(8, 4.2)
    if len(shown) > MANY:
        remark(
            axes,
            f"{len(shown) - MANY:,} of {len(shown):,} sizes are left out: drawn are the "
            "smallest and the largest",
        )
        shown = shown[: MANY // 2] + shown[-MANY // 2 :]
    looks = styles(map(str, range(len(shown)))).values()
    for style, (sizes, labels) in zip(looks, shown, strict=True):
        most = f"{tables.size(sizes[-1])} at {CONTEXTS[-1]:,}: {listed(labels, 4)}"
        axes.plot(CONTEXTS, sizes, label=textwrap.fill(most, _LEGEND), **style.line)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{int(n):,}"))
    axes.yaxis.set_major_formatter(FuncFormatter(binary))
    axes.set(xlabel="context (tokens)", ylabel="state of one sequence (16-bit)")
    legend(axes)
    return figure


FIGURES.register_many("metrics")(quantities.figures)


@FIGURES.register("sensitivity", every_table=True)
def sensitivity(frames: Frames) -> Figure | None:
    """Draw the loss against the learning rate, mean over seeds.

    A run that diverged, or that has no loss, stands at the loss of chance. The ring marks the rate
    that was chosen, on the validation loss.
    """
    table = frames.table
    if "lr" not in table.experiment.tune:
        return None
    shown = cast(table)
    losses = tuning.rates(table.runs, table.loss, table.chance)
    losses = losses[losses["label"].isin(shown.all)]
    if losses.empty:
        return None
    figure, axes = canvas(8, 4.8)
    axes.set_xscale("log")
    means = over_seeds(losses, ["label", "lr"], "loss")
    lines(axes, means, "lr", shown)
    chosen = table.reported.groupby("label", sort=False)["tuned"].first()
    rate = {label: json.loads(point)["lr"] for label, point in chosen.items()}
    for row in rows(means[means["lr"] == means["label"].map(rate)]):
        if row.label in shown.named:
            axes.plot(row.lr, row.mean, "o", ms=11, mfc="none", color=shown[row.label].colour)
    axes.set(xlabel="learning rate", ylabel=f"{table.split_name} loss ({table.unit.full})")
    remark(axes, shown.remark)
    legend(axes)
    note(figure, over(means["n"]))
    return figure


@FIGURES.register("ladder")
def _ladder(frames: Frames) -> Figure | None:
    """Draw the loss of each variant against its parameters, with the law through its rungs.

    The line is the fitted law; beyond the largest size it is dotted, a projection. Too few sizes
    have no law, and a law that cannot be checked on its largest size no projection. Dots are seeds.
    """
    if frames.ladder.empty:
        return None
    shown = cast(frames.table)
    losses = ladder.at_end(frames.ladder)
    losses = losses[losses["label"].isin(list(shown.named))]
    floor = ladder.floor_of(frames.table)
    figure, axes = canvas(8, 4.8)
    axes.set_xscale("log")
    for label, own in losses.groupby("label", sort=False):
        style = shown[str(label)]
        axes.plot(own["parameters"], own["loss"], ".", color=style.colour, alpha=0.6)
        spread = over_seeds(own, ["parameters"], "loss").sort_values("parameters")
        bars(axes, spread["parameters"].to_numpy(), spread, replace(style, dash=""), str(label))
        means = spread.set_index("parameters")["mean"]
        law = ladder.law_through(means, floor)
        if law is None:
            continue
        smallest, largest = float(means.index.min()), float(means.index.max())
        of_law = [(np.geomspace(smallest, largest, 50), "-")]
        if ladder.can_be_checked(len(means), floor):
            of_law.append((np.geomspace(largest, 10 * largest, 50), ":"))
        for x, dash in of_law:
            axes.plot(x, [law(size) for size in x], dash, color=style.colour, lw=1)
    axes.set(xlabel="non-embedding parameters", ylabel=f"loss ({frames.table.unit.full})")
    if shown.thin:
        remark(axes, f"{len(shown.thin):,} of {len(shown.all):,} variants are left out")
    legend(axes)
    note(figure, over(losses.groupby(["label", "parameters"])["seed"].nunique()))
    return figure


FIGURES.register("transfer")(transfer.figure)


def _legend_of_verdicts(axes: Axes, verdicts: "pd.Series[str]") -> None:
    handles = [
        mpl.lines.Line2D([], [], color=colour, marker=marker, label=verdict)
        for verdict, (colour, marker) in _VERDICTS.items()
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
