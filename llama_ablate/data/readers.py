"""Read documents from local files: plain text, JSON, CSV, Parquet, Arrow, also compressed."""

import bz2
import codecs
import csv
import gzip
import io
import itertools
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Annotated, Any

from pydantic import BeforeValidator

from llama_ablate.errors import ConfigError, nearest

SEPARATOR = "\0"  # character between documents, which text files may not contain
COLUMN = "text"
_BLOCK = 1 << 20  # bytes of a file that are read at a time
_ROWS_READ = 256  # rows of a table that are read at a time
RECENT_S = 2.0  # seconds: file times may not distinguish two writes this close together
_MAX_LINE = 1 << 26  # bytes of a row of JSON, and of a field of CSV
#: Functions that open compressed files, by the extension of the file name.
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: First bytes of files, with the extension that the name of such a file must have; "" if such
#: files are not read.
_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"PK\x03\x04": "",
    b"(\xb5/\xfd": "",
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_REASON = 500  # most characters of a library's message that are shown
_HEAD = 8  # bytes read to recognise a format: at least the longest signature
_LINES = 100  # lines of a text that are examined for rows of JSON
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?([kMGT])B", re.ASCII | re.IGNORECASE)


def parse_size(stated: str | None) -> int | None:
    """Parse an amount of text such as `200MB` to bytes; return None for None.

    Raises ConfigError for any value but a number above 0 with a unit: kB, MB, GB or TB, powers of
    1000.
    """
    if stated is None:
        return None
    match = _SIZE_PATTERN.fullmatch(str(stated))
    size = round(float(match[1]) * 1000 ** ("kmgt".index(match[2].lower()) + 1)) if match else 0
    if not size:
        raise ConfigError(
            f"'{stated!s:.60}' is no amount of text: write a number above 0 with its unit, such as "
            "200MB; allowed units: kB, MB, GB, TB"
        )
    return size


def _check_size(stated: str | None) -> str | None:
    parse_size(stated)
    return stated


#: Type of an option whose value is an amount of text, such as `200MB`.
Size = Annotated[str | None, BeforeValidator(_check_size)]


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Convert any error that a library raises in the `with` block to a ConfigError.

    The error's message is `what` and the reason. A panic in Rust is not an Exception; it is written
    to standard error before it is raised.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, ConfigError):
        raise
    except BaseException as error:  # noqa: BLE001  panics are not Exceptions
        reason = " ".join(str(error).split())[:_REASON] or type(error).__name__
        raise ConfigError(f"{what} ({reason})") from None


class StreamedText:
    """Text in pieces that each iteration reads anew, so that it may be larger than the memory."""

    def __init__(self, read: Callable[..., Iterator[bytes]], *given: Any) -> None:
        self._read, self._given = read, given

    def __iter__(self) -> Iterator[bytes]:
        return self._read(*self._given)


@dataclass(frozen=True)
class Document:
    """Document of a corpus: UTF-8 text in pieces of whole characters, with a split or a key.

    The pieces can be iterated repeatedly. If `split` is None, the hash of `key` determines the
    split; if `key` is None, too, the hash of the text determines the split.
    """

    pieces: Iterable[bytes]
    split: str | None = None
    key: str | None = None


