"""The laws that every model obeys, as functions that raise AssertionError where one is broken.

`test_contracts.py` holds all that the registries offer to them; `test_seeded_faults.py` shows that
each of them catches something.
"""

import itertools

import torch
import torch.nn.functional as F

from llama_ablate.config.spec import SLOTS
from llama_ablate.model import laws
from llama_ablate.model.attention import Attention
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import REGISTRIES, build, init_weights

from .conftest import LLAMA, SMALL, make_spec

TOKENS = torch.randint(0, SMALL["vocab"], (2, 24), generator=torch.Generator().manual_seed(1))
PROMISED = {
    "norm": ["layernorm", "rmsnorm"],
    "position": ["none", "sinusoidal", "learned", "rope", "alibi"],
    "attention": ["mha", "gqa", "mqa"],
    "feedforward": ["relu", "gelu", "silu", "swiglu"],
    "block": ["pre", "post"],
}
GATED = ("glu", "bilinear", "reglu", "geglu", "swiglu")
#: Every option of every component, once with another value than its default.
OPTIONS = {
    "norm": [
        {"name": "layernorm", "eps": 1e-2},
        {"name": "layernorm", "unbiased": True},
        {"name": "rmsnorm", "eps": 1e-2},
        {"name": "dyt", "slope": 0.9},
    ],
    "position": [
        {"name": "sinusoidal", "base": 100.0, "scale": False},
        {"name": "rope", "theta": 100.0},
        {"name": "rope", "layout": "interleaved"},
        {"name": "rope", "fraction": 0.5},
        {"name": "rope", "fraction": 0.5, "layout": "interleaved"},
        {"name": "rope", "nope_every": 2},
        {"name": "rope", "values": True},
        {"name": "rope", "scaling": "linear", "factor": 4.0},
        {"name": "rope", "scaling": "ntk", "factor": 4.0},
        {
            "name": "rope",
            "scaling": "llama3",
            "factor": 8.0,
            "original_context": 16,
            "low_freq": 1.5,
            "high_freq": 2.5,
        },
        {"name": "t5", "buckets": 8, "max_distance": 12},
    ],
    "attention": [
        {"name": "gqa", "kv_heads": 4, "qk_norm": True},
        {"name": "gqa", "qk_norm": True},
        {"name": "gqa", "qkv_bias": False, "window": 5, "softcap": 0.5},
        {"name": "mha", "qk_norm": True, "window": 5},
        {"name": "mha", "qkv_bias": False},
        {"name": "mqa", "qk_norm": True, "qkv_bias": False, "softcap": 0.5},
        {"name": "mqa", "window": 5},
        {"name": "gqa", "repeat": True},
        {"name": "mqa", "repeat": True},
        {"name": "mha", "softcap": 0.5},
        {"name": "mla", "latent": 12, "rope_dim": 2},
        {"name": "mla", "window": 5, "softcap": 0.5},
        {"name": "gated_delta", "key_dim": 12, "value_dim": 8, "conv": 1},
        {"name": "mamba2", "state": 6, "expand": 2, "groups": 2},
        {"name": "mamba2", "value_dim": 16, "conv": 2, "conv_bias": False},
    ],
    "feedforward": [
        {"name": "gelu", "approximate": "tanh"},
        {"name": "glu", "gate_reads": "hidden"},
        *({"name": name, "width": 40} for name in ("linear", "relu", "relu2", "gelu", "silu")),
        *({"name": name, "width": 40} for name in GATED),
        *({"name": name, "multiple_of": 7, "multiplier": 1.3} for name in GATED),
        {"name": "moe", "experts": 3, "top_k": 1, "width": 12, "inner": "relu"},
        {"name": "moe", "experts": 4, "shared": 1, "scoring": "sigmoid", "balance": "bias"},
        {"name": "moe", "experts": 5, "top_k": 3, "balance_weight": 0.1, "balance_rate": 0.1},
        {"name": "moe", "experts": 6, "capacity": 1.5},
    ],
    "block": [{"name": "pre", "residual": 0.5}],
}
#: Options that change what a forward pass costs, and not what it computes.
ONLY_COST = ("repeat",)


