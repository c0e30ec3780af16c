"""Page and files of a comparison of runs that another trainer made."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from llama_ablate.config.experiment import slug
from llama_ablate.evidence.written import interval, times
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json
from llama_ablate.findings.answer import VariantCost
from llama_ablate.findings.columns import iterate, list_rows
from llama_ablate.findings.own_runs import OwnRuns
from llama_ablate.report import columns, page, pictures, tables
from llama_ablate.report.contents import Styles
from llama_ablate.report.rendering import write_block
from llama_ablate.report.sections import Section

#: Parts of the names of columns that are costs of a run, and of those of which more is better.
_COSTS = ("param", "flop", "byte", "mem", "token", "second", "time", "train_s", "cost")
_SPEEDS = ("per_s", "per_sec", "speed", "throughput", "mfu")
_MAX_COSTS, _MAX_RUNS = 4, 500  # most pictures of costs, and runs on the page
_SAME = 1.02  # ratio of the largest and the least cost up to which variants cost the same
_CURVES = "Medians over seeds; thin lines are runs."
_DIFFERENCES = (
    "Differences from the baseline's run of the same seed, with 95% intervals over seeds."
)


def list_sections(runs: OwnRuns) -> Iterator[Section]:
    """Yield the comparison of each table, and its steps or seconds to the target loss."""
    said = " ".join(describe(runs).values())
    for key, title, frame in (
        ("own_runs", "Comparison", runs.comparison()),
        ("target", f"To a {runs.metric} of {runs.target}", runs.targets()),
    ):
        for table in frame["table"].unique():
            rows = frame[frame["table"].eq(table)]
            cells, about = columns.cells(rows, key), columns.describe(rows, key)
            yield Section(
                f"{title}: {table}" if table else title,
                cells,
                said if key == "own_runs" else "",
                rows,
                "comparison" if key == "own_runs" else key,
                table,
                short=sum(about[str(head)].first for head in cells),
                about={head: column.about for head, column in about.items()},
            )


def describe(runs: OwnRuns) -> dict[str, str]:
    """Describe the input, the pairing and the limits of a comparison, by title."""
    rows, ends = runs.comparison(), runs.runs
    correlations = [f"{of:.2f}" for of in sorted(rows["correlation"].dropna())]
    lost = ends[ends["lost"]]
    taken = [f"{kind} from '{column}'" for kind, column in runs.taken.items()]
    each = rows.assign(
        text=[interval(*of) for of in rows[["difference", "low", "high"]].to_numpy()]
    )
    values = {
        "runs": runs,
        "tables": {name: list_rows(of) for name, of in each.groupby("table", sort=False)},
        "taken": ", ".join(taken),
        "reached": [
            f"{row.variant} {row.verdict} in {row.along}, {times(row.ratio, row.low, row.high)}"
            for row in iterate(runs.targets())
            if row.ratio > 0
        ],
        "alone": [*rows.loc[rows["n"].eq(1) & ~rows["baseline"], "variant"]],
        "correlations": " to ".join(dict.fromkeys([*correlations[:1], *correlations[-1:]])),
        "lost": [f"{v} seed {s}" for v, s in zip(lost["variant"], lost["seed"], strict=True)],
    }
    names = ("answer", "read", "pairing", "lost", "unknown")
    said = {name: write_block("own_runs.txt", name, values) for name in names}
    return {name: text for name, text in said.items() if text}


def write(runs: OwnRuns, folder: Path) -> Path:
    """Write tables, pictures and the page of a comparison to a folder; return the page's path."""
    sections, said = [*list_sections(runs)], describe(runs)
    for part in sections:
        base = disk.below(folder, "tables", slug(part.title, 160))
        title = f"Differences in {runs.metric} from {runs.baseline}."
        tables.save(part.cells, part.frame, title, base, part.short, part.note)
    styles = Styles.of([*runs.points["variant"].unique()], runs.baseline)
    leads, others = [], []
    for section in sections:
        table = page.make_table(section, styles, runs.margin or 0, {})
        if section.key == "target":
            others.append(page.PageBlock(section.table, table))
            continue
        figures = []
        for name, figure, caption in _draw(runs, section, styles):
            stem = slug(f"{name} {section.table}", 160)
            svg = page.save_figure(figure, folder / "figures", stem)
            figures.append(page.PageFigure(name, section.table, "", stem, caption, svg))
        about = f"Difference: {runs.metric} minus that of {runs.baseline}."
        about += f" Grey: the margin of {runs.margin}." * bool(runs.margin)
        leads.append(page.PageBlock(section.table, table, figures=figures, about=about))
    ends = runs.runs[[*runs.by, *runs.taken, runs.metric, "lost"]].head(_MAX_RUNS).astype(object)
    parts = [page.PagePart("target", f"To a {runs.metric} of {runs.target}", "", others)]
    parts.append(
        page.PagePart("runs", "Runs", "", [page.PageBlock("", page.lay_out(ends.fillna("-")))])
    )
    path = folder / "report.html"
    text = page.render(
        name=f"{runs.metric} of runs of another trainer",
        question="",
        answer=said["answer"],
        scale="",
        facts={name: said[name] for name in said if name != "answer"},
        families="",
        setup=" ".join(said.values()),
        warnings=[said[name] for name in ("lost", "unknown") if name in said],
        keys={key: name for name, key in styles.keys.items()},
        tables=[lead.name for lead in leads],
        first=leads[0].name,
        leads=leads,
        parts=[part for part in parts if part.blocks],
        experiment=to_json(runs.options),
        environment="",
    )
    disk.replace(path, text.encode("utf-8"))
    runs.save(folder)
    return path


