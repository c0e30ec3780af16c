"""Held-out text that also stands in training text: equal documents, and near copies."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from llama_ablate.config.spec import digest
from llama_ablate.data import tokens as store
from llama_ablate.data.tokens import Tokens
from llama_ablate.files import disk
from llama_ablate.files.fields import typed
from llama_ablate.files.strict_json import read_json, sealed

_VERSION = 2  # raise it when overlaps are counted in another way
_RUN_TOKENS, _RUN_BYTES = 13, 52  # of a run of tokens: the larger of both (GPT-3, arXiv:2005.14165)
_COPIED = 0.8  # smallest share of a document's runs in a near copy
_TRAINED, _HELD_OUT = 20_000_000, 2_000_000  # most tokens that are looked at, drawn evenly
_PIECE = 1_000_000  # tokens that are looked at together
_STRETCH = 1000  # tokens of a part of a split that is one document
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 24  # of the first filter of hashes


@dataclass(frozen=True)
class Overlap:
    """How much of the held-out text of a corpus also stands in one training text."""

    #: Held-out documents that stand there as a whole but for white space, and their tokens.
    documents: int
    tokens: int
    #: Held-out documents and tokens in all.
    all_documents: int
    all_tokens: int
    #: Share of the held-out tokens in documents of which most runs of tokens stand there.
    near: float
    #: Share of the training tokens that were looked at for that.
    looked_at: float

    @property
    def share(self) -> float:
        """Share of the held-out tokens."""
        return self.tokens / self.all_tokens


_STORED = TypeAdapter(Overlap)


def overlaps(own: Tokens, trained: Mapping[str, Tokens]) -> dict[str, Overlap]:
    """Return the overlap of a text's held-out splits with each training text, by its name.

    Under `test` stands what of the test split stands in the validation split. A text of a known
    source is drawn, and overlaps with nothing. What was counted once is kept in the cache.
    """
    if own.source:
        return {}
    found = {name: _stored(own, other) for name, other in trained.items()}
    if {"validation", "test"} <= own.counts.keys():
        masks = {"test": _repeated(own, "test", own.blocks("validation")[:, 1])}
        found["test"] = _overlap(own, masks)
    return found


def _stored(own: Tokens, trained: Tokens) -> Overlap:
    file = store.cache_folder() / "overlaps"
    file /= f"{digest([_VERSION, own.fingerprint, trained.fingerprint], 16)}.json"
    place = "/".join(file.parts[-2:])
    with suppress(OSError, ValueError):
        return typed(_STORED, read_json(file, place), file)
    masks = repeated(own, trained)
    near, looked_at = _near(own, trained)
    found = _overlap(own, masks, near, looked_at)
    disk.make(file.parent)
    disk.replace(file, sealed(asdict(found), place))
    return found


def repeated(own: Tokens, trained: Tokens) -> dict[str, NDArray[np.float64]]:
    """Return the share of each held-out document that stands in a training text: 0 or 1.

    A split that is one document has the share of its blocks.
    """
    hashes = np.unique(trained.blocks("train")[:, 1])
    return {split: _repeated(own, split, hashes) for split in own.heldout}


def _repeated(own: Tokens, split: str, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    blocks = own.blocks(split)
    documents, count = blocks[:, 0].astype(np.int64), own.document_counts[split]
    there = np.isin(blocks[:, 1], hashes)
    of_each = np.bincount(documents, minlength=count)
    shares = np.bincount(documents, there, minlength=count) / np.maximum(of_each, 1)
    return shares if len(shares) == 1 else np.floor(shares)


def whole(own: Tokens, trained: Mapping[str, Tokens]) -> dict[str, NDArray[np.bool_]]:
    """Return which documents of each held-out split stand in training texts as a whole.

    Those of the test split also where they stand in the validation split.
    """
    known = [np.unique(other.blocks("train")[:, 1]) for other in trained.values()]
    found: dict[str, NDArray[np.bool_]] = {}
    for split in own.heldout:
        others = [*known, *([own.blocks("validation")[:, 1]] if split == "test" else [])]
        found[split] = np.any([_repeated(own, split, other) == 1 for other in others], axis=0)
    return found


def hashes(own: Tokens, stands: Mapping[str, NDArray[np.bool_]]) -> dict[str, frozenset[int]]:
    """Return the hashes of the blocks of some documents, by split."""
    found: dict[str, frozenset[int]] = {}
    for split, documents in stands.items():
        blocks = own.blocks(split)
        found[split] = frozenset(map(int, blocks[documents[blocks[:, 0].astype(np.int64)], 1]))
    return found


def _overlap(
    own: Tokens, masks: Mapping[str, NDArray[np.float64]], near: float = 0.0, looked_at: float = 0.0
) -> Overlap:
    """Count the documents and tokens of held-out splits that stand elsewhere."""
    documents, tokens = 0, 0.0
    for split, shares in masks.items():
        documents += int(np.floor(shares).sum())
        starts = own.documents(split)
        if len(starts) == len(shares):
            tokens += float(shares @ np.diff(starts, append=own.counts[split]))
        else:  # the tokenizer has no token between documents
            tokens += float(shares.mean()) * own.counts[split]
    return Overlap(
        documents,
        round(tokens),
        sum(map(len, masks.values())),
        sum(own.counts[split] for split in masks),
        near,
        looked_at,
    )


def first_equal(own: Tokens, split: str) -> NDArray[np.int64]:
    """Return of each document of a split the index of the first that equals it."""
    count = own.document_counts[split]
    blocks = own.blocks(split)
    if count == 1 or not len(blocks) or int(blocks[-1, 0]) >= count:
        return np.arange(count)
    documents = blocks[:, 0].astype(np.int64)
    # Sums of products with the place: equal for equal blocks in equal order.
    place = np.arange(len(blocks)) - np.searchsorted(documents, documents)
    mixed = (blocks[:, 1] ^ place.astype(np.uint64)) * _FACTOR
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, documents, mixed ^ (mixed >> np.uint64(31)))
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    has = np.bincount(documents, minlength=count) > 0
    return np.where(has, first[which], np.arange(count))


def _near(own: Tokens, trained: Tokens) -> tuple[float, float]:
    """Return the share of the held-out tokens in near copies, and of the training tokens looked at.

    A near copy is a document, or a stretch of 1,000 tokens of a split that is one, of which most
    runs of tokens stand in the training text. The runs are compared by their hashes.
    """
    length = max(_RUN_TOKENS, round(_RUN_BYTES * own.counts["train"] / own.bytes["train"]))
    of_split = {split: _hashes(own.split(split)[:_HELD_OUT], length) for split in own.heldout}
    known = np.unique(np.concatenate([*of_split.values()]))
    is_known = np.zeros(1 << _BITS, bool)
    is_known[known >> np.uint64(64 - _BITS)] = True
    there, looked_at = np.zeros(len(known), bool), 0
    total = trained.counts["train"]
    for piece in _pieces(total):
        hashes = _hashes(trained.split("train")[piece], length)
        some = hashes[is_known[hashes >> np.uint64(64 - _BITS)]]
        places = np.minimum(np.searchsorted(known, some), max(0, len(known) - 1))
        there[places[known[places] == some]] = True
        looked_at += piece.stop - piece.start
    copied = tokens = 0
    for split, hashes in of_split.items():
        found = np.concatenate([[0], np.cumsum(there[np.searchsorted(known, hashes)])])
        starts, count = own.documents(split), own.counts[split]
        if len(starts) == 1:
            starts = np.arange(0, count, _STRETCH)
        starts = starts[starts < len(hashes)]
        sizes = np.minimum(np.diff(starts, append=count), len(hashes) + length - 1 - starts)
        runs = sizes - length + 1  # that lie in the document; shorter ones are not looked at
        starts, runs = starts[runs > 0], runs[runs > 0]
        shares = (found[starts + runs] - found[starts]) / runs
        copied += int((runs + length - 1) @ (shares >= _COPIED))
        tokens += int((runs + length - 1).sum())
    return copied / max(1, tokens), min(1.0, looked_at / total)


def _pieces(total: int) -> list[slice]:
    """Return the stretches of a text that are looked at, from its beginning to its end."""
    pieces = -(-min(total, _TRAINED) // _PIECE)
    if pieces == 1:
        return [slice(0, min(total, _PIECE))]
    starts = [i * (total - _PIECE) // (pieces - 1) for i in range(pieces)]
    return [slice(start, start + _PIECE) for start in starts]


def _hashes(ids: NDArray[np.integer], length: int) -> NDArray[np.uint64]:
    """Return the hash of the run of so many tokens that begins at each token."""
    powers = np.asarray(ids).astype(np.uint64) + np.uint64(1)
    factor, hashes, done = _FACTOR, np.zeros(max(0, len(ids) - length + 1), np.uint64), 0
    width = 1  # `powers` has the hashes of runs of this length: they are doubled
    while done < length:
        if length & width:
            hashes = hashes * factor + powers[done : done + len(hashes)]
            done += width
        more = powers[width:]
        powers = powers[: len(more)] * factor + more
        factor = np.uint64(int(factor) ** 2 % 2**64)
        width *= 2
    return hashes ^ (hashes >> np.uint64(29))
