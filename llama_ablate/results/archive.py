"""Archives of many small files: written at once, read into memory, never unpacked to disk."""

import io
import lzma
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import IO, Protocol, cast

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: Packed results take kilobytes for each of some thousand runs; a larger archive is an attack.
MAX_MEMBERS = 500_000
MAX_MEMBER_BYTES = 64 << 20
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
        """Names in each folder."""
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for member in self._contents:
            path = member
            while path:
                path, _, name = path.rpartition("/")
                found[path][name] = None
        return {folder: list(names) for folder, names in found.items()}

    @cached_property
    def _contents(self) -> dict[str, bytes]:
        """Content of each member by name."""
        try:
            with disk.opened(self._file) as packed:
                stream = _Bounded(packed, self._file)
                contents = self._members(stream)
                while stream.read(1 << 20):
                    pass  # the xz stream ends after the tar, with checksums to be verified
        except ConfigError:  # it is a ValueError, which the next clause would catch
            raise
        except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
            raise self._damaged(f"it cannot be unpacked ({error})") from None
        return contents

    def _members(self, stream: "_Bounded") -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
            for member in archive:
                archive.members.clear()  # type: ignore[attr-defined]  # else all headers are kept
                content = archive.extractfile(member) if _is_plain(member) else None
                if content is None or not _is_safe(member.name) or member.name in contents:
                    raise self._damaged(f"'{member.name:.200}' is no new file below a folder")
                if member.size > MAX_MEMBER_BYTES or len(contents) == MAX_MEMBERS:
                    raise self._damaged("it holds more than results take")
                contents[member.name] = content.read()
        return contents

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file}: damaged, {what}")


class _Bounded:
    """Xz stream limited to `MAX_BYTES` of content, without bytes after its end."""

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        self._stream, self._file, self._left = stream, file, MAX_BYTES
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes.

        Raises ConfigError for content beyond the limit, EOFError for a truncated stream and for
        bytes after its end.
        """
        most = min(size, self._left + 1) if size >= 0 else self._left + 1
        content = b""
        while not (content or self._xz.eof):
            raw = self._stream.read(1 << 16) if self._xz.needs_input else b""
            if self._xz.needs_input and not raw:
                raise EOFError("it ends before its end")
            content = self._xz.decompress(raw, most)
        if not content and (self._xz.unused_data or self._stream.read(1)):
            raise EOFError("more stands behind its end")
        self._left -= len(content)
        if self._left < 0:
            raise ConfigError(f"{self._file}: damaged, it unpacks to more than results take")
        return content


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
