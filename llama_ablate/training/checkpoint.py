"""The state of an unfinished run: all that it takes to go on with identical numbers.

A checkpoint's name says its step and the hash of its content: which is the latest does not depend
on a clock, and one that was damaged is passed over for the one before.
"""

import hashlib
import re
import sys
import warnings
from pathlib import Path
from typing import IO, Any, cast

import torch

from llama_ablate.files import disk

_KEPT = 2
_PARTIAL = ".partial-step-"
_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{32})\.pt")


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint in one step: a stop in the middle leaves the ones before."""
    for name in disk.names(folder):
        if name.startswith(_PARTIAL):  # of a process that was killed in the middle
            disk.remove(folder / name)
    whole = folder / f"{_PARTIAL}{step}"
    digest = disk.write(whole, lambda file: torch.save(state, cast("IO[bytes]", file)))
    disk.move(whole, folder / f"checkpoint-{step}-{digest[:32]}.pt")
    for _step, path in _found(folder)[_KEPT:]:
        disk.remove(path)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the latest checkpoint that is as it was written, or None where there is none.

    Only tensors and plain values are accepted; no code in the file is ever run.
    """
    for _step, path in _found(folder):
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if not path.name.endswith(f"-{digest[:32]}.pt"):
                raise ValueError("its content is not what its name says")  # noqa: TRY301
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a foreign file is dealt with here
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001  a damaged file can fail in any way there is
            sys.stderr.write(f"{path.name} is damaged and passed over: {error}\n")
        else:
            return state
    return None


def forget(folder: Path) -> None:
    """Remove the checkpoints of a run."""
    for _step, path in _found(folder):
        disk.remove(path)


def latest(folder: Path) -> int:
    """Return the step of the latest checkpoint; 0 where there is none."""
    return next((step for step, _ in _found(folder)), 0)


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints and their steps, the latest first."""
    named = ((_NAME.fullmatch(name), folder / name) for name in disk.names(folder))
    return sorted(((int(m[1]), path) for m, path in named if m), reverse=True)
