"""Corpora: sources of text, whose documents are split into train, validation and test."""

import fnmatch
import itertools
import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.data import readers
from llama_ablate.data.readers import COLUMN, SEPARATOR, Document, Size, Skipped, parse_size
from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    import datasets

CORPORA = Registry("corpus")
#: `Corpus.state` of a corpus that cannot be read now: notes of an earlier reading remain valid.
UNCHANGED = ""
SPLITS = ("train", "validation", "test")
#: Without stated splits: the smallest number of documents in each held-out split, and the largest
#: share of all documents that a split may take to have so many. The number matters because the
#: standard error of a loss comes from the differences between documents.
MIN_HELD_OUT, _MAX_HELD_OUT = 50, 0.25
_MUCH_HELD_OUT = 0.2  # share of held-out documents above which a warning is shown
_MAX_FILES = 200_000  # files and folders that a path may match: more than data sets have
_ROWS_READ = 256  # rows of a hub data set that are read at a time
_SHUFFLED = 1000  # size of the buffer for shuffling a streamed data set, in rows


@dataclass(frozen=True)
class Corpus:
    """Source of text whose documents come in the same order at each call."""

    documents: Callable[[], Iterable[Document]]
    #: Shares of training, validation and test text, for documents without a stated split: a single
    #: document is split by position, several documents by the hash of their keys. None: `held_out`
    #: decides.
    splits: Sequence[float] | None = None
    #: Share of validation text, and also of test text, if `splits` is None; it is larger if it
    #: would give fewer than `MIN_HELD_OUT` documents.
    held_out: float = 0.1
    #: Value that changes whenever the documents change, and that is known without reading them,
    #: such as a hash of file times; None if there is no such value.
    state: str | None = None
    #: Approximate number of bytes to read; None if unknown.
    size: int | None = None
    #: Bytes after which a held-out document is cut; None for no limit. The standard error of a loss
    #: comes from the differences between documents, and a few long documents would dominate it.
    longest: int | None = None
    #: Return sentences on how the documents were read, after they were read.
    notes: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        """Raise ConfigError for `splits` that are not three shares with sum 1 or less."""
        shares = self.splits
        if shares is None:
            return
        if len(shares) != 3 or sum(shares) > 1 + 1e-9 or min(shares) < 0 or shares[0] == 0:
            raise ConfigError(
                f"splits {list(shares)}: must be three shares (train, validation, test) that add "
                "to 1, or to less",
                ("splits",),
            )

    def shares(self, count: int) -> Sequence[float]:
        """Return the shares of train, validation and test text for a corpus of `count` documents.

        Callers may stop counting documents at `peeked`, since more documents do not change the
        shares.
        """
        if self.splits is not None:
            return self.splits
        several = min(_MAX_HELD_OUT, MIN_HELD_OUT / count) if count > 1 else 0.0
        held_out = max(self.held_out, several)
        return 1 - 2 * held_out, held_out, held_out

    def notes_on_shares(self, count: int) -> list[str]:
        """Return a sentence on shares that `count` documents determine, and how to fix them."""
        shares = self.shares(count)
        if self.splits is not None or shares[1] == self.held_out:
            return []
        is_much = sum(shares[1:]) > _MUCH_HELD_OUT
        return [
            f"{'warning: ' * is_much}{sum(shares[1:]):.0%} of {count:,} documents are held out, "
            "and with more documents some would move between the splits: "
            f"`splits: {list(shares)}` keeps them where they are"
        ]

    @property
    def peeked(self) -> int:
        """Largest number of documents that must be counted to determine the shares."""
        return math.ceil(MIN_HELD_OUT / self.held_out) if self.splits is None else 2


@CORPORA.register("python-stdlib")
def python_stdlib(*, splits: Sequence[float] | None = None, longest: Size = None) -> Corpus:
    """Read the source code of the running Python's standard library, human-written text.

    The corpus is available on every machine; its text and fingerprint depend on the version of
    Python. Tests and generated tables are left out, and paragraphs that repeat an earlier paragraph
    are dropped. Each file is one document in one split; a held-out file is cut after `longest`
    bytes (`8kB`). By default about 50 files are validation text and 50 test text;
    `splits: [0.9, 0.05, 0.05]` states other shares.
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
        inside[:] = set(inside) - left_out  # do not descend into these: they have half of all files
        names += [Path(folder, file).relative_to(root) for file in files if file.endswith(".py")]
    names = sorted(name for name in names if not name.name.startswith("_sysconfigdata"))
    if len(names) < 100:
        raise ConfigError(f"Python {sys.version.split()[0]} has its library's text not at {root}")
    return Corpus(
        lambda: _without_repeats(
            (name.as_posix(), (root / name).read_text("utf-8", "replace")) for name in names
        ),
        splits,
        held_out=0.02,
        state=readers.hash_files(root / name for name in names),
        longest=parse_size(longest),
    )


def _without_repeats(texts: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Yield documents without repeated paragraphs of 80 characters or more.

    A paragraph is dropped if an equal paragraph comes before, in the same or another document.
    """
    keys: set[str] = set()
    for name, text in texts:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) >= 80 and key in keys:
                continue
            keys.add(key)
            paragraphs.append(paragraph)
        if (rest := "\n\n".join(paragraphs)).strip():
            yield Document((rest.replace(SEPARATOR, "").encode(),), key=name)


