"""What the intervals are made of."""

from llama_ablate.findings import effects
from llama_ablate.findings.diagnostics import diagnostics
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("diagnostics", every_table=True)
def _diagnostics_section(frames: Frames) -> Section | None:
    if effects.factors(frames.table):
        more = """Where the variance is pooled, it is what is left in all cells after cells and
        seeds; the effect of a factor that varies over seeds has its own."""
    else:
        more = """The error of each row is estimated from its own seeds and, with the weight of
        about three more, from the other rows (pooled; a row much noisier than they are takes less
        of them). r is the correlation over seeds of variant and baseline; beside it, how many times
        the runs an unpaired design would need: rough figures, shown from five pairs on."""
    return section(
        "Diagnostics",
        diagnostics(frames.table),
        f"""What each interval is made of: its standard errors, over seeds and over held-out text,
        its degrees of freedom, and the level at which it holds alone. {more}""",
        printed=False,
        folded=True,
    )
