"""Write the generated parts of the documentation again, from registries and reference results.

    python -m docs.generate

A test fails while a page holds anything else.
"""

from collections import defaultdict
from pathlib import Path

import llama_ablate as la
from analysis import claims
from docs import atlas, battery, believed_files, reference_pages, schema, systems_page
from llama_ablate.commands import summary
from llama_ablate.design.variants import resolve_preset
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import Frames
from llama_ablate.model.counts import summarize
from llama_ablate.report import columns as described
from llama_ablate.report import plots, tables
from llama_ablate.report.headline import headline
from llama_ablate.report.sections import FIGURES, sections
from llama_ablate.results import Results

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def pages() -> dict[Path, str]:
    """Return every page that is generated or has generated parts, as it should be now."""
    docs = ROOT / "docs"
    first, of_claims = _First(), claims.page_parts()
    parts = {
        ROOT / "README.md": {"file": first.file(), "table": first.table(), "rope": _rope()},
        docs / "models.md": {"summary": _summary()},
        docs / "reading-a-report.md": {"example": first.example()},
        docs / "atlas.md": atlas.parts(),
        docs / "claims.md": {"counts": of_claims["counts"]},
        REFERENCE / "claims.md": of_claims,
        REFERENCE / "systems.md": systems_page.parts(REFERENCE),
        REFERENCE / "reliability.md": {
            "torture": battery.table(),
            "believed": believed_files.table(),
        },
        docs / "python.md": {"columns": columns()},
    }
    filled = {page: _filled(page.read_text("utf-8"), found) for page, found in parts.items()}
    return {
        **reference_pages.pages(),
        **filled,
        schema.FILE: schema.text(),
        schema.JUDGE: schema.of_judge(),
    }


def columns() -> str:
    """Return the columns of the frames that `llama_ablate.open` gives; what several have, once."""
    frames = {
        "tables": described.TABLES,
        "runs": described.RUNS,
        "curves": described.CURVES,
        "metrics": described.METRICS,
        "comparison()": described.COMPARISON,
    }
    places = defaultdict(list)
    for name, frame in frames.items():
        for row in frame.items():
            places[row].append(name)
    several = [
        f"- `{column}` ({', '.join(found)}): {what}"
        for (column, what), found in places.items()
        if len(found) > 1
    ]
    parts = ["### In several frames", "", *several]
    for name, frame in frames.items():
        own = [f"- `{row[0]}`: {row[1]}" for row in frame.items() if places[row] == [name]]
        parts += ["", f"### `{name}`", "", *own]
    return "\n".join(parts) + "\n"


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


class _First:
    """The experiment that README shows: its file, and what came out, from its pack."""

    def __init__(self) -> None:
        self.frames = Frames.of(Results.open(REFERENCE / "first"))

    def file(self) -> str:
        text = (ROOT / "experiments" / "first.yaml").read_text("utf-8")
        own = text.partition("\n")[2]  # below the line for editors
        return f"```yaml\n{own}```\n"

    def table(self) -> str:
        """Return the comparison's leading columns, and the headline."""
        (section,) = (s for s in sections(self.frames) if s.key == "comparison")
        leading = section.cells.iloc[:, : section.short or None]
        return f"```text\n{tables.text(leading)}\n```\n\n{tables.literal(headline(self.frames))}\n"

    def example(self) -> str:
        """Read one row of each verdict aloud."""
        margin = self.frames.table.margin
        first: dict[str, ComparisonRow] = {}
        for row in self.frames.table.comparison:
            first.setdefault(row.verdict, row)
        lines = [
            f"- `{row.label}`: {row.show_difference()} is *{verdict}*: "
            f"{_MEANS[verdict].format(margin=margin)}"
            for verdict, row in first.items()
            if not (row.baseline or row.role)
        ]
        return (
            "From [the first experiment](../README.md#a-first-experiment):\n\n"
            + "\n".join(lines)
            + "\n"
        )

    def draw(self) -> None:
        """Draw its effects, small."""
        picture = FIGURES["effects"](self.frames)
        assert picture is not None
        plots.draw(picture).figure.savefig(ROOT / "docs" / "images" / "first-effects.png", dpi=80)


#: Packs that ask what RoPE is worth beside sinusoidal positions: section, row, and what turns its
#: sign where the row is about sinusoidal positions.
_ROPE = {
    "first": ("comparison", "rope", 1),
    "prose": ("comparison", "sinusoidal", -1),
    "gpu-10m": ("comparison", "sinusoidal", -1),
    "claims/e12-positions": ("comparison", "sinusoidal", -1),
    "claims/e16-leave-one-out-stack": ("factors", "rope instead of sinusoidal", 1),
}


def _rope() -> str:
    """Return what RoPE is worth in each of its packs, by size and length."""
    found = {}
    for pack, (section, label, sign) in _ROPE.items():
        results = la.open(REFERENCE / pack)
        frame, rows = results.section(section), results.comparison()
        (difference,) = sign * frame["difference"][frame.eq(label).any(axis=1)]
        parameters = rows["parameters"][rows["baseline"]].iloc[0] / 1e6
        tokens = results.tables["tokens_per_run"].iloc[0] / 1e6
        found[difference] = (
            f"[{difference:+.3f}](results/reference/{pack}/report.md) "
            f"({parameters:.1f}M parameters, {tokens:.1f}M tokens)"
        )
    return f"{'; '.join(found[difference] for difference in sorted(found))}.\n"


#: What a verdict of the example says.
_MEANS = {
    "better": "the whole interval is below 0.",
    "worse": "the whole interval is above 0.",
    "equivalent": "the interval crosses 0, and lies within the margin of ±{margin} nats.",
    "inconclusive": "the interval includes 0, and values outside the margin of ±{margin} nats.",
}


def _summary() -> str:
    spec, about = resolve_preset("llama3-8b")
    values = summarize("llama3-8b", spec, batch=16)
    shown = summary.text({**values, **about.model_dump()})
    return f"```text\n$ llama-ablate summary llama3-8b --batch 16\n{shown}\n```\n"


if __name__ == "__main__":
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
    _First().draw()
    atlas.draw()
