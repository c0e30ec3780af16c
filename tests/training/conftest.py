"""What tests of training share: the tokens of a small text."""

import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS


@pytest.fixture
def tokens(book):
    corpus = CORPORA.resolve({"name": "files", "path": str(book)})
    return store.prepare(corpus, TOKENIZERS.resolve("bytes"))


@pytest.fixture
def own(monkeypatch):
    """Let what a test registers be forgotten."""

    def copied(registry):
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
        return registry

    return copied
