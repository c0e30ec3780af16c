"""Figures: each takes stored results and returns a matplotlib figure, drawn with seaborn."""

import math
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext

from llama_ablate.files import disk
from llama_ablate.report import frames, tables
from llama_ablate.results import Store
from llama_ablate.terminal import visible

_MANY = 12  # variants beyond which a legend no longer helps
_ROWS = 40  # of effects: beyond, the ends alone are drawn
_BASELINE = "#333333"
_FAINT = "#bbbbbb"

Colour = tuple[float, float, float] | str


def learning_curves(store: Store) -> Figure:
    """Draw held-out loss against tokens: mean over seeds, band from lowest to highest seed.

    A run that did not end ok is drawn as far as it went, dotted, and ends in a cross. The positive
    control is left out of all figures of losses: it would set the scale.
    """
    colours, left_out = colours_of_lines(store)
    frame = frames.curves(store, colours)
    figure, axes = canvas(8, 4.8)
    if len(frame):
        ok = frame[frame["outcome"] == "ok"]
        sns.lineplot(
            ok,
            x="tokens",
            y="validation_loss_nats",
            hue="label",
            palette=colours,
            ax=axes,
            errorbar=("pi", 100),
            hue_order=[c for c in colours if c in set(ok["label"])],
        )
        named: set[str] = set()  # in the legend, once for all seeds
        for key, part in frame[frame["outcome"] != "ok"].groupby(["label", "seed"]):
            x, y = part["tokens"].to_numpy(), part["validation_loss_nats"].to_numpy()
            name = f"{key[0]}: {part['outcome'].iloc[0]}"
            axes.plot(
                x,
                y,
                ":x",
                markevery=[-1],
                color=colours[str(key[0])],
                label="_" if name in named else name,
            )
            named.add(name)
    axes.set(xlabel="training tokens", ylabel="validation loss (nats per token)")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    _zoom(axes, frame["validation_loss_nats"])
    remark(axes, left_out)
    legend(axes)
    return figure


