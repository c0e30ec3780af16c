"""Tokenizers of every kind, each with an independent library that gives the same ids."""

import base64
import io
import random
from functools import partial

import sentencepiece
import tiktoken
import tokenizers
from tiktoken._educational import bpe_train

from llama_ablate.data import texts
from llama_ablate.data.tokenizer import TOKENIZERS, Bytes, Chars
from llama_ablate.data.tokenizer_files import (
    GPT2_SPLIT,
    LLAMA3_SPECIAL,
    LLAMA3_SPLIT,
    from_ranks,
    read,
)
from tests.interop.checkpoints import llama2c_pieces
from tests.texts import corpus_of

LINES = [
    "the cat sat on the mat",
    "the dog ran to the park, where it saw a bird!",
    "Was it <s> or </s>? 42 x 10 = 420.",
] * 20
NAMES = [
    *("<s>", "</s>", "<unk>", "<0x0A>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|python_tag|>", "<|eom_id|>", "<|reserved_special_token_7|>", "<pad>", "<|", ">"),
]
ODD = [
    *("", " ", "  ", "\n", "\n\n the", "\r\n", "\x00", "\x00a\x00", "\ufeff", "\u0085x", "\u2028"),
    *("\u2581", "\u2581 \u2581", " \u2581", "a\u2581", "\u3000a", "\u00a0a", "\u00ad", "\uffff"),
    *("e\u0301", "\u00e9", "\ufb01", "I'\u017f", "\u0130", "\u00bd \u2460 \u2163"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab"),
]


def _texts(count=2000):
    """Return texts of all sorts: any letters, runs of white space, names, words, accents."""
    draw = random.Random(0)
    planes = [(32, 127), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    makers = (
        lambda: chr(draw.randrange(*draw.choice(planes))),
        lambda: draw.choice(" \t\n\r\x0b\x0c\u00a0\u2003\u3000\u2581 ab"),
        lambda: draw.choice([*NAMES, " ", "a"]),
        lambda: draw.choice(" ".join(LINES[:3]).split()) + draw.choice(["", " ", " ", "  "]),
        lambda: draw.choice("aab b "),
        lambda: draw.choice("aeE") + chr(draw.randrange(0x300, 0x370)),
        lambda: draw.choice("aA1.!' -'sStTLl\u017f\u212a"),
    )
    made = [
        "".join(make() for _ in range(draw.randrange(30)))
        for make in makers
        for _ in range(1 + (count - len(ODD)) // len(makers))
    ]
    return (ODD + made)[:count]


TEXTS = _texts()


#: Options of a model as Llama 2's: BPE with bytes that leaves texts as they are.
LLAMA2 = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}


def sentencepiece_file(folder, lines=LINES, **options):
    """Train a SentencePiece model; return its file."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **{"vocab_size": 400, "normalization_rule_name": "identity"} | options,
    )
    file = folder / "tokenizer.model"
    file.write_bytes(out.getvalue())
    return file


def _sentencepiece(folder, **options):
    file = sentencepiece_file(folder, **options)
    return read(file), sentencepiece.SentencePieceProcessor(model_file=str(file)).encode


def _llama2c(folder):
    _, encode = _sentencepiece(folder, **LLAMA2)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    (folder / "tokenizer.bin").write_bytes(llama2c_pieces(model))
    return read(folder / "tokenizer.bin"), encode


def _tokenizer_json(folder, special=("<|endoftext|>", "<pad>"), template=None):
    """Return byte-level BPE of a tokenizer.json, with special tokens and a template."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        show_progress=False,
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(LINES, trainer)
    if template:
        known = [(name, model.token_to_id(name)) for name in special]
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=known
        )
    model.save(str(folder / "tokenizer.json"))
    model.encode_special_tokens = True
    encode = lambda text: model.encode(text, add_special_tokens=False).ids  # noqa: E731
    return read(folder / "tokenizer.json"), encode


def _trained(folder):
    """Return BPE trained here; tiktoken has its merges by rank."""
    maker = TOKENIZERS.build(TOKENIZERS.resolve({"name": "bpe", "vocab": 300}))
    text = "\n".join(LINES)
    ours = maker.make(texts.write(corpus_of(text, text, text), folder))
    ranks = {bytes(map(_byte, token)): i for token, i in ours.model.get_vocab().items()}
    return ours, tiktoken.Encoding(
        "x", pat_str=GPT2_SPLIT, mergeable_ranks=ranks, special_tokens={}
    ).encode_ordinary


def _byte(character):
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in shown]
    code = ord(character)
    return code if code < 256 else others[code - 256]


def _ranks(pattern, special):
    """Return ranks as Llama 3 and OpenAI have them, merged by tiktoken's own trainer."""
    ranks = bpe_train("\n".join(LINES[:3]), 300, pattern, visualise=None)
    lines = b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items())
    reference = tiktoken.Encoding(
        "x",
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens=special or {name: 300 + i for i, name in enumerate(LLAMA3_SPECIAL)},
    )
    ours = from_ranks(lines, pattern, special) if special else from_ranks(lines)
    return ours, lambda text: reference.encode(text, disallowed_special=())


_CHARACTERS = "".join(sorted(set("".join(TEXTS))))
BEGINS = {
    "special": ("<|begin_of_text|>", "<|eot_id|>", "</s>"),
    "template": "<|begin_of_text|> $A",
}
#: How each kind of tokenizer is made in a folder, with what encodes texts independently.
KINDS = {
    "bytes": lambda _: (Bytes(), lambda text: list(text.encode())),
    "chars": lambda _: (Chars(_CHARACTERS), lambda text: list(map(_CHARACTERS.index, text))),
    "bpe": _trained,
    "tokenizer.json": _tokenizer_json,
    "tokenizer.json that begins texts": lambda folder: _tokenizer_json(folder, **BEGINS),
    "tokenizer.json that ends texts": lambda folder: _tokenizer_json(
        folder, ("<fin>",), "$A <fin>"
    ),
    "ranks of Llama 3": lambda _: _ranks(LLAMA3_SPLIT, None),
    "ranks with gaps": lambda _: _ranks(GPT2_SPLIT, {"<|endoftext|>": 301, "<|end|>": 305}),
    **{
        name: partial(_sentencepiece, **LLAMA2 | options)
        for name, options in {
            "SentencePiece of Llama 2": {},
            "SentencePiece that splits digits": {"split_digits": True, "pad_id": 3},
            "SentencePiece without a space in front": {"add_dummy_prefix": False},
            "SentencePiece with unknown letters": {"byte_fallback": False},
            "SentencePiece of characters": {"byte_fallback": False, "model_type": "char"},
        }.items()
    },
    "llama2.c": _llama2c,
}
