"""Regenerate the generated parts of the documentation from registries and reference results.

    python -m docs.generate

A test fails if a page differs from the generated text.
"""

from pathlib import Path

from analysis import claims
from docs import (
    atlas,
    battery,
    believed_files,
    measured,
    reference_pages,
    schema,
    systems_page,
)
from llama_ablate.findings.frames import Frames
from llama_ablate.report import pictures, tables
from llama_ablate.report.figures import make
from llama_ablate.report.sections import sections
from llama_ablate.results import Results

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def pages() -> dict[Path, str]:
    """Return the current text of every page that is generated or has generated parts."""
    docs = ROOT / "docs"
    first, of_claims = _First(), claims.page_parts()
    parts = {
        ROOT / "README.md": {"file": first.file(), "table": first.table()},
        docs / "atlas.md": atlas.parts(),
        docs / "claims.md": {},
        REFERENCE / "README.md": {},
        REFERENCE / "claims.md": of_claims,
        REFERENCE / "systems.md": systems_page.parts(REFERENCE),
        REFERENCE / "reliability.md": {
            "torture": battery.table(),
            "believed": believed_files.table(),
        },
    }
    filled = {
        page: measured.fill(_filled(page.read_text("utf-8"), found))
        for page, found in parts.items()
    }
    return {
        **reference_pages.pages(),
        **filled,
        schema.FILE: schema.text(),
    }


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


class _First:
    """Texts for README.md on the experiment `first`: its file and its stored results."""

    def __init__(self) -> None:
        self.frames = Frames.of(Results.open(REFERENCE / "first"))

    def file(self) -> str:
        text = (ROOT / "experiments" / "first.yaml").read_text("utf-8")
        own = text.partition("\n")[2]  # below the line for editors
        return f"```yaml\n{own}```\n"

    def table(self) -> str:
        """Return the comparison's leading columns."""
        (section,) = (s for s in sections(self.frames) if s.key == "comparison")
        leading = section.cells.iloc[:, : section.short or None]
        return f"```text\n{tables.text(leading)}\n```\n"

    def draw(self) -> None:
        """Draw the figure of the experiment's effects, as a small PNG."""
        (made,) = make("effects", self.frames)
        image = ROOT / "docs" / "images" / "first-effects.png"
        image.write_bytes(pictures.write(made.figure, "png"))


if __name__ == "__main__":
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
    _First().draw()
    atlas.draw()
