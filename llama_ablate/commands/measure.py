"""The command `measure`: compute further metrics of finished runs from their weights."""

from dataclasses import dataclass

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TableOptions, argument, option
from llama_ablate.terminal import say

HELP = "measure more metrics of finished runs, without training"
EXAMPLE = "measure results/first perplexity decode_speed"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(TableOptions):
    """Options of `measure`: results, metrics, and whether to repeat measurements."""

    metrics: tuple[str, ...] = argument(
        "METRIC", "a name, or '{name: ..., OPTION: ...}'; see: components metric", nargs="+"
    )
    again: bool = option(
        False, "take also what is measured already; the new measurement replaces the earlier one"
    )


def run(options: MeasureOptions) -> Answer:
    """Measure metrics of finished runs, and write the report again.

    Values that were measured in the same circumstances are kept, unless `--again` is set.
    """
    say(f"reading {options.folder}")
    from llama_ablate.commands import report
    from llama_ablate.config.marked_yaml import parse
    from llama_ablate.launch import measurement
    from llama_ablate.results import Results, Store
    from llama_ablate.terminal import Bar

    store = Store.open(options.folder)
    wanted = parse(f"measure: [{', '.join(options.metrics)}]", "METRIC").values["measure"]
    with Bar("measuring") as bar:
        measurement.measure_finished(store, wanted, bar.update, again=options.again)
    return report.write(Results(store.root, store.plan_name))
