"""The command `show`: the comparison of all variants, or one variant or run in full."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TABLE, WIDE, ResultsOptions, argument, option

if TYPE_CHECKING:
    from pandas import DataFrame

HELP = "show the comparison, one variant, or one run"
EXAMPLE = 'show results/quickstart "rmsnorm rope mha swiglu pre"'


@dataclass(frozen=True, kw_only=True)
class ShowOptions(ResultsOptions):
    """The results, and what of them to show."""

    what: str | None = argument("VARIANT|RUN", "a label or an id", None, "?")
    table: str | None = option(None, TABLE, "NAME")
    wide: bool = option(False, WIDE)


def run(options: ShowOptions) -> Answer:
    """Show a table's comparison, or all that is known of one variant or run."""
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.rows import frame
    from llama_ablate.report import details, sections
    from llama_ablate.results import Results

    results = Results.open(options.folder)
    if options.what in results.plan.runs:
        return Answer(*details.run(results, options.what))
    frames = Frames.of(results)
    frames = frames.only(selection.table(frames, options.table))
    if options.what is not None:
        variant = selection.variant(frames, options.what, "variant or run")
        return Answer(*details.variant(frames.table, variant))
    shown: list[str | DataFrame] = []
    for name in ("axes", "factors", "interactions", "comparison", "steps", "stability", "metrics"):
        section = sections.SECTIONS[name](frames)
        if section and (section.printed or name == "metrics"):
            shown += [section.title] * (section.title != "Comparison")
            shown.append(section.cells)
    return Answer(shown, frame(frames.table.comparison).to_dict("records"))
