"""Packed results: an experiment without its weights, as one archive with its report.

<pack>/
results.tar.xz                            the files of the results folder that readers need
runs.csv                                  one row per run: variant, seed, outcome, metrics
experiment.yaml  report.md  effects*.png  copies for people

The archive is read in memory by the reader of results folders, never unpacked to the disk: every
file has the same seal, or SHA-256 in its run's manifest, as in a results folder.
"""

import io
import lzma
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: The archive of packed results.
PACK = "results.tar.xz"
#: Limits of a pack. Results take kilobytes for each of some thousand runs, so a larger archive
#: counts as an attack.
MAX_MEMBERS = 500_000
MAX_BYTES = 1 << 30


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
        try:
            return self._contents[self._member(path)]
        except KeyError:
            member = self._member(path)
            raise FileNotFoundError(f"{self._file}: damaged, it lacks {member}") from None

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
        contents: dict[str, bytes] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(self._unpacked()), mode="r:") as archive:
                for member in archive:
                    content = archive.extractfile(member) if _is_plain(member) else None
                    if content is None or not _is_safe(member.name) or member.name in contents:
                        raise self._damaged(f"'{member.name:.200}' is no new file below a folder")
                    if len(contents) == MAX_MEMBERS:
                        raise self._damaged("it holds more than results take")
                    contents[member.name] = content.read()
        except ConfigError:  # it is a ValueError, which the next clause would catch
            raise
        except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
            raise self._damaged(f"it cannot be unpacked ({error})") from None
        return contents

    def _unpacked(self) -> bytes:
        """Return the uncompressed tar file, which has at most `MAX_BYTES`."""
        xz = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        content = xz.decompress(disk.read(self._file), MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise self._damaged("it unpacks to more than results take")
        if not xz.eof:
            raise EOFError("it ends before its end")
        if xz.unused_data:
            raise EOFError("more stands behind its end")
        return content

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file}: damaged, {what}")


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a regular file; sparse files, which may expand, are not."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None


def _is_safe(name: str) -> bool:
    return not {"", ".", ".."} & {*name.split("/")}


def archived(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a reproducible archive of files: equal files give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=6) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write_pack(
    target: Path, files: Iterable[tuple[str, bytes]], pages: Mapping[str, bytes]
) -> dict[str, int]:
    """Write results files and pages as a pack; return the file sizes by name.

    A pack is a folder with the archive of the results files and with pages for people. Each file is
    replaced in one step. The archive is written first, since it marks the folder as a pack.
    """
    contents = {PACK: archived(files), **pages}
    disk.make(target)
    disk.sweep(target)  # removes partial files of a killed command
    with disk.locked(target):
        for name, content in contents.items():
            disk.replace(disk.below(target, name), content)
    return {name: len(content) for name, content in contents.items()}