def covering(slots):
    """Return combinations in which every pair of components of two slots meets at least once."""
    pairs = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(slots, 2)
        for x in slots[a]
        for y in slots[b]
    }
    found = []
    while pairs:
        row = dict(sorted(min(pairs, key=sorted)))
        for slot in slots:
            if slot not in row:
                row[slot] = max(
                    slots[slot],
                    key=lambda name, slot=slot: sum(
                        frozenset([(slot, name), item]) in pairs for item in row.items()
                    ),
                )
        pairs -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
        found.append({slot: row[slot] for slot in slots})
    return found


def _unique(combinations):
    return list({name_of(c): c for c in combinations}.values())


def name_of(value):
    if isinstance(value, dict) and "name" in value:
        return ".".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value.values())
    return "-".join(map(name_of, value.values())) if isinstance(value, dict) else str(value)


COMPONENTS = [(slot, name) for slot in SLOTS for name in REGISTRIES[slot]]
#: Every component and every option once, on a Llama: enough where a law is about one alone.
ALONE = _unique(
    [LLAMA]
    + [LLAMA | {slot: name} for slot, name in COMPONENTS]
    + [LLAMA | {slot: entry} for slot, entries in OPTIONS.items() for entry in entries]
)
#: Every pair of components of two slots, and every option: for laws about a whole model.
COMBINATIONS = _unique(covering({slot: list(REGISTRIES[slot]) for slot in SLOTS}) + ALONE)
#: All of the 240 that were promised: built and counted, since nothing but pairs goes wrong alone.
PRODUCT = _unique(
    dict(zip(PROMISED, names, strict=True)) for names in itertools.product(*PROMISED.values())
)


def model_of(combination, seed=0, **sizes):
    model = init_weights(build(make_spec(**combination, **sizes)), seed)
    model.kernel = "math"
    return model


def every_parameter_learns_and_the_loss_falls(model):
    # Two steps, because an exact zero in one (an unused bias, an expert of no token) may be chance.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    first, learned = None, set()
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(TOKENS[:, :-1])
        assert logits.shape == (2, 23, SMALL["vocab"])
        assert logits.dtype == torch.float32
        loss = F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        first = loss.item() if first is None else first
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None and _scheme_without_attention(model, name):
                continue
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), name
            if parameter.grad.abs().max() > 0:
                learned.add(name)
        optimizer.step()
    for name, _ in model.named_parameters():
        # Softmax does not see what is added to all its scores: k's bias may rest at zero.
        assert name in learned or name.endswith("attn.k.bias"), f"{name} never learns"
    assert torch.isfinite(loss)
    assert loss.item() < first


def _scheme_without_attention(model, name):
    """Whether this is a scheme that biases scores, in a model whose mixers have no scores."""
    scores = any(isinstance(block.attn, Attention) for block in model.blocks)
    return name.startswith("position.") and not scores


@torch.no_grad()
def cached_equals_full(model):
    assert (broken := laws.cached_equals_full(model, TOKENS, close=1e-5)) is None, broken


