"""The command `measure`: more metrics of finished runs, from their weights."""

from argparse import ArgumentParser, Namespace

from llama_ablate.commands.shared import options as shared
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.terminal import say

HELP = "measure more metrics of finished runs, without training"
EXAMPLE = "measure results/quickstart perplexity decode_speed"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the results, the metrics, and whether what is measured is measured again."""
    shared.add_results(parser)
    parser.add_argument("metrics", nargs="+", metavar="METRIC", help="see: components metric")
    shared.add_wide(parser)
    parser.add_argument(
        "--again",
        action="store_true",
        help="take also what is measured already; the new measurement replaces the earlier one",
    )


def run(options: Namespace) -> Answer:
    """Measure runs that have finished, and write the report again.

    What was measured in the same circumstances is kept, unless `--again`.
    """
    say(f"reading {options.folder}")
    from llama_ablate.commands import report
    from llama_ablate.commands.shared import notes
    from llama_ablate.launch import measurement
    from llama_ablate.results import Results, Store
    from llama_ablate.terminal import Bar

    store = Store.open(options.folder)
    notes.mend(store)
    with Bar("measuring") as bar:
        measurement.measure_finished(store, options.metrics, bar.update, again=options.again)
    return report.write(Results(store))
