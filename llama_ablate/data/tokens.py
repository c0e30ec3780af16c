"""The token store: a corpus as integers, memory-mapped; batches are a function of (seed, step)."""

import contextlib
import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.experiment import Data
from llama_ablate.config.experiment import Source as Experiment
from llama_ablate.config.registry import Choice, Entry, Registry
from llama_ablate.config.spec import digest
from llama_ablate.data import corpora, named_tokenizers  # noqa: F401  registers them
from llama_ablate.data.corpora import CORPORA, SPLITS, Corpus
from llama_ablate.data.documents import SEPARATOR
from llama_ablate.data.skills import answers_of
from llama_ablate.data.sources import Source
from llama_ablate.data.streams import source_of, symbols_of
from llama_ablate.data.tokenizer_files import from_json
from llama_ablate.data.tokenizers import TOKENIZERS, Chars, Maker, Tokenizer
from llama_ablate.errors import ConfigError, Where
from llama_ablate.files import disk

_FORMAT = 1  # part of the store's key: raise it when the layout or a tokenizer changes
_SUMS = "sums.json"
_PIECES, _PIECE = 64, 4000  # sample of a text for the round trip: takes up to a second
_TRIES = 3  # to write tokens: other processes may write them at the same time


class DamagedError(ConfigError):
    """A token file differs from what was written."""


