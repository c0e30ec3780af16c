"""What lies in a folder: an experiment's results, a run, what an inquiry found."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, write_json, write_text
from llama_ablate.results.store import Store

_FOUND = "inquiry.json"


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


def keep_inquiry(folder: Path, found: Mapping[str, object], page: str) -> Path:
    """Write what an inquiry found, and its page; return where the page is.

    Raises ConfigError where that cannot be done.
    """
    report = folder / "report.md"
    try:
        disk.make(folder)
        write_json(folder / _FOUND, found)
        write_text(report, page)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"the results folder '{folder}' cannot be written: {why}") from None
    return report


def inquiries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what every inquiry in a folder found, by name."""
    return {file.parent.name: read_json(file) for file in sorted(folder.glob(f"*/{_FOUND}"))}
