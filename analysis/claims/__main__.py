"""Run audit files, which train nothing, and write what they measure beside what was claimed.

python -m analysis.claims analysis/claims/audits/*.yaml --results results/reference/claims
"""

import argparse
from pathlib import Path

from analysis.claims import findings
from llama_ablate.commands.shared.options import count


def main() -> None:
    """Run each file; print its findings and where its report is."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.claims", description=__doc__.splitlines()[0]
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="audit files")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where a folder for each file is made (default: results)",
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="where to time; an audit for a GPU is left out elsewhere (default: auto)",
    )
    parser.add_argument(
        "--processes",
        type=count,
        metavar="N",
        help="processes that a benchmark is timed in (default: as the file says)",
    )
    options = parser.parse_args()
    for file in options.files:
        try:
            text, report = findings.run(file, options.results, options.device, options.processes)
        except (ValueError, OSError) as error:
            parser.exit(2, f"{parser.prog}: {' '.join(str(error).split())}\n")
        print(text if report is None else f"{text}\n\nreport: {report}")


if __name__ == "__main__":
    main()
