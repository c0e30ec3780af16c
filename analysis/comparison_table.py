"""Print the comparison table of an experiment as Markdown, LaTeX or CSV.

python analysis/comparison_table.py results/quickstart --format latex > table.tex
"""

import argparse
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.report import frames, tables
from llama_ablate.results import Store


def main() -> None:
    """Read the records, print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment")
    parser.add_argument("--format", choices=["text", "markdown", "latex", "csv"], default="text")
    options = parser.parse_args()
    try:
        store = Store.open(options.results)
        comparison = frames.comparison(store)
    except (ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    cells = tables.comparison_cells(comparison)
    written = {
        "text": lambda: tables.text(cells),
        "markdown": lambda: tables.markdown(cells),
        "latex": lambda: tables.latex(cells, store.plan["question"]),
        "csv": lambda: comparison.to_csv(index=False),
    }
    print(written[options.format]())


if __name__ == "__main__":
    main()