@torch.no_grad()
def padding_changes_nothing(model):
    """A sequence padded on the left, beside a longer one, gets the logits it gets alone."""
    pad = torch.tensor([0, 5])
    batch = torch.stack([TOKENS[0], torch.cat([torch.zeros(5, dtype=torch.long), TOKENS[1, :19]])])
    alone = model(TOKENS[1:, :19])[0]
    torch.testing.assert_close(model(batch, pad_B=pad)[1, 5:], alone, rtol=1e-5, atol=1e-5)
    cache = model.new_state(batch=2, capacity=24)
    pieces = [model(batch[:, :9], cache, pad_B=pad)]
    pieces += [model(batch[:, t : t + 1], cache, pad_B=pad) for t in range(9, 24)]
    torch.testing.assert_close(torch.cat(pieces, 1)[1, 5:], alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def no_token_sees_the_future_and_each_sees_its_past(model):
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % SMALL["vocab"]
    before, after = model(TOKENS), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    # With a window a change travels that far a layer, and no further.
    window = getattr(model.blocks[0].attn, "window", None) or 24
    reached = min(24, 12 + (window - 1) * SMALL["layers"] + 1)
    assert (before[:, 12:reached] - after[:, 12:reached]).abs().amax((0, 2)).min() > 0
    assert torch.equal(before[:, reached:], after[:, reached:])


@torch.no_grad()
def both_kernels_compute_the_same(model):
    spelled_out = model(TOKENS)
    model.kernel = "fused"
    torch.testing.assert_close(model(TOKENS), spelled_out, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def looking_changes_nothing_and_shows_probabilities(model):
    maps = []
    torch.testing.assert_close(model(TOKENS, maps=maps), model(TOKENS), rtol=1e-5, atol=1e-5)
    assert len(maps) == sum(isinstance(block.attn, Attention) for block in model.blocks)
    for seen in maps:
        assert seen.weights.shape == (2, SMALL["heads"], 24, 24)
        torch.testing.assert_close(seen.weights.sum(-1), torch.ones(2, SMALL["heads"], 24))
        assert seen.weights.triu(1).abs().max() == 0
        assert seen.masked.isneginf().equal(seen.weights == 0)


def counts_equal_the_built_model(spec):
    model = build(spec)
    counts = count(spec)
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    outside = [model.embedding, model.position, model.head]
    tables = sum(p.numel() for part in outside for p in part.parameters())
    assert counts.non_embedding == counts.parameters - tables
    assert counts.flops_per_token == model.flops()


#: What each attention keeps of a token in one layer, in numbers; head_dim is 8, 4 query heads.
KEPT = {"mha": 2 * 4 * 8, "gqa": 2 * 2 * 8, "mqa": 2 * 1 * 8, "mla": 4 * 8 + 4}
#: What each recurrence keeps in one layer at any length: of its matrices, always in float32, heads
#: x key x value, and of its convolution 3 tokens x channels.
MATRICES = {"gated_delta": 2 * 8 * 16, "mamba2": 4 * 16 * 8}
TAILS = {"gated_delta": 3 * 2 * (8 + 8 + 16), "mamba2": 3 * (32 + 16 + 16)}


def cache_bytes_equal_the_closed_form(model, attention, dtype):
    """2 (K and V) x layers x kv_heads x head_dim x bytes, for each token of capacity and batch.

    For latents it is latent + rope_dim instead of 2 x kv_heads x head_dim; a recurrence keeps the
    same of any number of tokens.
    """
    cache = model.new_state(batch=3, capacity=10, dtype=dtype)
    per_token = KEPT.get(attention, 0) * SMALL["layers"] * dtype.itemsize
    fixed = 4 * MATRICES.get(attention, 0) + TAILS.get(attention, 0) * dtype.itemsize
    assert cache.nbytes == 3 * (10 * per_token + SMALL["layers"] * fixed) > 0
    if dtype == torch.bfloat16:
        assert count(model.spec).kv_bytes_per_token == per_token


@torch.no_grad()
def shift_invariant(model):
    """Return whether attention gives the same moved by 5 positions, mask and all."""
    attn, scheme = model.blocks[0].attn, model.position
    scheme.reach(24)
    x = model.embedding(TOKENS[:, :9])

    def output(shift):
        ctx = Context(shift, 9, scheme, kernel="math")
        return attn(scheme.embed(x, ctx.pos_T), ctx)

    return torch.allclose(output(0), output(5), atol=1e-4)


def training_touches_no_cache(model):
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    for _ in range(2):
        model(TOKENS).square().mean().backward()
    model.zero_grad()
    after = dict(model.named_buffers())
    grown = {n for n in after if n not in buffers or after[n].shape != buffers[n].shape}
    assert all(torch.equal(after[n], b) for n, b in buffers.items() if n not in grown)
    assert all(n.startswith("position.") for n in grown), "only position tables may grow"