def effects(store: Store) -> Figure:
    """Draw each variant's paired difference from the baseline with its 95% interval.

    Variants with a diverged or failed run are listed too, and say so.
    """
    frame = frames.comparison(store)
    base = frame[frame["baseline"]].iloc[0]
    frame = frame[~frame["baseline"] & (frame["role"] != "positive")]
    frame, left_out = _ends(frame, "difference_nats", _ROWS)
    figure, axes = canvas(8, 1.4 + 0.34 * max(1, len(frame)))
    colours = {
        "better": "#1b7f4d",
        "worse": "#b5422c",
        "equivalent": "#2b6cb0",
        "inconclusive": "#6b6b6b",
        "diverged": "#8a2be2",
        "collapsed": "#96650a",
        "failed": "#1d1d1f",
        "pending": "#b0b0b0",
    }
    for y, row in enumerate(frames.rows(frame)):
        colour = colours[row.verdict]
        if math.isfinite(row.difference_nats):
            if math.isfinite(row.low_nats):
                axes.plot([row.low_nats, row.high_nats], [y, y], color=colour, lw=2)
            axes.plot(row.difference_nats, y, "o", color=colour)
        if "ok" not in row.outcome or "," in row.outcome:
            axes.annotate(
                f" {row.outcome}",
                (max(0.0, _finite(row.high_nats)), y),
                va="center",
                color=colour,
                fontsize=8,
            )
    axes.axvline(0, color=_BASELINE, lw=1)
    axes.set_yticks(range(len(frame)), [visible(label) for label in frame["label"]])
    axes.set_ylim(len(frame) - 0.4, -0.6)
    axes.set(xlabel=f"loss minus that of '{base['label']}' (nats; left of the line is better)")
    handles = [
        mpl.lines.Line2D([], [], color=c, marker="o", label=v)
        for v, c in colours.items()
        if v in set(frame["verdict"])
    ]
    if handles:
        axes.legend(handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    remark(axes, left_out)
    return figure


def quality_vs_training_cost(store: Store) -> Figure:
    """Draw held-out loss against the measured time to train on a million tokens."""
    frame = frames.comparison(store)
    frame = frame.assign(cost=1e6 / frame["train_tokens_per_s"])
    figure, axes = _scatter(store, frame, "cost")
    axes.set(xlabel="seconds of training per million tokens, measured")
    return figure


def quality_vs_kv_bytes(store: Store) -> Figure:
    """Draw held-out loss against the bytes that a token adds to the key/value cache."""
    figure, axes = _scatter(store, frames.comparison(store), "kv_bytes_per_token")
    axes.set(xlabel="KV-cache bytes per token (16-bit)")
    axes.set_xlim(left=0)
    return figure


def cache_growth(store: Store) -> Figure:
    """Draw the cache's size against the context; variants with equal caches share a line.

    Computed from the bytes per token, which `kv_cache` checks on live tensors.
    """
    frame = frames.comparison(store)
    figure, axes = canvas(8, 4.2)
    contexts = [2**n for n in range(7, 18)]
    groups: dict[int, list[str]] = {}
    for row in frames.rows(frame.sort_values("kv_bytes_per_token")):
        groups.setdefault(row.kv_bytes_per_token, []).append(row.label)
    shown = list(groups.items())
    if len(shown) > _MANY:
        remark(
            axes,
            f"{len(shown) - _MANY:,} of {len(shown):,} sizes are left out: drawn are the "
            "smallest and the largest",
        )
        shown = shown[: _MANY // 2] + shown[-_MANY // 2 :]
    for colour, (size, labels) in zip(sns.color_palette("husl", len(shown)), shown, strict=True):
        names = tables.listed(labels, 4)
        axes.plot(
            contexts,
            [c * size for c in contexts],
            "o-",
            ms=3,
            color=colour,
            label=f"{size:,} B/token: {names}",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{int(n):,}"))
    axes.yaxis.set_major_formatter(FuncFormatter(_binary))
    axes.set(xlabel="context (tokens)", ylabel="KV cache of one sequence (16-bit)")
    legend(axes)
    return figure


FIGURES: dict[str, Callable[[Store], Figure]] = {
    "learning_curves": learning_curves,
    "effects": effects,
    "quality_vs_training_cost": quality_vs_training_cost,
    "quality_vs_kv_bytes": quality_vs_kv_bytes,
    "cache_growth": cache_growth,
}


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG beside each other, each in one step; return both paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    path.parent.mkdir(parents=True, exist_ok=True)
    _take_text_as_it_is(figure)
    with mpl.rc_context({"svg.hashsalt": "llama_ablate"}):
        drawn = {".svg": BytesIO(), ".png": BytesIO()}
        figure.savefig(drawn[".svg"], format="svg", bbox_inches="tight", metadata={"Date": None})
        figure.savefig(drawn[".png"], format="png", bbox_inches="tight", dpi=150)
    written = []
    for ending, content in drawn.items():
        target = base.with_name(base.name + ending)
        disk.replace(target, content.getvalue())
        written.append(target)
    return written


def _take_text_as_it_is(figure: Figure) -> None:
    """Draw what stands between two $ as it is, and spell out control characters.

    Matplotlib would take the one for a formula, and has no glyphs for the others. It may write
    powers of ten along a logarithmic axis.
    """
    powers = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext)
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in powers:
            text.set_parse_math(False)
            text.set_text(visible(text.get_text()))


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, in inches."""
    # A Figure of its own, without pyplot: no global state, nothing to close, no display needed.
    with sns.axes_style("whitegrid", {"axes.spines.right": False, "axes.spines.top": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def colours_of(store: Store) -> dict[str, Colour]:
    """Return a colour for each variant's label, the baseline's first; of many all are faint."""
    others = [v["label"] for v in store.plan["variants"] if not v["baseline"]]
    faint = dict.fromkeys(others, _FAINT)
    base = frames.baseline(store.plan)["label"]
    return {base: _BASELINE, **(_palette(others) if len(others) <= _MANY else faint)}


def _palette(labels: list[str]) -> dict[str, Colour]:
    return dict(zip(labels, sns.color_palette("husl", len(labels)), strict=True))


def _scatter(store: Store, frame: pd.DataFrame, x: str) -> tuple[Figure, Axes]:
    """Draw loss against a cost, a point a variant with the spread over its seeds."""
    figure, axes = canvas(8, 4.8)
    frame = frame[frame["role"] != "positive"]
    colours = colours_of(store)
    lost = frame[frame["loss_nats"].isna()]
    shown = frame[frame["loss_nats"].notna() & frame[x].notna()]
    named = len(colours) <= _MANY + 1
    for _, of in shown.groupby("label" if named else "baseline", sort=False):
        label = str(of["label"].iloc[0])
        axes.errorbar(
            of[x],
            of["loss_nats"],
            yerr=of["sd_nats"].fillna(0.0),
            fmt="o",
            capsize=3,
            color=colours[label],
            label=label,
        )
    if len(lost):
        remark(axes, f"without a loss: {tables.listed(list(lost['label']))}")
    split = frames.reported_split(frames.runs(store))
    axes.set(ylabel=f"{split} loss (nats per token, ± sd over seeds)")
    if named:
        legend(axes)
    return figure, axes


def colours_of_lines(store: Store) -> tuple[dict[str, Colour], str]:
    """Return a colour for each variant that figures of lines draw, and what they leave out.

    The positive control is left out without a word: it would set the scale.
    """
    frame, colours = frames.comparison(store), colours_of(store)
    others = frame[~frame["baseline"] & (frame["role"] != "positive")]
    ends, left_out = _ends(others, "loss_nats", _MANY)
    drawn = [label for label in colours if label in set(ends["label"])]
    if len(colours) - 1 > _MANY:
        colours |= _palette(drawn)
    base = next(iter(colours))
    return {label: colours[label] for label in (base, *drawn)}, left_out


def _ends(frame: pd.DataFrame, by: str, most: int) -> tuple[pd.DataFrame, str]:
    """Return variants by a number, of many the lowest and the highest; say how many are left out.

    Those without the number come last, and of many variants they are left out.
    """
    ordered = frame.sort_values(by, na_position="last")
    if len(ordered) <= most:
        return ordered, ""
    known, side = ordered[ordered[by].notna()], most // 2
    ends = pd.concat([known[:side], known[side:][-side:]])
    return ends, (
        f"{len(ordered) - len(ends):,} of {len(ordered):,} variants are left out: drawn "
        "are the lowest and the highest losses"
    )


def remark(axes: Axes, text: str) -> None:
    """Write a remark above the axes."""
    axes.set_title(text, fontsize=8, loc="left")


def legend(axes: Axes) -> None:
    """Put the legend beside the axes, where there is anything to explain."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def _zoom(axes: Axes, values: "pd.Series[float]") -> None:
    """Leave the first steep fall out of sight where it would flatten all that follows."""
    if len(values) > 20:
        low, high = float(values.min()), float(values.quantile(0.9))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


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
