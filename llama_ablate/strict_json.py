"""Strict JSON, written in one step: what JSON lacks (NaN, infinities) becomes a word."""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError


def write_json(path: Path, value: object) -> None:
    """Write strict JSON in one step; numbers that JSON lacks become "NaN", "Infinity"."""
    write_text(path, to_json(value) + "\n")


def to_json(value: object) -> str:
    """Return strict JSON text; numbers that JSON lacks become "NaN", "Infinity"."""
    return json.dumps(_finite(value), indent=1, allow_nan=False, ensure_ascii=False)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step: readers see the old content or the new, never half of it."""
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote. Raises ConfigError for a file that is not ours any more."""
    try:
        return _infinite(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: damaged, not JSON ({error})") from None


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_infinite(inner) for inner in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value
