"""Byte-level BPE of the `tokenizers` library, done by tiktoken where both give the same tokens.

tiktoken is several times as fast. Both cut a text into words and merge neighbours within them:
`tokenizers` the two that come first in its list of merges, tiktoken the two that together have
the bytes of the token of lowest rank, here its id. These are the same if

- every byte is a token, and no two tokens share an id,
- the ids that the list gives never decrease along it, and
- every token that has a rank is merged from its own bytes by the list, or these end as three tokens
  or more (where a word that is a token is not merged, as in Llama 3's files).

For wherever two neighbours have the bytes of a token, nothing has been merged across the ends of
these bytes. So what happened between the ends is what happens to the token's bytes alone, which
come to these two neighbours only if they become the token. Hence the list has these two, and no
other two that make up these bytes ever meet: both libraries have the same choices, in the same
order.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

LONGEST = 400_000  # characters: longer texts may overflow the stack of tiktoken's expressions
_PART = 8_000  # characters of a part of a text
#: Ways to cut a text into words: of GPT-2, of Qwen 2, and of Llama 3.
SPLITS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in ("", "{1,3}")
    ),
)
#: Where all of them cut a text, whatever stands on either side.
_UNIT = re.compile(r"(?=[ \n])(?:(?<=[0-9A-Za-z])|(?<=[!-~])(?= ))", re.ASCII)


def in_parts(text: str) -> Iterator[str]:
    """Yield a text in parts of 8,000 characters or a few more, cut where all of SPLITS cut it."""
    start = 0
    while unit := _UNIT.search(text, start + _PART):
        yield text[start : unit.start()]
        start = unit.start()
    yield text[start:]


def by_alphabet(text: str) -> Iterator[tuple[str, bool]]:
    """Yield a text in such parts, what is not ASCII apart, and whether `by_rank` encodes each."""
    for part in in_parts(text):
        units = [part] if part.isascii() else _UNIT.split(part)
        for is_ascii, alike in groupby(units, str.isascii):
            joined = "".join(alike)
            yield joined, is_ascii and len(joined) <= LONGEST


def byte_characters() -> dict[int, str]:
    """Return the character as which `tokenizers` shows each byte.

    A printable one is shown as itself, the others, in order, as those from code point 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def by_rank(model: Any) -> Callable[[str], list[int]] | None:
    """Return what encodes ASCII as a `tokenizers.Tokenizer` does; None where that is not certain.

    Other characters are left to it, since the libraries may know different versions of Unicode.
    """
    import tiktoken

    parts = json.loads(model.to_str())
    pattern, tokens = _pattern(parts), model.get_vocab_size(with_added_tokens=False)
    if pattern is None or len(parts["model"]["vocab"]) != tokens:  # two share an id
        return None
    ranks = _ranks(parts)
    if ranks is None:
        return None
    encode: Callable[[str], list[int]] = tiktoken.Encoding(
        "ranks", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    ).encode_ordinary
    return encode


def _pattern(parts: dict[str, Any]) -> str | None:
    """Return how a tokenizer cuts texts, if that is one of SPLITS and it does nothing else."""
    before = parts["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    levels = [step for step in steps if step.get("type") == "ByteLevel"]
    splits = [step for step in steps if step.get("type") == "Split"]
    patterns = [step["pattern"].get("Regex") for step in splits] or [SPLITS[0]]
    known = (
        parts["normalizer"] is None
        and _keeps(parts["post_processor"])
        and all(token["special"] for token in parts["added_tokens"])
        and steps == [*splits, *levels]
        and len(levels) == 1
        and not levels[0]["add_prefix_space"]
        and levels[0].get("use_regex", True) == (not splits)
        and all(step["behavior"] == "Isolated" and not step["invert"] for step in splits)
        and len(patterns) == 1
        and patterns[0] in SPLITS
    )
    return patterns[0] if known else None


def _keeps(after: dict[str, Any] | None) -> bool:
    """Whether what is done to the tokens leaves them as they are, where none are to be added."""
    match after:
        case {"type": "Sequence", "processors": steps}:
            return all(map(_keeps, steps))
        case {"type": "TemplateProcessing", "single": single}:
            return sum("Sequence" in piece for piece in single) == 1
        case _:
            return after is None or after["type"] == "ByteLevel"


def _ranks(parts: dict[str, Any]) -> dict[bytes, int] | None:
    """Return the ranks of tokens that give what a list of merges does, if there are any."""
    import tokenizers

    bpe = parts["model"]
    odd = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if bpe.get("type") != "BPE" or any(bpe.get(name) for name in odd):
        return None
    made = [bpe["vocab"].get(left + right) for left, right in bpe["merges"]]
    if None in made or made != sorted(made):
        return None
    as_whole = bpe.get("ignore_merges", False)  # a word that is a token is not merged
    parts = parts | {"model": bpe | {"ignore_merges": False}}
    merge = tokenizers.Tokenizer.from_str(json.dumps(parts)).model.tokenize
    byte = {character: b for b, character in byte_characters().items()}
    ranks = {}
    for token, rank in bpe["vocab"].items():
        if not all(character in byte for character in token):
            continue  # no text has it
        length = len(merge(token))
        if length == 2 and as_whole:
            return None  # as a word it is a token, and within one its two parts stay apart
        if length == 1 or (as_whole and length):
            ranks[bytes(byte[character] for character in token)] = rank
    return ranks if all(bytes([b]) in ranks for b in range(256)) else None
