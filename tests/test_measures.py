import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.errors import ConfigError
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.quality import calibration_error
from llama_ablate.measure.turns import Arm, measure_arms
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import new_model
from llama_ablate.results.record import Measurement, Value
from llama_ablate.training.compute import Compute
from llama_ablate.training.evaluation import losses, windows
from tests.texts import prepared

COMPUTE = Compute("cpu", 1, "float32", "fused")
TRAIN = Train.check({"steps": 1, "batch": 4})


@pytest.fixture
def tokens(book):
    return prepared(book)


@pytest.fixture
def subject(spec, tokens):
    def make(compute=COMPUTE, **changes):
        model = compute.prepare(new_model(spec(vocab=256, **changes), 0))
        return Subject(model, tokens, TRAIN, compute)

    return make


def rows(name, subject, **options):
    return METRICS.measure(METRICS.resolve({"name": name, **options}), subject)


def measure(name, subject, **options):
    return {row.name: row.value for row in rows(name, subject, **options)}


def test_a_model_that_knows_nothing_has_the_loss_of_equal_chances_and_bits_of_the_texts_bytes(
    spec, book
):
    """Zero logits: log(290) nats a token, of which one stands for about two bytes."""
    bpe = prepared(book, {"name": "bpe", "vocab": 290})
    model = new_model(spec(vocab=290, tie=False), 0)
    torch.nn.init.zeros_(model.head.weight)
    values = measure("perplexity", Subject(model, bpe, TRAIN, COMPUTE))
    for split in ("validation", "test"):
        per_byte = bpe.counts[split] / bpe.bytes[split]
        assert per_byte < 0.6
        bits = math.log2(290) * per_byte
        assert values[f"{split}_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
        assert values[f"{split}_loss_nats"] == pytest.approx(math.log(290), rel=1e-6)
        assert values[f"{split}_perplexity"] == pytest.approx(290, rel=1e-5)
        assert values[f"{split}_loss_se_nats"] == pytest.approx(0, abs=1e-6)
        assert values[f"{split}_predicted_tokens"] == bpe.counts[split] - 1


MIXTURE = {"name": "moe", "experts": 4, "width": 16}


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS.per(name) == "run"])
def test_a_run_in_bfloat16_is_measured_in_float32(spec, tokens, name):
    """The same weights give the same numbers: autocast moves losses by as much as variants do."""
    model = new_model(spec(vocab=256, init_std=0.3, feedforward=MIXTURE), 0)
    model.kernel = "math"
    computes = [Compute("cpu", 1, precision, "math") for precision in ("float32", "bfloat16")]
    full, half = (
        METRICS.measure_all([METRICS.resolve(name)], Subject(model, tokens, TRAIN, compute))[name]
        for compute in computes
    )
    assert full.rows == half.rows
    assert full.error == half.error


@pytest.mark.parametrize(
    ("name", "options", "where", "message"),
    [
        ("kv_cache", {"context": 10**30}, "context", "must be from 1 to the text's 3"),
        ("train_speed", {"seconds": 1e300}, "seconds", "seconds 1e+300: must be from 0 to 600"),
        ("decode_speed", {"batch": [10**9]}, "batch", "the largest batch of the longest context"),
        ("decode_speed", {"new": 24}, "new", "context 24 must be longer than new 24"),
    ],
)
def test_options_that_cannot_be_measured_are_refused_before_they_are(
    spec, tokens, name, options, where, message
):
    choice = METRICS.resolve({"name": name, **options})
    with pytest.raises(ConfigError) as caught:
        METRICS.check(choice, spec(vocab=256), tokens)
    assert message in caught.value.message
    assert caught.value.where == (where,)


LIVE = {
    "full": {},
    "hybrid": {"attention": {"pattern": [{"name": "gqa", "kv_heads": 2, "window": 6}, "mha"]}},
    "window": {"attention": {"name": "mqa", "window": 6, "canon": "AB"}},
    "recurrence": {"attention": "gated_delta"},
}


@pytest.mark.parametrize("context", [5, 6, 20])
@pytest.mark.parametrize("name", LIVE)
def test_state_bytes_in_closed_form_equal_live_ones_below_at_and_beyond_a_window(
    subject, name, context
):
    found = subject(Compute("cpu", 1, "bfloat16", "math"), **LIVE[name])
    values = measure("kv_cache", found, context=context)
    counted = count(replace(found.model.spec, context=context))
    assert values["kv_cache_bytes"] == counted.state_bytes
    assert values["kv_cache_added_bytes"] == counted.kv_bytes_per_token
    grows = name in ("full", "hybrid") or (context < 6 and name == "window")
    assert (counted.kv_bytes_per_token > 0) == grows


