"""Corpora: sources of text, whose documents are split into train, validation and test."""

import itertools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.data.corpora import documents
from llama_ablate.data.corpora.byte_sizes import Size, size_of
from llama_ablate.data.corpora.documents import SEPARATOR, Document
from llama_ablate.errors import ConfigError

CORPORA = Registry("corpus")
#: The state of a corpus that cannot be read now: what is known of it from earlier still holds.
UNCHANGED = ""
SPLITS = ("train", "validation", "test")
_ENTRIES = 200_000  # files and folders a pattern may visit: a few seconds, more than data sets have


@dataclass(frozen=True)
class Corpus:
    """A source of text: documents, which are read anew, in the same order, at each call."""

    documents: Callable[[], Iterable[Document]]
    #: Shares of training, validation and test text, for documents that belong to no split: one
    #: document is split by position, several by the hash of their keys.
    splits: Sequence[float] = (0.8, 0.1, 0.1)
    #: Changes whenever the documents do, and is known without reading them; None where there is
    #: no such thing, or it cannot be known.
    state: str | None = None
    #: How many bytes there are to read, about; None where that is not known.
    size: int | None = None
    #: Bytes of a document of held-out text, of which the rest is left out: a text's error is that
    #: of its documents, and a few long ones make it as large as if there were no others.
    longest: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for shares that are none."""
        shares = self.splits
        if len(shares) != 3 or sum(shares) > 1 + 1e-9 or min(shares) < 0 or shares[0] == 0:
            raise ConfigError(
                f"splits {list(shares)}: must be three shares (train, validation, test) that add "
                "to 1, or to less",
                ("splits",),
            )


@CORPORA.register("python-stdlib")
def python_stdlib(*, splits: Sequence[float] = (0.96, 0.02, 0.02), longest: Size = None) -> Corpus:
    """Read the running Python's own standard library: real, human-written, on every machine.

    Tests and generated tables are left out, paragraphs that an earlier file holds are dropped, and
    whole files go to a split, of held-out ones the first `longest` bytes (`8kB`). Text and
    fingerprint differ between versions of Python.
    """
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "encodings",
        "_bundled",
        "__pycache__",
        "config",
        "pydoc_data",
        "lib2to3",
    }
    names = []
    for folder, inside, found in os.walk(root):
        inside[:] = set(inside) - left_out  # not gone into: a half of all there is
        names += [Path(folder, file).relative_to(root) for file in found if file.endswith(".py")]
    names = sorted(name for name in names if not name.name.startswith("_sysconfigdata"))
    if len(names) < 100:
        raise ConfigError(f"Python {sys.version.split()[0]} has its library's text not at {root}")
    return Corpus(
        lambda: _without_repeats(
            (name.as_posix(), (root / name).read_text("utf-8", "replace")) for name in names
        ),
        splits,
        documents.state(root / name for name in names),
        longest=size_of(longest),
    )


@CORPORA.register("files")
def files(
    *,
    path: str = ".",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    splits: Sequence[float] = (0.8, 0.1, 0.1),
    column: str = "text",
    limit: Size = None,
    longest: Size = None,
) -> Corpus:
    """Read local files: plain text, JSON lines, Parquet or Arrow, by `column`.

    With `train` and `validation` (and `test`), those are files inside `path`. Without, all that
    `path` names (a file, a folder, or a pattern such as `books/*.txt`) is split by `splits`: one
    document by position, several by the hash of their text. Of each split, or of all that is to be
    split, the first `limit` bytes are taken (`200MB`), and of each document of held-out text, where
    there are several, the first `longest`.
    """
    named = _named(path, train, validation, test)
    of_all = [file for of in named.values() for file in of]
    documents.look(of_all)
    most = size_of(limit)

    def read() -> Iterator[Document]:
        for split, of in named.items():
            for document in documents.limited(documents.read(of, column), most):
                yield replace(document, split=split)

    size = sum(documents.size(file, column) for file in of_all)
    size = min(size, most or size)
    return Corpus(read, splits, documents.state(of_all), size, size_of(longest))


def _named(
    path: str, train: str | None, validation: str | None, test: str | None
) -> dict[str | None, list[Path]]:
    """Return the files of each split, or under None those that are to be split."""
    if train is None and validation is None and test is None:
        found = _expand(path)
        documents.check_alike(found, path, "path")
        return {None: found}
    if train is None or validation is None:
        raise ConfigError("needs 'train' and 'validation' together ('test' may be left out)")
    named = {"train": train, "validation": validation, "test": test}
    files = {split: Path(path) / name for split, name in named.items() if name}
    for (split, file), (other, same) in itertools.combinations(files.items(), 2):
        if os.path.realpath(file) == os.path.realpath(same):
            raise ConfigError(f"'{split}' and '{other}' are one file, '{named[split]}'", (other,))
    return {split: [files[split]] if split in files else [] for split in SPLITS}


def refuse_missing(choice: Choice) -> None:
    """Raise ConfigError for a corpus of local files that are not there; reads none of them."""
    if choice.name == "files":
        named = _named(*(choice[option] for option in ("path", *SPLITS)))
        documents.look([file for of in named.values() for file in of])
        size_of(choice["limit"])


def _expand(path: str) -> list[Path]:
    """Return the files that a path names: one, all of a folder, or those that fit a pattern."""
    try:
        root = Path(path).expanduser()
        if root.is_dir():
            files = [p for p in _matches(root, ("**", "*")) if not p.name.startswith(".")]
            if not files:
                raise ConfigError(f"the folder '{path}' holds no files", ("path",))
            return sorted(files)
        if any(c in path for c in "*?[") and "\0" not in path:  # no name holds a NUL
            anchor = Path(root.anchor) if root.is_absolute() else Path()
            files = sorted(_matches(anchor, root.relative_to(anchor).parts))
            if not files:
                raise ConfigError(f"no file matches '{path}'", ("path",))
            return files
    except OSError as error:
        reason = f"'{error.filename or path}' cannot be read: {error.strerror}"
        raise ConfigError(reason, ("path",)) from None
    except RuntimeError as error:  # of a '~' whose home is not known
        raise ConfigError(f"'{path}': {error}", ("path",)) from None
    return [root]


def _matches(root: Path, pattern: Sequence[str]) -> set[Path]:
    """Return the files below `root` that fit a pattern, `**` standing for folders of any depth."""
    if any("**" in part and part != "**" for part in pattern):
        raise ConfigError("in a pattern '**' stands alone between slashes", ("path",))
    files, visited, pending = set(), itertools.count(1), [(root, tuple(pattern))]
    while pending:
        path, parts = pending.pop()
        if parts:
            pending += _steps(path, parts, visited)
        elif path.is_file():
            files.add(path)
    return files


def _steps(
    folder: Path, parts: tuple[str, ...], visited: Iterator[int]
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the paths that match the first part of a pattern in a folder, with the other parts.

    Visited entries are counted and limited: pathlib would walk a whole disk. `**` does not follow
    links, so there are no cycles.
    """
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield folder, rest
    elif not any(c in first for c in "*?["):
        yield folder / first, rest
        return
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if next(visited) > _ENTRIES:
                message = f"more than {_ENTRIES:,} files and folders would be looked through"
                raise ConfigError(f"{message}: name a smaller folder, or one .jsonl", ("path",))
            if first == "**" and entry.is_dir(follow_symlinks=False):
                yield folder / entry.name, parts
            elif first != "**" and fnmatchcase(entry.name, first):
                yield folder / entry.name, rest


def _without_repeats(texts: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Drop repeated paragraphs of 80 characters or more, in and across documents."""
    seen: set[str] = set()
    for name, text in texts:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) >= 80 and key in seen:
                continue
            seen.add(key)
            paragraphs.append(paragraph)
        if (rest := "\n\n".join(paragraphs)).strip():
            yield Document((rest.replace(SEPARATOR, ""),), key=name)
