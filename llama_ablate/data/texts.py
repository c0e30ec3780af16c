"""Texts of corpora on disk, written in one pass and read in pieces, and notes on them."""

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
_BLOCK = 1 << 20  # bytes that are read at a time, and of a chunk of documents
_MAX_DOCUMENT = 1 << 24  # bytes: a longer document is cut, else its tokens would fill the memory
#: Where a long document is cut: before the end of a line that ends in a letter or a digit, at which
#: the tokenizers of GPT-2 and Llama 3, and those that are trained here, cut it too.
_LINE = re.compile(rb"[0-9A-Za-z](?=\n)")

Update = Callable[[int, int | None], None]
#: By split the hashes of documents that are left out.
NOTHING: Mapping[str, frozenset[int]] = MappingProxyType({})


@dataclass(frozen=True)
class Text:
    """Text of each split in a separate file: documents with SEPARATOR between them.

    `fingerprint` stands for the exact text of all splits; it is part of every run's identity.
    """

    folder: Path
    fingerprint: str
    sizes: dict[str, int]  # UTF-8 bytes of each split that holds text
    longest: int  # UTF-8 bytes of the longest document
    #: Hashes of the documents of each split; none where the text was not read.
    hashes: Mapping[str, NDArray[np.uint64]] = field(default_factory=dict)

    @property
    def cuts(self) -> bool:
        """Presence of a document that is cut before encoding because of its length."""
        return self.longest > _MAX_DOCUMENT

    def file(self, split: str) -> Path:
        """Return the file of a split."""
        return self.folder / f"{split}.txt"

    def read(self, split: str, start: int = 0, stop: int | None = None) -> str:
        """Return a split's text, or the part between two bytes; broken characters are left out."""
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
        """Yield the byte ranges of the chunks to encode.

        Each holds whole documents and the separators behind them; a document of more than 16 MiB
        is cut.
        """
        start = 0
        with self.file(split).open("rb") as opened:
            while start < self.sizes[split]:
                stop = _chunk(opened, start)
                yield start, stop
                start = stop

    def sample(self, split: str, pieces: int, size: int) -> Iterator[str]:
        """Yield evenly spaced pieces of a text, without the separators."""
        last = max(0, self.sizes[split] - size)
        for start in sorted({last * i // max(1, pieces - 1) for i in range(pieces)}):
            yield from self.read(split, start, start + size).split(SEPARATOR)


def write(
    corpus: Corpus,
    folder: Path,
    update: Update = lambda *_: None,
    left_out: Mapping[str, frozenset[int]] = NOTHING,
) -> Text:
    """Write the text of a corpus into a folder; `update` gets the bytes so far and the total.

    Documents whose hashes are `left_out` of their split are not written.
    Raises ConfigError where a document cannot be read.
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
    """Hash a text without its white space; 0 for a blank text."""
    digest, is_blank = blake2b(digest_size=8), True
    for piece in pieces:
        text = "".join(piece.split())
        is_blank = is_blank and not text
        digest.update(text.encode("utf-8", "surrogatepass"))
    return 0 if is_blank else int.from_bytes(digest.digest(), "little")


def _placed(corpus: Corpus) -> Iterator[tuple[str, Document]]:
    """Yield the documents to keep, with their splits.

    Where the shares add to less than 1, the rest is left out; a split without a share is train.
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
    """Return a number from 0 to 1 by the hash of a document's key."""
    digest = sha256()
    for piece in document.pieces if document.key is None else [document.key]:
        digest.update(piece.encode())
    return int.from_bytes(digest.digest()[:6], "little") / 2**48


def _by_position(
    document: Document, shares: Sequence[float], end: float
) -> Iterator[tuple[str, Document]]:
    """Yield the parts of a text that is split by position."""
    length = sum(map(len, document.pieces))
    first, second = int(length * shares[0]), int(length * (shares[0] + shares[1]) + 1e-6)
    last = int(length * end) if shares[2] else second
    bounds = (0, first), (first, second), (second, last)
    for split, (start, stop) in zip(SPLITS, bounds, strict=True):
        if stop > start:
            yield split, Document(_between(document.pieces, start, stop))


def _between(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield a text from one character to another."""
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
    """Return the end of the chunk that begins at a byte."""
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
    """Return the start of a block's last character."""
    return next(i for i in range(len(block) - 1, -1, -1) if block[i] & 0xC0 != 0x80)


_READING = 2  # raise it when some corpus is read in another way: what is known is forgotten
#: What a write may raise, which names no file.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclass
class _Remembered:
    """Stored note on a text."""

    state: str | None
    fingerprint: Fingerprint
    sizes: dict[str, Positive]
    longest: Count


_REMEMBERED = TypeAdapter(_Remembered)


def recall(root: Path, entry: object, state: str | None) -> Text | None:
    """Return the noted text of a corpus, without files; None if the corpus has changed."""
    file = _note(root, entry)
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        remembered = typed(_REMEMBERED, read_json(file, _place(file)), file)
        if state is not None and state in (remembered.state, UNCHANGED):
            return Text(root, remembered.fingerprint, remembered.sizes, remembered.longest)
    return None


def remember(root: Path, entry: object, state: str | None, text: Text) -> None:
    """Store a text's fingerprint and sizes, if a change of its corpus can be detected."""
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
    """Yield an empty folder to make tokens in, one process at a time for each name.

    Raises ConfigError where the cache cannot be written.
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
            except OSError:  # a file system without locks: the first to finish is kept
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
