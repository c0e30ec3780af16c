"""Notes on stderr about a results folder, one line each."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.results import Results, Store
from llama_ablate.results.plan_document import earlier_plans

_NAMED = 3  # paths in one note


def note(text: str) -> None:
    """Write a note of one line."""
    sys.stderr.write(f"note: {text}\n")


def mend(store: Store) -> None:
    """Set damaged metrics aside to be measured again, with a note for each.

    Raises ConfigError for damage that nothing can repeat.
    """
    for path in store.mend():
        note(f"damaged, kept as '{path}', and measured again")


def left_out(store: Store, planned: set[str]) -> None:
    """Note how many finished runs the plan leaves out, and which earlier plans have them."""
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


def odd_files(results: Results) -> None:
    """Note foreign files in folders of runs, and runs whose weights were deleted.

    Neither changes a result.
    """
    foreign: list[Path] = []
    without: list[Path] = []
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
