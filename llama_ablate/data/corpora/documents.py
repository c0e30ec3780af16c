"""Documents of local files, read piece by piece: plain text, JSON lines, Parquet and Arrow.

JSON is read here because pyarrow's reader, twice as fast (0.4 s for 176 MiB), refuses a list of
rows, a row longer than a block and another column whose type changes, and has no line for an error;
`datasets` held 1.0 GiB for a list of 176 MiB.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, BinaryIO

from llama_ablate.errors import ConfigError, nearest

SEPARATOR = "\0"  # between documents: text files may not hold it
_BLOCK = 1 << 20  # bytes of a file that are read at a time
_ROWS_READ = 256  # rows of a table that are read at a time
_RECENT_S = 2.0  # a file system's clock may not tell changes apart that follow so soon
_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
#: Endings of the names of files that hold data, as the hub knows them too.
ENDINGS = (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".txt")
#: What files of rows begin with, and the ending that their names have.
_OF_ROWS = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}
_HEAD = 8  # bytes: as long as the longest of them
_WHITE = re.compile(r"[ \t\r\n]*")
_VALUE = 1 << 28  # characters of one JSON value: what is longer is not JSON of rows


@dataclass(frozen=True)
class Document:
    """A text in pieces, which can be read again and again, and the split that it belongs to.

    Where it belongs to none, `key` decides (the text itself, where that is None).
    """

    pieces: Iterable[str]
    split: str | None = None
    key: str | None = None

    @property
    def whole(self) -> Iterable[str]:
        """Its pieces, with the end that is left out where it is cut."""
        return self.pieces.pieces if isinstance(self.pieces, _Cut) else self.pieces

    def cut(self, most: int) -> "tuple[Document, int]":
        """Return the document, cut to at most so many bytes of UTF-8, and how many it has then."""
        size = 0
        for piece in self.pieces:
            size += len(piece.encode())
            if size > most:
                return Document(_Cut(self.pieces, most), self.split, self.key), most
        return self, size


@dataclass(frozen=True)
class _Cut:
    """The pieces of a text up to so many bytes of UTF-8."""

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
    """Yield documents up to so many bytes of text; the last is cut. None: all of them."""
    if most is None:
        yield from documents
        return
    for document in documents:
        kept, size = document.cut(most)
        yield kept
        most -= size
        if most <= 0:
            return


def read(files: Sequence[Path], column: str) -> Iterator[Document]:
    """Yield the documents of files, one after the other.

    A text is one document; of JSON (lines, or a list of objects), Parquet and Arrow, each row's
    `column` is. Raises ConfigError for a file that is not what its name says.
    """
    for file in files:
        name, rows = f"the file '{file}'", _ROWS.get(file.suffix)
        if rows is None:
            yield Document(_TextFile(file, name))
        else:
            for text in of_column(_rows(file, rows, column, name), column, name):
                yield Document((text,))


def look(files: Iterable[Path]) -> None:
    """Raise ConfigError for files that cannot be texts; reads no more than how they begin."""
    for file in files:
        try:
            if not file.is_file():
                raise ConfigError(f"there is no file '{file}'")
            if not file.stat().st_size:
                raise ConfigError(f"the file '{file}' is empty")
            _check_beginning(file)
        except OSError as error:
            raise _unreadable(file, error) from None


def holds_rows(file: Path) -> bool:
    """Return whether a file is one of rows that are read here, by the ending of its name."""
    return file.suffix in _ROWS


def size(file: Path, column: str) -> int:
    """Return how many bytes of text a file holds, about: of Parquet, unpacked."""
    if file.suffix == ".parquet":
        from pyarrow import ArrowException, parquet

        with suppress(ArrowException, OSError):
            found = parquet.read_metadata(file)
            groups = map(found.row_group, range(found.num_row_groups))
            chunks = (group.column(i) for group in groups for i in range(group.num_columns))
            return sum(c.total_uncompressed_size for c in chunks if c.path_in_schema == column)
    return file.stat().st_size


def check_alike(files: Iterable[Path], named: str, *where: str) -> None:
    """Raise ConfigError where files that a folder or a pattern names are of several kinds."""
    kinds: dict[str, Path] = {}
    for file in files:
        kinds.setdefault(_KINDS.get(file.suffix, "text"), file)
    if len(kinds) > 1:
        examples = ", ".join(f"{kind} ('{file.name}')" for kind, file in sorted(kinds.items()))
        raise ConfigError(
            f"'{named}' holds files of several kinds: {examples}; name those of one kind by a "
            "pattern, such as '*.parquet'",
            where,
        )


def state(files: Iterable[Path]) -> str | None:
    """Return what changes with every write to one of the files; None where that is not certain."""
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


def of_column(rows: Iterable[Any], column: str, name: str) -> Iterator[str]:
    """Yield the texts of a column, without the empty ones. Raises ConfigError for other values."""
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


def no_column(column: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error of rows that lack a column."""
    return ConfigError(f"{name} has no column '{column}'{nearest(column, known)}", ("column",))


def _check_beginning(file: Path) -> None:
    """Raise ConfigError for a compressed file, and for one of rows whose name says otherwise.

    A compressed file may hold a thousand times its own size.
    """
    with file.open("rb") as opened:
        head = opened.read(_HEAD)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigError(f"the file '{file}' is compressed ({name}): unpack it first")
    if file.suffix == ".parquet" and not head.startswith(b"PAR1"):
        raise ConfigError(f"the file '{file}' is not parquet: it does not begin with PAR1")
    for magic, ending in _OF_ROWS.items():
        if head.startswith(magic) and file.suffix != ending:
            kind = ending[1:].capitalize()
            raise ConfigError(
                f"the file '{file}' is {kind} by its content: its name should end in {ending}"
            )