def test_decode_speed_covers_batches_and_contexts_and_has_no_cache_where_it_is_asked_for(subject):
    shape = {"batch": [1, 3], "context": [12, 20], "new": 4}
    kinds = ("prefill", "decode_cached", "decode_uncached")
    sizes = [f"b{b}_c{c}_tokens_per_s" for b in (1, 3) for c in (12, 20)]
    for options, taken, at in (
        ({"paired": True}, kinds[:2], sizes),
        ({"uncached": True}, kinds, sizes[-1:]),  # the largest alone
    ):
        values = measure("decode_speed", subject(), **shape, **options)
        assert set(values) == {f"{kind}_{size}" for kind in taken for size in at}
        assert min(values.values()) > 0


def arms(specs, tokens):
    return [Arm(spec, TRAIN, tokens) for spec in specs]


def test_the_interleaved_pass_takes_turns_and_reports_medians(spec, tokens, monkeypatch):
    order = []

    def fake(_choice, subject):
        order.append(subject.model.spec.attention.name)
        taken = len(order) - 1
        return [Value("x", float(taken), "speed", "tokens/s", {"batch": 8})]

    monkeypatch.setattr(random, "shuffle", list.reverse)
    monkeypatch.setattr(METRICS, "measure", fake)
    specs = [spec(vocab=256, attention=a) for a in ("mha", "gqa", "mqa")]
    choice = METRICS.resolve("train_speed")
    found = measure_arms(arms(specs, tokens), [choice], COMPUTE, rounds=3)
    turn = ["mha", "gqa", "mqa"]
    assert order == [*turn[::-1], *turn, *turn[::-1]]
    x = Value("x", 3, "speed", "tokens/s", {"batch": 8}, samples=(2, 3, 8))
    assert found[0] == {"train_speed": Measurement((x,))}
    assert [f["train_speed"].numbers["x"] for f in found] == [3, 4, 5]


def test_a_metric_that_fails_for_a_variant_says_why_and_the_others_go_on(spec, tokens, monkeypatch):
    tries = []

    def fake(choice, subject):
        tries.append((choice.name, subject.model.spec.attention.name))
        if tries[-1] == ("kv_cache", "mha") and len(tries) > 4:  # in the second turn
            raise KeyError("too large\nand more")
        return [Value("x", 1.0)]

    monkeypatch.setattr(METRICS, "measure", fake)
    specs = [spec(vocab=256, attention=a) for a in ("mha", "gqa")]
    choices = [METRICS.resolve(name) for name in ("kv_cache", "train_speed")]
    found = measure_arms(arms(specs, tokens), choices, COMPUTE, rounds=3)
    failed = found[0].pop("kv_cache")
    assert failed.error.startswith("KeyError: ")
    assert failed.rows == ()
    for metric in (*found[0].values(), *found[1].values()):
        assert metric == Measurement((Value("x", 1.0, samples=(1.0, 1.0, 1.0)),))
    assert tries.count(("kv_cache", "mha")) == 2


@pytest.mark.parametrize(("lag", "accuracy"), [(2, 1.0), (3, 1 / 8)])
def test_skill_is_how_often_what_the_window_tells_is_the_likeliest_token(spec, lag, accuracy):
    """A model that copies from the right place, or from one beside it."""
    entry = {"name": "lag-copy", "vocab": 8, "lag": 2, "noise": 0.5, "tokens": 40_000}
    tokens = store.prepare(CORPORA.resolve(entry), TOKENIZERS.resolve("chars"))
    copies = COMPUTE.prepare(new_model(spec(vocab=8, attention="mha"), 0))

    def copied(tokens_BT):
        return torch.nn.functional.one_hot(tokens_BT.roll(lag - 1, 1), 8).float()

    copies.hidden, copies.logits = copied, lambda hidden: hidden
    values = measure("skill", Subject(copies, tokens, TRAIN, COMPUTE))
    # The stretch has 2,000 tokens, of which half are copies: of another lag, few more than chance.
    assert values["lag-copy_accuracy"] == pytest.approx(accuracy, abs=0.05 * (lag != 2))
    assert values["lag-copy_chance"] == 1 / 8
    assert values["lag-copy_ceiling"] == 1
    assert values["lag-copy_items"] == 1999 // copies.spec.context


def nats_by_hand(found, most=None):
    """Return the losses of at most so many windows of the test split, by window and position."""
    ids = torch.from_numpy(np.asarray(found.tokens.split("test"), np.int64))
    x = ids.unfold(0, 25, 24)[:most]
    logits = found.model(x[:, :-1]).transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, x[:, 1:], reduction="none")


def test_loss_by_position_is_the_mean_over_windows_in_bands_that_double(subject):
    """24 positions: 1, 2-3, 4-7, 8-15, 16-24."""
    found = subject()
    values = measure("loss_by_position", found)
    assert list(values) == [
        f"loss_at_position_{a}_to_{b}_nats" for a, b in [(1, 1), (2, 3), (4, 7), (8, 15), (16, 24)]
    ]
    sizes = [1, 2, 4, 8, 9]
    mean = sum(v * n for v, n in zip(values.values(), sizes, strict=True)) / 24
    nats = nats_by_hand(found).detach()
    assert mean == pytest.approx(nats.mean().item(), rel=1e-5)
    assert values["loss_at_position_1_to_1_nats"] == pytest.approx(nats[:, 0].mean().item())


