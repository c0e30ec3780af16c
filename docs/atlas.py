"""The atlas: contested questions, who says what, and what the packs say, written from atlas.yaml.

Numbers come from the packs alone. Each row of atlas.yaml states what its interval says (`is`), so
that no sentence outlives the result that it speaks of.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import seaborn as sns
import yaml
from matplotlib.figure import Figure

from analysis.claims.experiments import by_length
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import agreement, contrasts, hypotheses
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.results import Results

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "results" / "reference"
_PANEL = (4.2, 2.6)  # inches


@dataclass(frozen=True)
class Row:
    """One difference at one size, at every length of training."""

    name: str
    parameters: int
    #: Differences in nats by training tokens; the last is the whole length.
    at: Mapping[int, Estimate]
    word: str

    @property
    def end(self) -> Estimate:
        """The difference at the whole length."""
        return [*self.at.values()][-1]

    def cells(self) -> list[str]:
        """Return the cells of its line: what, size, shorter lengths, whole length, verdict."""
        *shorter, (tokens, end) = self.at.items()
        before = "; ".join(f"{_millions(at)}: {one}" for at, one in shorter)
        size = _millions(self.parameters)
        return [self.name, size, before or "-", f"{_millions(tokens)}: **{end}**", self.word]


def parts() -> dict[str, str]:
    """Return the generated parts of docs/atlas.md: the summary, and a section a question."""
    asked = _asked()
    summary = [
        "| question | answer | shorter and smaller runs ranked alike |",
        "|---|---|---|",
        *(
            f"| [{one['title']}](#{_anchor(one)}) | {one['answer']} | {_alike(one)} |"
            for one in asked
        ),
    ]
    sections = [line for one in asked for line in _section(one)]
    return {"summary": "\n".join(summary) + "\n", "questions": "\n".join(sections)}


def draw() -> None:
    """Draw each question's differences against the length of training, from atlas.yaml's rows."""
    for one in _asked():
        rows = _rows(one)
        longer = [row for row in rows if len(row.at) > 1]
        figure = _by_length(longer) if longer else _at_one_length(rows)
        figure.savefig(_image(one), dpi=80, bbox_inches="tight")


def _asked() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((HERE / "atlas.yaml").read_text("utf-8"))
    return found


def _section(one: Mapping[str, Any]) -> Iterator[str]:
    rows = _rows(one)
    pack = f"../results/reference/{one['pack']}/report.md"
    yield f"## {one['title']}\n"
    yield from (f"- {said}" for said in one["says"])
    yield f"\n{one['design'].strip()} [Report]({pack}).\n"
    yield f"    {one['command']}\n"
    yield "| difference in nats | parameters | after fewer tokens | at the end | says |"
    yield "|---|---|---|---|---|"
    for _name, (row, *larger) in groupby(rows, key=attrgetter("name")):
        name, size, before, end, word = row.cells()
        sizes = ((f"{_millions(r.parameters)} parameters", r) for r in larger)
        end += "".join(f"; {other}: **{r.end}**, {r.word}" for other, r in sizes)
        yield f"| {name} | {size} | {before} | {end} | {word} |"
    yield f"\n![{one['alt']}](images/{_image(one).name})\n"
    yield one["verdict"].strip().replace("\n", "\n\n") + "\n"
    yield f"*What would overturn it:* {one['overturn'].strip()}\n"


def _rows(one: Mapping[str, Any]) -> list[Row]:
    return [_row(row, row.get("pack", one["pack"])) for row in one["rows"]]


def _row(stated: Mapping[str, Any], pack: str) -> Row:
    """Return the row of a pack that atlas.yaml names.

    By the place of its `hypothesis`, by the `effect` of a factor, or by the `label` of a variant.
    Raises ValueError where its interval does not say what is stated.
    """
    frames = _frames(pack)
    table = frames.named(stated["table"]) if "table" in stated else frames.table
    if "hypothesis" in stated:
        end, shorter = _hypotheses(pack)[stated["hypothesis"]]
        table = frames.named(end.table) if end.table else frames.table
        word = _said(end, frames.plan.experiment.hypotheses[stated["hypothesis"]])
    elif "effect" in stated:
        end = next(row for row in contrasts.factors(table) if row.effect == stated["effect"])
        shorter, word = _shorter(table, end.effect), end.verdict
    else:
        end = next(row for row in table.comparison if row.label == stated["label"])
        shorter, word = _shorter(table, end.label), end.verdict
    if word != stated["is"]:
        raise ValueError(f"atlas.yaml: '{stated['name']}' is {word}, not {stated['is']}")
    whole = table.plan.tokens_per_run
    at = {
        tokens: Estimate(row.difference, row.low, row.high)
        for tokens, row in {**shorter, whole: end}.items()
    }
    return Row(stated["name"], table.plan.baseline.parameters, at, word)


def _said(row: hypotheses.HypothesisRow, entry: Hypothesis) -> str:
    """Return what a difference says, whatever was stated of it; why it says nothing, where so."""
    if row.result not in ("supported", "refuted", "undecided"):
        return row.result
    below, above = ("lower", "higher") if entry.minus else ("better", "worse")
    return below if row.high < 0 else above if row.low > 0 else "inconclusive"


def _shorter(table: TableFrames, name: str) -> dict[int, agreement.LengthRow]:
    rows = agreement.by_length(table)
    return {row.tokens: row for row in rows if row.name == name and not row.end}


@cache
def _frames(pack: str) -> Frames:
    return Frames.of(Results.open(REFERENCE / pack))


@cache
def _hypotheses(pack: str) -> Sequence[tuple[hypotheses.HypothesisRow, Mapping[int, Any]]]:
    frames = _frames(pack)
    return list(zip(hypotheses.results(frames), by_length(frames), strict=True))


def _alike(one: Mapping[str, Any]) -> str:
    """Write in how many pairs of arms a shorter length had the order of the whole.

    And in how many of the differences that are given at two sizes the smaller had the larger's.
    """
    frames = _frames(one["pack"])
    pairs = [
        agreement.pairs(
            one["pack"], agreement.settings(frames, table, by_length=True, by_size=False)
        )
        for table in frames.tables
        if table.lengths
    ]
    found = agreement.ranked(agreement.joined(pairs))
    lengths = ", ".join(f"{row.share:.0%}: {row.alike:.0%} of {row.pairs}" for row in found)
    shares = [f"length {lengths}"] if lengths else []
    return "; ".join(shares + _by_size(_rows(one)))


def _by_size(rows: Sequence[Row]) -> list[str]:
    pairs = [(a, b) for a, b in combinations(rows, 2) if a.name == b.name]
    if not pairs:
        return []
    alike = sum((a.end.value < 0) == (b.end.value < 0) for a, b in pairs) / len(pairs)
    share = pairs[0][0].parameters / pairs[0][1].parameters
    return [f"size {share:.0%}: {alike:.0%} of {len(pairs)}"]


def _at_one_length(rows: Sequence[Row]) -> Figure:
    """Return one panel: the rows' differences and intervals, one below the other."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(7, 0.5 + 0.35 * len(rows)), layout="constrained")
        panel = figure.subplots()
    means, arms = _bars([end for row in rows for end in row.at.values()])
    names = [f"{row.name} ({_millions(row.parameters)})" for row in rows]
    panel.errorbar(means, names, xerr=arms, fmt="o", capsize=3)
    panel.axvline(0, color="0.3", linewidth=1)
    panel.set(xlabel="difference (nats)")
    panel.invert_yaxis()
    return figure


