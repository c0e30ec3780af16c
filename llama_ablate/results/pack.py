"""Packed results: an experiment without its weights, as one archive with its report.

<pack>/
results.tar.xz                            the files of the results folder that readers need
runs.csv                                  a row a run: variant, seed, outcome, metrics
experiment.yaml  report.md  effects*.png  copies for people

The archive is read in memory by the reader of results folders: every file has the same seal, or
SHA-256 in its run's manifest, as in a results folder.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from llama_ablate.files import disk
from llama_ablate.results.archive import Archive, archived
from llama_ablate.results.layout import PACK, Layout
from llama_ablate.results.store import StoredResults


class Pack(StoredResults):
    """Packed results in a folder, verified on reading; damage raises ConfigError."""

    def __init__(self, root: Path) -> None:
        home = Layout(root)
        super().__init__(Layout(home.pack, files=Archive(home.pack)), home)

    @staticmethod
    def is_at(root: Path) -> bool:
        """Return whether a folder holds packed results."""
        return Layout(root).pack.exists()


def write_pack(
    target: Path, files: Iterable[tuple[str, bytes]], pages: Mapping[str, bytes]
) -> dict[str, int]:
    """Write results files and pages as a pack; return the file sizes by name.

    Each file is replaced in one step. The archive comes first, since it marks the folder as a pack.
    """
    contents = {PACK: archived(files), **pages}
    disk.make(target)
    disk.sweep(target)  # removes partial files of a killed command
    with disk.locked(target):
        for name, content in contents.items():
            disk.replace(disk.below(target, name), content)
    return {name: len(content) for name, content in contents.items()}
