"""The command `pack`: write an experiment's results as a few files."""

import os
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from llama_ablate.commands import report
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import ResultsOptions, option
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

if TYPE_CHECKING:
    from llama_ablate.results import Results

HELP = "write results as a few files that a repository can hold"
EXAMPLE = "pack results/first --out packed/first"

_IMAGE = re.compile(r"!\[[^\]]*\]\(figures/([^)]*)\)\n\n?")


@dataclass(frozen=True, kw_only=True)
class PackOptions(ResultsOptions):
    """Options of `pack`: the results, and the folder of the pack."""

    out: Path | None = option(None, "the pack's folder (default: DIR-packed)", "DIR")


def run(options: PackOptions) -> Answer:
    """Write the report again, then write results and report as a pack."""
    from llama_ablate.findings.frames import Frames
    from llama_ablate.results import Results
    from llama_ablate.results.archive import write_pack

    results = Results.open(options.folder)
    target = options.out or _default_path(results)
    _refuse_target(target, results.plan.experiment.name)
    is_readonly = options.out and not os.access(results.root, os.W_OK)
    with TemporaryDirectory() if is_readonly else nullcontext(results.report) as pages:
        results.report = Path(pages)
        report.write(results)
        files = write_pack(target, results.packable(), _pages(results))
    unfinished = len(Frames.of(results).stage.runs - results.finished.keys())
    lines = [f"{target}: {len(results.finished)} runs in {sum(files.values()) / 1024:,.0f} KiB"]
    lines += [f"{unfinished} runs have not finished, and are pending there"] * bool(unfinished)
    values = {"pack": str(target), "files": files, "runs": len(results.finished)}
    return Answer("\n".join(lines), values)


def _default_path(results: "Results") -> Path:
    """Return the default target: the pack itself, or `NAME-packed` next to a results folder."""
    root = results.root.resolve()
    return root if results.is_packed else root.with_name(f"{root.name}-packed")


def _refuse_target(target: Path, name: str) -> None:
    """Raise ConfigError unless the target is new, empty, or a pack of the same experiment."""
    from llama_ablate.results import Results
    from llama_ablate.results.archive import is_pack

    if is_pack(target):
        there = Results.open(target).plan.experiment.name
        if there != name:
            what = f"holds a pack of '{there}', not of '{name}'"
            raise ConfigError(f"'{target}' {what}: choose another --out")
    elif os.path.lexists(target) and not _is_empty(target):
        raise ConfigError(f"'{target}' is there already, and is no pack: choose another --out")


def _is_empty(folder: Path) -> bool:
    """Return whether a path is a folder without files, except unfinished files.

    Unfinished files are left by killed commands.
    """
    if not folder.is_dir():
        return False
    return all(name.startswith(disk.PARTIAL) for name in disk.names(folder))


def _pages(results: "Results") -> dict[str, bytes]:
    """Return the pack's human-readable files: experiment, table of runs, report and figures."""
    folder = results.report
    figures = {path.name: disk.read(path) for path in folder.glob("figures/effects*.png")}

    def image(match: re.Match[str]) -> str:
        return match[0].replace("(figures/", "(") if match[1] in figures else ""

    text = _IMAGE.sub(image, (folder / "report.md").read_text("utf-8"))
    return {
        "experiment.yaml": results.experiment_text.encode(),
        "runs.csv": disk.read(folder / "tables" / "runs.csv"),
        "report.md": text.encode("utf-8"),
        **figures,
    }