def _by_length(rows: Sequence[Row]) -> Figure:
    """Return a panel a row: its difference and interval against tokens."""
    with sns.axes_style("whitegrid"):
        across = min(3, len(rows))
        down = -(-len(rows) // across)
        figure = Figure(figsize=(_PANEL[0] * across, _PANEL[1] * down), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False).flat
    for row, panel in zip(rows, panels, strict=False):
        means, arms = _bars([*row.at.values()])
        panel.errorbar([*row.at], means, arms, marker="o", capsize=3)
        panel.axhline(0, color="0.3", linewidth=1)
        panel.set(xscale="log")
        panel.set_title(f"{row.name} ({_millions(row.parameters)})", fontsize=9)
        panel.set(xlabel="training tokens", ylabel="difference (nats)")
        panel.set_xticks([*row.at], [_millions(tokens) for tokens in row.at])
        panel.minorticks_off()
    for panel in [*panels]:
        panel.remove()
    return figure


def _bars(estimates: Sequence[Estimate]) -> tuple[list[float], list[list[float]]]:
    """Return the means, and how far the intervals reach below and above them."""
    below = [one.value - one.low for one in estimates]
    above = [one.high - one.value for one in estimates]
    return [one.value for one in estimates], [below, above]


def _image(one: Mapping[str, Any]) -> Path:
    return HERE / "images" / f"atlas-{one['pack'].rpartition('/')[2]}.png"


def _anchor(one: Mapping[str, Any]) -> str:
    kept = "".join(c for c in one["title"].lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _millions(number: int) -> str:
    return f"{number / 1e6:.2g}M"
