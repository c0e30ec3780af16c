"""Every tokenizer as the files from which transformers' AutoTokenizer makes the same one.

A text becomes the ids that `Tokenizer.prompt` gives it: what begins a text is put in front, nothing
behind, and the names of special tokens in it are text (`split_special_tokens=False` parses them).
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from llama_ablate.data.tokenizers import pieces
from llama_ablate.data.tokenizers.byte_level import byte_characters
from llama_ablate.data.tokenizers.pieces import SPACE, SentencePiece, SentencePieceModel
from llama_ablate.data.tokenizers.tokenizer import Bytes, Chars, Tokenizer
from llama_ablate.data.tokenizers.tokenizer_files import Tiktoken
from llama_ablate.errors import ConfigError

Files = dict[str, dict[str, Any]]


def special_ids(tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Return the special ids of a config.json: null, too, where a family has others by default.

    What ends a text is what stands between documents, also where that is a byte or a character.
    """
    bos, end, pad = (None,) * 3
    if tokenizer:
        bos, end, pad = tokenizer.bos, tokenizer.separator, tokenizer.pad
    return {"bos_token_id": bos, "eos_token_id": end, "pad_token_id": pad}


def generation_config(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return a generation_config.json, which says where generation stops."""
    stops = sorted(tokenizer.stops) if tokenizer else []
    return special_ids(tokenizer) | {"eos_token_id": stops or None}


def tokenizer_files(tokenizer: Tokenizer, family: str, context: int) -> tuple[Files, list[str]]:
    """Return the content of tokenizer.json and tokenizer_config.json, and what they leave open.

    There are none for a tokenizer that no tokenizer.json expresses.
    """
    import tokenizers

    try:
        model = _expressed(tokenizer)
    except ConfigError as error:
        return {}, [f"no tokenizer is written: transformers has none for {error.message}"]
    ids = special_ids(tokenizer)
    names = {k.removesuffix("_id"): model.id_to_token(i) for k, i in ids.items() if i is not None}
    before = [names["bos_token"]] if "bos_token" in names else []
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*before, "$A"],
        pair=[*before, "$A", *before, "$B"],
        special_tokens=[(name, tokenizer.bos) for name in before],
    )
    config = {
        # A family's own class would build parts of it anew, whatever tokenizer.json says.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "left",
        "split_special_tokens": True,
        **names,
    }
    notes = []
    if isinstance(tokenizer, SentencePiece) and pieces.parts(tokenizer.data).charsmap:
        notes.append(
            "transformers may read accents and other marks otherwise: its normalization "
            "only comes near to this SentencePiece model's"
        )
    if family == "qwen2":
        notes.append(
            "transformers' AutoTokenizer splits texts for qwen2 by rules of Qwen2's own, whatever "
            "the files say, so they become other ids; PreTrainedTokenizerFast follows the files"
        )
    if ids["bos_token_id"] is ids["eos_token_id"] is None:
        notes.append(
            "no token of this tokenizer begins or ends a text: lm-evaluation-harness' model hf "
            "needs prefix_token_id"
        )
    return {"tokenizer.json": json.loads(model.to_str()), "tokenizer_config.json": config}, notes


def _expressed(tokenizer: Tokenizer) -> Any:
    """Return a tokenizer as the library `tokenizers` has it; ConfigError names what has none."""
    import tokenizers

    match tokenizer:
        case Bytes():
            return _byte_level({bytes([b]): b for b in range(256)})
        case Chars():
            return _chars(tokenizer.characters)
        case Tiktoken():
            return _tiktoken(tokenizer)
        case SentencePiece():
            return _sentencepiece(tokenizer)
        case _:
            saved = json.loads(tokenizer.to_json())["model"]
            return tokenizers.Tokenizer.from_str(json.dumps(saved))


def _byte_level(ranks: Mapping[bytes, int]) -> Any:
    """Return byte-level BPE: of two neighbours that make a token, those of lowest rank first."""
    import tokenizers

    shown = byte_characters()
    vocab = {"".join(shown[b] for b in token): rank for token, rank in ranks.items()}
    # A part of a text that is a token as a whole stays whole, as in tiktoken.
    bpe = tokenizers.models.BPE(vocab=vocab, merges=_merges(vocab), ignore_merges=True)
    model = tokenizers.Tokenizer(bpe)
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.pre_tokenizer, model.decoder = level, tokenizers.decoders.ByteLevel()
    return model


def _merges(order: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every two tokens that make a third, in the order of what they make."""
    return [
        (token[:i], token[i:])
        for token in sorted(order, key=lambda token: order[token])
        for i in range(len(token) - 1, 0, -1)
        if token[:i] in order and token[i:] in order
    ]


def _chars(characters: str) -> Any:
    """Return a vocabulary of characters that refuses all others, as `Chars` does."""
    import tokenizers

    vocab = {character: i for i, character in enumerate(characters)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocab, unk_token=""))
    each = tokenizers.Regex(r"[\s\S]")
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(each, "isolated")
    model.decoder = tokenizers.decoders.Fuse()
    return model


