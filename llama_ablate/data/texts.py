"""Store the text of corpora, one file per split, and read it in chunks.

A stored note has the fingerprint and sizes of each corpus, so that a corpus that has not changed
need not be read again.
"""

import contextlib
import errno
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from llama_ablate.config.spec import digest
from llama_ablate.data.corpus import SPLITS, UNCHANGED, Corpus
from llama_ablate.data.readers import SEPARATOR, Document
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Fingerprint, Positive, typed
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.terminal import say

_END = SEPARATOR.encode()
_BLOCK = 1 << 20  # bytes that are read at a time; also the size of a chunk of documents
_MAX_DOCUMENT = 1 << 24  # bytes: a longer document is cut, since its tokens would fill the memory
#: Position at which a long document is cut: before the newline of a line that ends in a letter or a
#: digit. The tokenizers of GPT-2 and Llama 3, and those that are trained here, split text there,
#: too.
_LINE = re.compile(rb"[0-9A-Za-z](?=\n)")

Update = Callable[[int, int | None], None]
#: Default for the hashes of documents to leave out, by split: none.
NOTHING: Mapping[str, frozenset[int]] = MappingProxyType({})


@dataclass(frozen=True)
class Text:
    """Text of a corpus on disk: one file per split, with SEPARATOR between documents.

    `fingerprint` is a hash of the exact text of all splits; it is part of every run's id.
    """

    folder: Path
    fingerprint: str
    sizes: dict[str, int]  # UTF-8 bytes of each split that holds text
    longest: int  # UTF-8 bytes of the longest document
    #: Hashes of the documents of each split; empty if the text was not read.
    hashes: Mapping[str, NDArray[np.uint64]] = field(default_factory=dict)

    @property
    def cuts(self) -> bool:
        """True if some document is so long that it is cut before encoding."""
        return self.longest > _MAX_DOCUMENT

    def file(self, split: str) -> Path:
        """Return the path of a split's text file."""
        return self.folder / f"{split}.txt"

    def read(self, split: str, start: int = 0, stop: int | None = None) -> str:
        """Return a split's text from byte `start` to `stop`, without broken characters."""
        with self.file(split).open("rb") as opened:
            opened.seek(start)
            data = opened.read(-1 if stop is None else stop - start)
        return data.decode("utf-8", "ignore")

    def pieces(self, split: str) -> Iterator[str]:
        """Yield a split's text, chunk by chunk."""
        for start, stop in self.chunks(split):
            yield self.read(split, start, stop)

    def is_blank(self, split: str) -> bool:
        """Return whether a split contains only white space."""
        return split not in self.sizes or all(
            not piece.replace(SEPARATOR, "").strip() for piece in self.pieces(split)
        )

    def chunks(self, split: str) -> Iterator[tuple[int, int]]:
        """Yield the byte range (start, stop) of each chunk of a split, to be encoded.

        A chunk contains whole documents, each with the separator that follows it; a document of
        more than 16 MiB is cut into several chunks.
        """
        start = 0
        with self.file(split).open("rb") as opened:
            while start < self.sizes[split]:
                stop = _chunk(opened, start)
                yield start, stop
                start = stop

    def sample(self, split: str, pieces: int, size: int) -> Iterator[str]:
        """Yield evenly spaced parts of a split's text, cut at separators between documents.

        There are at most `pieces` parts, of `size` bytes before the cut at separators.
        """
        last = max(0, self.sizes[split] - size)
        for start in sorted({last * i // max(1, pieces - 1) for i in range(pieces)}):
            yield from self.read(split, start, start + size).split(SEPARATOR)


def write(
    corpus: Corpus,
    folder: Path,
    update: Update = lambda *_: None,
    left_out: Mapping[str, frozenset[int]] = NOTHING,
) -> Text:
    """Write the text of a corpus into a folder, one file per split.

    `update` is called with the bytes written so far and the corpus' size. `left_out` has the hashes
    of documents that are not written, by split. Raises ConfigError if a document cannot be read.
    """
    sizes, longest = dict.fromkeys(SPLITS, 0), 0
    hashes = {split: array("Q") for split in SPLITS}
    with ExitStack() as opened:
        files = {
            split: opened.enter_context((folder / f"{split}.txt").open("wb")) for split in SPLITS
        }

        def write_pieces(split: str, pieces: Iterable[str]) -> Iterator[str]:
            for piece in pieces:
                sizes[split] += files[split].write(piece.encode())
                update(sum(sizes.values()), corpus.size)
                yield piece

        for split, document in _placed(corpus):
            if left_out.get(split) and hash_document(document.whole) in left_out[split]:
                continue
            before = sizes[split]
            sizes[split] += files[split].write(SEPARATOR.encode() if before else b"")
            pieces = write_pieces(split, document.pieces)
            document_hash = hash_document(pieces)
            is_cut = document.whole is not document.pieces
            hashes[split].append(hash_document(document.whole) if is_cut else document_hash)
            longest = max(longest, sizes[split] - before)
    filled = {split: size for split, size in sizes.items() if size}
    arrays = {split: np.asarray(hashes[split], "<u8") for split in filled}
    return Text(folder, _fingerprint(folder, sizes), filled, longest, arrays)


def hash_document(pieces: Iterable[str]) -> int:
    """Return a 64-bit hash of a text without white space; 0 if blank."""
    digest, is_blank = blake2b(digest_size=8), True
    for piece in pieces:
        text = "".join(piece.split())
        is_blank = is_blank and not text
        digest.update(text.encode("utf-8", "surrogatepass"))
    return 0 if is_blank else int.from_bytes(digest.digest(), "little")


def _placed(corpus: Corpus) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a corpus that belong to a split, with the split's name.

    If the shares sum to less than 1, the remaining documents are left out. A document that falls
    into a split with a share of 0 goes to train. Held-out documents are cut to the corpus'
    `longest`.
    """
    documents = iter(corpus.documents())
    first = list(islice(documents, corpus.peeked))
    shares = corpus.shares(len(first))
    end = sum(shares) if sum(shares) < 1 - 1e-9 else 1.0
    if len(first) == 1 and first[0].split is None:
        yield from _by_position(first[0], shares, end)
        return
    for document in chain(first, documents):
        name = document.split
        if name is None:
            if (share := _share(document)) >= end:
                continue
            name = SPLITS[(share >= shares[0]) + (share >= shares[0] + shares[1])]
            name = name if shares[SPLITS.index(name)] else "train"
        cut = corpus.longest if name != "train" else None
        yield name, document if cut is None else document.cut(cut)[0]


def _share(document: Document) -> float:
    """Map a document to a number in [0, 1) by hashing its key or text."""
    digest = sha256()
    for piece in document.pieces if document.key is None else [document.key]:
        digest.update(piece.encode())
    return int.from_bytes(digest.digest()[:6], "little") / 2**48


def _by_position(
    document: Document, shares: Sequence[float], end: float
) -> Iterator[tuple[str, Document]]:
    """Split a single document by position; yield each part with the name of its split.

    `end` is the share of the document after which its text is left out.
    """
    length = sum(map(len, document.pieces))
    first, second = int(length * shares[0]), int(length * (shares[0] + shares[1]) + 1e-6)
    last = int(length * end) if shares[2] else second
    bounds = (0, first), (first, second), (second, last)
    for split, (start, stop) in zip(SPLITS, bounds, strict=True):
        if stop > start:
            yield split, Document(_between(document.pieces, start, stop))


def _between(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the part of a text between two character positions."""
    at = 0
    for piece in pieces:
        if part := piece[max(0, start - at) : max(0, stop - at)]:
            yield part
        at += len(piece)


def _fingerprint(folder: Path, sizes: dict[str, int]) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of all splits."""
    digest = sha256()
    for split, size in sizes.items():
        digest.update(f"{split} {size}\n".encode())
        with disk.opened(folder / f"{split}.txt") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()[:16]


def _chunk(opened: BinaryIO, start: int) -> int:
    """Return the end of the chunk that begins at byte `start` of a file."""
    opened.seek(start)
    block = opened.read(_BLOCK)
    if len(block) < _BLOCK:
        return start + len(block)
    if (cut := block.rfind(_END)) >= 0:
        return start + cut + 1
    at = start + len(block)
    while at - start <= _MAX_DOCUMENT and (more := opened.read(_BLOCK)):
        if (cut := more.find(_END)) >= 0:
            return at + cut + 1
        at += len(more)
    if at - start <= _MAX_DOCUMENT:
        return at  # the last document
    lines = [match.end() for match in _LINE.finditer(block)]
    return start + (lines[-1] if lines else block.rfind(b"\n") + 1 or _character(block))


def _character(block: bytes) -> int:
    """Return the offset, in a block of UTF-8 bytes, of the last character's first byte."""
    return next(i for i in range(len(block) - 1, -1, -1) if block[i] & 0xC0 != 0x80)


_READING = 2  # version of how corpora are read: raising it invalidates stored notes
#: Error numbers of failed writes, whose errors name no file.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclass
class _Remembered:
    """Stored note about a text: the state of its corpus, its fingerprint and its sizes."""

    state: str | None
    fingerprint: Fingerprint
    sizes: dict[str, Positive]
    longest: Count


_REMEMBERED = TypeAdapter(_Remembered)


def recall(root: Path, entry: object, state: str | None) -> Text | None:
    """Return the text of a corpus from its stored note, with sizes but without text files.

    Return None if the corpus has changed or has no valid note.
    """
    file = _note(root, entry)
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        remembered = typed(_REMEMBERED, read_json(file, _place(file)), file)
        if state is not None and state in (remembered.state, UNCHANGED):
            return Text(root, remembered.fingerprint, remembered.sizes, remembered.longest)
    return None


def remember(root: Path, entry: object, state: str | None, text: Text) -> None:
    """Store a note of a text's fingerprint and sizes, if its corpus has a `state`.

    Without a state, a later change of the corpus could not be detected.
    """
    if state is not None:
        file = _note(root, entry)
        disk.make(file.parent)
        if file.is_dir():
            disk.remove_tree(file)
        record = {"fingerprint": text.fingerprint, "sizes": text.sizes, "longest": text.longest}
        disk.replace(file, sealed({"state": state, **record}, _place(file)))


def _note(root: Path, entry: object) -> Path:
    return root / "texts" / f"{digest([_READING, entry], 16)}.json"


def _place(file: Path) -> str:
    return "/".join(file.parts[-2:])


@contextlib.contextmanager
def working_folder(root: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder for making tokens, and lock `name` for other processes meanwhile.

    Another process that needs the same name waits. Raises ConfigError if the cache cannot be
    written.
    """
    try:
        turns, parts = disk.below(root, "turns", name), root / "working"
        for needed in (root / "tokens", turns, parts):
            disk.make(needed)
        disk.sweep(parts)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(disk.locked(turns, wait=False))
            except BlockingIOError:
                say("waiting for another process, which prepares the same text")
                stack.enter_context(disk.locked(turns))
            except OSError:  # a file system without locks: the first process to finish wins
                pass
            yield stack.enter_context(disk.partial_folder(parts))
    except OSError as error:
        place = error.filename2 or error.filename
        in_cache = place is not None and Path(os.fsdecode(place)).is_relative_to(root)
        if not in_cache and (place is not None or error.errno not in _DISK):
            raise
        raise ConfigError(
            f"the token cache '{root}' cannot be written ({error.strerror}); "
            "set LLAMA_ABLATE_CACHE to a folder that can"
        ) from None