@dataclass(frozen=True)
class Tokens:
    """A corpus as integers, memory-mapped from its folder in the cache.

    The files are checked when they are opened and whenever `check` is called; between, `batch`
    checks its split again as soon as the file's size or times have changed.
    """

    folder: Path
    fingerprint: str  # of the text and the tokenizer together
    corpus: str  # fingerprint of the text alone
    vocab: int
    counts: dict[str, int]  # tokens of each split
    bytes: dict[str, int]  # UTF-8 bytes of each split, for bits per byte
    sums: Mapping[str, str]  # SHA-256 of each file
    entry: Entry = ""  # the corpus, as YAML writes it
    #: The first difference of a round trip (encode, decode) over a sample of the text; "" where
    #: there is none, None in stores of older versions.
    lost: str | None = None

    def split(self, name: str) -> NDArray[np.integer]:
        """Return a split's tokens, memory-mapped."""
        return np.memmap(self._files[name], np.uint16 if self.vocab <= 2**16 else np.uint32, "r")

    def check(self) -> None:
        """Verify the hashes of all files. Raises DamagedError for a mismatch."""
        for name in self._files:
            self._check(name)

    def _check(self, split: str) -> None:
        file = self._files[split]
        before = _state(file)  # a change while reading is noticed at the next check
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != self.sums[f"{split}.bin"]:
            raise DamagedError(
                f"the tokens in '{self.folder}' have changed since they were "
                "written: the next command makes them again"
            )
        self._checked[split] = before

    @cached_property
    def _files(self) -> dict[str, FileIO]:
        """The splits' files, held open so that the file checked is the file mapped."""
        with contextlib.ExitStack() as opened:
            files = {
                name: opened.enter_context(FileIO(self.folder / f"{name}.bin"))
                for name in self.counts
            }
            weakref.finalize(self, opened.pop_all().close)
        return files

    @cached_property
    def _checked(self) -> dict[str, tuple[int, ...]]:
        """The state of each split's file when it was last checked."""
        return {}

    @cached_property
    def _train(self) -> NDArray[np.integer]:
        return self.split("train")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        return from_json((self.folder / "tokenizer.json").read_text("utf-8"))

    def documents(self, name: str) -> NDArray[np.int64]:
        """Return where the documents of a split begin, as indices of its tokens: 0 first.

        A corpus of known entropy is one document, and so is a text whose tokenizer has no token
        for what stands between documents.
        """
        if self.separator is None:
            return np.zeros(1, np.int64)
        return np.append(0, np.flatnonzero(self.split(name) == self.separator) + 1)

    @cached_property
    def separator(self) -> int | None:
        """The token that stands between documents; None where all of them are one."""
        return None if self.source else self.tokenizer.separator

    @property
    def heldout(self) -> list[str]:
        """The splits that are never trained on."""
        return [name for name in SPLITS[1:] if name in self.counts]

    @cached_property
    def source(self) -> Source | None:
        """The source of known entropy that the text comes from; None for ordinary text.

        Only a tokenizer of characters keeps one token for each of its symbols.
        """
        if not self.entry or not isinstance(self.tokenizer, Chars):
            return None
        return source_of(CORPORA.resolve(self.entry))

    def floor(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the best possible loss in nats of windows (N, T), prediction by prediction."""
        assert self.source is not None
        assert isinstance(self.tokenizer, Chars)
        return self.source.floor(symbols_of(self.tokenizer.characters, windows))

    def answers(self, windows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the tokens that windows (N, T) tell for sure, prediction by prediction; else -1.

        None of a source that asks for no skill.
        """
        assert self.source is not None
        assert isinstance(self.tokenizer, Chars)
        characters = self.tokenizer.characters
        symbols = answers_of(self.source, symbols_of(characters, windows))
        if symbols is None:
            return None
        every = symbols_of(characters, np.arange(len(characters)))
        return np.where(symbols < 0, -1, np.searchsorted(every, symbols))

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed, (size, context + 1): random windows of the training split.

        It depends on nothing else: all variants of a seed see the same text in the same order,
        and a run that stopped at step k needs no data loader state to resume. Raises
        DamagedError where the tokens have changed since they were opened.
        """
        if _state(self._files["train"]) != self._checked.get("train"):
            self._check("train")
        generator = np.random.Generator(np.random.Philox(key=[seed, k]))
        starts = generator.integers(0, len(self._train) - context, size)
        index = starts[:, None] + np.arange(context + 1)
        return np.asarray(self._train[index], np.int64)


def look(source: Experiment) -> None:
    """Refuse texts that are not there, without reading them: before what takes long is imported.

    Raises ConfigError, with file, line and column, for a corpus or a tokenizer of no registered
    name, and for local files that are missing, empty or compressed.
    """
    experiment = source.experiment
    texts: list[tuple[Where, Data]]
    texts = [(("texts", i), data) for i, data in enumerate(experiment.texts)]
    for where, data in texts or [(("data",), experiment.data)]:
        try:
            corpus = CORPORA.resolve(data.corpus, (*where, "corpus"))
            TOKENIZERS.resolve(data.tokenizer, (*where, "tokenizer"))
            try:
                corpora.look(corpus)
            except ConfigError as error:
                raise error.under(*where, "corpus") from None
        except ConfigError as error:
            raise source.locate(error) from None


def prepare(corpus: Choice, tokenizer: Choice, cache: Path | None = None) -> Tokens:
    """Return the tokens of a corpus, encoding them on the first call only.

    The folder is written beside its place and renamed, so it is never seen half written. Of two
    processes that encode at once, the first to finish wins.
    """
    text: Corpus = _built(CORPORA, corpus, "corpus")
    maker: Maker = _built(TOKENIZERS, tokenizer, "tokenizer")
    for split in SPLITS[:2]:
        if not getattr(text, split).strip():
            where = ("data", "corpus")
            raise ConfigError(f"the {split} split of '{corpus.name}' would be empty", where)
    # A tokenizer from a file is known by the file's content, not by its path.
    key = digest([_FORMAT, text.fingerprint, maker.identity or tokenizer.entry()], 16)
    folder = (cache or cache_folder()) / "tokens" / key
    disk.sweep(folder.parent)
    for _ in range(_TRIES):
        with contextlib.suppress(DamagedError):
            tokens = load(folder)
            if tokens.lost is not None:
                return tokens
        if folder.exists():  # damaged, or of an older version
            disk.remove_tree(folder)
        _write(folder, text, _made(maker, text), key, corpus.entry())
    return load(folder)


def _state(file: FileIO) -> tuple[int, ...]:
    """Return size and times of a file: any write changes them."""
    stat = os.fstat(file.fileno())
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _made(maker: Maker, text: Corpus) -> Tokenizer:
    try:
        return maker.make(text)
    except ConfigError as error:  # its files are not there
        raise error.under("data", "tokenizer") from None


def _built(registry: Registry, choice: Choice, key: str) -> Any:
    try:
        return registry.build(choice)
    except ConfigError as error:
        raise error.under("data", key) from None


def load(folder: Path) -> Tokens:
    """Open a store that `prepare` wrote. Raises DamagedError where a file is missing or changed."""
    try:
        sums = json.loads((folder / _SUMS).read_text("utf-8"))
        for name in ("tokenizer.json", "manifest.json"):
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != sums[name]:
                raise DamagedError(f"'{folder / name}' has changed since it was written")
        tokens = Tokens(folder=folder, sums=sums, **json.loads(content))
        tokens.check()
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"'{folder}' holds no tokens that can be checked ({error})") from None
    return tokens


def cache_folder() -> Path:
    """Return where tokens are kept: LLAMA_ABLATE_CACHE, or the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama_ablate"
    return Path(os.environ.get("LLAMA_ABLATE_CACHE") or default)


def first_loss(tokenizer: Tokenizer, text: str) -> str:
    """Return the first difference of a round trip (encode, decode) over a sample, or "".

    The sample is up to 64 pieces of 4,000 characters, evenly spaced, without the separators.
    """
    starts = np.linspace(0, max(0, len(text) - _PIECE), _PIECES, dtype=int)
    for start in dict.fromkeys(starts.tolist()):
        for part in text[start : start + _PIECE].split(SEPARATOR):
            back = tokenizer.decode(tokenizer.encode(part))
            if back != part:
                pairs = enumerate(zip_longest(part, back))
                at = max(0, next(i for i, (a, b) in pairs if a != b) - 8)
                return f"{part[at : at + 24]!r} becomes {back[at : at + 24]!r}"
    return ""


def _write(folder: Path, text: Corpus, tokenizer: Tokenizer, key: str, entry: Entry) -> None:
    with contextlib.ExitStack() as stack:
        try:
            disk.make(folder.parent)
            partial = stack.enter_context(disk.partial_folder(folder.parent))
        except OSError as error:
            raise ConfigError(
                f"the token cache '{folder.parent}' cannot be written ({error.strerror}); "
                "set LLAMA_ABLATE_CACHE to a folder that can"
            ) from None
        kind = np.uint16 if tokenizer.vocab <= 2**16 else np.uint32
        counts, sizes, sums = {}, {}, {}
        for name, part in text.splits.items():
            try:
                ids = tokenizer.encode_documents(part).astype(kind)
            except ConfigError as error:
                raise error.under("data", "tokenizer") from None
            sums[f"{name}.bin"] = disk.write(partial / f"{name}.bin", ids.tobytes())
            counts[name], sizes[name] = len(ids), len(part.encode())
        losses = (first_loss(tokenizer, part) for part in text.splits.values())
        manifest = {
            "fingerprint": key,
            "corpus": text.fingerprint,
            "vocab": tokenizer.vocab,
            "counts": counts,
            "bytes": sizes,
            "entry": entry,
            "lost": next(filter(None, losses), ""),
        }
        for name, content in (
            ("tokenizer.json", tokenizer.to_json()),
            ("manifest.json", json.dumps(manifest)),
        ):
            sums[name] = disk.write(partial / name, content.encode("utf-8"))
        disk.write(partial / _SUMS, json.dumps(sums).encode())
        disk.place(partial, folder)  # another process may have placed the same tokens first
