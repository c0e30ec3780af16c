"""Write the generated parts of the documentation again, from registries and reference results.

    python -m docs.generate

A test fails while a page holds anything else.
"""

import json
from pathlib import Path

from analysis.claims import pages as audit
from llama_ablate.commands import components, summary
from llama_ablate.design.summary import resolve_preset, summarize
from llama_ablate.evidence.rates import wilson
from llama_ablate.report import columns as described

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def pages() -> dict[Path, str]:
    """Return every page that has generated parts, with those parts as they are now."""
    readme, systems = ROOT / "README.md", ROOT / "docs" / "systems.md"
    claims = ROOT / "docs" / "claims.md"
    parts = {
        readme: {"components": components.markdown(), "summary": _summary()},
        systems: audit.systems_parts(REFERENCE),
        claims: audit.claims_parts(REFERENCE),
        ROOT / "docs" / "reliability.md": {"torture": _torture()},
        ROOT / "docs" / "python.md": {"columns": columns()},
    }
    return {page: _filled(page.read_text("utf-8"), found) for page, found in parts.items()}


def columns() -> str:
    """Return the columns of the frames that `llama_ablate.open` gives."""
    frames = {
        "tables": described.TABLES,
        "runs": described.RUNS,
        "curves": described.CURVES,
        "metrics": described.METRICS,
        "comparison()": described.COMPARISON,
    }
    rows = {
        name: [f"| `{column}` | {what} |" for column, what in frame.items()]
        for name, frame in frames.items()
    }
    return (
        "\n\n".join(
            "\n".join([f"### `{name}`", "", "| column | what it holds |", "|---|---|", *lines])
            for name, lines in rows.items()
        )
        + "\n"
    )


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


def _summary() -> str:
    spec, about = resolve_preset("llama3-8b")
    values = summarize("llama3-8b", spec, batch=16)
    shown = summary.text({**values, **about.model_dump()})
    return f"```text\n$ llama-ablate summary llama3-8b --batch 16\n{shown}\n```\n"


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
        page.write_text(text, "utf-8")
