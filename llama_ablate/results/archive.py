"""Packed results: an experiment without its weights, as one archive with its report.

<pack>/
results.tar.xz                            the files of the results folder that readers need, and
                                          pages.json: the SHA-256 of each file beside the archive
runs.csv                                  one row per run: variant, seed, outcome, metrics
experiment.yaml  report.md  effects*.png  copies for people

The archive is read in memory by the reader of results folders, never unpacked to the disk: every
file has the same seal, or SHA-256 in its run's record, as in a results folder.
"""

import io
import lzma
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed

#: The archive of packed results.
PACK = "results.tar.xz"
#: Member of the archive with the SHA-256 of each file beside it.
PAGES = "pages.json"
#: Limits of a pack. Results take kilobytes for each of some thousand runs, so a larger archive
#: counts as an attack.
MAX_MEMBERS = 500_000
MAX_BYTES = 1 << 30
#: Bytes that any archive may unpack to, and further bytes for each packed one; of 44 published
#: packs, none unpacks to more than 13 times its size.
_ROOM, _MAX_RATIO = 32 << 20, 50
#: Memory of the decompressor: three times what archives need that this program writes.
_DECOMPRESSOR_BYTES = 32 << 20
_PIECE = 1 << 20  # bytes that are unpacked at once
_MAX_PARTS = 20  # of a path


class Files(Protocol):
    """Reader of files below a folder by their paths, on disk or in an archive."""

    def names(self, folder: Path) -> list[str]:
        """List the names in a folder; an empty list for a missing folder."""

    def is_file(self, path: Path) -> bool:
        """Return whether a path is a file."""

    def read(self, path: Path | str) -> bytes:
        """Read the content of a file. Raises FileNotFoundError for a missing file."""


class Archive:
    """Files of an xz-compressed tar archive, by paths below the archive's path.

    The archive is read at the first request for a file. Raises ConfigError for a damaged archive.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def names(self, folder: Path) -> list[str]:
        """List the names in a folder; an empty list for a missing folder."""
        return self._names.get(self._member(folder), [])

    def is_file(self, path: Path) -> bool:
        """Return whether the archive contains a file at a path."""
        return self._member(path) in self._contents

    def read(self, path: Path | str) -> bytes:
        """Read the content of a file. Raises FileNotFoundError for a missing file."""
        member = self._member(path)
        if member not in self._contents:
            raise FileNotFoundError(f"{self._file}: damaged, it lacks {member}")
        return self._contents[member]

    def _member(self, path: Path | str) -> str:
        return str(path).removeprefix(str(self._file)).removeprefix("/")

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Names of the files and folders in each folder of the archive."""
        names_by_folder: dict[str, dict[str, None]] = defaultdict(dict)
        for member in self._contents:
            path = member
            while path:
                path, _, name = path.rpartition("/")
                names_by_folder[path][name] = None
        return {folder: list(names) for folder, names in names_by_folder.items()}

    @cached_property
    def _contents(self) -> dict[str, bytes]:
        """Content of each member by name."""
        try:
            return _contents(_unpacked(disk.read(self._file)))
        except (tarfile.TarError, lzma.LZMAError, ValueError) as error:
            raise ConfigError(f"{self._file}: damaged, it cannot be unpacked ({error})") from None


def _unpacked(raw: bytes) -> bytes:
    """Return an uncompressed tar file. Raises ValueError if it is larger than results can be."""
    xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, _DECOMPRESSOR_BYTES)
    most = min(MAX_BYTES, _ROOM + _MAX_RATIO * len(raw))
    # By pieces, since one call for the whole would take twice the memory.
    pieces = [xz.decompress(raw, _PIECE)]
    while pieces[-1] and not xz.eof and len(pieces) * _PIECE <= most:
        pieces.append(xz.decompress(b"", _PIECE))
    if sum(map(len, pieces)) > most:
        raise ValueError("it unpacks to more than results take")
    if not xz.eof or xz.unused_data:
        raise ValueError("its end is not where it should be")
    return b"".join(pieces)


def _contents(raw: bytes) -> dict[str, bytes]:
    """Return the files of a tar archive by name. Raises ValueError for one that no pack holds."""
    contents: dict[str, bytes] = {}
    for name, content in _members(raw):
        parts = name.split("/")
        if {"", ".", ".."} & {*parts} or len(parts) > _MAX_PARTS or name in contents:
            raise ValueError(f"'{name:.200}' is no new file below a folder")
        if len(contents) == MAX_MEMBERS:
            raise ValueError("it holds more than results take")
        contents[name] = content
    return contents


def _members(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a tar archive by name.

    A name that is long or not ASCII stands in one header before its file, as `archived` writes it.
    Raises ValueError or TarError for all else: links, other headers, sizes beyond the archive.
    """
    at, long_name = 0, ""
    while any(header := raw[at : at + tarfile.BLOCKSIZE]):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        start, at = at + tarfile.BLOCKSIZE, at + tarfile.BLOCKSIZE + member.size
        if member.size < 0 or at > len(raw):
            raise ValueError(f"'{member.name:.200}' is cut off")
        content = raw[start:at]
        at += -at % tarfile.BLOCKSIZE
        if member.type == tarfile.XHDTYPE and not long_name:
            length, _, entry = content.decode().partition(" ")
            key, _, long_name = entry.removesuffix("\n").partition("=")
            if key != "path" or length != str(len(content)) or not long_name:
                raise ValueError("a header states more than one name")
        elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            yield long_name or member.name, content
            long_name = ""
        else:
            raise ValueError(f"'{member.name:.200}' is no file")


def archived(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a reproducible archive of files: equal files give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=6) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def is_pack(root: Path) -> bool:
    """Return whether a folder holds packed results."""
    return (root / PACK).exists()


def write_pack(
    target: Path, files: Iterable[tuple[str, bytes]], pages: Mapping[str, bytes]
) -> dict[str, int]:
    """Write results files and pages as a pack; return the file sizes by name.

    A pack is a folder with the archive of the results files and with pages for people. Each file is
    replaced in one step. The archive is written first, since it marks the folder as a pack.
    """
    digests = {name: sha256(page).hexdigest() for name, page in sorted(pages.items())}
    sums = [(PAGES, sealed(digests, PAGES))] if digests else []
    contents = {PACK: archived([*files, *sums]), **pages}
    disk.make(target)
    disk.sweep(target)  # removes partial files of a killed command
    with disk.locked(target):
        for name, content in contents.items():
            disk.replace(disk.below(target, name), content)
    return {name: len(content) for name, content in contents.items()}


def changed_pages(root: Path, digests: Mapping[str, object]) -> list[Path]:
    """Return the files beside a pack's archive that have changed since packing."""
    pages = {disk.below(root, name): digest for name, digest in digests.items()}
    return [
        page
        for page, digest in pages.items()
        if not page.is_file() or sha256(disk.read(page)).hexdigest() != digest
    ]
