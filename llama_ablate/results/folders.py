"""Locate the results of experiments and runs in folders."""

import contextlib
import os
from pathlib import Path

from llama_ablate.results.store import Store


def experiments(folder: Path) -> list[Store]:
    """Return the results of every experiment in a folder, by name."""
    return [Store(path.parent) for path in sorted(folder.glob("*/plan.json"))]


def is_experiment(folder: Path) -> bool:
    """Return whether a folder holds the results of one experiment."""
    return Store(folder).plan_file.is_file()


def around(path: Path) -> Store | None:
    """Return the experiment's results that a path would lie in."""
    return next((Store(folder) for folder in path.parents if is_experiment(folder)), None)


def run_at(folder: Path) -> tuple[Store, str] | None:
    """Return the run whose folder this is: the experiment's results, and its id."""
    if not (folder / "record.json").is_file():
        return None
    store = Store(folder.resolve().parent.parent)
    return store, store.runs.read(folder.resolve()).id


def remove_empty(root: Path) -> None:
    """Remove the folders in and below a place in which nothing lies, and the place itself."""
    for below, _folders, _files in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):  # something lies in it
            os.rmdir(below)
