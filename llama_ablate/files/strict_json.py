"""Strict JSON, written in one step: what JSON lacks (NaN, infinities) becomes a word.

A sealed document ends with the SHA-256 of its place and its text: a changed bit is seen, and so is
a document that was put where another belongs.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

_SEAL = ',\n "sha256": "{}"\n}}\n'
_SEAL_BYTES = len(_SEAL.format("0" * 64))


def write_json(path: Path, value: object) -> None:
    """Write strict JSON in one step; numbers that JSON lacks become "NaN", "Infinity"."""
    write_text(path, to_json(value) + "\n")


def to_json(value: object, *, nulls: bool = False) -> str:
    """Return strict JSON text; numbers that JSON lacks become "NaN", "Infinity", or null."""
    return json.dumps(_finite(value, nulls=nulls), indent=1, allow_nan=False, ensure_ascii=False)


def sealed(value: Mapping[str, object], place: str) -> bytes:
    """Return a document as strict JSON whose last key vouches for the rest, and for its place."""
    text = to_json(value).removesuffix("\n}").encode()
    return text + _SEAL.format(_digest(text, place)).encode()


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    disk.replace(path, text.encode("utf-8"))


def read_json(path: Path, place: str | None = None, *, unsealed: bool = True) -> Any:
    """Read what `write_json` wrote. Raises ConfigError for a file that is not ours any more.

    With `place`, of a sealed document, also for one that was changed or belongs elsewhere. What was
    written before there were seals has none: `unsealed` says whether that will do.
    """
    return parse(path.read_bytes(), path, place, unsealed=unsealed)


def parse(raw: bytes, path: Path, place: str | None = None, *, unsealed: bool = True) -> Any:
    """Return what the content of a file says, as `read_json` does."""
    try:
        value = _infinite(json.loads(raw, object_pairs_hook=_once, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged, not JSON ({error})") from None
    if place is not None and (has_seal(raw) or not unsealed):
        text = raw[:-_SEAL_BYTES]
        if raw != text + _SEAL.format(_digest(text, place)).encode():
            raise ConfigError(f"{path}: damaged, not what was written there")
        del value["sha256"]
    return value


def has_seal(raw: bytes) -> bool:
    """Return whether a document bears a seal, be it broken: with one bit changed it is not none."""
    return sum(byte in b"0123456789abcdef" for byte in raw[-68:-4]) > 61


def _digest(text: bytes, place: str) -> str:
    return hashlib.sha256(place.encode() + b"\n" + text).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _finite(value: object, *, nulls: bool) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner, nulls=nulls) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner, nulls=nulls) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return None if nulls else word
    return value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_infinite(inner) for inner in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value
