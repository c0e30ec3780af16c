"""Attention maps: scores, masked scores and probabilities with token labels, as arrays and figures.

Arrays are (T, T), queries down and keys across, or (H, T, T) for all heads of a layer.
"""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

Array = NDArray[np.floating]

_LABELS = 48  # most tokens of which all are labelled
_STEPS = ("scores", "masked", "weights")
_ABOUT = ("labels", "title", "layers")


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention maps of one prompt: arrays (layers, H, T, T) for each step, and token labels."""

    scores: Array
    masked: Array
    weights: Array
    labels: list[str]
    title: str
    #: Indices, in the model, of the layers with maps.
    layers: list[int]

    @classmethod
    def load(cls, file: Path) -> "AttentionMaps":
        """Read a file that `save` wrote. Raises ConfigError if the file has other contents."""
        try:
            with np.load(file, allow_pickle=False) as arrays:
                steps = [arrays[name] for name in _STEPS]
                return cls(*steps, *(arrays[name].tolist() for name in _ABOUT))
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"'{file}' holds no attention maps: {error}") from None

    def save(self, file: Path) -> Path:
        """Write all arrays to a .npz file."""
        disk.make(file.parent)
        content = BytesIO()
        arrays: dict[str, Any] = {name: np.array(of) for name, of in vars(self).items()}
        np.savez_compressed(content, **arrays)
        disk.replace(file, content.getvalue())
        return file

    # Seaborn draws labels at once to find overlaps; tokens must not be parsed as formulas.
    @mpl.rc_context({"text.parse_math": False})
    def head(self, layer: int, head: int) -> Figure:
        """Draw the scores, masked scores and probabilities of one head side by side."""
        row = self._row(layer, head)
        size = min(12.0, max(4.0, 0.2 * len(self.labels) + 1.8))
        figure = _make_figure(3 * size, size)
        names = ("scores", "scores with the mask", "probabilities")
        for axes, name, step in zip(figure.subplots(1, 3), names, _STEPS, strict=True):
            values = getattr(self, step)[row, head]
            self._draw(axes, values, bar=True)
            axes.set_title(name)
        figure.suptitle(_make_visible(f"{self.title}: layer {layer}, head {head}", spaces=False))
        return figure

    @mpl.rc_context({"text.parse_math": False})
    def layer(self, layer: int) -> Figure:
        """Draw the probabilities of every head of a layer as small maps with one colour scale."""
        row = self._row(layer)
        heads = self.weights.shape[1]
        columns = min(heads, 4 if heads <= 16 else 8)
        rows = -(-heads // columns)
        figure = _make_figure(2.4 * columns + 1, 2.5 * rows + 0.6)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for head, axes in enumerate(grid):
            if head >= heads:
                axes.set_axis_off()
                continue
            labelled = head % columns == 0 and len(self.labels) <= _LABELS // 2
            self._draw(axes, self.weights[row, head], bar=False, labelled=labelled)
            axes.set_title(f"head {head}", fontsize=8)
        figure.colorbar(grid[0].collections[0], ax=list(grid), shrink=0.6, label="probability")
        figure.suptitle(_make_visible(f"{self.title}: layer {layer}, probabilities", spaces=False))
        return figure

    def distance(self, layer: int) -> list[float]:
        """Return each head's mean attention distance in tokens, averaged over queries."""
        row = self._row(layer)
        positions = np.arange(self.weights.shape[-1])
        back = positions[:, None] - positions
        return [float((weights * back).sum(-1).mean()) for weights in self.weights[row]]

    def _draw(self, axes: Axes, values: Array, *, bar: bool, labelled: bool = True) -> None:
        every = -(-len(self.labels) // _LABELS)
        ticks = [
            _make_visible(label) if i % every == 0 else "" for i, label in enumerate(self.labels)
        ]
        # Masked scores are minus infinity and are not drawn.
        sns.heatmap(
            values,
            mask=~np.isfinite(values),
            ax=axes,
            cmap="viridis",
            square=True,
            cbar=bar,
            xticklabels=ticks if bar else False,
            yticklabels=ticks if labelled else False,
            cbar_kws={"shrink": 0.7} if bar else None,
            **({} if bar else {"vmin": 0, "vmax": 1}),
        )
        axes.tick_params(labelsize=7, length=0)
        axes.tick_params("y", rotation=0)
        axes.tick_params("x", rotation=90)
        if bar:
            axes.set(xlabel="key: who is seen", ylabel="query: who looks")

    def _row(self, layer: int, head: int = 0) -> int:
        """Return a layer's index in the arrays.

        Raises ConfigError for a layer or head without maps.
        """
        heads = range(self.weights.shape[1])
        for what, index, allowed in (("layer", layer, self.layers), ("head", head, heads)):
            if index not in allowed:
                names = ", ".join(map(str, allowed))
                raise ConfigError(f"--{what} {index}: allowed are {names}")
        return self.layers.index(layer)


def _make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, without a display or pyplot's global state."""
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _make_visible(label: str, *, spaces: bool = True) -> str:
    """Return a token's text with visible signs for spaces and control characters."""
    visible = "".join(c if c.isprintable() else repr(c)[1:-1] for c in label) or "''"
    return visible.replace(" ", "\u2423" if spaces else " ")
