"""Write the generated parts of the documentation again, from registries and reference results.

    python -m docs.generate

A test fails while a page holds anything else.
"""

import json
from pathlib import Path

from analysis.claims import pages as audit
from docs import reference_pages
from llama_ablate.evidence.rates import wilson

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def pages() -> dict[Path, str]:
    """Return every page that is generated or has generated parts, as it should be now."""
    docs = ROOT / "docs"
    parts = {
        docs / "systems.md": audit.systems_parts(REFERENCE),
        docs / "claims.md": audit.claims_parts(REFERENCE),
        docs / "reliability.md": {"torture": _torture()},
    }
    filled = {page: _filled(page.read_text("utf-8"), found) for page, found in parts.items()}
    return {**reference_pages.pages(), **filled}


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


def _torture() -> str:
    """Return what `make torture` found last, with the bound that each count gives."""
    file = REFERENCE / "torture.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    rows.sort(key=lambda row: (int(row["row"][1:]), row["test"]))
    lines = [
        "| row | what was tried | trials | failures | chance of one, 95% |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        high = wilson(row["failures"], row["trials"])[1]
        bound = 1 - 0.05 ** (1 / row["trials"]) if not row["failures"] else high
        link = f"[{row['row']}](../{row['test'].partition('::')[0]})"
        lines.append(
            f"| {link} | {row['what']} | {row['trials']:,} | {row['failures']} | "
            f"< {100 * bound:.2g}% |"
        )
    took = sum({row["test"]: row["seconds"] for row in rows}.values())
    return (
        "\n".join(lines)
        + f"\n\nTogether {took / 60:.0f} minutes of tests, two at a time, on two cores shared with "
        "others.\n"
    )


if __name__ == "__main__":
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
