"""What the intervals are made of."""

from llama_ablate.findings import contrasts
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("diagnostics", every_table=True)
def _diagnostics_section(frames: Frames) -> Section | None:
    if contrasts.factors(frames.table):
        more = """Where the variance is pooled, it is what is left in all cells after cells and
        seeds; an effect that varies more over seeds than the others keeps its own."""
    else:
        more = """Where the variance is pooled, that of the other rows counts for two degrees of
        freedom; a row much noisier than they are keeps its own. r is the correlation over seeds of
        variant and baseline; beside it, how many times the runs an unpaired design would need:
        rough figures, shown from five pairs on."""
    return section(
        "Diagnostics",
        contrasts.diagnostics(frames.table),
        f"""What each interval is made of: its standard errors, over seeds and over held-out text,
        its degrees of freedom, and the level at which it holds alone. {more}""",
        printed=False,
        folded=True,
    )
