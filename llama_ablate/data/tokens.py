"""Token store: corpora as memory-mapped token ids; batches are a function of (seed, step)."""

import contextlib
import hashlib
import json
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.experiment import Data
from llama_ablate.config.experiment import ExperimentFile as Experiment
from llama_ablate.config.registry import Choice, Entry, Registry
from llama_ablate.config.spec import digest
from llama_ablate.data import texts
from llama_ablate.data.corpus import CORPORA, SPLITS, UNCHANGED, Corpus, refuse_missing
from llama_ablate.data.encoding import difference, encode, kind_of
from llama_ablate.data.sources.source import Source
from llama_ablate.data.sources.streams import source_of, symbols_of
from llama_ablate.data.texts import NOTHING, Text
from llama_ablate.data.tokenizer import TOKENIZERS, Chars, Maker, Tokenizer, as_maker
from llama_ablate.data.tokenizer_files import read_saved
from llama_ablate.errors import ConfigError, Where, under
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.terminal import Bar, say

_FORMAT = 1  # part of the store's key: raise it when the layout or a tokenizer changes
_SUMS, _STATES = "sums.json", "states.json"  # hashes; sizes and times when these were computed
_HASHES, _DOCUMENTS, _PASSAGES = "{}.hashes", "{}.documents", "{}.passages"
_PIECES, _PIECE = 64, 4000  # parts and bytes sampled to test decoding, in up to a second
_READING = 3  # version of how corpora are read: raising it invalidates notes of them


class DamagedError(ConfigError):
    """Error for a token file that has changed since it was written."""


