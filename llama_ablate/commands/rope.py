"""The command `rope`: the frequencies of a preset's rotary embedding, listed and drawn."""

import math
from argparse import ArgumentParser, Namespace
from pathlib import Path

from llama_ablate.commands.shared import options as shared
from llama_ablate.commands.shared.answer import Answer

HELP = "list and draw the frequencies of a rotary embedding"
EXAMPLE = "rope llama3-8b --set model.position.theta=1e4 --out rope.svg"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the preset and the figure's file."""
    parser.add_argument("what", metavar="PRESET", help="a preset's name")
    shared.add_sets(parser, "model.position.theta=1e6")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("rope"),
        metavar="FILE",
        help="the figure, as SVG and PNG (default: rope)",
    )


def run(options: Namespace) -> Answer:
    """List the frequency of each pair of coordinates, and draw them."""
    from llama_ablate.design.summary import rotation_rates
    from llama_ablate.report.drawing import save
    from llama_ablate.report.rotation import rotation

    rates, context = rotation_rates(options.what, options.sets)
    files = [str(path) for path in save(rotation(rates, context), options.out)]
    lines = ["pair  " + "  ".join(f"{name:>14s}" for name in rates) + "   turns once in"]
    for pair, row in enumerate(zip(*rates.values(), strict=True)):
        cells = "  ".join(f"{rate:14.4e}" for rate in row)
        lines.append(f"{pair:4d}  {cells}  {2 * math.pi / row[0]:14,.1f}")
    values = {
        "name": options.what,
        "context": context,
        "radians_per_position": rates,
        "files": files,
    }
    return Answer("\n".join([*lines, *files]), values)
