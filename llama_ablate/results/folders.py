"""Locate the results of experiments and runs in folders."""

import os
from pathlib import Path

from llama_ablate.files import disk
from llama_ablate.results.layout import Layout, experiments_in
from llama_ablate.results.pack import Pack
from llama_ablate.results.snapshot import Results
from llama_ablate.results.store import Store


def experiments(folder: Path) -> list[Results]:
    """Return the results of every experiment in a folder, packed ones too, by name."""
    return [Results.open(path) for path in experiments_in(folder)]


def is_experiment(folder: Path) -> bool:
    """Return whether a folder holds the results of one experiment, packed or not."""
    return Layout(folder).plan.is_file() or Pack.is_at(folder)


def around(path: Path) -> Store | None:
    """Return the experiment's results that a path would lie in. Raises ConfigError for a pack."""
    return next((Store.open(folder) for folder in path.parents if is_experiment(folder)), None)


def run_at(folder: Path) -> tuple[Store, str] | None:
    """Return the run whose folder this is: the experiment's results, and its id."""
    if not (folder / "record.json").is_file():
        return None
    store = Store(folder.resolve().parent.parent)
    return store, store.runs.read(folder.resolve()).id


def remove_empty(root: Path) -> None:
    """Remove the folders in and below a place in which nothing lies, and the place itself."""
    for below, _folders, _files in os.walk(root, topdown=False):
        disk.remove_empty(Path(below))
