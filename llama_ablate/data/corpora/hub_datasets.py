"""The corpus `hub`: data sets of the Hugging Face hub, and local folders in their layout."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.data.corpora import documents
from llama_ablate.data.corpora.byte_sizes import Size, size_of
from llama_ablate.data.corpora.corpus import CORPORA, SPLITS, UNCHANGED, Corpus
from llama_ablate.data.corpora.documents import Document
from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    import datasets

_ROWS = 256  # that are read at a time
_BUFFER = 1 << 20  # bytes of a file that are read at a time
_SHUFFLED = 1000  # rows of a stream that are held to draw the next one from
_COMPRESSED = (".gz", ".zip", ".xz", ".zst", ".bz2", ".lz4")
_NO_DATA = (".md", ".py")


@CORPORA.register("hub")
def hub(
    *,
    dataset: str = "",
    subset: str | None = None,
    revision: str | None = None,
    split: str | None = None,
    data_files: str | list[str] | None = None,
    column: str = "text",
    streaming: bool = False,
    limit: Size = None,
    shuffle: int | None = None,
    splits: Sequence[float] = (0.9, 0.05, 0.05),
    longest: Size = None,
) -> Corpus:
    """Load a data set of the Hugging Face hub by name, or a local folder in its layout.

    Its own train, validation and test splits are used; where it has only one, or `split` names
    one, that is split by `splits`. `limit` (`200MB`) takes the first bytes of each, after `shuffle`
    (a seed) has drawn an order. With `streaming` the text is read over the network, and no more of
    it than `limit`; else the data set is downloaded whole, once. Of each document of held-out text
    the first `longest` bytes are taken.
    """
    if not dataset:
        raise ConfigError("needs 'dataset': a name on the hub, or a local folder")
    if shuffle is not None and shuffle < 0:
        raise ConfigError(f"shuffle {shuffle}: must be a seed of 0 or more", ("shuffle",))
    most, files = size_of(limit), _files(Path(dataset))
    if files is None:
        try:
            reach(dataset)
            builder = _builder(dataset, subset, revision, data_files)
        except ConfigError as error:
            if error.where:
                raise
            return Corpus(partial(_refuse, error), splits, UNCHANGED)
        size: int | None = most
        state: str | None = str(builder.cache_dir)
    else:
        if streaming:
            raise ConfigError(
                f"'{dataset}' is a local folder, which is always read as a stream: leave "
                "'streaming' out",
                ("streaming",),
            )
        builder = _builder(dataset, subset, revision, data_files)
        _look(builder, files, dataset, "data_files" if data_files else "dataset")
        size = most or sum(documents.size(file, column) for file in files)
        state = documents.state(files)

    def read() -> Iterator[Document]:
        loaded = _local(builder) if files is not None and shuffle is None else {}
        loaded = loaded or _loaded(builder, dataset, as_stream=streaming or files is not None)
        for name, rows in _chosen(loaded, dataset, split).items():
            texts = _texts(rows, column, dataset, shuffle)
            yield from documents.limited((Document((text,), name) for text in texts), most)

    return Corpus(read, splits, state, size, size_of(longest))


def _refuse(error: ConfigError) -> Iterator[Document]:
    """Raise an error when documents are read: the tokens may be here from another day."""
    raise error
    yield


def _look(
    builder: "datasets.DatasetBuilder", files: Sequence[Path], dataset: str, key: str
) -> None:
    """Raise ConfigError for local files that are of several kinds, or not what their names say."""
    named = (builder.config.data_files or {}).values()
    used = [Path(str(file)) for of in named for file in of]
    # Of a folder whose card names no files, the library takes the kind that most of them have.
    guessed = key == "dataset" and builder.config.name == "default"
    alike = [file for file in files if file.suffix in documents.ENDINGS] if guessed else used
    documents.check_alike(
        (file for file in alike if not file.name.startswith("dataset_info")), dataset, key
    )
    documents.look(file for file in used if file.suffix not in _COMPRESSED)


def _files(folder: Path) -> list[Path] | None:
    """Return the files of a local folder; None where there is none.

    Raises ConfigError for one that holds no data.
    """
    if not folder.is_dir():
        return None
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if not any(file.suffix not in _NO_DATA and not file.name.startswith(".") for file in files):
        raise ConfigError(f"the folder '{folder}' holds no data files", ("dataset",))
    return files


def _builder(
    dataset: str, subset: str | None, revision: str | None, data_files: str | Sequence[str] | None
) -> "datasets.DatasetBuilder":
    """Return what reads a data set; for a name of the hub, that asks the hub or its cache."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # failures are reported below
    chosen = list(data_files) if isinstance(data_files, tuple) else data_files
    try:
        builder = datasets.load_dataset_builder(
            dataset, subset, revision=revision, data_files=chosen
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "OfflineMode" in reason:
            reason = "it was not loaded before, and HF_HUB_OFFLINE is set"
        elif names := _subsets(dataset, revision, reason):
            given = "needs 'subset'" if subset is None else f"has no subset '{subset}'"
            message = f"the data set '{dataset}' {given}{nearest(subset or '', names)}"
            raise ConfigError(message, ("subset",) if subset else ("dataset",)) from error
        where = ("data_files",) if chosen and "data files" in reason else ()
        raise ConfigError(
            f"the data set '{dataset}' could not be loaded: {reason}", where
        ) from error
    if hasattr(builder.config, "fragment_scan_options"):
        from pyarrow.dataset import ParquetFragmentScanOptions

        # What is read ahead of Parquet files would fill the memory.
        builder.config.fragment_scan_options = ParquetFragmentScanOptions(
            use_buffered_stream=True, buffer_size=_BUFFER, pre_buffer=False
        )
    return builder


def _subsets(dataset: str, revision: str | None, reason: str) -> list[str]:
    """Return the subsets of a data set, where one was not found."""
    import datasets

    if "onfig" not in reason:  # "BuilderConfig 'x' not found", "Config name is missing"
        return []
    try:
        return list(datasets.get_dataset_config_names(dataset, revision=revision))
    except Exception:  # noqa: BLE001  then the first reason is given
        return []


def _local(builder: "datasets.DatasetBuilder") -> dict[str, Any]:
    """Return the local files of each split; none where some of them are not read here."""
    named = {
        str(split): [Path(str(file)) for file in of]
        for split, of in (builder.config.data_files or {}).items()
    }
    return named if all(documents.holds_rows(file) for of in named.values() for file in of) else {}


def _loaded(
    builder: "datasets.DatasetBuilder", dataset: str, *, as_stream: bool
) -> "dict[str, Any]":
    """Return the rows of each split, read as they are iterated over."""
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
    """Return the rows to read, by the split that they are for; None where they are to be split."""
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


def _texts(rows: Any, column: str, dataset: str, shuffle: int | None) -> Iterator[str]:
    """Yield the texts of a column, in an order that is drawn from a seed, if there is one.

    Of a stream, the order of its files is drawn, and that of rows which stand close together.
    """
    import datasets

    name = f"'{dataset}'"
    if isinstance(rows, list):
        return (piece for document in documents.read(rows, column) for piece in document.pieces)
    known = rows.column_names  # of a stream, they may be known only when it is read
    if known and column not in known:
        raise documents.no_column(column, name, known)
    is_stream = isinstance(rows, datasets.IterableDataset)
    if shuffle is not None:
        more = {"buffer_size": _SHUFFLED} if is_stream else {}
        rows = rows.shuffle(seed=shuffle, **more)
    elif not is_stream:  # its files: mapped into memory, they would count as held
        files = [Path(file["filename"]) for file in rows.cache_files]
        return _texts(files, column, dataset, None)
    return documents.of_column(_values(rows, column, dataset), column, name)


def _values(rows: Any, column: str, dataset: str) -> Iterator[Any]:
    """Yield the values of a column. Raises ConfigError where there is none, or reading fails."""
    try:
        batches: Iterable[dict[str, list[Any]]] = rows.iter(_ROWS)
        for batch in batches:
            if column not in batch:
                raise documents.no_column(column, f"'{dataset}'", batch)  # noqa: TRY301
            yield from batch[column]
    except ConfigError:
        raise
    except Exception as error:
        raise _failed(dataset, error) from error


def _failed(dataset: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConfigError(f"the data set '{dataset}' could not be loaded: {reason}")


def reach(dataset: str) -> None:
    """Raise ConfigError where the hub cannot be reached: its library would retry for 30 s."""
    from datasets.config import HF_HUB_OFFLINE
    from huggingface_hub import constants, get_session

    if dataset.startswith((".", "/", "~")) or dataset.count("/") > 1:
        raise ConfigError(f"there is no folder '{dataset}'", ("dataset",))
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
