"""Overlap of held-out text with training text, by hashes of documents and of passages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.tokens import Tokens

_MIN_PARTS = 0.01  # share of shared passages that is reported, beyond that of whole documents


@dataclass(frozen=True)
class Overlap:
    """Amount of a corpus' held-out text that a training text also contains."""

    #: Number of held-out documents that the training text contains whole (ignoring white space),
    #: and their number of tokens.
    documents: int
    tokens: int
    #: Total number of held-out documents and tokens.
    all_documents: int
    all_tokens: int
    #: Share of the held-out passages of some 400 bytes that the training text contains; 0 if it is
    #: not above the share of the tokens by 1% or more.
    parts: float = 0.0

    @property
    def share(self) -> float:
        """Share of the held-out tokens that the training text contains."""
        return self.tokens / self.all_tokens


def find_overlaps(own: Tokens, trained: Mapping[str, Tokens]) -> dict[str, Overlap]:
    """Return the overlap of a corpus' held-out text with each training text, by name.

    The additional key `test` has the overlap of the test split with the validation split. For a
    synthetic corpus, which is drawn at random, the result is empty.
    """
    if own.source:
        return {}
    overlaps = {name: _count(own, own.heldout, other, "train") for name, other in trained.items()}
    if {"validation", "test"} <= own.counts.keys():
        overlaps["test"] = _count(own, ["test"], own, "validation")
    return overlaps


def find_repeated(own: Tokens, trained: Mapping[str, Tokens]) -> dict[str, NDArray[np.bool_]]:
    """Return, for each held-out split, a mask of the documents that training texts contain.

    In the test split, documents that the validation split contains are masked, too.
    """
    repeats: dict[str, NDArray[np.bool_]] = {}
    for split in own.heldout:
        masks = [_is_in(own, split, other, "train") for other in trained.values()]
        masks += [_is_in(own, split, own, "validation")] * (split == "test")
        repeats[split] = np.any(masks, axis=0)
    return repeats


def hashes_of(own: Tokens, chosen: Mapping[str, NDArray[np.bool_]]) -> dict[str, frozenset[int]]:
    """Return the hashes of documents by split; `chosen` has a mask of the documents per split."""
    return {
        split: frozenset(map(int, own.hashes(split)[documents]))
        for split, documents in chosen.items()
    }


def find_first_equal(own: Tokens, split: str) -> NDArray[np.int64]:
    """Return the index of the first document with the same text, for each document of a split.

    White space is ignored. A blank document has its own index.
    """
    count, hashes = own.document_counts[split], own.hashes(split)
    if count == 1 or len(hashes) != count:
        return np.arange(count)
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return np.where(hashes == 0, np.arange(count), first[which])


def _is_in(own: Tokens, split: str, other: Tokens, there: str) -> NDArray[np.bool_]:
    """Return a mask of the documents of `split` that the split `there` of `other` contains.

    The mask is False for blank documents.
    """
    hashes = own.hashes(split)
    is_there = _are_members(hashes, np.sort(other.hashes(there)))
    return np.asarray(is_there & (hashes != 0))


def _are_members(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the hashes that are among others, which are sorted."""
    if not len(others):
        return np.zeros(len(hashes), np.bool_)
    nearest = np.minimum(np.searchsorted(others, hashes), len(others) - 1)
    return np.asarray(others[nearest] == hashes)


def _count(own: Tokens, splits: Sequence[str], other: Tokens, there: str) -> Overlap:
    """Count documents, tokens and passages of held-out splits that `other` contains."""
    documents, every, tokens = 0, 0, 0.0
    for split in splits:
        is_there = _is_in(own, split, other, there)
        documents, every = documents + int(is_there.sum()), every + len(is_there)
        starts = own.documents(split)
        if len(starts) == len(is_there):
            tokens += float(is_there @ np.diff(starts, append=own.counts[split]))
        else:  # the tokenizer has no token between documents
            tokens += float(is_there.mean()) * own.counts[split]
    all_tokens = sum(own.counts[split] for split in splits)
    found = Overlap(documents, round(tokens), every, all_tokens)
    passages = np.concatenate([own.passages(split) for split in splits])
    parts = float(_are_members(passages, other.passages(there)).mean()) if len(passages) else 0.0
    return replace(found, parts=parts if parts > found.share + _MIN_PARTS else 0.0)
