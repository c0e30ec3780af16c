"""The command `pack`: an experiment's results as a few files."""

import re
from argparse import Namespace
from pathlib import Path

from llama_ablate.commands.answer import Answer
from llama_ablate.commands.running import reported
from llama_ablate.results.pack import pack as write_pack
from llama_ablate.results.pack import refuse_target
from llama_ablate.results.snapshot import Results

_IMAGE = re.compile(r"!\[[^\]]*\]\(figures/([^)]*)\)\n\n?")


def pack(options: Namespace) -> Answer:
    """Write the report again, and the results with it as a pack."""
    results = Results.open(options.folder)
    target = options.out or _beside(results)
    refuse_target(target)
    reported(results)
    pages = _pages(results.report)
    write_pack(results, target, pages)
    files = {path.name: path.stat().st_size for path in sorted(target.iterdir()) if path.is_file()}
    unfinished = len(results.plan.runs) - len(results.finished)
    lines = [f"{target}: {len(results.finished)} runs in {sum(files.values()) / 1024:,.0f} KiB"]
    lines += [f"{unfinished} runs have not finished, and are pending there"] * bool(unfinished)
    values = {"pack": str(target), "files": files, "runs": len(results.finished)}
    return Answer("\n".join(lines), values)


def _beside(results: Results) -> Path:
    """Return the default target: a pack is replaced, a folder's pack lies beside it."""
    root = results.root.resolve()
    return root if results.is_packed else root.with_name(f"{root.name}-packed")


def _pages(report: Path) -> dict[str, bytes]:
    """Return the Markdown report and the figures of effects, the only ones that a pack holds."""
    figures = {path.name: path.read_bytes() for path in report.glob("figures/effects*.png")}

    def image(match: re.Match[str]) -> str:
        return match[0].replace("(figures/", "(") if match[1] in figures else ""

    text = _IMAGE.sub(image, (report / "report.md").read_text("utf-8"))
    return {"report.md": text.encode("utf-8"), **figures}
