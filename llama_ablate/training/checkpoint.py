"""The state of an unfinished run: all that it takes to go on with identical numbers."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint in one step: a stop in the middle leaves the one before."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint, or None where there is none that can be read.

    Only tensors and plain values are accepted; no code in the file is ever run.
    """
    if not path.is_file():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign file is dealt with here, not remarked on
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001  a damaged file can fail in any way that unpickling knows
        return None  # the run starts again, which costs time and no correctness
    return state