def _draw(runs: OwnRuns, section: Section, styles: Styles) -> Iterator[tuple[str, Figure, str]]:
    """Yield name, figure and caption of a table's curves, differences along them, and costs."""
    label = f"difference in {runs.metric}"
    points = dict(runs.tables)[section.table]
    if "step" in points:
        names = points["variant"] + " " + points["seed"].astype(str)
        same = dict.fromkeys(("train", "validation"), points[runs.metric])
        curves = points.assign(run=names, read=points["step"], outcome="ok", **same)
        curves = curves[curves["train"].abs() < math.inf]
        figure = pictures.draw(pictures.loss_curves, curves, styles, text="step")
        figure.axes[0].set_ylabel(runs.metric)
        yield "curves", figure, _CURVES
        if not runs.unpaired:
            options: dict[str, Any] = {"baseline": runs.baseline, "text": "step"}
            figure = pictures.draw(pictures.learning_curves, curves, styles, **options)
            figure.axes[0].set_ylabel(label)
            yield "differences", figure, _DIFFERENCES
    frame = section.frame
    if runs.higher_is_better:  # the pictures of costs take less as better
        label = f"{runs.metric} of {runs.baseline} minus the variant's"
        negated = {"difference": "difference", "low": "high", "high": "low"}
        frame = frame.assign(**{new: -frame[old] for new, old in negated.items()})
    rows = frame.merge(_average_costs(runs, section.table), "left", on="variant")
    for cost in [str(name) for name in rows if name not in frame][:_MAX_COSTS]:
        at = VariantCost("parameters", cost, cost.replace("_", " "), cost, "count")
        figure = pictures.draw(pictures.costs, rows, at, styles)
        figure.axes[0].set_ylabel(label)
        yield cost, figure, "Low and left is better; the dotted line joins the best at a cost."


def _average_costs(runs: OwnRuns, table: str) -> pd.DataFrame:
    """Return the mean costs of the variants that differ in them, with the inverse of speeds."""
    ends = runs.runs[runs.runs["table"].eq(table)]
    numbers = (
        ends.drop(columns=[runs.metric, "seed", "lost"]).groupby("variant").mean(numeric_only=True)
    )
    costs = {}
    for name, of in numbers.items():
        is_speed = any(part in str(name).lower() for part in _SPEEDS)
        cost = 1e6 / of if is_speed else of
        if (is_speed or any(part in str(name).lower() for part in _COSTS)) and (
            cost.max() > _SAME * cost.min() > 0
        ):
            costs[f"1 / {name}, millionths" if is_speed else str(name)] = cost
    return pd.DataFrame(costs, numbers.index).reset_index()
