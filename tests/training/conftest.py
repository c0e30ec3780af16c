"""What tests of training share: the tokens of a small text."""

import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from tests.in_process import own_registries


@pytest.fixture
def tokens(book):
    corpus = CORPORA.resolve({"name": "files", "path": str(book)})
    return store.prepare(corpus, TOKENIZERS.resolve("bytes"))


@pytest.fixture
def own():
    """Let what a test registers be forgotten."""
    with own_registries():
        yield
