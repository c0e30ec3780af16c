"""Accuracies on tasks."""

from llama_ablate.findings import tasks
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("tasks", every_table=True)
def _tasks_section(frames: Frames) -> Section | None:
    return section(
        "Tasks",
        tasks.accuracies(frames.table),
        """Share of a task's items that are answered right, 0 to 1, mean over seeds; higher is
        better. The difference is variant minus baseline over the n seeds that both finished, paired
        by seed and item; its interval has the error of the seeds and that of the items (between
        groups of items, such as those of one template, where they have such), and holds for all
        rows of this table at once (Bonferroni; a control's alone). The verdict is read off it. Near
        chance no variant has learned the task. Items that are cut are longer than the model's
        context, and lose their beginning.""",
    )
