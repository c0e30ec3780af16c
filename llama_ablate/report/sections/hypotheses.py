"""Hypotheses and their test results."""

from llama_ablate.findings import hypotheses
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section
from llama_ablate.results import protocol


@SECTIONS.register("hypotheses")
def _hypotheses_section(frames: Frames) -> Section | None:
    return section(
        "Hypotheses",
        [*hypotheses.results(frames), *hypotheses.unjudged(frames)],
        f"""{_when(frames)} Supported: the whole interval lies inside what was stated; refuted: it
        lies outside; else undecided. A hypothesis about a row of a table has that row's interval;
        all other comparisons of the file share 5% among them (Bonferroni). Where
        a run was too short, no variant has learned the task, or all have solved it, a difference of
        losses is undecidable. Of two arms that which lost more runs is worse (Fisher's exact test).
        Shares of runs that diverged or collapsed are over all finished runs, at every tuned point,
        with exact intervals.""",
    )


def _when(frames: Frames) -> str:
    """Say when the hypotheses were stated, as far as that is known."""
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions or versions[0].after_runs:
        return "It is not known whether they were stated before the runs."
    changed = [
        change
        for change in protocol.changes(versions, experiment)
        if any(protocol.HYPOTHESIS in line for line in change.lines)
    ]
    if not changed:
        return "Stated in the file before the first run had finished."
    return f"Changed {changed[0].when}: see the warnings."
