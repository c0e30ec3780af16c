"""List and draw the frequencies of presets' rotary embeddings.

python analysis/rope_frequencies.py llama3-8b --set model.position.theta=1e4 --out rope
python analysis/rope_frequencies.py llama2-7b llama3.1-405b
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from llama_ablate.config.registry import Choice
from llama_ablate.design.variants import resolve_preset
from llama_ablate.errors import ConfigError
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import build
from llama_ablate.report.pictures import blank, save

_ROW = 3  # position whose coordinate pairs are drawn on the unit circle
_POSITIONS = 128


def drawn(rates: Mapping[str, Sequence[float]], context: int) -> Figure:
    """Draw the frequencies of one or several rotary embeddings, in radians per position.

    The left panel shows the frequency of each coordinate pair, and the frequency of one turn in
    `context` positions. The middle panel shows the cosine of each pair's angle over the first 128
    positions, and the right panel the pairs at position 3 on the unit circle; both are of the first
    embedding.
    """
    with sns.axes_style("whitegrid"):
        figure = blank(15, 4.6)
        left, middle, right = figure.subplots(1, 3)
    for name, values in rates.items():
        left.plot(range(len(values)), values, ".-", ms=4, label=name)
    once = 2 * math.pi / context
    left.axhline(once, color="#999999", lw=1, ls="--", label=f"one turn in {context:,} positions")
    left.set_yscale("log")
    left.set(xlabel="pair", ylabel="radians per position", title="frequencies")
    left.legend(frameon=False, fontsize=8)
    name, values = next(iter(rates.items()))
    angles = np.outer(np.arange(_POSITIONS), np.asarray(values))
    sns.heatmap(
        np.cos(angles),
        ax=middle,
        cmap="viridis",
        vmin=-1,
        vmax=1,
        xticklabels=8,
        yticklabels=16,
        cbar_kws={"label": "cos(position x frequency)"},
    )
    middle.set(xlabel="pair", ylabel="position", title=name)
    colours = sns.color_palette("viridis", len(values))
    for angle, colour in zip(angles[_ROW], colours, strict=True):
        right.plot([0, math.cos(angle)], [0, math.sin(angle)], "-o", ms=3, lw=0.8, color=colour)
    right.set_aspect("equal")
    right.set(
        xlim=(-1.1, 1.1),
        ylim=(-1.1, 1.1),
        xlabel="cos",
        ylabel="sin",
        title=f"pairs at position {_ROW} (dark: the fast ones)",
    )
    return figure


def rotation_rates(name: str, sets: Sequence[str] = ()) -> tuple[dict[str, list[float]], int]:
    """Return a preset's rotary frequencies (radians per position and pair), and its context.

    The frequencies are by name; for a scaled embedding, those without scaling are added as
    `unscaled`. Raises ConfigError for a preset without rotary embedding.
    """
    spec, _ = resolve_preset(name, sets)
    position = spec.position.at(0)
    if position.name != "rope":
        raise ConfigError(
            f"'{name}' has position '{spec.position.name}', which turns nothing; "
            "try --set model.position=rope"
        )

    def rates(choice: Choice) -> list[float]:
        model = build(replace(spec, position=choice, layers=1), "meta")
        rope: Any = REGISTRIES["position"].build(choice, head_dim=model.blocks[0].attn.rotated)
        return [float(rate) for rate in rope.frequencies()]

    by_name = {name: rates(position)}
    if position["scaling"] != "none":
        by_name["unscaled"] = rates(position.with_options(scaling="none", factor=1.0))
    return by_name, spec.context


def main() -> None:
    """Print the frequency of each coordinate pair, and draw all in one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="+", metavar="PRESET", help="names of presets")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help="override a key, such as model.position.theta=1e6; may be repeated",
    )
    parser.add_argument("--out", type=Path, default=Path("rope"), help="the figure (default: rope)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    try:
        for preset in options.presets:
            own, context = rotation_rates(preset, options.sets)
            rates |= {f"{k} ({preset})" if k == "unscaled" else k: v for k, v in own.items()}
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    files = [str(path) for path in save(drawn(rates, context), options.out)]
    if options.json:
        print(json.dumps({"context": context, "radians_per_position": rates, "files": files}))
        return
    for name, of_pairs in rates.items():
        print(f"{name}: pair, radians per position, positions a turn")
        for pair, rate in enumerate(of_pairs):
            print(f"{pair:4d}  {rate:14.4e}  {2 * math.pi / rate:14,.1f}")
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
