"""Corpora: sources of text, split into train, validation and test."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.data import documents
from llama_ablate.data.documents import SEPARATOR
from llama_ablate.errors import ConfigError

CORPORA = Registry("corpus")
SPLITS = ("train", "validation", "test")
_COMPRESSED = (".gz", ".zip", ".xz", ".zst")
_ENTRIES = 200_000  # files and folders a pattern may visit: a few seconds, more than data sets have


@dataclass(frozen=True)
class Corpus:
    """The text of each split: documents joined by SEPARATOR. A split may be empty, but not train.

    `fingerprint` stands for the exact text of all splits; it is part of every run's identity.
    """

    train: str
    validation: str
    test: str

    @property
    def splits(self) -> dict[str, str]:
        """The splits that hold text."""
        return {name: getattr(self, name) for name in SPLITS if getattr(self, name)}

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of all splits."""
        digest = hashlib.sha256()
        for name in SPLITS:
            text = getattr(self, name).encode()
            digest.update(f"{name} {len(text)}\n".encode())
            digest.update(text)
        return digest.hexdigest()[:16]


@CORPORA.register("python-stdlib")
def python_stdlib(*, splits: Sequence[float] = (0.96, 0.02, 0.02)) -> Corpus:
    """Read the running Python's own standard library: real, human-written, on every machine.

    Tests and generated tables are left out, paragraphs that an earlier file holds are dropped, and
    whole files go to a split. Text and fingerprint differ between versions of Python.
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
    for folder, inside, files in os.walk(root):
        inside[:] = set(inside) - left_out  # not gone into: a half of all there is
        names += [Path(folder, file).relative_to(root) for file in files if file.endswith(".py")]
    documents = [
        (name.as_posix(), (root / name).read_text("utf-8", "replace"))
        for name in sorted(names)
        if not name.name.startswith("_sysconfigdata")
    ]
    if len(documents) < 100:
        raise ConfigError(f"Python {sys.version.split()[0]} has its library's text not at {root}")
    return _split(_without_repeats(documents), splits)


@CORPORA.register("files")
def files(
    *,
    path: str = ".",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    splits: Sequence[float] = (0.8, 0.1, 0.1),
    field: str = "text",
) -> Corpus:
    """Read local files: plain text, JSON lines (`.jsonl`, `.json`) or `.parquet`, by `field`.

    With `train` and `validation` (and `test`), those are files inside `path`. Without, all that
    `path` names (a file, a folder, or a pattern such as `books/*.txt`) is split by `splits`: one
    document by position, several by the hash of their text.
    """
    named = _named(path, train, validation, test)
    if "" in named:
        return _split([(text, text) for text in documents.read(named[""], field)], splits)
    texts = {split: SEPARATOR.join(documents.read(of, field)) for split, of in named.items()}
    return Corpus(**texts)


def _named(
    path: str, train: str | None, validation: str | None, test: str | None
) -> dict[str, list[Path]]:
    """Return the files of each split, or under "" those that are to be split."""
    if train is None and validation is None and test is None:
        return {"": _expand(path)}
    if train is None or validation is None:
        raise ConfigError("needs 'train' and 'validation' together ('test' may be left out)")
    named = {"train": train, "validation": validation, "test": test}
    return {split: [Path(path) / name] if name else [] for split, name in named.items()}


def look(choice: Choice) -> None:
    """Raise ConfigError for a corpus of local files that are not there; reads none of them."""
    if choice.name == "files":
        named = _named(*(choice[option] for option in ("path", *SPLITS)))
        documents.look([file for of in named.values() for file in of])


@CORPORA.register("hub")
def hub(
    *,
    dataset: str = "",
    config: str | None = None,
    revision: str | None = None,
    field: str = "text",
    splits: Sequence[float] = (0.9, 0.05, 0.05),
) -> Corpus:
    """Load a data set of the Hugging Face hub by name, or a local folder in its layout.

    Its own train, validation and test splits are used; where it has only train, that is split.
    """
    import datasets

    if not dataset:
        raise ConfigError("needs 'dataset': a name on the hub, or a local folder")
    datasets.disable_progress_bars()
    local = Path(dataset).is_dir()
    if local:
        for file in Path(dataset).rglob("*"):
            if file.is_file() and file.suffix not in _COMPRESSED:
                documents.refuse_compressed(file)
    else:
        reach(dataset)
    # The library knows a local file by its time alone, so its cache may hold an older text.
    mode = "reuse_cache_if_exists" if local else "reuse_dataset_if_exists"
    try:
        loaded = datasets.load_dataset(dataset, config, revision=revision, download_mode=mode)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "OfflineMode" in reason:
            reason = "it was not loaded before, and HF_HUB_OFFLINE is set"
        raise ConfigError(f"the data set '{dataset}' could not be loaded: {reason}") from error
    texts = {}
    for name, rows in loaded.items():
        if field not in rows.column_names:
            raise documents.no_field(field, f"'{dataset}'", rows.column_names)
        texts[name] = list(documents.column(rows[field], field, f"'{dataset}'"))
    if "validation" in texts and "train" in texts:
        return Corpus(**{name: SEPARATOR.join(texts.get(name, [])) for name in SPLITS})
    return _split([(t, t) for rows in texts.values() for t in rows], splits)


def reach(dataset: str) -> None:
    """Raise ConfigError where the hub cannot be reached: its library would retry for 30 s."""
    from datasets.config import HF_HUB_OFFLINE
    from huggingface_hub import constants, get_session

    if dataset.startswith((".", "/", "~")) or dataset.count("/") > 1:
        raise ConfigError(f"there is no folder '{dataset}'")
    if HF_HUB_OFFLINE:
        return  # the library reads its cache
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # noqa: BLE001  its type depends on the library's version
        raise ConfigError(
            f"the data set '{dataset}' could not be loaded: {constants.ENDPOINT} "
            f"cannot be reached ({error}); HF_HUB_OFFLINE=1 takes what was loaded "
            "before"
        ) from None


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
    files, visited, pending = set(), count(1), [(root, tuple(pattern))]
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


def _split(documents: Sequence[tuple[str, str]], splits: Sequence[float]) -> Corpus:
    """Split (key, text) pairs by the hash of their keys; a single document by position.

    Where the shares add to less than 1, the rest is left out.
    """
    bad = len(splits) != 3 or sum(splits) > 1 + 1e-9 or min(splits) < 0 or splits[0] == 0
    if bad:
        raise ConfigError(
            f"splits {list(splits)}: must be three shares (train, validation, test) that add to 1, "
            "or to less"
        )
    end = sum(splits) if sum(splits) < 1 - 1e-9 else 1.0
    if len(documents) == 1:
        text = documents[0][1]
        first, second = int(len(text) * splits[0]), int(len(text) * (splits[0] + splits[1]) + 1e-6)
        last = int(len(text) * end) if splits[2] else second
        return Corpus(text[:first], text[first:second], text[second:last])
    texts: dict[str, list[str]] = {name: [] for name in SPLITS}
    for key, text in documents:
        share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "little") / 2**48
        if share >= end:
            continue
        name = SPLITS[(share >= splits[0]) + (share >= splits[0] + splits[1])]
        texts[name if splits[SPLITS.index(name)] else "train"].append(text)
    return Corpus(**{name: SEPARATOR.join(parts) for name, parts in texts.items()})


def _without_repeats(documents: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop repeated paragraphs of 80 characters or more, in and across documents."""
    seen: set[str] = set()
    kept = []
    for name, text in documents:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) >= 80 and key in seen:
                continue
            seen.add(key)
            paragraphs.append(paragraph)
        if (rest := "\n\n".join(paragraphs)).strip():
            kept.append((name, rest.replace(SEPARATOR, "")))
    return kept
