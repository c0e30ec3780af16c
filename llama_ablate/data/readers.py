"""Read documents from local files: plain text, JSON, CSV, Parquet, Arrow, also compressed."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Annotated, Any, BinaryIO, cast

from pydantic import BeforeValidator

from llama_ablate.errors import ConfigError, nearest

SEPARATOR = "\0"  # character between documents, which text files may not contain
COLUMN = "text"
_BLOCK = 1 << 20  # bytes of a file that are read at a time
_ROWS_READ = 256  # rows of a table that are read at a time
_RECENT_S = 2.0  # seconds: file times may not distinguish two writes this close together
_MAX_LINE = 1 << 26  # bytes of a row of JSON
_MAX_JSON = 1 << 28  # bytes of a JSON document that is read as a whole
#: Functions that open compressed files, by the extension of the file name.
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = {
    b"\x1f\x8b": "gzip, .gz",
    b"BZh": "bzip2, .bz2",
    b"\xfd7zXZ": "xz, .xz",
    b"PK\x03\x04": "zip",
    b"(\xb5/\xfd": "zstd",
}
#: First bytes of table formats, with the extension that a file name must have.
_ROW_FORMATS = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HEAD = 8  # bytes read to recognise a format: at least the longest signature
_KINDS = {
    ".jsonl": "JSON",
    ".json": "JSON",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?(kB|MB|GB|TB)", re.ASCII | re.IGNORECASE)


def parse_size(stated: str | None) -> int | None:
    """Parse an amount of text such as `200MB` to bytes; return None for None.

    Raises ConfigError for any value but a number above 0 with a unit: kB, MB, GB or TB, powers of
    1000.
    """
    if stated is None:
        return None
    match = _SIZE_PATTERN.fullmatch(stated) if isinstance(stated, str) else None
    unit = match and next(size for name, size in _UNITS.items() if name.lower() == match[2].lower())
    size = round(float(match[1]) * unit) if match and unit else 0
    if not size:
        raise ConfigError(
            f"'{stated!s:.60}' is no amount of text: write a number above 0 with its unit, such as "
            f"200MB; allowed units: {', '.join(_UNITS)}"
        )
    return size


def _check_size(stated: str | None) -> str | None:
    parse_size(stated)
    return stated


#: Type of an option whose value is an amount of text, such as `200MB`.
Size = Annotated[str | None, BeforeValidator(_check_size)]


@dataclass(frozen=True)
class Document:
    """Document of a corpus: the text in pieces, with a split or a key.

    The pieces can be iterated repeatedly. If `split` is None, the hash of `key` determines the
    split; if `key` is None, too, the hash of the text determines the split.
    """

    pieces: Iterable[str]
    split: str | None = None
    key: str | None = None

    @property
    def whole(self) -> Iterable[str]:
        """Pieces of the whole document, including the part that `cut` has removed."""
        return self.pieces.pieces if isinstance(self.pieces, _Cut) else self.pieces

    def cut(self, most: int) -> "tuple[Document, int]":
        """Return the document cut to at most `most` bytes, and the size of the cut document."""
        size = 0
        for piece in self.pieces:
            size += len(piece.encode())
            if size > most:
                return Document(_Cut(self.pieces, most), self.split, self.key), most
        return self, size


@dataclass(frozen=True)
class _Cut:
    """Pieces of a text up to `most` bytes."""

    pieces: Iterable[str]
    most: int

    def __iter__(self) -> Iterator[str]:
        left = self.most
        for piece in self.pieces:
            data = piece.encode()
            if len(data) >= left:
                yield data[:left].decode("utf-8", "ignore")
                return
            yield piece
            left -= len(data)


def limited(documents: Iterable[Document], most: int | None) -> Iterator[Document]:
    """Yield documents up to `most` bytes in total; the last document is cut if necessary.

    If `most` is None, yield all documents.
    """
    for document in documents:
        if most is None:
            yield document
            continue
        cut, size = document.cut(most)
        yield cut
        most -= size
        if most <= 0:
            return


def read(files: Sequence[Path], column: str) -> Iterator[Document]:
    """Yield the documents of files, one file after the other.

    A text file is one document. In JSON, CSV, Parquet and Arrow files, the `column` of each row is
    a document. Raises ConfigError for a file whose content does not match the file name's
    extension.
    """
    for file in files:
        name, rows = f"the file '{file}'", _ROWS.get(_suffix(file))
        if rows is None:
            yield Document(_TextFile(file, name))
        else:
            with _reading(file, name) as opened:
                for text in read_column(rows(opened, column, name), column, name):
                    yield Document((text,))


def check(files: Iterable[Path]) -> None:
    """Raise ConfigError for missing, empty and unreadable files, and unsupported formats.

    The format is recognised by the first bytes of a file.
    """
    for file in files:
        try:
            if not file.is_file():
                raise ConfigError(f"there is no file '{file}'")
            if not file.stat().st_size:
                raise ConfigError(f"the file '{file}' is empty")
            with file.open("rb") as opened:
                _check_beginning(file, opened.read(_HEAD))
        except OSError as error:
            raise ConfigError(f"the file '{file}' cannot be read: {error.strerror}") from None


def check_alike(files: Iterable[Path], named: str, *where: str) -> None:
    """Raise ConfigError if the files of a folder or a pattern have several formats."""
    kinds: dict[str, Path] = {}
    for file in files:
        kinds.setdefault(_KINDS.get(_suffix(file), "text"), file)
    if len(kinds) > 1:
        examples = ", ".join(f"{kind} ('{file.name}')" for kind, file in sorted(kinds.items()))
        raise ConfigError(
            f"'{named}' holds files of several kinds: {examples}; name those of one kind by a "
            "pattern, such as '*.parquet'",
            where,
        )


def total_size(files: Sequence[Path]) -> int | None:
    """Return the total bytes of files; None if a file is compressed or Parquet."""
    packed = {*_OPENERS, ".parquet"}
    return None if packed & {f.suffix for f in files} else sum(f.stat().st_size for f in files)


def state(files: Iterable[Path]) -> str | None:
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
        if abs(time() - stat.st_ctime) < _RECENT_S:
            return None
        parts = (file.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        digest.update(repr(parts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def read_column(rows: Iterable[Any], column: str, name: str) -> Iterator[str]:
    """Yield the non-empty texts of a column. Raises ConfigError for values that are not text."""
    for value in rows:
        if not isinstance(value, str):
            raise ConfigError(f"{name}: '{column}' holds {type(value).__name__}, not text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            wrong = value[error.start]
            raise ConfigError(
                f"{name}: '{column}' holds {wrong!a}, which is no character"
            ) from None
        if text := value.replace(SEPARATOR, ""):
            yield text


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


def _suffix(file: Path) -> str:
    """Return the extension of a file's name, ignoring a compression extension such as `.gz`."""
    return file.with_suffix("").suffix if file.suffix in _OPENERS else file.suffix