@CORPORA.register("files")
def files(
    *,
    path: str | list[str] = ".",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    splits: Sequence[float] | None = None,
    column: str = COLUMN,
    limit: Size = None,
    longest: Size = None,
) -> Corpus:
    """Read local files: plain text, or a text `column` of JSON, CSV, Parquet or Arrow.

    Files may be compressed, and of several kinds. `train` and `validation` (and optionally `test`)
    name one file each inside `path`. Without them, `path` names a file, a folder, a pattern such as
    `books/*.{txt,md}`, or a list of these, and its text is split by `splits`: a single document by
    position, several documents by the hash of their text. Files and folders whose names begin with
    a dot are passed over. By default a tenth each is validation and test text, or about 50
    documents each if there are fewer than 500 in all. `limit` (`200MB`) keeps the first bytes of
    each split, or of the whole text before it is split. `longest` (`8kB`) is the size after which a
    held-out document is cut, unless it is the only document.
    """
    named, hidden = _named(path, train, validation, test)
    every_file = [file for of in named.values() for file in of]
    readers.check(every_file)
    most, skipped = parse_size(limit), Skipped()

    def read() -> Iterator[Document]:
        skipped.count = 0
        for split, of in named.items():
            for document in readers.limited(readers.read(of, column, skipped), most):
                yield replace(document, split=split) if split else document

    def notes() -> Iterator[str]:
        kinds: dict[str, list[str]] = {}
        for file in every_file:
            kinds.setdefault(readers.kind_of(file), []).append(file.name)
        parts = (f"{len(names):,} of {kind}, as '{names[0]}'" for kind, names in kinds.items())
        if len(every_file) > 1 or "text" not in kinds:
            yield f"files read: {'; '.join(parts)}"
        if hidden:
            yield (
                "files passed over because a part of their path begins with a dot: "
                f"{len(hidden):,}, the first '{hidden[0]}'"
            )
        yield from skipped.notes()

    size = readers.total_size(every_file)
    size = most if most and (size is None or most < size) else size
    state, longest_bytes = readers.hash_files(every_file), parse_size(longest)
    return Corpus(
        read, splits, state=state, size=size, longest=longest_bytes, notes=lambda: [*notes()]
    )


def _named(
    path: str | Sequence[str], train: str | None, validation: str | None, test: str | None
) -> tuple[dict[str | None, list[Path]], list[Path]]:
    """Return files by split name, and hidden files, which are passed over.

    The key None has files to be divided into splits.
    """
    if train is None and validation is None and test is None:
        paths, hidden = _expand(path)
        return {None: paths}, hidden
    if train is None or validation is None:
        raise ConfigError("needs 'train' and 'validation' together ('test' may be left out)")
    if not isinstance(path, str):
        raise ConfigError("must be one folder if 'train' names a file in it", ("path",))
    named = {"train": train, "validation": validation, "test": test}
    files = {split: Path(path) / name for split, name in named.items() if name}
    for (split, file), (other, same) in itertools.combinations(files.items(), 2):
        if os.path.realpath(file) == os.path.realpath(same):
            raise ConfigError(f"'{split}' and '{other}' are one file, '{named[split]}'", (other,))
    return {split: [files[split]] if split in files else [] for split in SPLITS}, []


def refuse_missing(choice: Choice) -> None:
    """Raise ConfigError for missing local files of a corpus, without reading their text."""
    if choice.name == "files":
        named, _ = _named(*(choice[option] for option in ("path", *SPLITS)))
        readers.check([file for of in named.values() for file in of])
        parse_size(choice["limit"])


