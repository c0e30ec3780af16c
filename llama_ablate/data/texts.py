"""Split the documents of a corpus, write them to one file per split, and read these in chunks."""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import chain, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.corpus import SPLITS, Corpus
from llama_ablate.data.passages import Passages
from llama_ablate.data.readers import SEPARATOR, Document, StreamedText, cut
from llama_ablate.files import disk

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
    hashes: Mapping[str, NDArray[np.uint64]]  # of the documents of each split
    passages: Mapping[str, NDArray[np.uint64]]  # hashes of sampled passages of each split
    notes: tuple[str, ...]  # sentences on how the text was read and split

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
        return not np.any(self.hashes.get(split, 0))

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
    documents = iter(corpus.documents())
    first = list(islice(documents, corpus.peeked))
    hashes = {split: array("Q") for split in SPLITS}
    passages = {split: Passages() for split in SPLITS}
    with ExitStack() as opened:
        files = {
            split: opened.enter_context((folder / f"{split}.txt").open("wb")) for split in SPLITS
        }

        def write_pieces(split: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                sizes[split] += files[split].write(piece)
                update(sum(sizes.values()), corpus.size)
                yield piece

        for split, pieces, most in _placed(corpus, first, documents):
            if left_out.get(split) and hash_document(pieces) in left_out[split]:
                continue
            before = sizes[split]
            sizes[split] += files[split].write(_END if before else b"")
            hashed = hash_document(
                write_pieces(split, pieces if most is None else cut(pieces, most)), passages[split]
            )
            hashes[split].append(hashed if most is None else hash_document(pieces))
            longest = max(longest, sizes[split] - before)
    filled = {split: size for split, size in sizes.items() if size}
    arrays = {split: np.asarray(hashes[split], "<u8") for split in filled}
    parts = {split: passages[split].hashes() for split in filled}
    notes = [*corpus.notes()]
    if first and first[0].split is None:
        notes += corpus.notes_on_shares(len(first))
    return Text(folder, _fingerprint(folder, sizes), filled, longest, arrays, parts, tuple(notes))


def hash_document(pieces: Iterable[bytes], passages: Passages | None = None) -> int:
    """Return a 64-bit hash of a text without white space; 0 if blank.

    The text is added to `passages`, too.
    """
    digest, is_blank = blake2b(digest_size=8), True
    for piece in pieces:
        letters = "".join(piece.decode().split())
        is_blank = is_blank and not letters
        digest.update(letters.encode())
        if passages:
            passages.add(letters)
    if passages:
        passages.end_document()
    return 0 if is_blank else int.from_bytes(digest.digest(), "little")


def _placed(
    corpus: Corpus, first: Sequence[Document], others: Iterable[Document]
) -> Iterator[tuple[str, Iterable[bytes], int | None]]:
    """Yield the split, the text and the largest size of each document that belongs to a split.

    `first` are the documents whose number determines the shares, and `others` follow them. A single
    document is split by position. If the shares sum to less than 1, the remaining text is left out.
    A document that falls into a split with a share of 0 goes to train.
    """
    shares = corpus.shares(len(first))
    end = sum(shares) if sum(shares) < 1 - 1e-9 else 1.0
    if len(first) == 1 and first[0].split is None:
        pieces = first[0].pieces
        length = sum(len(piece.decode()) for piece in pieces)
        stops = [int(length * shares[0]), int(length * (shares[0] + shares[1]) + 1e-6)]
        stops.append(int(length * end) if shares[2] else stops[-1])
        for split, (start, stop) in zip(SPLITS, pairwise([0, *stops]), strict=True):
            if stop > start:
                yield split, StreamedText(_between, pieces, start, stop), None
        return
    for document in chain(first, others):
        name = document.split
        if name is None:
            if (share := _share(document)) >= end:
                continue
            name = SPLITS[(share >= shares[0]) + (share >= shares[0] + shares[1])]
            name = name if shares[SPLITS.index(name)] else "train"
        yield name, document.pieces, corpus.longest if name != "train" else None


def _share(document: Document) -> float:
    """Map a document to a number in [0, 1) by hashing its key or text."""
    digest = sha256()
    for piece in document.pieces if document.key is None else [document.key.encode()]:
        digest.update(piece)
    return int.from_bytes(digest.digest()[:6], "little") / 2**48


def _between(pieces: Iterable[bytes], start: int, stop: int) -> Iterator[bytes]:
    """Yield the part of a text between two character positions."""
    at = 0
    for piece in pieces:
        text = piece.decode()
        if part := text[max(0, start - at) : max(0, stop - at)]:
            yield part.encode()
        at += len(text)


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
