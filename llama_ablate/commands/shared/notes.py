"""Notes about a results folder, one line each on standard error."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results import Results, Store
from llama_ablate.results.plan_document import PlannedTable, earlier_plans, sound_plan

_NAMED = 3  # most paths in one note


def note(text: str) -> None:
    """Print a note of one line to standard error."""
    sys.stderr.write(f"note: {text}\n")


def followed(root: Path) -> Path:
    """Return a results folder, or the folder to which it links; print a note on a link."""
    if not root.is_symlink():
        return root
    note(f"'{root}' is a link: the results are in '{root.resolve()}'")
    return root.resolve()


def take_failures(store: Store, sinks: Sequence[str]) -> dict[str, str]:
    """Return why sinks failed in runs, by sink, and remove the logs that say so."""
    failures = {}
    for name in sinks:
        log = store.track_log(name)
        if log.is_file():
            failures[name] = disk.read(log).decode(errors="replace").splitlines()[0]
            disk.remove(log)
    return failures


def left_out(store: Store, planned: set[str]) -> None:
    """Print a note on the number of finished runs that are not in the plan.

    The note also names the earlier plans that contain these runs.
    """
    runs = store.final_ids() - planned
    if not runs:
        return
    text = f"{len(runs)} finished runs in '{store.root}' are not in this plan; they stay there"
    if earlier := earlier_plans(store.root, runs):
        text += (
            f", and their plans are kept ({_named(store.root, earlier)}): status, show and "
            f"report read them, as in llama-ablate show '{earlier[-1]}'"
        )
    note(text)


def changed_texts(store: Store, tables: Iterable[PlannedTable]) -> None:
    """Print how a text is read that differs from the stored plan's."""
    earlier = sound_plan(store.plan_file)
    for old, new in zip(earlier.tables if earlier else (), tables, strict=False):
        same = old.text.source.corpus == new.text.source.corpus
        if same and old.text.corpus != new.text.corpus:
            how = "; ".join(new.text.opened["corpus"].notes)
            note(
                f"the text is another than that of earlier runs: {how}. Version 0.2.0 knows rows "
                "by new endings (.ndjson, .jsonlines, .jl, capitals) or their first line, and "
                "passes over names that begin with a dot; else the files have changed"
            )


def odd_files(results: Results) -> None:
    """Print notes on foreign files in run folders, and on deleted weights.

    Foreign files and deleted weights do not affect the results.
    """
    foreign: list[Path] = []
    without: list[Path] = []
    if changed := results.changed_pages:
        note(f"not as they were packed: {_named(results.root, changed)}; 'pack' writes them again")
    if results.is_packed:
        return
    for folder, run in sorted((run.path, run) for run in results.finished.values()):
        with contextlib.suppress(ConfigError):  # damaged: the reader of its record raises
            foreign += run.foreign
            without += [folder] * run.lacks_weights
    if foreign:
        note(f"not part of any run, and left alone: {_named(results.root, foreign)}")
    if without:
        note(
            f"weights were deleted; the numbers stand: {_named(results.root, without)}. To have "
            "weights again, delete these folders and run the experiment again"
        )


def _named(root: Path, paths: Sequence[Path]) -> str:
    names = [repr(path.relative_to(root).as_posix()) for path in paths[:_NAMED]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