def test_length_compares_the_same_predictions_extended_and_sliding(subject):
    """At once the context both are the same; a window makes them the same at any length."""
    values = measure("length", subject(init_std=0.3), times=[1, 4])
    assert values["loss_1x_extended_minus_sliding_nats"] == 0
    assert values["loss_4x_extended_minus_sliding_nats"] != 0
    narrow = subject(init_std=0.3, layers=1, attention={"name": "mha", "window": 6})
    values = measure("length", narrow, times=[4])
    assert values["loss_4x_extended_minus_sliding_nats"] == pytest.approx(0, abs=1e-5)


def test_a_unit_that_is_never_above_zero_is_dead(subject):
    """Eight of 128 units of layer 0 are switched off by their bias."""
    found = subject(feedforward="relu", bias=True, init_std=0.3)
    with torch.no_grad():
        found.model.blocks[0].ffn.up.bias[:8] = -1000.0
    values = measure("activations", found)
    assert values["layer_0_dead_units_share"] == pytest.approx(8 / 128)
    assert values["layer_1_dead_units_share"] == 0
    assert values["dead_units_share"] == pytest.approx(4 / 128)
    assert not found.model.blocks[0]._forward_hooks


def test_the_load_of_experts_is_the_share_of_choices_that_each_gets(subject):
    moe = {"name": "moe", "experts": 4, "width": 8, "balance": "bias"}
    found = subject(feedforward=moe, init_std=0.3)
    found.model.blocks[1].ffn.balance_bias[2] = 10.0  # every token takes expert 2
    values = measure("expert_load", found)
    shares = [values[f"layer_1_expert_{n}_load"] for n in range(4)]
    assert shares[2] == 0.5
    assert sum(shares) == pytest.approx(1)
    assert values["layer_1_load_max_over_mean"] == 2
    entropy = -sum(share * math.log(share) for share in shares if share)
    assert values["layer_1_load_entropy_nats"] == pytest.approx(entropy)


def test_gradients_by_layer_are_those_of_autograd_and_leave_nothing_behind(subject):
    found = subject(init_std=0.3)
    values = measure("gradients", found)
    assert all(p.grad is None for p in found.model.parameters())
    loss = nats_by_hand(found, 4096 // 24).mean()
    parameters = list(found.model.blocks[1].parameters())
    grads = torch.autograd.grad(loss, parameters)
    norm = torch.cat([g.flatten() for g in grads]).norm().item()
    assert values["layer_1_gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_calibration_error_by_hand():
    # Three sure and right, one sure and wrong; two at a third, of which none is right.
    confidence = np.array([0.99, 0.99, 0.99, 0.99, 1 / 3, 1 / 3])
    hit = np.array([1.0, 1, 1, 0, 0, 0])
    expected = (4 * abs(0.75 - 0.99) + 2 * abs(0 - 1 / 3)) / 6
    assert calibration_error(confidence, hit) == pytest.approx(expected)
    assert calibration_error(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0


def folder_of(tmp_path, documents):
    """Return tokens of a text of so many documents in each held-out split."""
    for split, n in documents.items():
        lines = [json.dumps({"text": f"{split} {i} " + "word " * (i % 7)}) for i in range(n)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    names = {split: f"{split}.jsonl" for split in documents}
    return prepared(tmp_path, **names)


def test_the_loss_of_every_document_is_kept_and_sums_to_that_of_the_split(subject, tmp_path):
    tokens = folder_of(tmp_path, {"train": 30, "validation": 25, "test": 90})
    measured = replace(subject(init_std=0.3), tokens=tokens)
    by_name = {value.name: value for value in rows("perplexity", measured)}
    for split, documents, cluster in (
        ("validation", 25, "documents"),
        ("test", 90, "groups of documents"),
    ):
        nats, counted = (by_name[f"{split}_{unit}_by_document"] for unit in ("nats", "tokens"))
        assert nats.coordinates == {"split": split, "cluster": cluster, "documents": documents}
        assert len(nats.samples) == len(counted.samples)
        assert len(nats.samples) == 25 if documents == 25 else 32 < len(nats.samples) <= 64
        assert sum(counted.samples) == by_name[f"{split}_predicted_tokens"].value
        loss = by_name[f"{split}_loss_nats"].value
        assert sum(nats.samples) / sum(counted.samples) == pytest.approx(loss, abs=1e-5)
    cut = windows(tokens.split("validation"), 24)
    each = losses(measured.model, cut, COMPUTE)
    text = bytes(tokens.split("validation").tolist())
    document = np.array([text[: i + 1].count(b"\0") for i in range(len(each))])
    expected = [each[document == i].sum() for i in range(25)]
    assert by_name["validation_nats_by_document"].samples == pytest.approx(expected, abs=1e-4)
