"""The command `show`: the comparison of all variants, or one variant or run in full."""

from argparse import ArgumentParser, Namespace

from llama_ablate.commands import options as shared
from llama_ablate.commands.answer import Answer

HELP = "look at the grid, one variant, or one run"
EXAMPLE = "show results/quickstart swiglu"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the results, and what of them to show."""
    shared.add_results(parser)
    parser.add_argument("what", nargs="?", metavar="VARIANT|RUN", help="a label or an id")
    shared.add_table(parser)


def run(options: Namespace) -> Answer:
    """Show a table's comparison, or all that is known of one variant or run."""
    from llama_ablate.commands import selection
    from llama_ablate.report import frames, looking, tables

    store = selection.open_table(options)
    if options.what is None:
        comparison = frames.comparison(store)
        cells = tables.comparison_cells(comparison)
        return Answer(tables.text(cells), comparison.to_dict("records"))
    if options.what in [run["id"] for run in store.plan["runs"]]:
        return Answer(*looking.run(store, options.what))
    variant = selection.variant(store, options.what, "variant or run")
    return Answer(*looking.variant(store, variant))