def _tiktoken(tokenizer: Tiktoken) -> Any:
    import tokenizers

    model = _byte_level(tokenizer.ranks)
    # There `{1,3}+` would repeat three digits; nothing follows it, so that it need not hold fast.
    pattern = tokenizers.Regex(tokenizer.pattern.replace("{1,3}+", "{1,3}"))
    split = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, model.pre_tokenizer])
    ids = sorted({*tokenizer.special.values()})
    if ids != [*range(len(tokenizer.ranks), len(tokenizer.ranks) + len(ids))]:
        raise ConfigError("special tokens whose ids leave gaps")
    model.add_special_tokens([tokenizer.piece(i) for i in ids])
    return model


def _sentencepiece(tokenizer: SentencePiece) -> Any:
    import tokenizers
    from tokenizers import decoders, normalizers

    parts = pieces.parts(tokenizer.data)
    kinds = {piece.kind for piece in parts.pieces}
    for odd, what in (
        (parts.kind == pieces.WORD, "of whole words"),
        (pieces.USER_DEFINED in kinds, "with user-defined symbols"),
        (pieces.UNUSED in kinds, "with unused pieces"),
        (parts.suffixes, "with spaces behind words"),
        (not parts.escaped, "that keeps spaces as they are"),
    ):
        if odd:
            raise ConfigError(f"a SentencePiece model {what}")
    model = _unigram(parts) if parts.kind == pieces.UNIGRAM else _merged(parts)
    model.add_special_tokens(list(tokenizer.special))
    steps: list[Any] = [normalizers.Precompiled(parts.charsmap)] if parts.charsmap else []
    if parts.shortened:
        steps.append(normalizers.Replace(tokenizers.Regex(r"\A +"), ""))
        steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if parts.prefixed:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if parts.shortened:
        steps.append(normalizers.Replace(tokenizers.Regex(rf"{SPACE}+\z"), ""))
    model.normalizer = normalizers.Sequence(steps)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if parts.prefixed or parts.shortened:
        back.append(decoders.Strip(" ", 1, 0))
    model.decoder = decoders.Sequence(back)
    return model


def _merged(parts: SentencePieceModel) -> Any:
    """Return a model that merges characters by score; one of characters has nothing to merge."""
    import tokenizers

    return tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={p.text: i for i, p in enumerate(parts.pieces)},
            merges=_merges({p.text: -p.score for p in parts.pieces if p.kind == pieces.NORMAL}),
            unk_token=parts.pieces[parts.unknown].text,
            fuse_unk=True,
            byte_fallback=parts.byte_fallback,
        )
    )


def _unigram(parts: SentencePieceModel) -> Any:
    """Return a model that looks for the likeliest pieces.

    The library takes every piece that it finds in a text, SentencePiece only normal ones. So the
    names of the others are cut first, at a place that no normal piece crosses. Raises ConfigError
    where a name has no such place.
    """
    import tokenizers

    normal = {p.text for p in parts.pieces if p.kind == pieces.NORMAL}
    crossed = {text[i : i + 2] for text in normal for i in range(len(text) - 1)}
    cuts: dict[str, list[str]] = {}  # what stands before a cut, and what may stand behind it
    for name in (p.text for p in parts.pieces if p.kind != pieces.NORMAL):
        places = [
            i
            for i in range(1, len(name))
            # Two unknown characters are one token, which must not be cut.
            if name[i - 1 : i + 1] not in crossed
            and (parts.byte_fallback or not normal.isdisjoint(name[i - 1 : i + 1]))
        ]
        if not places:
            raise ConfigError(f"a unigram SentencePiece model with pieces across '{name}'")
        before, behind = name[: places[0]], name[places[0] :]
        cuts.setdefault(re.escape(before), []).append(re.escape(behind))
    model = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            vocab=[(p.text, p.score) for p in parts.pieces],
            unk_id=parts.unknown,
            byte_fallback=parts.byte_fallback,
        )
    )
    cut = tokenizers.Regex("|".join(f"(?<={b})(?={'|'.join(names)})" for b, names in cuts.items()))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(cut, "isolated")
    return model
