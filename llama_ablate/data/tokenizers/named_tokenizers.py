"""Tokenizers known by a name, from the caches of other libraries: nothing is downloaded here.

The encodings of tiktoken lie in its cache, those of the Hugging Face hub in the hub's.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_ablate.data.tokenizers.tokenizer import TOKENIZERS, Maker, Tokenizer
from llama_ablate.data.tokenizers.tokenizer_files import Tiktoken, read
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: Files of a repository that make its tokenizer, in the order in which they are looked for.
_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


@TOKENIZERS.register("gpt2")
def gpt2_tokens() -> Maker:
    """Take GPT-2's byte-level BPE, 50,257 tokens (Radford et al. 2019), where it is cached."""
    return Maker(lambda _: _from_hub("openai-community/gpt2") or _from_tiktoken("gpt2"))


@TOKENIZERS.register("p50k_base")
def p50k_tokens() -> Maker:
    """Take Codex' byte-level BPE, 50,281 tokens (tiktoken), where it is cached."""
    return Maker(lambda _: _from_tiktoken("p50k_base"))


@TOKENIZERS.register("cl100k_base")
def cl100k_tokens() -> Maker:
    """Take GPT-4's byte-level BPE, 100,277 tokens (tiktoken), where it is cached."""
    return Maker(lambda _: _from_tiktoken("cl100k_base"))


@TOKENIZERS.register("o200k_base")
def o200k_tokens() -> Maker:
    """Take GPT-4o's byte-level BPE, 200,019 tokens (tiktoken), where it is cached."""
    return Maker(lambda _: _from_tiktoken("o200k_base"))


@TOKENIZERS.register("hub")
def hub_tokens(*, model: str = "") -> Maker:
    """Take the tokenizer of a model on the Hugging Face hub, where its files are cached."""
    if not model:
        raise ConfigError("needs 'model': a name on the hub, such as openai-community/gpt2")
    tokenizer = _from_hub(model)
    if tokenizer is None:
        raise ConfigError(
            f"the tokenizer of '{model}' is not cached: `hf download {model} tokenizer.json` loads "
            "it; or give its file, {name: file, path: ...}",
            ("model",),
        )
    identity = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
    return Maker(lambda _: tokenizer, identity)


def _from_hub(model: str) -> Tokenizer | None:
    """Return the tokenizer of a model in the hub's cache; None where there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for names in _FILES:
        try:
            paths = [try_to_load_from_cache(model, name) for name in names]
        except HFValidationError as error:
            raise ConfigError(f"'{model}' is no name of the hub: {error}", ("model",)) from None
        files = [Path(path) for path in paths if isinstance(path, str)]
        if len(files) == len(names):
            _check(files)
            return read(files[0] if len(files) == 1 else files[0].parent)
    return None


def _check(files: Sequence[Path]) -> None:
    """Raise ConfigError for a file that has not the hash by which the hub's cache names it.

    That is git's SHA-1, or SHA-256 of a large file; a cache without links names it by neither.
    """
    for file in files:
        content, name = disk.read(file), file.resolve().name
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        found = {40: git.hexdigest(), 64: hashlib.sha256(content).hexdigest()}
        if name != found.get(len(name), name):
            raise ConfigError(f"'{file}' has changed since it was loaded: remove it, load it again")


def _from_tiktoken(name: str) -> Tokenizer:
    """Return an encoding of tiktoken. Raises ConfigError where its files are not cached."""
    from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

    try:
        with _cache_alone():
            made: dict[str, Any] = ENCODING_CONSTRUCTORS[name]()
    except _NotCachedError as error:
        also = " or `hf download openai-community/gpt2 tokenizer.json`" if name == "gpt2" else ""
        raise ConfigError(
            f"the tokenizer '{name}' is not cached: `python -c \"import tiktoken; "
            f"tiktoken.get_encoding('{name}')\"`{also} loads it; without a network, {error.url} "
            f"is {hashlib.sha1(error.url.encode(), usedforsecurity=False).hexdigest()} in "
            "$TIKTOKEN_CACHE_DIR"
        ) from None
    ranks: dict[bytes, int] = made["mergeable_ranks"]
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    return Tiktoken(b"".join(lines), made["pat_str"], made["special_tokens"])


class _NotCachedError(Exception):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


@contextmanager
def _cache_alone() -> Iterator[None]:
    """Have tiktoken read its cache and nothing else, which it has no option for."""
    import tiktoken.load

    def refuse(blobpath: str) -> bytes:
        raise _NotCachedError(blobpath)

    read_file = tiktoken.load.read_file
    tiktoken.load.read_file = refuse
    try:
        yield
    finally:
        tiktoken.load.read_file = read_file