def _expand(path: str | Sequence[str]) -> tuple[list[Path], list[Path]]:
    """List the files of one or several paths, and the hidden files, which are passed over.

    A path is a single file, a folder, or a pattern. Raises ConfigError for a path that matches no
    file, that cannot be read, or that matches too many files.
    """
    files, hidden = set[Path](), set[Path]()
    for stated in [path] if isinstance(path, str) else path:
        matches = {file: _is_hidden(file, at) for at in _patterns(stated) for file in _matches(at)}
        if all(matches.values()):
            is_folder = Path(stated).expanduser().is_dir()
            what = "the folder '{}' holds no files" if is_folder else "no file matches '{}'"
            raise ConfigError(what.format(stated), ("path",))
        for file, is_hidden in matches.items():
            (hidden if is_hidden else files).add(file)
    return sorted(files), sorted(hidden - files)


def _patterns(path: str) -> list[str]:
    """List the alternatives of a pattern with braces, as `*.txt` and `*.md` of `*.{txt,md}`."""
    braces = re.search(r"\{([^{}]*,[^{}]*)\}", path)
    if braces is None or os.path.lexists(path):
        return [path]
    before, after = path[: braces.start()], path[braces.end() :]
    return [each for part in braces[1].split(",") for each in _patterns(before + part + after)]


def _is_hidden(file: Path, pattern: str) -> bool:
    """Return whether a part of a path begins with a dot, unless the pattern states this part."""
    dots = [part for part in Path(pattern).expanduser().parts if part.startswith(".")]
    return any(
        part.startswith(".") and not any(fnmatch.fnmatch(part, dot) for dot in dots)
        for part in file.parts
    )


def _matches(path: str) -> list[Path]:
    """List the files that a path or a pattern names; a single file may be missing."""
    try:
        root = Path(path).expanduser()
        is_pattern = any(c in path for c in "*?[") and "\0" not in path  # no name holds a NUL
        if not (root.is_dir() or is_pattern):
            return [root]
        if root.is_dir():
            next(root.iterdir(), None)  # raises where it may not be read, as a walk does not
            paths = root.rglob("*")
        else:
            anchor = Path(root.anchor)
            paths = anchor.glob(str(root.relative_to(anchor)))
        named = list(itertools.islice(paths, _MAX_FILES + 1))
    except OSError as error:
        reason = f"'{error.filename or path}' cannot be read: {error.strerror}"
        raise ConfigError(reason, ("path",)) from None
    except (RuntimeError, ValueError) as error:  # '~' of an unknown user, pattern `**x`
        raise ConfigError(f"'{path}': {error}", ("path",)) from None
    if len(named) > _MAX_FILES:
        message = f"more than {_MAX_FILES:,} files and folders"
        raise ConfigError(f"'{path}' names {message}: name a smaller folder", ("path",))
    return [file for file in named if file.is_file()]


@CORPORA.register("hub")
def hub(
    *,
    dataset: str = "",
    subset: str | None = None,
    revision: str | None = None,
    split: str | None = None,
    data_files: str | list[str] | None = None,
    column: str = COLUMN,
    streaming: bool = False,
    limit: Size = None,
    shuffle: int | None = None,
    splits: Sequence[float] | None = None,
    longest: Size = None,
) -> Corpus:
    """Load a Hugging Face hub data set by name, or a local folder in its layout.

    The data set's own train, validation and test splits are used. If it has only one split, or if
    `split` names one, that split is divided by `splits` (default: a twentieth each for validation
    and test, or about 50 rows each). `limit` (`200MB`) keeps the first bytes of each split, after
    `shuffle` (a seed) has put its rows in random order. With `streaming`, the text is read over the
    network, up to `limit`; otherwise the whole data set is downloaded once. Each held-out document
    is cut after `longest` bytes.
    """
    if not dataset:
        raise ConfigError("needs 'dataset': a name on the hub, or a local folder")
    if shuffle is not None and shuffle < 0:
        raise ConfigError(f"shuffle {shuffle}: must be a seed of 0 or more", ("shuffle",))
    most, is_local = parse_size(limit), Path(dataset).is_dir()
    try:
        check_reachable(dataset)
        builder = _builder(dataset, subset, revision, data_files)
    except ConfigError as error:
        if error.where:
            raise
        return Corpus(partial(_refuse, error), splits, state=UNCHANGED)

    skipped = Skipped()

    def read() -> Iterator[Document]:
        skipped.count = 0
        loaded = _loaded(builder, dataset, as_stream=streaming or is_local)
        for name, rows in _chosen(loaded, dataset, split).items():
            texts = _texts(rows, column, dataset, shuffle, skipped)
            yield from readers.limited((Document((text,), name) for text in texts), most)

    return Corpus(
        read,
        splits,
        held_out=0.05,
        state=None if is_local else str(builder.cache_dir),
        size=most,
        longest=parse_size(longest),
        notes=skipped.notes,
    )


