import json
import math

import numpy as np
import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.errors import ConfigError
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.likelihood import Encoded, likelihoods
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute

COMPUTE = Compute("cpu", 1, "float32", "fused")
TRAIN = Train.check({"steps": 1, "batch": 4})


@pytest.fixture
def model(spec):
    def make(**changes):
        return COMPUTE.prepare(new_model(spec(vocab=256, **changes), 0))

    return make


@pytest.fixture
def subject(model, book):
    def make(tokenizer="bytes", **changes):
        corpus = CORPORA.resolve({"name": "files", "path": str(book)})
        tokens = store.prepare(corpus, TOKENIZERS.resolve(tokenizer))
        return Subject(model(**changes), tokens, TRAIN, COMPUTE)

    return make


@pytest.fixture
def task(tmp_path):
    def write(*items):
        path = tmp_path / "own.jsonl"
        path.write_text("\n".join(map(json.dumps, items)), "utf-8")
        return str(path)

    return write


def measure(subject, **options):
    rows = METRICS.measure(METRICS.resolve({"name": "cloze", **options}), subject)
    return {row.name: row for row in rows}


@pytest.mark.parametrize("slots", [{}, {"attention": "gated_delta"}, {"position": "learned"}])
def test_likelihoods_are_those_of_each_text_alone(model, slots):
    """Against a float64 model that reads one text at a time, without padding."""
    small = model(**slots)
    exact = new_model(small.spec, 0).double()
    draw = np.random.default_rng(0)
    sizes = [(1, 3), (20, 4), (5, 1), (24, 1), (2, 22), (7, 7)]
    texts = [Encoded(*(draw.integers(0, 256, n).tolist() for n in pair)) for pair in sizes]
    found = likelihoods(small, texts)
    for text, likelihood in zip(texts, found, strict=True):
        ids = torch.tensor([text.context + text.continuation])
        logs = exact(ids[:, :-1])[0].log_softmax(-1)[len(text.context) - 1 :]
        own = logs.gather(-1, ids[0, len(text.context) :, None])
        assert likelihood.nats == pytest.approx(own.sum().item(), abs=2e-4)
        assert likelihood.is_greedy == bool((logs.argmax(-1) == ids[0, len(text.context) :]).all())


def test_a_model_that_knows_nothing_answers_at_chance(subject, task):
    """Zero logits: choices of one length are equally likely, and each counts its share."""
    empty = subject()
    torch.nn.init.zeros_(empty.model.head.weight)
    three = {"context": "one", "choices": ["ab", "cd", "ef"], "answer": 2}
    two = {"context": "one", "choices": ["ab", "cd"], "answer": 0}
    found = measure(empty, task=task(three, two))
    assert found["own_accuracy"].samples == (0.3333, 0.5)
    assert found["own_accuracy"].value == pytest.approx(found["own_chance"].value)
    assert found["own_chance"].value == pytest.approx(5 / 12)
    assert found["own_items"].value == 2


def test_normalised_accuracies_divide_by_bytes_and_by_tokens(subject, task):
    """Zero logits: every token has log(256) nats, so lengths alone decide."""
    empty = subject()
    torch.nn.init.zeros_(empty.model.head.weight)
    # Scored with the space before it: 2 and 4 tokens for 1 and 3 bytes.
    item = {"context": "one", "choices": ["a", "bcd"], "answer": 1}
    found = measure(empty, task=task(item, {**item, "answer": 0}))
    assert found["own_accuracy"].samples == (0, 1)  # the shorter is the likelier
    assert found["own_accuracy_norm"].samples == (1, 0)  # 2/1 nats a byte against 4/3
    assert found["own_accuracy_per_token"].samples == (0.5, 0.5)


def test_a_likelier_choice_is_right_and_greedy_decoding_writes_it(subject, task):
    """Logits that always favour one byte."""
    fond = subject(tie=False)
    with torch.no_grad():
        for parameter in fond.model.parameters():
            parameter.zero_()
    weights = torch.zeros(256)
    weights[ord("a")] = 5.0
    fond.model.logits = lambda hidden: weights.expand(*hidden.shape[:-1], 256)
    items = [{"context": "x", "target": "aa"}, {"context": "x ", "target": "ab"}]
    found = measure(fond, task=task(*items))
    whole = math.log(math.exp(5) + 255)
    # The space before a target is scored too, and is not what greedy decoding writes.
    assert found["own_accuracy"].samples == (0, 0)
    nats = [3 * whole - 10, 3 * whole - 5]
    assert found["own_target_nats"].samples == pytest.approx(nats, abs=1e-4)
    assert found["own_target_perplexity"].value == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    pairs = [{"sentence_good": "aa", "sentence_bad": "ab"}] * 2
    assert measure(fond, task=task(*pairs))["own_accuracy"].value == 1


def test_an_item_that_cannot_be_scored_is_refused_with_its_line(subject, task):
    own, item = subject(), {"context": "a", "target": "long" * 9}
    choice = METRICS.resolve({"name": "cloze", "task": task(item)})
    with pytest.raises(ConfigError, match=r"own\.jsonl:1: a text to be scored has 37") as refused:
        METRICS.check(choice, own.model.spec, own.tokens)
    assert refused.value.where == ("task",)