def cut(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield the first `most` bytes of a text, or less, without a broken character."""
    for piece in pieces:
        if len(piece) > most:
            while piece[most] & 0xC0 == 0x80:
                most -= 1
            yield piece[:most]
            return
        yield piece
        most -= len(piece)


def limited(documents: Iterable[Document], most: int | None) -> Iterator[Document]:
    """Yield documents up to `most` bytes in total; the last document is cut if necessary.

    If `most` is None, yield all documents.
    """
    for document in documents:
        if most is None:
            yield document
            continue
        sizes = itertools.accumulate(map(len, document.pieces))
        is_longer = next((True for size in sizes if size >= most), False)
        if is_longer:
            yield replace(document, pieces=StreamedText(cut, document.pieces, most))
            return
        yield document
        most -= sum(map(len, document.pieces))


@dataclass
class Skipped:
    """Number of rows without text, and the place of the first."""

    count: int = 0
    first: str = ""

    def add(self, place: str) -> None:
        """Count a row."""
        self.count += 1
        self.first = place if self.count == 1 else self.first

    def notes(self) -> list[str]:
        """Return a sentence on the rows, or none if no row was skipped."""
        rows = f"rows without text passed over: {self.count:,}, the first {self.first}"
        return [rows] * bool(self.count)


def read(files: Sequence[Path], column: str, skipped: Skipped) -> Iterator[Document]:
    """Yield the documents of files, one file after the other.

    A text file is one document. In JSON, CSV, Parquet and Arrow files, the `column` of each row is
    a document; rows without text are counted in `skipped`. Raises ConfigError for a file whose
    content does not match the file name's extension.
    """
    for file in files:
        kind, name = kind_of(file), f"the file '{file}'"
        if kind == "text":
            yield Document(StreamedText(_text, file))
            continue
        with _reading(file, kind) as opened:
            if rows := _ROWS.get(kind):
                values = _column_of(rows(opened), column, name)
            else:
                values = _table(opened, column, name)
            yield from (Document((of,)) for of in texts_of(values, column, name, skipped))


def kind_of(file: Path) -> str:
    """Return the format of a file by its name's ending, or `text`.

    A `.json` file, and a compressed file without another known ending, hold a row a line if the
    first line is a JSON object.
    """
    endings = [ending.lower() for ending in file.suffixes[-2:]]
    is_packed = bool(endings) and endings[-1] in _OPENERS
    inner = endings[: len(endings) - is_packed]
    kind = _ENDINGS.get(inner[-1], "text") if inner else "text"
    if kind == "JSON" or (kind == "text" and is_packed):
        with _reading(file, kind) as opened:
            lines = iter(lambda: opened.readline(_MAX_LINE), b"")
            return "JSON lines" if _is_row(next(filter(bytes.strip, lines), b"")) else kind
    return kind


def _is_row(line: bytes) -> bool:
    """Return whether a line is a JSON object with keys."""
    try:
        return line.removeprefix(codecs.BOM_UTF8)[:1] == b"{" and bool(json.loads(line))
    except (ValueError, RecursionError):
        return False


@contextmanager
def _reading(file: Path, kind: str) -> Iterator[Any]:
    """Open a file for reading, and decompress it. Raises ConfigError if it cannot be read."""
    with (
        refusing(f"the file '{file}' cannot be read as {kind}"),
        _OPENERS.get(file.suffix.lower(), open)(file, "rb") as opened,
    ):
        yield opened


def check(files: Iterable[Path]) -> None:
    """Raise ConfigError for missing, empty and unreadable files, and unsupported formats.

    The format is recognised by the first bytes of a file.
    """
    for file in files:
        name = f"the file '{file}'"
        try:
            if not file.is_file():
                raise ConfigError(f"there is no file '{file}'")
            with file.open("rb") as opened:
                head = opened.read(_HEAD)
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
        if not head:
            raise ConfigError(f"{name} is empty")
        for magic, ending in _MAGIC.items():
            if head.startswith(magic) and file.suffix.lower() != ending:
                remedy = f"its name should end in {ending}" if ending else "unpack it first"
                raise ConfigError(f"{name} is compressed or a table by its content: {remedy}")


def total_size(files: Sequence[Path]) -> int | None:
    """Return the total bytes of files; None if a file is compressed or Parquet."""
    packed = {*_OPENERS, ".parquet"}
    if packed & {file.suffix.lower() for file in files}:
        return None
    return sum(file.stat().st_size for file in files)


def hash_files(files: Iterable[Path]) -> str | None:
    """Return a hash of files' names, sizes and times, which any write changes.

    Return None if a file cannot be examined, or if it was written within the last 2 seconds, since
    a further write might then go unnoticed.
    """
    digest = sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            return None
        if abs(time() - stat.st_ctime) < RECENT_S:
            return None
        parts = (file.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        digest.update(repr(parts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def texts_of(
    values: Iterable[tuple[str, Any]], column: str, name: str, skipped: Skipped
) -> Iterator[bytes]:
    """Yield the texts of a column, given the place and the value of each row.

    A row without text (missing, null, NaN or empty) is counted in `skipped`. Raises ConfigError for
    other values that are not text.
    """
    for place, value in values:
        if isinstance(value, str):
            text = value.replace(SEPARATOR, "").encode()
        elif value is None or value != value:  # noqa: PLR0124  NaN
            text = b""
        else:
            message = f"{place}: '{column}' holds {type(value).__name__}, not text"
            raise ConfigError(f"{name}: {message}")
        if text:
            yield text
        else:
            skipped.add(f"{place} of {name}")


def find_column(column: str, texts: Sequence[str], known: Iterable[str], name: str) -> str:
    """Return the name of the column to read: `column`, or else the only text column.

    `texts` are the columns of text among the `known` columns. Raises ConfigError if there is no
    such column.
    """
    if column in (known := list(known)):
        return column
    if column == COLUMN and len(texts) == 1:
        sys.stderr.write(f"note: {name}: reading '{texts[0]}', the only column of text\n")
        return texts[0]
    raise ConfigError(f"{name} has no column '{column}'{nearest(column, known)}", ("column",))


def _text(file: Path) -> Iterator[bytes]:
    """Yield the text of a UTF-8 file. Raises ConfigError if it is blank, binary or not UTF-8."""
    name, rest, start, blank = f"the file '{file}'", b"", 0, True
    with _reading(file, "text") as opened:
        while data := opened.read(_BLOCK):
            data = rest + data
            if not start:
                data = data.removeprefix(codecs.BOM_UTF8)
            if not start and data.startswith(_UTF16):
                how = "save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
                raise ConfigError(f"{name} is UTF-16 text: {how}")
            if (nul := data.find(b"\0")) >= 0:
                raise ConfigError(f"{name} is binary, not text (a NUL at byte {start + nul})")
            try:
                text, used = codecs.utf_8_decode(data, "strict", False)
            except UnicodeDecodeError as error:
                raise _not_utf8(name, start + error.start) from None
            if not start:
                _refuse_rows(data, name)
            blank = blank and not text.strip()
            yield data[:used]
            rest, start = data[used:], start + used
    if rest:
        raise _not_utf8(name, start)
    if blank:
        raise ConfigError(f"{name} holds nothing but white space")


def _not_utf8(name: str, byte: int) -> ConfigError:
    return ConfigError(f"{name} is not UTF-8 text (byte {byte}): save it as UTF-8")


def _refuse_rows(text: bytes, name: str) -> None:
    """Raise ConfigError if most of a text's first lines are JSON objects."""
    lines = list(itertools.islice(filter(bytes.strip, text.split(b"\n")), _LINES))
    if 2 * sum(map(_is_row, lines)) > len(lines):
        raise ConfigError(
            f"{name} has a JSON object a line: end its name in .jsonl, and a column of the rows is "
            "read; to train on the JSON itself, write each line as the 'text' of a row"
        )


def _json_lines(opened: Any) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(iter(lambda: opened.readline(_MAX_LINE), b""), 1):
        if len(line) == _MAX_LINE:
            raise ConfigError(f"line {number} is longer than {_MAX_LINE >> 20} MiB")
        try:
            if line.strip():
                yield f"line {number}", json.loads(line)
        except ValueError as error:
            raise ConfigError(f"line {number}: {error}") from None


def _json(opened: Any) -> Iterator[tuple[str, Any]]:
    """Yield JSON rows in a list, or a single row."""
    value = json.loads(opened.read())
    for number, row in enumerate(value if isinstance(value, list) else [value], 1):
        yield f"row {number}", row


def _csv(opened: Any) -> Iterator[tuple[str, Any]]:
    """Yield the rows of CSV; tabs in the first line mean TSV."""
    csv.field_size_limit(_MAX_LINE)
    with io.TextIOWrapper(opened, "utf-8-sig", newline="") as text:
        delimiter = "\t" if "\t" in text.readline(_MAX_LINE) else ","
        text.seek(0)
        rows = csv.DictReader(text, delimiter=delimiter, restval="", strict=True)
        yield from ((f"line {rows.line_num}", row) for row in rows)


def _column_of(
    rows: Iterable[tuple[str, Any]], column: str, name: str
) -> Iterator[tuple[str, Any]]:
    """Yield place and value of the column to read, which the first row determines."""
    chosen = ""
    for place, row in rows:
        if not isinstance(row, dict):
            raise ConfigError(f"{name} is not of rows: {place} is {type(row).__name__}")
        if not chosen:
            texts = [key for key, value in row.items() if isinstance(value, str)]
            chosen = find_column(column, texts, row, name)
        yield place, row.get(chosen)


def _table(opened: Any, column: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a column from a Parquet or Arrow file, or from Arrow's stream format."""
    import pyarrow as pa
    from pyarrow import parquet

    magic = opened.read(6)
    opened.seek(0)
    if magic.startswith(b"PAR1"):
        # Without these two arguments, whole row groups are buffered, and many files have only one.
        file = parquet.ParquetFile(opened, buffer_size=_BLOCK, pre_buffer=False)
    else:
        file = pa.ipc.open_file(opened) if magic == b"ARROW1" else pa.ipc.open_stream(opened)
    schema = getattr(file, "schema_arrow", None) or file.schema
    texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
    chosen = find_column(column, texts, schema.names, name)
    batches: Iterable[Any] = file
    if magic.startswith(b"PAR1"):
        batches = file.iter_batches(_ROWS_READ, columns=[chosen], use_threads=False)
    elif magic == b"ARROW1":
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
    values = itertools.chain.from_iterable(batch.column(chosen) for batch in batches)
    yield from ((f"row {number}", value.as_py()) for number, value in enumerate(values, 1))


#: Formats of files with rows, by the ending of the file's name in lower case.
_ENDINGS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".jl"), "JSON lines"),
    ".json": "JSON",
    **dict.fromkeys((".csv", ".tsv"), "CSV"),
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
#: Functions that yield the place and the keys of each row, by format.
_ROWS: dict[str, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    "JSON lines": _json_lines,
    "JSON": _json,
    "CSV": _csv,
}
