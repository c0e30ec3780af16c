"""Print the comparison table of an experiment as text, Markdown, LaTeX or CSV.

python analysis/comparison_table.py results/quickstart --format latex > table.tex
"""

import argparse
from pathlib import Path

import llama_ablate as la
from llama_ablate.findings.rows import cells
from llama_ablate.report import latex, tables


def main() -> None:
    """Read the results, print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--format", choices=["text", "markdown", "latex", "csv"], default="text")
    options = parser.parse_args()
    try:
        results = la.open(options.results).only(options.table)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    shown = cells(results.frames.table.comparison)
    formats = {
        "text": lambda: tables.text(shown),
        "markdown": lambda: tables.markdown(shown),
        "latex": lambda: latex.table(shown, results.question, "tab:comparison"),
        "csv": lambda: results.comparison().to_csv(index=False),
    }
    print(formats[options.format]())


if __name__ == "__main__":
    main()