@dataclass(frozen=True)
class Tokens:
    """Tokenized corpus, memory-mapped from its folder in the cache.

    A file is verified by its size and times, which are noted when it is written, or else by its
    hash: by `check`, and by `batch` for the training split.
    """

    folder: Path
    fingerprint: str  # hash of the text and the tokenizer together
    corpus: str  # hash of the text alone
    vocab: int
    counts: dict[str, int]  # tokens of each split
    bytes: dict[str, int]  # UTF-8 bytes of each split, for bits per byte
    sums: Mapping[str, str]  # SHA-256 of each file
    entry: Entry = ""  # the corpus, as YAML writes it
    #: First difference between a sample of the text and its decoded tokens; "" if there is none.
    lost: str = ""
    notes: tuple[str, ...] = ()  # sentences on how the text was read and split

    def split(self, name: str) -> NDArray[np.integer]:
        """Return a split's tokens, memory-mapped."""
        return np.memmap(self._files[f"{name}.bin"], kind_of(self.vocab), "r")

    def check(self, *, wholly: bool = False) -> None:
        """Verify files whose size or times have changed; with `wholly`, verify all files.

        Raises DamagedError for a file whose hash is another than when it was written.
        """
        if sum(self._check(name, wholly=wholly) for name in self.sums):
            with contextlib.suppress(OSError):  # a cache that only others may write
                disk.replace(self.folder / _STATES, json.dumps(self._checked).encode())

    def _check(self, name: str, *, wholly: bool = False) -> bool:
        """Verify a file; return whether its hash was computed."""
        with contextlib.ExitStack() as stack:
            file: FileIO | BufferedReader | None = self._files.get(name)
            file = file or stack.enter_context(disk.opened(self.folder / name))
            before = _state(file)  # a change while reading is noticed at the next check
            if not wholly and self._checked.get(name) == before:
                return False
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != self.sums[name]:
                raise DamagedError(
                    f"'{self.folder / name}' has changed since it was written: the next command "
                    "makes these tokens again"
                )
        self._checked[name] = before
        return True

    @cached_property
    def _files(self) -> dict[str, FileIO]:
        """Open file of each split, through which the split is both verified and mapped."""
        with contextlib.ExitStack() as opened:
            files = {
                name: opened.enter_context(disk.opened(self.folder / name))
                for name in (f"{split}.bin" for split in self.counts)
            }
            weakref.finalize(self, opened.pop_all().close)
        return {name: cast("FileIO", file.raw) for name, file in files.items()}  # unbuffered

    @cached_property
    def _checked(self) -> dict[str, list[int]]:
        """Size and times of each file at its last verification, by any process."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return dict(json.loads(disk.read(self.folder / _STATES)))
        return {}

    @property
    def training(self) -> NDArray[np.integer]:
        """Token ids of the training split.

        Raises DamagedError if the file has changed since it was opened.
        """
        self._check("train.bin")
        return self._train

    @cached_property
    def _train(self) -> NDArray[np.integer]:
        return self.split("train")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the token ids."""
        return read_saved(disk.read(self.folder / "tokenizer.json").decode("utf-8"))

    def documents(self, name: str) -> NDArray[np.int64]:
        """Return the start indices of a split's documents; the first is 0.

        A synthetic corpus, of known entropy, counts as one document, and so does a text whose
        tokenizer has no separator token.
        """
        return np.fromfile(self.folder / _DOCUMENTS.format(name), "<i8")

    def hashes(self, name: str) -> NDArray[np.uint64]:
        """Return a 64-bit hash of each document of a split, without white space.

        The hash of a blank document is 0.
        """
        return np.fromfile(self.folder / _HASHES.format(name), "<u8")

    def passages(self, name: str) -> NDArray[np.uint64]:
        """Return the hashes of sampled passages of a split, sorted."""
        return np.fromfile(self.folder / _PASSAGES.format(name), "<u8")

    @cached_property
    def document_counts(self) -> dict[str, int]:
        """Number of documents by split."""
        return {name: len(self.documents(name)) for name in self.counts}

    @cached_property
    def separator(self) -> int | None:
        """Separator token between documents; None for splits of a single document."""
        return None if self.source else self.tokenizer.separator

    @property
    def heldout(self) -> list[str]:
        """Names of the splits that are never used for training."""
        return [name for name in SPLITS[1:] if name in self.counts]

    @cached_property
    def source(self) -> Source | None:
        """Synthetic source, of known entropy, that generated the text; None for ordinary text.

        The source is also None for all tokenizers but `Chars`, the only tokenizer with one token
        per symbol.
        """
        if not self.entry or not isinstance(self.tokenizer, Chars):
            return None
        return source_of(self.entry)

    def floor(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the lowest possible loss in nats, (N, T - 1) for windows (N, T)."""
        assert self.source is not None
        return self.source.floor(symbols_of(self._characters, windows))

    @property
    def _characters(self) -> str:
        assert isinstance(self.tokenizer, Chars)
        return self.tokenizer.characters

    def answers(self, windows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the next tokens that windows (N, T) determine, (N, T - 1); -1 elsewhere.

        Return None for ordinary text, whose source is unknown.
        """
        if self.source is None:
            return None
        symbols = self.source.answers(symbols_of(self._characters, windows))
        every = symbols_of(self._characters, np.arange(self.vocab))
        return np.where(symbols < 0, -1, np.searchsorted(every, symbols))

    def batch(
        self,
        seed: int,
        k: int,
        size: int,
        context: int,
        first: int | None = None,
        rows: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Return batch `k` of a seed, (size, context + 1): random windows of the training split.

        `first` limits the windows to so many tokens at the beginning of the split; `rows` is a mask
        of the rows to return. The batch depends on the arguments alone: all variants with a seed
        read the same text in the same order, and a run that stopped at step k needs no data loader
        state to resume. Raises DamagedError if the tokens have changed since they were opened.
        """
        ids = self.training[:first]
        generator = np.random.Generator(np.random.Philox(key=[seed, k]))
        starts = generator.integers(0, len(ids) - context, size)
        starts = starts if rows is None else starts[rows]
        index = starts[:, None] + np.arange(context + 1)
        return np.asarray(ids[index], np.int64)


def check_corpora(source: Experiment) -> None:
    """Refuse missing corpora without reading them, before slow imports.

    Raises ConfigError, with file, line and column, for an unregistered corpus or tokenizer, and for
    local files that are missing, empty or compressed.
    """
    experiment = source.experiment
    texts: list[tuple[Where, Data]]
    texts = [(("texts", i), data) for i, data in enumerate(experiment.texts)]
    with source.located():
        for where, data in texts or [(("data",), experiment.data)]:
            corpus = CORPORA.resolve(data.corpus, (*where, "corpus"))
            TOKENIZERS.resolve(data.tokenizer, (*where, "tokenizer"))
            with under((*where, "corpus")):
                refuse_missing(corpus)


def prepare(
    corpus: Choice,
    tokenizer: Choice,
    cache: Path | None = None,
    like: Tokens | None = None,
    left_out: Mapping[str, frozenset[int]] = NOTHING,
) -> Tokens:
    """Return the tokens of a corpus; encode them on the first call only.

    With `like`, the corpus is encoded by the tokenizer of the tokens `like`, not by a tokenizer
    made from this corpus. `left_out` has the hashes of documents that are not encoded, by split.

    If several processes need the same tokens at once, one process encodes the text and the other
    processes wait. If the encoding process is killed, the next process starts again. Tokens are
    committed by a rename, so that partial files are never visible. A text that has not changed
    since the last reading is not read again.
    """
    if like:
        maker = Maker(lambda _: like.tokenizer, like.sums["tokenizer.json"][:16])
    else:
        maker = as_maker(_built(TOKENIZERS, tokenizer, "tokenizer"))
    root, entry = cache or cache_folder(), corpus.identity()
    if left_out:
        entry = {
            "corpus": entry,
            "left_out": digest({k: sorted(v) for k, v in left_out.items()}, 16),
        }
    # A tokenizer from a file is known by the file's content, not by its path.
    made_by = maker.identity or tokenizer.entry()
    request = digest([entry, made_by], 16)
    source: Corpus = _built(CORPORA, corpus, "corpus")
    disk.sweep(root / "tokens")
    note = root / "texts" / f"{digest([_READING, _FORMAT, request], 16)}.json"
    tokens = _noted(root, note, source.state)
    if tokens is None:
        with _working_folder(root, request) as folder:
            with under(("data", "corpus")), Bar("reading the text", "B") as bar:
                text = texts.write(source, folder, bar.update, left_out)
            for split in SPLITS[:2]:
                if text.is_blank(split):
                    message = f"the {split} split of '{corpus.name}' would be empty"
                    raise ConfigError(message, ("data", "corpus"))
            key = _key(text, maker, made_by)
            tokens = _opened(root, key)
            if tokens is None:
                _write(root / "tokens" / key, text, maker, folder, corpus.entry())
                tokens = load(root / "tokens" / key)
            tokens = replace(tokens, notes=text.notes)
            if source.state is not None:  # else a later change could not be noticed
                disk.make(note.parent)
                if note.is_dir():
                    disk.remove_tree(note)
                values = {"state": source.state, "tokens": key, "notes": text.notes}
                disk.replace(note, sealed(values, note.name))
    return tokens


def _noted(root: Path, note: Path, state: str | None) -> Tokens | None:
    """Return the tokens that a note names; None if the corpus has changed or has no valid note."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        values = read_json(note, note.name)
        if state is not None and state in (values["state"], UNCHANGED):
            tokens = _opened(root, values["tokens"])
            return tokens and replace(tokens, notes=tuple(values["notes"]))
    return None


@contextlib.contextmanager
def _working_folder(root: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder for making tokens, and lock `name` for other processes meanwhile.

    Raises ConfigError if the cache cannot be written.
    """
    try:
        turns, parts = disk.below(root, "turns", name), root / "working"
        for needed in (root / "tokens", turns, parts):
            disk.make(needed)
        disk.sweep(parts)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(disk.locked(turns, wait=False))
            except BlockingIOError:
                say("waiting for another process, which prepares the same text")
                stack.enter_context(disk.locked(turns))
            except OSError:  # a file system without locks: the first process to finish wins
                pass
            yield stack.enter_context(disk.partial_folder(parts))
    except OSError as error:
        raise ConfigError(
            f"the token cache '{root}' cannot be written ({error.strerror}); "
            "set LLAMA_ABLATE_CACHE to a folder that can"
        ) from None


def _key(text: Text, maker: Maker, made_by: Entry) -> str:
    """Return the fingerprint of a text and a tokenizer together, the key of the stored tokens."""
    sampled = maker.most is not None and text.sizes["train"] > maker.most
    parts = [_FORMAT, text.fingerprint, made_by]
    return digest([*parts, "in parts"] if text.cuts or sampled else parts, 16)


def _opened(root: Path, key: str) -> Tokens | None:
    """Open the stored tokens of a key; return None if the tokens are missing or damaged.

    Damaged tokens, and tokens of an older version, are removed.
    """
    folder = disk.below(root, "tokens", key)
    with contextlib.suppress(DamagedError):
        return load(folder)
    if folder.exists():  # damaged, or of an older version
        disk.remove_tree(folder)
    return None


def _state(file: FileIO | BufferedReader) -> list[int]:
    """Return the size, the place and the times of a file, which any write changes."""
    stat = os.fstat(file.fileno())
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _built(registry: Registry, choice: Choice, key: str) -> Any:
    with under(("data", key)):
        return registry.build(choice)


def load(folder: Path) -> Tokens:
    """Open stored tokens. Raises DamagedError if a file is missing or changed."""
    try:
        sums = json.loads(disk.read(folder / _SUMS))
        manifest = json.loads(disk.read(folder / "manifest.json"))
        tokens = Tokens(folder=folder, sums=sums, **manifest)
        tokens.check()
        if _PASSAGES.format("train") not in sums:
            raise DamagedError(f"'{folder}' is of an older version")
        sizes = {split: len(tokens.split(split)) for split in tokens.counts}
        if tokens.fingerprint != folder.name or sizes != tokens.counts:
            raise DamagedError(f"'{folder}' holds the tokens of another text or tokenizer")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"'{folder}' holds no tokens that can be checked ({error})") from None
    return tokens


def verify(fingerprint: str) -> str:
    """Verify all hashes of a text's tokens; return `verified`, or the fault."""
    folder = disk.below(cache_folder() / "tokens", fingerprint)
    try:
        load(folder).check(wholly=True)
    except DamagedError as error:
        return f"damaged: {error.message}" if folder.exists() else "not in the cache"
    return "verified"


def cache_folder() -> Path:
    """Return the cache folder: LLAMA_ABLATE_CACHE, or `llama_ablate` in the user's cache."""
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    default = Path(os.environ.get("XDG_CACHE_HOME") or usual) / "llama_ablate"
    return Path(os.environ.get("LLAMA_ABLATE_CACHE") or default)


def _write(place: Path, text: Text, maker: Maker, folder: Path, entry: Entry) -> None:
    """Encode a text in a working folder, then move its tokens to the folder `place`."""
    partial = disk.below(folder, "tokens")
    file, sums, counts, lost = partial / "tokenizer.json", dict[str, str](), dict[str, int](), ""
    arrays = {_HASHES.format(split): hashes for split, hashes in text.hashes.items()}
    arrays |= {_PASSAGES.format(split): hashes for split, hashes in text.passages.items()}
    disk.make(partial)
    with under(("data", "tokenizer")):
        say("making the tokenizer")
        sums[file.name] = disk.write(file, maker.make(text).to_json().encode("utf-8"))
        tokenizer = read_saved(file.read_text("utf-8"))
        total, before = sum(text.sizes.values()), 0
        with Bar("tokenising", "B") as bar:
            for split, size in text.sizes.items():
                starts = [np.zeros(1, np.int64)]
                with contextlib.closing(disk.Writer(partial / f"{split}.bin")) as out:
                    counts[split] = 0
                    for chunk in encode(text, split, tokenizer):
                        out.write(chunk.ids)
                        ends = np.flatnonzero(chunk.ids == tokenizer.separator)
                        starts.append(ends + counts[split] + 1)
                        counts[split] += len(chunk.ids)
                        lost = lost or chunk.lost
                        bar.update(before + chunk.stop, total)
                sums[f"{split}.bin"], before = out.digest, before + size
                arrays[_DOCUMENTS.format(split)] = np.concatenate(starts).astype("<i8")
        samples = (text.sample(split, _PIECES, _PIECE) for split in text.sizes)
        lost = lost or next(filter(None, (difference(tokenizer, some) for some in samples)), "")
    manifest = {
        "fingerprint": place.name,
        "corpus": text.fingerprint,
        "vocab": tokenizer.vocab,
        "counts": counts,
        "bytes": text.sizes,
        "entry": entry,
        "lost": lost,
    }
    sums |= {name: disk.write(partial / name, array.tobytes()) for name, array in arrays.items()}
    sums["manifest.json"] = disk.write(partial / "manifest.json", json.dumps(manifest).encode())
    disk.write(partial / _SUMS, json.dumps(sums).encode())
    states = {}
    for name in sums:
        with disk.opened(partial / name) as file_of_tokens:
            states[name] = _state(file_of_tokens)
    disk.write(partial / _STATES, json.dumps(states).encode())
    disk.place(partial, place)
