"""Held-out losses: in float32, in little memory, and beside what token frequencies give."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from llama_ablate.config.experiment import Train
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.model.decoder import new_model
from llama_ablate.training import token_losses
from llama_ablate.training.compute import Compute
from llama_ablate.training.evaluation import (
    BATCH_TOKENS,
    losses,
    positions_of,
    predictions,
    targets_of,
    unigram_loss,
    windows,
)
from llama_ablate.training.loop import outcome, train

COMPUTE = Compute("cpu", 1, "float32", "math")


def test_points_of_a_curve_are_evaluated_in_float32(spec, tokens):
    """Of a run in bfloat16, whose loss under autocast was off by up to 1.5e-4 nats."""
    model = new_model(spec(vocab=256, init_std=0.3), 0)
    keys = Train.check({"steps": 5, "batch": 8, "lr": 3e-3, "warmup": 0.0})
    half = replace(COMPUTE, precision="bfloat16")
    done = train(model, tokens, keys, steps=5, seed=0, compute=half)
    whole = windows(tokens.split("validation"), 24, 8_192)
    assert done.curve[-1]["validation_loss_nats"] == losses(model, whole, COMPUTE).mean()
    assert np.array_equal(losses(model, whole, half), losses(model, whole, COMPUTE))


def test_losses_are_those_of_a_plain_loop_though_few_logits_are_made_at_once(spec, monkeypatch):
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 50)
    monkeypatch.setitem(token_losses.LOGITS, "cpu", 61 * 7)
    model = new_model(spec(init_std=0.3, logit_softcap=3.0), 0)
    text = np.random.default_rng(0).integers(0, 61, 75)
    cut, expected = windows(text, 24), []
    for start in range(0, 74, 24):
        part = torch.from_numpy(text[start : start + 25])[None]
        logits = model(part[:, :-1])[0]
        expected += F.cross_entropy(logits, part[0, 1:], reduction="none").tolist()
    np.testing.assert_allclose(losses(model, cut, COMPUTE), expected, rtol=1e-5)
    assert max(len(logits) for logits, _ in predictions(model, cut, COMPUTE)) == 7


#: Documents of 5, 0, 3, 30, 12 and 2 tokens, 0 between them: the first has none before it.
LENGTHS = (5, 0, 3, 30, 12, 2)


def joined(lengths=LENGTHS):
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 61, length) for length in lengths]
    return np.concatenate([np.append(document, 0) for document in documents])[:-1]


def test_windows_begin_with_documents_and_cut_those_alone_that_are_longer_than_the_context():
    text = joined()
    (cut,) = windows(text, 12, separator=0)
    first = [0, 10, 22, 34, 41, 53, 56]  # token of each window
    for row, start, end in zip(cut, first[:-1], first[1:], strict=True):
        assert row[row >= 0].tolist() == text[start : end + 1].tolist()
        assert (row[end + 1 - start :] == -1).all()
    # Three documents fit the first; the fourth is cut twice, and the fifth once, by its last token,
    # beside which the last document fits.
    assert np.flatnonzero(text == 0).tolist() == [5, 6, 10, 41, 54]


@pytest.mark.parametrize("context", [1, 7, 100])
@pytest.mark.parametrize("most", [None, 20])
def test_every_token_but_the_first_is_predicted_once_however_documents_are_cut(context, most):
    text = joined()
    cut = windows(text, context, most, separator=0)
    assert max(part.shape[1] for part in cut) <= context + 1
    assert targets_of(cut).tolist() == text[1:][:most].tolist()


def test_documents_are_scored_whole_each_as_if_alone(spec):
    """One at a time in float64: its first token from nothing but the separator before it."""
    model = new_model(spec(init_std=0.3, separator=0), 0)
    text = joined((40, 7, 0, 9, 3, 24, 60, 1))
    cut = windows(text, 24, separator=0)
    found, position = losses(model, cut, COMPUTE), positions_of(cut, 0)
    model.double()
    expected, places = [], []
    begins = [0, *np.flatnonzero(text == 0)]
    for start, end in zip(begins, [*begins[1:], len(text) - 1], strict=True):
        for at in range(start, end, 24):
            piece = torch.from_numpy(text[at : min(at + 24, end) + 1])
            with torch.no_grad():
                logs = model(piece[None, :-1])[0].log_softmax(-1)
            expected += (-logs.gather(1, piece[1:, None])[:, 0]).tolist()
            places += range(len(piece) - 1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert position.tolist() == places
    assert positions_of(windows(text, 24), None).tolist() == [i % 24 for i in range(len(text) - 1)]


def test_a_unigram_loss_is_that_of_counted_frequencies(tokens):
    cut = windows(tokens.split("validation"), 24, 1000)
    train_ids = [int(t) for t in tokens.split("train")]
    came = [int(t) for part in cut for t in part[:, 1:].ravel()]
    total = len(train_ids) + 256
    expected = -sum(math.log((train_ids.count(t) + 1) / total) for t in came) / len(came)
    assert unigram_loss(tokens, cut) == pytest.approx(expected)


def test_of_a_text_that_nobody_could_predict_better_nothing_is_said():
    """The best possible loss of a copy that is mostly noise is near that of the frequencies."""
    found = {}
    for noise in (0.85, 0.1):
        corpus = {"name": "lag-copy", "vocab": 8, "noise": noise, "tokens": 20_000}
        text = store.prepare(CORPORA.resolve(corpus), TOKENIZERS.resolve("chars"))
        found[noise] = unigram_loss(text, windows(text.split("validation"), 24, 1000))
    assert found == {0.85: None, 0.1: pytest.approx(math.log(8), abs=0.02)}


@pytest.fixture
def ended(spec, tokens):
    """Train a layer whose model has been tampered with, and say how that ended."""

    def run(tamper, steps, evals=10):
        model = new_model(spec(vocab=256, layers=1, context=8), 0)
        with torch.no_grad():
            tamper(model)
        values = {"steps": steps, "batch": 16, "lr": 3e-2, "warmup": 0.0, "evals": evals}
        config = Train.check(values)
        return train(model, tokens, config, steps=steps, seed=0, compute=COMPUTE)

    return run


def blind(model):
    """Let all tokens look alike to a model: only their frequencies are left to learn."""
    model.embedding.weight.fill_(0.1).requires_grad_(False)


def untouched(_model):
    pass


def dead(model):
    """Let no gradient reach a weight."""
    model.norm.gain.zero_().requires_grad_(False)


@pytest.mark.parametrize(
    ("tamper", "steps", "word", "reason"),
    [
        (blind, 50, "collapsed", "the loss stopped at"),
        (dead, 3, "collapsed", "the gradient vanished; the loss ended at 5.545"),
        (untouched, 50, "ok", ""),
    ],
)
def test_a_run_that_stops_where_token_frequencies_would_has_collapsed(
    ended, tamper, steps, word, reason
):
    done = ended(tamper, steps)
    assert done.outcome == word
    assert done.reason.startswith(reason)
    assert ("and token frequencies alone give" in done.reason) == bool(reason)


def test_a_run_that_still_falls_is_too_short_until_it_is_past_what_frequencies_tell(ended):
    passed = []
    for steps in (6, 40):
        done = ended(untouched, steps)
        unigram = {row.name: row for row in done.values}["unigram_loss_nats"]
        assert (unigram.unit, unigram.quantity) == ("nats", "unigram_loss")
        assert unigram.coordinates == {"split": "validation"}
        passed.append(done.curve[-1]["validation_loss_nats"] < unigram.value - 0.05)
        assert done.outcome == "ok"
        assert bool(done.reason) != passed[-1]
    assert passed == [False, True]


def of_losses(losses, unigram):
    """How a run ended whose training loss is its held-out loss: the word, and if it is too short.

    Its gradient has not vanished.
    """
    chance = math.log(256)
    curve = [
        {"train_loss_nats": loss, "validation_loss_nats": loss, "grad_norm": 0.5}
        for loss in [chance, *losses]
    ]
    del curve[0]["validation_loss_nats"]
    word, reason = outcome(curve, chance, unigram)
    return word, bool(reason)


#: 156 steps of 43,168 parameters on Tiny Shakespeare's bytes, whose frequencies give 3.297.
FALLING = [5.045, 4.445, 3.971, 3.665, 3.488, 3.388, 3.328, 3.291, 3.269, 3.256]
#: Twelve layers without residual connections, seed 0: frequencies give 3.614.
STUCK = [3.750, 3.660, 3.613, 3.616, 3.617, 3.640, 3.634, 3.629, 3.614, 3.614, 3.613]


def test_of_two_runs_near_the_unigram_loss_the_better_one_is_not_called_collapsed():
    higher = [loss + 0.1 for loss in FALLING]
    assert of_losses(FALLING, 3.297) == of_losses(higher, 3.297) == ("ok", True)
    assert of_losses([loss - 0.02 for loss in FALLING], 3.297) == ("ok", False)
    assert of_losses(STUCK, 3.614) == ("collapsed", True)
    assert of_losses([loss + 0.5 for loss in STUCK], 3.614) == ("collapsed", True)
    assert of_losses(STUCK[-2:], 3.614) == ("ok", True)  # two evaluations are too few


def test_noise_hardly_ever_makes_a_stuck_run_too_short_or_a_falling_one_collapsed():
    """With a deviation over evaluations of 0.015 nats, that of runs that had stopped."""
    noise = np.random.default_rng(0).normal(0, 0.015, (2000, 10))
    stuck = [of_losses(3.614 + own, 3.614) for own in noise]
    falling = [of_losses(FALLING + own, 3.297)[0] for own in noise]
    assert stuck.count(("collapsed", True)) >= 1998  # one that ends 3.3 deviations low has passed
    assert falling.count("ok") == 2000
