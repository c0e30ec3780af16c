"""Checkpoints of an unfinished run: the state to resume from with identical numbers.

A checkpoint's file name has its step and the hash of its content, so the latest checkpoint is known
without file times, and a damaged checkpoint is skipped in favour of the previous one.
"""

import hashlib
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

import torch

from llama_ablate.files import disk

_MAX_CHECKPOINTS = 2
_PARTIAL = ".partial-step-"
_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{32})\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically, and remove all but the last two."""
    for name in disk.names(folder):
        if name.startswith(_PARTIAL):  # of a process that was killed in the middle
            disk.remove(folder / name)
    partial_file = folder / f"{_PARTIAL}{step}"
    digest = disk.write(partial_file, lambda file: torch.save(state, cast("IO[bytes]", file)))
    disk.move(partial_file, folder / f"checkpoint-{step}-{digest[:32]}.pt")
    for _step, path in _checkpoints(folder)[_MAX_CHECKPOINTS:]:
        disk.remove(path)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the latest intact checkpoint, or None.

    Only tensors and plain values are accepted; no code in the file is ever run.
    """
    for _step, path in _checkpoints(folder):
        try:
            with disk.opened(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if not path.name.endswith(f"-{digest[:32]}.pt"):
                raise ValueError("its content does not have the hash in its name")  # noqa: TRY301
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a foreign file makes torch warn of
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001  a damaged file can raise anything
            sys.stderr.write(f"{path.name} is damaged and skipped: {error}\n")
        else:
            return state
    return None


def forget(folder: Path) -> None:
    """Remove the checkpoints of a run."""
    for _step, path in _checkpoints(folder):
        disk.remove(path)


def latest(folder: Path) -> int:
    """Return the step of the latest checkpoint, or 0."""
    return next((step for step, _ in _checkpoints(folder)), 0)


def ordered(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the steps and names of the checkpoint files among file names, latest first."""
    return sorted(((int(m[1]), m[0]) for m in map(_NAME.fullmatch, names) if m), reverse=True)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    return [(step, folder / name) for step, name in ordered(disk.names(folder))]
