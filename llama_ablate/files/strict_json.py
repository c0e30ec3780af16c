"""Strict JSON with atomic writes and checksums; NaN and infinities become words.

A sealed document ends with a SHA-256 over the document's path within the results and its text. The
seal detects a changed bit, and a document that was moved to another document's place.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from sys import intern
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

_SEAL = ',\n "sha256": "{}"\n}}\n'
_SEAL_BYTES = len(_SEAL.format("0" * 64))


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically; non-finite numbers become "NaN" or "Infinity"."""
    write_text(path, to_json(value) + "\n")


def to_json(value: object) -> str:
    """Return strict JSON text; non-finite numbers become "NaN" or "Infinity"."""
    converted = _changed(value, json.dumps)
    return json.dumps(converted, indent=1, allow_nan=False, ensure_ascii=False)


def to_line(value: object, *, nulls: bool = False) -> str:
    """Return strict JSON on one line; non-finite numbers become "NaN" or "Infinity".

    If `nulls`, non-finite numbers become null.
    """
    converted = _changed(value, _to_null if nulls else json.dumps)
    return json.dumps(converted, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def sealed(value: Mapping[str, object], place: str) -> bytes:
    """Return a document as strict JSON whose last key is the checksum of its place and text."""
    text = to_json(value).removesuffix("\n}").encode()
    return text + _SEAL.format(_digest(text, place)).encode()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    disk.replace(path, text.encode("utf-8"))


def read_json(path: Path, place: str | None = None) -> dict[str, Any]:
    """Read a JSON document; if `place` is given, verify the document's seal.

    `place` is the path of the document within the results. Raises ConfigError for a damaged file.
    """
    return parse(disk.read(path), path, place)


def parse(raw: bytes, path: Path | str, place: str | None = None) -> dict[str, Any]:
    """Parse the content of a JSON file; verify its seal if `place` is given.

    Raises ConfigError for a damaged file.
    """
    try:
        decoded = raw.decode(json.detect_encoding(raw), "surrogatepass")  # as `json.loads` does
        value: dict[str, Any] = (_DECODER if place is None else _SEALED).decode(decoded)
        if not isinstance(value, dict):  # a file may contain any JSON value
            raise ConfigError(f"{path}: damaged, it holds no mapping of keys to values")
        if raw.count(b"{") + raw.count(b"[") > _DEEPEST or any(word in raw for word in _QUOTED):
            _finish(value, _DEEPEST)
        if b"\\ud" in raw or b"\\uD" in raw:  # a lone surrogate cannot be written
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged, not JSON ({error})") from None
    if place is not None:
        if not is_sealed(raw, place):
            raise ConfigError(f"{path}: damaged, not what was written there")
        del value["sha256"]
    return value


def is_sealed(raw: bytes, place: str) -> bool:
    """Return whether the content of a JSON file ends with an intact seal for its place."""
    text = raw[:-_SEAL_BYTES]
    return raw == text + _SEAL.format(_digest(text, place)).encode()


def _digest(text: bytes, place: str) -> str:
    return hashlib.sha256(place.encode() + b"\n" + text).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = {intern(key): value for key, value in pairs}  # thousands of files share keys
    if len(values) < len(pairs):
        raise ValueError("a key stands there twice")
    return values


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finish(value: Any, levels: int) -> None:
    """Replace the words for non-finite numbers by the numbers, in place.

    Raises ValueError for a document nested more deeply than `levels`.
    """
    if not levels:
        raise ValueError(f"more than {_DEEPEST} levels")
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            _finish(inner, levels - 1)
        elif isinstance(inner, str) and inner in _WORDS:
            value[key] = _WORDS[inner]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, parse_int=_integer)
#: Decoder of sealed documents, which this program wrote: without the check for repeated keys it is
#: twice as fast.
_SEALED = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)
#: Limits of valid documents, in levels and digits; larger values break calculation or rewriting.
_DEEPEST, _DIGITS = 64, 40
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_QUOTED = (b'NaN"', b'Infinity"')  # quoted word endings, absent from most files


def _changed(value: Any, change: Callable[[float], object]) -> Any:
    """Replace the non-finite numbers in nested mappings and lists; return the new document."""
    if isinstance(value, float):
        return value if math.isfinite(value) else change(value)
    if isinstance(value, list | tuple):
        return [_changed(inner, change) for inner in value]
    if not isinstance(value, str) and hasattr(value, "items"):
        return {key: _changed(inner, change) for key, inner in value.items()}
    return value


def _to_null(_value: float) -> None:
    return None
