"""Tuned points: trials, and the loss along the learning rate."""

import json
from dataclasses import replace

from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames
from llama_ablate.report.picture import FIGURES, Axis, Lines, Picture, cast, over, over_seeds
from llama_ablate.report.section import SECTIONS, Section, section
from llama_ablate.terminal import plural


@SECTIONS.register("tuning", every_table=True)
def _tuning_section(frames: Frames) -> Section | None:
    table = frames.table
    return section(
        "Tuning",
        tuning.trials(table.runs, table.plan.repeated, table.loss),
        f"""Every variant is tried at the same points{_race(frames)}; the other tables report the
        one with the lowest validation loss. LR sensitivity is the mean loss over the grid of
        learning rates, less its minimum (Wortsman et al. 2023, arXiv:2309.14322).""",
    )


def _race(frames: Frames) -> str:
    """Say on which seeds points were chosen, where they are not those that are reported."""
    race = frames.plan.experiment.race
    return f", on {race} {plural(race, 'seed')} that no table reports" if race else ""


@FIGURES.register("sensitivity", every_table=True)
def sensitivity_picture(frames: Frames) -> Picture | None:
    """Show the loss against the learning rate: the mean over seeds with its 95% interval.

    A run that diverged, or that has no loss, stands at the loss of chance. The ring marks the rate
    that was chosen, on the validation loss.
    """
    table, shown = frames.table, cast(frames.table)
    if "lr" not in table.experiment.tune:
        return None
    rates = tuning.rates(table.runs, table.loss, table.chance)
    chosen = {run.label: json.loads(run.tuned).get("lr") for run in reversed(table.reported)}
    means = over_seeds(
        (rate.label, rate.lr, rate.seed, rate.loss) for rate in rates if rate.label in shown.all
    )
    if not means:
        return None
    drawn = [replace(point, chosen=chosen.get(point.name) == point.x) for point in means]
    y = Axis(f"{table.split_name} loss ({table.unit.full})")
    panel = Lines(drawn, Axis("learning rate", log=True), y, shown)
    return Picture([panel], "tuning", over(point.n for point in means))
