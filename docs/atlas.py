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

import pandas as pd
import seaborn as sns
import yaml
from matplotlib.figure import Figure

from analysis.claims import judge_at_lengths
from llama_ablate.evidence.written import interval
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.sizes import compare_lengths
from llama_ablate.results import Results

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "results" / "reference"
PANEL_INCHES = (4.2, 2.6)
PANELS_ACROSS = 3
#: Columns of a difference and its interval.
ENDS = ["difference", "low", "high"]


@dataclass(frozen=True)
class Row:
    """Difference between two variants at one model size, at all training lengths."""

    name: str
    parameters: int
    #: Differences in nats by training `tokens`, with their intervals; the last row is the full
    #: length.
    lengths: pd.DataFrame
    word: str

    @property
    def end(self) -> str:
        """Difference at the full training length, with its interval."""
        return interval(*self.lengths[ENDS].iloc[-1])


def parts() -> dict[str, str]:
    """Return the generated part of docs/atlas.md: a section for each question."""
    return {"questions": "\n".join(line for one in questions() for line in section(one))}


def draw() -> None:
    """Draw the figure of each question: its differences against the training length."""
    for one in questions():
        rows = [read_row(row, row.get("pack", one["pack"])) for row in one["rows"]]
        longer = [row for row in rows if len(row.lengths) > 1]
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
        place = [stated["hypothesis"]]
        end = results(pack).iloc[place]
        shorter = [rows.iloc[place].assign(tokens=n) for n, rows in by_length(pack).items()]
        table = frames.named(end["table"].item() or None)
        word = what_it_says(end.squeeze())
    else:
        kind = "effect" if "effect" in stated else "label"
        known = estimate_factors(table) if kind == "effect" else compare_variants(table)
        end = known[known[kind].eq(stated[kind])]
        lengths = compare_lengths(table)
        shorter = [lengths[lengths["name"].eq(stated[kind]) & ~lengths["end"]]]
        word = end["verdict"].item()
    if word != stated["is"]:
        raise ValueError(f"atlas.yaml: '{stated['name']}' is {word}, not {stated['is']}")
    at = pd.concat([*shorter, end.assign(tokens=table.plan.tokens_per_run)])
    return Row(stated["name"], table.plan.baseline.parameters, at[["tokens", *ENDS]], word)


def what_it_says(row: pd.Series) -> str:
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
def results(pack: str) -> pd.DataFrame:
    """Return the test results of a pack's hypotheses."""
    return judge_hypotheses(open_pack(pack))


@cache
def by_length(pack: str) -> Mapping[int, pd.DataFrame]:
    """Test the hypotheses of a pack at each shorter training length, by training tokens."""
    return judge_at_lengths(open_pack(pack))


def draw_ends(rows: Sequence[Row]) -> Figure:
    """Draw the rows' differences and intervals in one panel, one below the other."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(7, 0.5 + 0.35 * len(rows)), layout="constrained")
        panel = figure.subplots()
    means, arms = error_bars(pd.concat([row.lengths.iloc[[-1]] for row in rows]))
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
        means, arms = error_bars(row.lengths)
        tokens = row.lengths["tokens"]
        panel.errorbar(tokens, means, arms, marker="o", capsize=3)
        panel.axhline(0, color="0.3", linewidth=1)
        panel.set(xscale="log", xlabel="training tokens", ylabel="difference (nats)")
        panel.set_title(f"{row.name} ({millions(row.parameters)})", fontsize=9)
        panel.set_xticks(tokens, [*map(millions, tokens)])
        panel.minorticks_off()
    for panel in panels[len(rows) :]:
        panel.remove()
    return figure


def error_bars(rows: pd.DataFrame) -> tuple[list[float], list[list[float]]]:
    """Return means, and the lengths of error bars below and above them."""
    means, low, high = (rows[name] for name in ENDS)
    return [*means], [[*means - low], [*high - means]]


def image(one: Mapping[str, Any]) -> Path:
    """Return the path of a question's figure."""
    return HERE / "images" / f"atlas-{one['pack'].rpartition('/')[2]}.png"


def millions(number: int) -> str:
    """Format a number in millions, such as `1.2M`."""
    return f"{number / 1e6:.2g}M"
