"""Other metrics than the loss: tasks and guarded numbers."""

from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("other_metrics", every_table=True)
def _secondary_section(frames: Frames) -> Section | None:
    rows = frames.table.secondary
    tasks = """Of a task the share of its items that are answered right; higher is better. Near
        chance no variant has learned the task. Items that are cut are longer than the model's
        context, and lose their beginning."""
    guards = """Of a guard: worse where the whole interval lies beyond what the file allows, holds
        where it lies within, else undecided."""
    return section(
        "Other metrics",
        rows,
        f"""The difference is variant minus baseline over the n seeds that both finished (processes
        of a speed), on tasks paired by item too. The intervals hold for all rows of this table at
        once (Bonferroni; a control's alone), with the error of the items or of the text. The
        verdict is read off them. {tasks * any(row.task for row in rows)}
        {guards * any(row.result for row in rows)}""",
    )