def _check_beginning(file: Path, head: bytes) -> None:
    """Raise ConfigError if a file's extension contradicts its first bytes."""
    name = f"the file '{file}'"
    for magic, packed in _MAGIC.items():
        kind, _, ending = packed.partition(", ")
        if head.startswith(magic) and (not ending or file.suffix != ending):
            remedy = f"its name should end in {ending}" if ending else "unpack it first"
            raise ConfigError(f"{name} is compressed ({kind}): {remedy}")
    if file.suffix == ".parquet" and not head.startswith(b"PAR1"):
        raise ConfigError(f"{name} is not parquet: it does not begin with PAR1")
    for magic, ending in _ROW_FORMATS.items():
        if head.startswith(magic) and file.suffix != ending:
            kind = ending[1:].capitalize()
            raise ConfigError(f"{name} is {kind} by its content: its name should end in {ending}")


@contextmanager
def _reading(file: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file for reading, and decompress it if necessary.

    Raises ConfigError if the file cannot be read or decompressed.
    """
    try:
        with _OPENERS.get(file.suffix, open)(file, "rb") as opened:
            yield cast("BinaryIO", opened)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        why = getattr(error, "strerror", None) or f"damaged compression ({error})"
        raise ConfigError(f"{name} cannot be read: {why}") from None


@dataclass(frozen=True)
class _TextFile:
    """Text of a UTF-8 file in pieces, read from the file by each iteration.

    Iteration raises ConfigError for a file that is blank, binary or not UTF-8.
    """

    file: Path
    name: str

    def __iter__(self) -> Iterator[str]:
        blank, start, rest = True, 0, b""
        with _reading(self.file, self.name) as opened:
            while block := opened.read(_BLOCK):
                data = rest + block
                if not start:
                    _refuse_utf16(data, self.name)
                if (nul := data.find(b"\0")) >= 0:
                    what = f"binary, not text (a NUL at byte {start + nul})"
                    raise ConfigError(f"{self.name} is {what}")
                text, used = _decode(data, self.name, start, final=False)
                blank = blank and not text.strip()
                yield text
                start, rest = start + used, data[used:]
        if rest:
            raise _not_utf8(self.name, start)
        if blank:
            raise ConfigError(f"{self.name} holds nothing but white space")


def _decode(data: bytes, name: str, start: int, *, final: bool) -> tuple[str, int]:
    """Decode bytes at offset `start` of a file; return the text and the number of decoded bytes.

    A byte order mark is removed. Unless `final`, an incomplete last character is not decoded.
    Raises ConfigError for bytes that are not UTF-8.
    """
    if not start:
        _refuse_utf16(data, name)
    try:
        text, used = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        raise _not_utf8(name, start + error.start) from None
    return (text.removeprefix("\ufeff") if not start else text), used


def _refuse_utf16(data: bytes, name: str) -> None:
    if data.startswith(_UTF16):
        raise ConfigError(f"{name} is UTF-16 text: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")


def _not_utf8(name: str, byte: int) -> ConfigError:
    return ConfigError(f"{name} is not UTF-8 text (byte {byte}): save it as UTF-8")


def _json_lines(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    """Yield the values of a column of JSON Lines."""
    start, chosen = 0, ""
    for number, line in enumerate(iter(lambda: opened.readline(_MAX_LINE), b""), 1):
        if len(line) == _MAX_LINE:
            raise ConfigError(f"{name}: line {number} is longer than {_MAX_LINE >> 20} MiB")
        text, _ = _decode(line, name, start, final=True)
        start += len(line)
        if text.strip():
            row = _parse_json(text, name, number)
            chosen = chosen or _column_of(row, column, name)
            yield _take(row, chosen, name)


def _json(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    """Yield the values of a column from JSON rows in a list, or from JSON Lines.

    A single row may be given without a list.
    """
    data = opened.read(_MAX_JSON + 1)
    if len(data) > _MAX_JSON:
        raise ConfigError(
            f"{name} is JSON of more than {_MAX_JSON >> 20} MiB, which is read as a whole: write a "
            "row a line, and end its name in .jsonl"
        )
    text, _ = _decode(data, name, 0, final=True)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from _json_lines(io.BytesIO(data), column, name)
            return
        raise ConfigError(f"{name} is not json: {error}") from None
    rows = value if isinstance(value, list) else [value]
    chosen = _column_of(rows[0], column, name) if rows else column
    yield from (_take(row, chosen, name) for row in rows)


def _parse_json(text: str, name: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        why = f"{error.msg}: line {line} column {error.colno}"
        raise ConfigError(f"{name} is not json: {why}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not json: {error}: line {line}") from None


def _column_of(row: Any, column: str, name: str) -> str:
    """Return the name of the column to read, determined from the first row."""
    texts = [key for key, value in _checked(row, name).items() if isinstance(value, str)]
    return find_column(column, texts, row, name)


def _take(row: Any, column: str, name: str) -> Any:
    if column not in _checked(row, name):
        raise ConfigError(f"{name} has no column '{column}'{nearest(column, row)}", ("column",))
    return row[column]


def _checked(row: Any, name: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ConfigError(f"{name} is not json of rows: one is {type(row).__name__}")
    return row


def _csv(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    """Yield the values of a CSV column; tabs in the first line mean TSV."""
    csv.field_size_limit(_MAX_LINE)
    try:
        with io.TextIOWrapper(opened, "utf-8-sig", newline="") as text:
            head = text.readline(_MAX_LINE)
            text.seek(0)
            rows = csv.DictReader(text, delimiter="\t" if "\t" in head else ",", strict=True)
            names = list(rows.fieldnames or ())
            chosen = find_column(column, names, names, name)
            for row in rows:
                yield row[chosen] or ""
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text: save it as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{name} is not CSV: {error}") from None


def _parquet(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Without these two arguments, whole row groups are buffered, and many files have only one.
        file = parquet.ParquetFile(opened, buffer_size=_BLOCK, pre_buffer=False)
        chosen = _column_in(file.schema_arrow, column, name)
        for batch in file.iter_batches(_ROWS_READ, columns=[chosen], use_threads=False):
            yield from batch.column(chosen).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name} is not parquet: {str(error).splitlines()[0]}") from None


def _arrow(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    """Yield the values of a column from an Arrow file, or from Arrow's stream format."""
    import pyarrow as pa

    try:
        is_file = opened.read(6) == b"ARROW1"
        opened.seek(0)
        reader = pa.ipc.open_file(opened) if is_file else pa.ipc.open_stream(opened)
        chosen = _column_in(reader.schema, column, name)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else ()
        for batch in batches if is_file else reader:
            for start in range(0, batch.num_rows, _ROWS_READ):
                yield from batch.column(chosen).slice(start, _ROWS_READ).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name} is not arrow: {str(error).splitlines()[0]}") from None


def _column_in(schema: Any, column: str, name: str) -> str:
    """Return the name of the column to read, determined from an Arrow schema."""
    texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
    return find_column(column, texts, schema.names, name)


#: Readers of files with rows, by the extension of the file name.
_ROWS: dict[str, Callable[[BinaryIO, str, str], Iterator[Any]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