def _unreadable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the file '{file}' cannot be read: {error.strerror}")


@dataclass(frozen=True)
class _TextFile:
    """The text of a file, in pieces. Raises ConfigError for one that holds none."""

    file: Path
    name: str

    def __iter__(self) -> Iterator[str]:
        blank = True
        try:
            with self.file.open("rb") as opened:
                for piece in _decoded(opened, self.name):
                    blank = blank and not piece.strip()
                    yield piece
        except OSError as error:
            raise _unreadable(self.file, error) from None
        if blank:
            raise ConfigError(f"{self.name} holds nothing but white space")


def _decoded(opened: BinaryIO, name: str, *, binary: bool = False) -> Iterator[str]:
    """Yield a file's text. Raises ConfigError where it is not UTF-8, or holds a NUL."""
    start, rest = 0, b""
    while block := opened.read(_BLOCK):
        data = rest + block
        if not binary and (nul := data.find(b"\0")) >= 0:
            raise ConfigError(f"{name} is binary, not text (a NUL at byte {start + nul})")
        try:
            text, used = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is not UTF-8 text (byte {start + error.start})") from None
        yield text
        start, rest = start + used, data[used:]
    if rest:
        raise ConfigError(f"{name} is not UTF-8 text (byte {start})")


def _rows(
    file: Path, rows: Callable[[BinaryIO, str, str], Iterator[Any]], column: str, name: str
) -> Iterator[Any]:
    try:
        with file.open("rb") as opened:
            yield from rows(opened, column, name)
    except OSError as error:
        raise _unreadable(file, error) from None


def _json_rows(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    for row in _Json(_decoded(opened, name, binary=True), name):
        if not isinstance(row, dict):
            raise ConfigError(f"{name} is not json of rows: one is {type(row).__name__}")
        if column not in row:
            raise no_column(column, name, row)
        yield row[column]


class _Json:
    """The JSON values of a text in pieces, one after another; of a list, its items."""

    def __init__(self, pieces: Iterator[str], name: str) -> None:
        self._pieces, self._name = pieces, name
        self._text, self._at, self._ended = "", 0, False
        self._line, self._column = 1, 1  # of the first character that is held

    def __iter__(self) -> Iterator[Any]:
        self._white()
        if self._text.startswith("\ufeff", self._at):
            self._at += 1
        while self._white():
            if self._text[self._at] == "[":
                yield from self._items()
            else:
                yield self._value()

    def _items(self) -> Iterator[Any]:
        """Yield the items of the list that begins here."""
        self._at += 1
        if self._white() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            mark = self._white()
            if mark not in (",", "]"):
                raise self._error("Expecting ',' delimiter", self._at)
            self._at += 1
            if mark == "]":
                return

    def _value(self) -> Any:
        self._white()
        while True:
            try:
                value, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or len(self._text) - self._at > _VALUE:
                    raise self._error(error.msg, error.pos) from None
                self._more()
            except RecursionError as error:
                raise ConfigError(f"{self._name} is not json: {error}") from None
            else:
                return value

    def _white(self) -> str:
        """Go to what is not white space, and return the character there; "" at the end."""
        while True:
            space = _WHITE.match(self._text, self._at)
            assert space is not None, "it matches an empty text too"
            self._at = space.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        """Read on, at least as much as is held: a long value is not begun again too often."""
        self._line, self._column = self._place(self._at)
        parts = [self._text[self._at :]]
        wanted = 2 * len(parts[0])
        while len(parts) == 1 or sum(map(len, parts)) < wanted:
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
                break
            parts.append(piece)
        self._text, self._at = "".join(parts), 0

    def _place(self, at: int) -> tuple[int, int]:
        """Return the line and the column of a character that is held."""
        before = self._text[:at]
        own = before.rpartition("\n")
        column = len(own[2]) + 1 if own[1] else self._column + len(before)
        return self._line + before.count("\n"), column

    def _error(self, reason: str, at: int) -> ConfigError:
        line, column = self._place(at)
        return ConfigError(f"{self._name} is not json: {reason}: line {line} column {column}")


def _parquet_rows(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Without these two, whole row groups are held: a file often has one.
        file = parquet.ParquetFile(opened, buffer_size=_BLOCK, pre_buffer=False)
        names = file.schema_arrow.names
        if column not in names:
            raise no_column(column, name, names)
        for batch in file.iter_batches(_ROWS_READ, columns=[column], use_threads=False):
            yield from batch.column(column).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name} is not parquet: {str(error).splitlines()[0]}") from None


def _arrow_rows(opened: BinaryIO, column: str, name: str) -> Iterator[Any]:
    """Yield a column of an Arrow file, or of a stream, as `datasets` writes it."""
    import pyarrow as pa

    try:
        is_file = opened.read(6) == b"ARROW1"
        opened.seek(0)
        if is_file:
            of_file = pa.ipc.open_file(opened)
            names, count = of_file.schema.names, of_file.num_record_batches
            batches = (of_file.get_batch(i) for i in range(count))
        else:
            stream = pa.ipc.open_stream(opened)
            names, batches = stream.schema.names, iter(stream)
        if column not in names:
            raise no_column(column, name, names)
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_READ):
                yield from batch.column(column).slice(start, _ROWS_READ).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{name} is not arrow: {str(error).splitlines()[0]}") from None


#: Readers of files with rows, by the ending of their names.
_ROWS: dict[str, Callable[[BinaryIO, str, str], Iterator[Any]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
    ".arrow": _arrow_rows,
}
_KINDS = {
    ".jsonl": "JSON",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".csv": "CSV",
    ".tsv": "CSV",
}
