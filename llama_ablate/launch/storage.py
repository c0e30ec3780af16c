"""Unfinished runs of machines that share no disk: their checkpoints, in any store that pyarrow has.

A bucket is written object by object, not atomically: a checkpoint bears the hash of its content in
its name, so that one half written is found out when it is read, and the one before it is taken.
"""

import os
import secrets
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results.live import LIVE
from llama_ablate.terminal import in_one_line
from llama_ablate.training import checkpoint


class Storage:
    """A folder for each run of one experiment, below a URL of `pyarrow.fs`."""

    def __init__(self, url: str, name: str) -> None:
        """Use `URL/name`. Raises ConfigError for what is no URL of a file system."""
        from pyarrow import fs  # half a second

        self._url, self._fs = url, fs
        try:
            files, path = fs.FileSystem.from_uri(url)
            self._files: Any = fs.SubTreeFileSystem(f"{path.rstrip('/')}/{name}", files)
        except (OSError, ValueError, TypeError) as error:
            raise self._refused(error) from None

    def check(self) -> None:
        """Write, read and remove an object. Raises ConfigError where that cannot be done."""
        probe = secrets.token_hex(8)
        try:
            self._write(probe, "object", BytesIO(b"probe"))
            if self.read(probe, "object") != b"probe":
                raise OSError("what was written is not read back")  # noqa: TRY301
            self.forget(probe)
        except (OSError, ValueError, NotImplementedError) as error:
            raise self._refused(error) from None

    def runs(self) -> list[str]:
        """Return the runs of which something is kept."""
        return [*self._sizes("")]

    def latest(self, run: str) -> int:
        """Return the step of a run's latest checkpoint; 0 where there is none."""
        return next((step for step, _ in checkpoint.ordered(self._sizes(run))), 0)

    def fetch(self, run: str, folder: Path) -> None:
        """Copy a run's checkpoints to a folder."""
        for _step, name in checkpoint.ordered(self._sizes(run)):
            with self._opened(run, name) as file:
                disk.write(folder / name, partial(copyfileobj, file))

    def mirror(self, run: str, folder: Path) -> None:
        """Have the checkpoints of a run's folder, and no others once one of them is here whole."""
        there = self._sizes(run)
        names = [name for _step, name in checkpoint.ordered(disk.names(folder))]
        whole = []
        for name in names[::-1]:
            with _if_there(folder / name) as file:
                if file:
                    if there.get(name) != os.fstat(file.fileno()).st_size:
                        self._write(run, name, file)
                    whole.append(name)
        for _step, name in checkpoint.ordered(there) if whole else ():
            if name not in names:
                self._files.delete_file(f"{run}/{name}")

    def note(self, run: str, folder: Path) -> None:
        """Copy the note of how far a run is, where it has one."""
        with _if_there(folder / LIVE) as file:
            if file:
                self._write(run, LIVE, file)

    def read(self, run: str, name: str) -> bytes:
        """Return what was written. Raises FileNotFoundError where nothing was."""
        with self._opened(run, name) as file:
            return bytes(file.read())

    def forget(self, run: str) -> None:
        """Remove all that is kept of a run."""
        if self._sizes(run):
            self._files.delete_dir(run)

    def _sizes(self, run: str) -> dict[str, int]:
        selector = self._fs.FileSelector(run, allow_not_found=True)
        return {found.base_name: found.size for found in self._files.get_file_info(selector)}

    def _opened(self, run: str, name: str) -> Any:
        return self._files.open_input_stream(f"{run}/{name}", compression=None)

    def _write(self, run: str, name: str, content: IO[bytes]) -> None:
        self._files.create_dir(run, recursive=True)
        with self._files.open_output_stream(f"{run}/{name}", compression=None) as file:
            copyfileobj(content, file)

    def _refused(self, error: Exception) -> ConfigError:
        why = " ".join(str(error).split())
        place = in_one_line(self._url.partition("?")[0])  # without credentials
        return ConfigError(f"--storage {place}: {why}")


def _if_there(path: Path) -> AbstractContextManager[IO[bytes] | None]:
    """Open a file that its worker may just have replaced by a later one, or removed."""
    try:
        return disk.opened(path)
    except FileNotFoundError:
        return nullcontext()