def _refuse(error: ConfigError) -> Iterator[Document]:
    """Raise an error when documents are read, not before, since their tokens may be cached."""
    raise error
    yield


def check_reachable(dataset: str) -> None:
    """Raise ConfigError if the Hugging Face hub cannot be reached.

    Without this check, the hub's library would retry for 30 s. A local folder needs no hub, nor
    does a session with HF_HUB_OFFLINE. Raises ConfigError also for a missing local folder.
    """
    from datasets.config import HF_HUB_OFFLINE
    from huggingface_hub import constants, get_session

    if HF_HUB_OFFLINE or Path(dataset).is_dir():
        return  # the library reads its cache, or local files
    if dataset.startswith((".", "/", "~")) or dataset.count("/") > 1:
        raise ConfigError(f"there is no folder '{dataset}'", ("dataset",))
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # noqa: BLE001  its type depends on the library's version
        raise ConfigError(
            f"the data set '{dataset}' could not be loaded: {constants.ENDPOINT} "
            f"cannot be reached ({error}); HF_HUB_OFFLINE=1 takes what was loaded "
            "before"
        ) from None


def _builder(
    dataset: str, subset: str | None, revision: str | None, data_files: str | Sequence[str] | None
) -> "datasets.DatasetBuilder":
    """Return the builder of a data set, from the hub or its local cache.

    Raises ConfigError if the data set cannot be loaded.
    """
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # failures are reported below
    chosen = list(data_files) if isinstance(data_files, tuple) else data_files
    try:
        return datasets.load_dataset_builder(dataset, subset, revision=revision, data_files=chosen)
    except Exception as error:
        raise _failed(dataset, error) from error


def _loaded(
    builder: "datasets.DatasetBuilder", dataset: str, *, as_stream: bool
) -> "dict[str, Any]":
    """Return the rows of each split, streamed or downloaded, by split name."""
    import datasets

    try:
        if as_stream:
            return dict(builder.as_streaming_dataset())
        if sys.stderr.isatty():
            datasets.enable_progress_bars()
        else:
            datasets.disable_progress_bars()
        builder.download_and_prepare()
        return dict(builder.as_dataset())
    except Exception as error:
        raise _failed(dataset, error) from error


def _chosen(loaded: dict[str, Any], dataset: str, split: str | None) -> dict[str | None, Any]:
    """Return rows by split name; the key None has rows to be divided into splits.

    Raises ConfigError if there is no such `split`, or if the data set's splits are ambiguous.
    """
    if split is not None:
        if split not in loaded:
            message = f"the data set '{dataset}' has no split '{split}'{nearest(split, loaded)}"
            raise ConfigError(message, ("split",))
        return {None: loaded[split]}
    if "train" in loaded and "validation" in loaded:
        return {name: loaded[name] for name in SPLITS if name in loaded}
    if len(loaded) == 1:
        return {None: next(iter(loaded.values()))}
    raise ConfigError(
        f"the data set '{dataset}' has no train and validation splits of its own: needs 'split', "
        f"one of {', '.join(sorted(loaded))}"
    )


def _texts(
    rows: Any, column: str, dataset: str, shuffle: int | None, skipped: Skipped
) -> Iterator[bytes]:
    """Yield the texts of a column, in random order if `shuffle` is a seed.

    A streamed data set is shuffled by files, and by rows within a buffer.
    """
    import datasets

    if shuffle is not None:
        is_stream = isinstance(rows, datasets.IterableDataset)
        rows = rows.shuffle(seed=shuffle, **({"buffer_size": _SHUFFLED} if is_stream else {}))
    name, chosen = f"'{dataset}'", ""

    def values() -> Iterator[Any]:
        nonlocal chosen
        for batch in rows.iter(_ROWS_READ):
            texts = [key for key, of in batch.items() if isinstance(of[0], str)]
            chosen = chosen or readers.find_column(column, texts, batch, name)
            yield from batch[chosen]

    numbered = ((f"row {number}", value) for number, value in enumerate(values(), 1))
    try:
        yield from readers.texts_of(numbered, column, name, skipped)
    except ConfigError:
        raise
    except Exception as error:
        raise _failed(dataset, error) from error


def _failed(dataset: str, error: Exception) -> ConfigError:
    """Return the error for a data set that cannot be loaded, with the library's reason."""
    reason = " ".join(str(error).splitlines()[:2]) or type(error).__name__
    if "OfflineMode" in reason:
        reason = "it was not loaded before, and HF_HUB_OFFLINE is set"
    where = ("subset",) if "onfig" in reason else ()
    return ConfigError(f"the data set '{dataset}' could not be loaded: {reason}", where)
