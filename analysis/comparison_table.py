"""Print the comparison table of an experiment as Markdown, LaTeX or CSV.

python analysis/comparison_table.py results/quickstart --format latex > table.tex
"""

import argparse
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.report import cells, latex, tables
from llama_ablate.report.frames import Frames
from llama_ablate.results.snapshot import Results


def main() -> None:
    """Read the results, print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment")
    parser.add_argument("--format", choices=["text", "markdown", "latex", "csv"], default="text")
    options = parser.parse_args()
    try:
        frames = Frames.of(Results.open(options.results))
    except (ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    comparison = frames.table.comparison
    shown = cells.comparison(comparison)
    formats = {
        "text": lambda: tables.text(shown),
        "markdown": lambda: tables.markdown(shown),
        "latex": lambda: latex.table(shown, frames.plan.experiment.question, "tab:comparison"),
        "csv": lambda: comparison.to_csv(index=False),
    }
    print(formats[options.format]())


if __name__ == "__main__":
    main()
