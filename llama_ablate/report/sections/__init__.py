"""The sections of a report and their pictures, a module each topic, in reading order."""

from importlib import import_module

from llama_ablate.report.picture import FIGURES
from llama_ablate.report.section import SECTIONS, Section, sections

__all__ = ["FIGURES", "SECTIONS", "Section", "sections"]

for _topic in (
    *("steps", "factors", "comparison", "lengths", "winners", "secondary", "hypotheses"),
    *("controls", "heldout", "tuning", "stability", "diagnostics", "sizes"),
    "measurements",
):
    import_module(f"{__name__}.{_topic}")
