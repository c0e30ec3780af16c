"""Generated parts and figures of docs/atlas.md: contested questions, sources and results.

Questions and sources come from atlas.yaml, and all numbers from packs (stored results). Each row of
atlas.yaml states the verdict of its interval (`is`), which is checked against the results, so that
no sentence remains after its result has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import seaborn as sns
import yaml
from matplotlib.figure import Figure

from analysis.claims import results_by_length
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import effects, hypotheses, sizes
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import HypothesisRow
from llama_ablate.results import Results

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "results" / "reference"
PANEL_INCHES = (4.2, 2.6)
PANELS_ACROSS = 3


@dataclass(frozen=True)
class Row:
    """Difference between two variants at one model size, at all training lengths."""

    name: str
    parameters: int
    #: Differences in nats by training tokens; the last entry is the full length.
    at: Mapping[int, Estimate]
    word: str

    @property
    def end(self) -> Estimate:
        """Difference at the full training length."""
        return [*self.at.values()][-1]


def parts() -> dict[str, str]:
    """Return the generated part of docs/atlas.md: a section for each question."""
    return {"questions": "\n".join(line for one in questions() for line in section(one))}


def draw() -> None:
    """Draw the figure of each question: its differences against the training length."""
    for one in questions():
        rows = [read_row(row, row.get("pack", one["pack"])) for row in one["rows"]]
        longer = [row for row in rows if len(row.at) > 1]
        figure = draw_lengths(longer) if longer else draw_ends(rows)
        figure.savefig(image(one), dpi=80, bbox_inches="tight")


def questions() -> list[dict[str, Any]]:
    """Read the questions in atlas.yaml."""
    found: list[dict[str, Any]] = yaml.safe_load((HERE / "atlas.yaml").read_text("utf-8"))
    return found


def section(one: Mapping[str, Any]) -> Iterator[str]:
    """Yield the Markdown lines of a question's section."""
    rows = [read_row(row, row.get("pack", one["pack"])) for row in one["rows"]]
    pack = f"../results/reference/{one['pack']}/report.md"
    yield f"## {one['title']}\n"
    yield f"**{one['answer']}**\n"
    yield f"![{one['alt']}](images/{image(one).name})\n"
    yield "| difference at the end | 95% interval | verdict |"
    yield "|---|---|---|"
    for name, (row, *larger) in groupby(rows, key=attrgetter("name")):
        ends = "".join(
            f"; at {millions(other.parameters)} **{other.end}**, {other.word}" for other in larger
        )
        yield f"| {name} | **{row.end}**{ends} | {row.word} |"
    yield f"\n{one['verdict'].strip()}\n"
    yield "Claims:\n"
    yield from (f"- {said}" for said in one["says"])
    yield f"\n**Scale.** {one['design'].strip()} [Report]({pack}).\n"
    yield f"**What would overturn it:** {one['overturn'].strip()}\n"
    yield f"    {one['command']}    # {one['time']} on two cores\n"


def read_row(stated: Mapping[str, Any], pack: str) -> Row:
    """Read the row of a pack that an entry of atlas.yaml names.

    The entry names it by the index of a `hypothesis`, by the `effect` of a factor, or by the
    `label` of a variant. Raises ValueError if the verdict of its interval differs from the stated
    one.
    """
    frames = open_pack(pack)
    table = frames.named(stated["table"]) if "table" in stated else frames.table
    if "hypothesis" in stated:
        place = stated["hypothesis"]
        end = results(pack)[place]
        shorter = {tokens: rows[place] for tokens, rows in by_length(pack).items()}
        table = frames.named(end.table) if end.table else frames.table
        word = what_it_says(end)
    else:
        known = effects.factors(table) if "effect" in stated else table.comparison
        name = stated.get("effect") or stated["label"]
        end = next(row for row in known if sizes.name_of(row) == name)
        rows = sizes.by_length(table)
        shorter = {row.tokens: row for row in rows if row.name == name and not row.end}
        word = end.verdict
    if word != stated["is"]:
        raise ValueError(f"atlas.yaml: '{stated['name']}' is {word}, not {stated['is']}")
    at = {
        tokens: Estimate(row.difference, row.low, row.high)
        for tokens, row in {**shorter, table.plan.tokens_per_run: end}.items()
    }
    return Row(stated["name"], table.plan.baseline.parameters, at, word)


def what_it_says(row: HypothesisRow) -> str:
    """Return the verdict on a hypothesis' difference, independent of the stated direction.

    The verdict is `better`, `worse` or `inconclusive`, or the result of a hypothesis that could not
    be tested.
    """
    if row.result not in ("supported", "refuted", "undecided"):
        return row.result
    return "better" if row.high < 0 else "worse" if row.low > 0 else "inconclusive"


@cache
def open_pack(pack: str) -> Frames:
    """Open a pack in results/reference."""
    return Frames.of(Results.open(REFERENCE / pack))


@cache
def results(pack: str) -> Sequence[HypothesisRow]:
    """Return the test results of a pack's hypotheses."""
    return hypotheses.results(open_pack(pack))


@cache
def by_length(pack: str) -> Mapping[int, Sequence[HypothesisRow]]:
    """Test the hypotheses of a pack at each shorter training length, by training tokens."""
    return results_by_length(open_pack(pack))


def draw_ends(rows: Sequence[Row]) -> Figure:
    """Draw the rows' differences and intervals in one panel, one below the other."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(7, 0.5 + 0.35 * len(rows)), layout="constrained")
        panel = figure.subplots()
    means, arms = error_bars([row.end for row in rows])
    names = [f"{row.name} ({millions(row.parameters)})" for row in rows]
    panel.errorbar(means, names, xerr=arms, fmt="o", capsize=3)
    panel.axvline(0, color="0.3", linewidth=1)
    panel.set(xlabel="difference (nats)")
    panel.invert_yaxis()
    return figure


def draw_lengths(rows: Sequence[Row]) -> Figure:
    """Draw each row in a panel: difference and interval against training tokens."""
    across = min(PANELS_ACROSS, len(rows))
    down = -(-len(rows) // across)
    size = PANEL_INCHES[0] * across, PANEL_INCHES[1] * down
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=size, layout="constrained")
        panels = [*figure.subplots(down, across, squeeze=False).flat]
    for row, panel in zip(rows, panels, strict=False):
        means, arms = error_bars([*row.at.values()])
        panel.errorbar([*row.at], means, arms, marker="o", capsize=3)
        panel.axhline(0, color="0.3", linewidth=1)
        panel.set(xscale="log", xlabel="training tokens", ylabel="difference (nats)")
        panel.set_title(f"{row.name} ({millions(row.parameters)})", fontsize=9)
        panel.set_xticks([*row.at], [millions(tokens) for tokens in row.at])
        panel.minorticks_off()
    for panel in panels[len(rows) :]:
        panel.remove()
    return figure


def error_bars(estimates: Sequence[Estimate]) -> tuple[list[float], list[list[float]]]:
    """Return means, and the lengths of error bars below and above them."""
    below = [one.value - one.low for one in estimates]
    above = [one.high - one.value for one in estimates]
    return [one.value for one in estimates], [below, above]


def image(one: Mapping[str, Any]) -> Path:
    """Return the path of a question's figure."""
    return HERE / "images" / f"atlas-{one['pack'].rpartition('/')[2]}.png"


def millions(number: int) -> str:
    """Format a number in millions, such as `1.2M`."""
    return f"{number / 1e6:.2g}M"
