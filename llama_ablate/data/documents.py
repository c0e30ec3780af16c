"""Documents in local files: plain text, JSON lines and Parquet, read whole."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from llama_ablate.errors import ConfigError

SEPARATOR = "\0"  # between documents: text files may not hold it
_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_WHITE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read(files: Sequence[Path], field: str) -> list[str]:
    """Return the documents of files, one after the other.

    A text is one document; of JSON (lines, or a list of objects) and Parquet, each row's `field`
    is. Raises ConfigError for a file that is missing, empty, or not what its name says, and where
    the files hold more bytes than memory is free.
    """
    look(files)
    return [text for file in files for text in _documents(file, field)]


def look(files: Sequence[Path]) -> None:
    """Raise ConfigError as `read` does before it reads a text."""
    check_memory(sum(_size(file) for file in files))


def check_memory(needed: int) -> None:
    """Raise ConfigError where a text has more bytes than memory is free."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"the text has {needed / 2**30:,.1f} GiB and is read whole; "
            f"{free / 2**30:,.1f} GiB of memory are free"
        )


def refuse_compressed(file: Path) -> None:
    """Raise ConfigError for a compressed file, which may hold a thousand times its own size."""
    with file.open("rb") as opened:
        head = opened.read(max(map(len, _COMPRESSED)))
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigError(f"the file '{file}' is compressed ({name}): unpack it first")


def column(rows: Iterable[Any], field: str, name: str) -> Iterator[str]:
    """Yield the texts of a column, without the empty ones. Raises ConfigError for other values."""
    for value in rows:
        if not isinstance(value, str):
            raise ConfigError(f"{name}: '{field}' holds {type(value).__name__}, not text")
        if surrogate := _SURROGATE.search(value):
            raise ConfigError(f"{name}: '{field}' holds {surrogate[0]!a}, which is no character")
        if value:
            yield value.replace(SEPARATOR, "")


def no_field(field: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error of rows that lack a field."""
    return ConfigError(f"{name} has no field '{field}'; allowed: {', '.join(known)}")


def _size(file: Path) -> int:
    """Return the bytes of a file. Raises ConfigError for one that cannot be a text."""
    try:
        if not file.is_file():
            raise ConfigError(f"there is no file '{file}'")
        if not (size := file.stat().st_size):
            raise ConfigError(f"the file '{file}' is empty")
        refuse_compressed(file)
    except OSError as error:
        raise _unreadable(file, error) from None
    return size


def _documents(file: Path, field: str) -> Iterator[str]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None
    name, rows = f"the file '{file}'", _ROWS.get(file.suffix)
    if rows is None:
        yield _text(data, name)
    else:
        yield from column(rows(data, field, name), field, name)


def _unreadable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the file '{file}' cannot be read: {error.strerror}")


def _text(data: bytes, name: str) -> str:
    if (nul := data.find(b"\0")) >= 0:
        raise ConfigError(f"{name} is binary, not text (a NUL at byte {nul})")
    text = _decode(data, name)
    if not text.strip():
        raise ConfigError(f"{name} holds nothing but white space")
    return text


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _json_rows(data: bytes, field: str, name: str) -> Iterator[Any]:
    for row in _json_values(_decode(data, name).removeprefix("\ufeff"), name):
        if not isinstance(row, dict):
            raise ConfigError(f"{name} is not json of rows: one is {type(row).__name__}")
        if field not in row:
            raise no_field(field, name, row)
        yield row[field]


def _json_values(text: str, name: str) -> Iterator[Any]:
    """Yield the JSON values of a text, one after another; of a list, its items."""
    decoder, at = json.JSONDecoder(), _behind_white(text, 0)
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is not json: {error}") from None
        yield from value if isinstance(value, list) else [value]
        at = _behind_white(text, end)


def _behind_white(text: str, start: int) -> int:
    space = _WHITE.match(text, start)
    assert space is not None, "it matches an empty text too"
    return space.end()


def _parquet_rows(data: bytes, field: str, name: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        if field not in names:
            raise no_field(field, name, names)
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        chunks = (group.column(i) for group in groups for i in range(group.num_columns))
        check_memory(
            sum(
                chunk.total_uncompressed_size
                for chunk in chunks
                if chunk.path_in_schema.partition(".")[0] == field
            )
        )
        for batch in file.iter_batches(columns=[field]):
            yield from batch.column(field).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name} is not parquet: {str(error).splitlines()[0]}") from None


#: Readers of files with rows, by the ending of their names.
_ROWS: dict[str, Callable[[bytes, str, str], Iterator[Any]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
