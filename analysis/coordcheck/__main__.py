"""Draw activations against width over a few training steps: whether a parametrization holds.

python -m analysis.coordcheck experiments/width_transfer.yaml --widths 32,64,128,256 --steps 5
"""

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.coordcheck import figure, widths
from analysis.coordcheck.activations import over_widths
from analysis.coordcheck.trends import GROWS, SHRINKS, Trend
from llama_ablate.commands.shared.options import (
    add_to,
    argument,
    count,
    made,
    option,
    overrides,
)
from llama_ablate.config import experiment
from llama_ablate.design import plan
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json
from llama_ablate.report import plots, tables
from llama_ablate.terminal import Bar


def _widths(text: str) -> list[int]:
    """Read two or more widths."""
    if not re.fullmatch("[0-9]{1,6}(,[0-9]{1,6})+", text):
        raise ArgumentTypeError(f"'{text}' is not two or more whole numbers, as 32,64,128")
    widths = sorted({int(one) for one in text.split(",")})
    if len(widths) < 2 or widths[0] < 1:
        raise ArgumentTypeError(f"'{text}': two or more different widths of 1 or more")
    return widths


@dataclass(frozen=True, kw_only=True)
class CoordcheckOptions:
    """The experiment, the widths, and how long models of each are trained."""

    file: Path = argument("FILE", "an experiment file")
    sets: tuple[str, ...] = overrides("train.lr=3e-4")
    widths: Sequence[int] = option(
        (32, 64, 128, 256), "dims to compare (default: 32,64,128,256)", "N,N,...", _widths
    )
    steps: int = option(5, "to train (default: 5)", "N", count)
    seeds: int = option(2, "to average over (default: 2)", "N", count)
    out: Path = option(
        Path("coordcheck"), "where the figure and the numbers go (default: coordcheck)", "DIR"
    )
    json: bool = option(False, "print one JSON document")


def checked(options: CoordcheckOptions) -> tuple[str, dict[str, Any]]:
    """Train models of several widths for a few steps, and fit how their activations follow it.

    Returns what is printed, and plain values. Raises ConfigError.
    """
    source = experiment.load(options.file, options.sets)
    try:
        text = plan.first_text(source.experiment)
        specs = widths.over_widths(source.experiment, options.widths, text.vocab)
    except ConfigError as error:
        raise source.locate(error) from None
    with Bar("coordcheck, steps") as bar:
        activations = pd.DataFrame(
            over_widths(
                specs,
                text,
                source.experiment.train,
                steps=options.steps,
                seeds=options.seeds,
                report=bar.update,
            )
        )
    trends = figure.trends(activations)
    files = plots.save(figure.figure(activations), options.out / "coordcheck")
    files.append(options.out / "coordcheck.csv")
    disk.replace(files[-1], activations.to_csv(index=False).encode())
    values: dict[str, Any] = {
        "widths": options.widths,
        "steps": options.steps,
        "seeds": options.seeds,
        "bounds": [SHRINKS, GROWS],
        "parametrizations": [
            {
                "name": name,
                "entry": next(iter(specs[name].values())).parametrization.entry(),
                "flat": all(trend.verdict == "flat" for trend in of_places),
                "tensors": [asdict(trend) | {"verdict": trend.verdict} for trend in of_places],
            }
            for name, of_places in trends.items()
        ],
        "files": [str(path) for path in files],
    }
    lines = [
        tables.text(figure.cells(trends)),
        "",
        f"Exponents of width {options.widths[0]} to {options.widths[-1]}, the furthest from 0 of "
        f"{options.steps} steps: of mean |x| (size), and of mean |x - x before training| (change).",
        f"Flat: none grows faster than width^{GROWS:g}, no change ends below width^{SHRINKS:g}.",
        *(_sentence(name, of_places) for name, of_places in trends.items()),
        *values["files"],
    ]
    return "\n".join(lines), values


def _sentence(name: str, trends: Sequence[Trend]) -> str:
    moving = [f"{trend.place} {trend.verdict}" for trend in trends if trend.verdict != "flat"]
    return f"{name}: {'; '.join(moving) if moving else 'flat'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the slopes; exit code 1 where a parametrization but the standard one does not hold."""
    parser = ArgumentParser(
        prog="python -m analysis.coordcheck", description=(__doc__ or "").splitlines()[0]
    )
    add_to(parser, CoordcheckOptions)
    options = made(CoordcheckOptions, vars(parser.parse_args(arguments)))
    try:
        said, values = checked(options)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(to_json(values, nulls=True) if options.json else said)
    parser.exit(0 if all(own["flat"] for own in values["parametrizations"][1:]) else 1)


if __name__ == "__main__":
    main()
