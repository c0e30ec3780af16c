"""Draw a figure of the report, such as learning curves, effects or costs.

python analysis/draw.py factors results/quickstart --out factors.png
python analysis/draw.py learning_curves results/quickstart
"""

import argparse
from pathlib import Path

import llama_ablate as la
from llama_ablate.report.figures import FIGURES
from llama_ablate.report.pictures import save


def main() -> None:
    """Read the results, write one figure as SVG, PNG and PDF, and print the paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("results", type=Path, help="the folder of one experiment")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--out", type=Path, help="without its ending (default: the figure's name)")
    options = parser.parse_args()
    try:
        results = la.open(options.results)
        if options.table is not None:
            results = results.only(options.table)
        figures = results.figures(options.figure)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if not figures:
        parser.exit(
            2,
            f"{parser.prog}: nothing that {options.figure} shows was measured in "
            f"'{options.results}'\n",
        )
    for name, figure in figures.items():
        own = name.removeprefix(options.figure)  # suffix of a figure with several pictures
        base = Path(f"{options.out or options.figure}{own}")
        for path in save(figure, base, ("svg", "png", "pdf")):
            print(path)


if __name__ == "__main__":
    main()
