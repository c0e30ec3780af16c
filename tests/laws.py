"""The laws that every model obeys, as functions that raise AssertionError where one is broken.

`test_contracts.py` holds all that the registries offer to them; `mutants.py` has faults that they
catch.
"""

import itertools
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import SLOTS, DropoutRates
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build, new_model
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.linear import Embedding, Linear
from llama_ablate.model.mixers.attention import Attention
from llama_ablate.training.compute import Compute
from llama_ablate.training.loop import train
from llama_ablate.training.optimizers import make_optimizer

from .conftest import LLAMA, SMALL, make_spec

TOKENS = torch.randint(0, SMALL["vocab"], (2, 24), generator=torch.Generator().manual_seed(1))
GATED = ("glu", "bilinear", "reglu", "geglu", "swiglu")
BLOCKS = ("pre", "post", "reordered", "sandwich", "parallel", "parallel-two-norms")
UNGATED = ("linear", "relu", "relu2", "gelu", "silu")
#: Every option of every component, once with another value than its default.
OPTIONS = {
    "norm": [
        {"name": "layernorm", "eps": 1e-2},
        {"name": "layernorm", "unbiased": True},
        {"name": "rmsnorm", "eps": 1e-2},
        {"name": "rmsnorm", "gain": False},
        {"name": "dyt", "slope": 0.9},
        {"name": "derf", "slope": 0.9},
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
        {
            "name": "rope",
            "scaling": "yarn",
            "factor": 8.0,
            "original_context": 16,
            "beta_slow": 0.5,
            "beta_fast": 2.0,
            "truncate": False,
        },
        {"name": "t5", "buckets": 8, "max_distance": 12},
    ],
    "attention": [
        {"name": "gqa", "kv_heads": 4, "qk_norm": True},
        {"name": "gqa", "qk_norm": True},
        {"name": "gqa", "qk_norm": "joined"},
        {"name": "gqa", "qkv_bias": False, "window": 5, "softcap": 0.5},
        {"name": "mha", "qk_norm": True, "window": 5},
        {"name": "mha", "qkv_bias": False},
        {"name": "mqa", "qk_norm": True, "qkv_bias": False, "softcap": 0.5},
        {"name": "mqa", "window": 5},
        {"name": "mha", "softcap": 0.5},
        {"name": "mla", "latent": 12, "rope_dim": 2},
        {"name": "mla", "window": 5, "softcap": 0.5},
        {"name": "mla", "qk_norm": True, "window": 5},
        {"name": "mla", "qkv_bias": False},
        {"name": "mha", "gate": "head"},
        {"name": "mha", "gate": "element", "exclusive": True, "sinks": True},
        {"name": "mha", "canon": "AB", "value_residual": True},
        {"name": "gqa", "gate": "element", "sinks": True, "window": 5},
        {"name": "gqa", "exclusive": True, "canon": "B", "value_residual": True},
        {"name": "mqa", "gate": "head", "exclusive": True, "sinks": True, "softcap": 0.5},
        {"name": "mqa", "canon": "A", "value_residual": True},
        {"name": "mla", "gate": "head", "exclusive": True, "sinks": True, "canon": "A"},
        {"name": "mla", "exclusive": True, "qk_norm": True},
        {"name": "differential", "kv_heads": 2, "qk_norm": True, "qkv_bias": False, "window": 5},
        {"name": "differential", "gate": "head", "exclusive": True, "sinks": True, "softcap": 0.5},
        {"name": "differential", "canon": "AB", "value_residual": True},
        {"name": "gated_delta", "key_dim": 12, "value_dim": 8, "conv": 1},
        {"name": "gated_delta", "conv": 0},
    ],
    "feedforward": [
        *({"name": name, "approximate": "tanh"} for name in ("gelu", "geglu")),
        {"name": "glu", "gate_reads": "hidden"},
        *({"name": name, "width": 40, "canon": "CD"} for name in UNGATED),
        *({"name": name, "width": 40, "canon": "D"} for name in GATED),
        *({"name": name, "multiple_of": 7, "multiplier": 1.3} for name in GATED),
        {"name": "moe", "experts": 3, "top_k": 1, "width": 12, "inner": "relu"},
        {"name": "moe", "experts": 4, "shared": 1, "scoring": "sigmoid", "balance": "bias"},
        {"name": "moe", "experts": 5, "top_k": 3, "balance_weight": 0.1, "balance_rate": 0.1},
        {"name": "moe", "experts": 6, "capacity": 1.5},
    ],
    "block": [
        {"name": "pre", "residual": 0.5},
        *({"name": name, "x0": True} for name in BLOCKS),
    ],
}


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


def named(spec):
    """Say what a model is made of, slot by slot."""
    return ", ".join(f"{slot} {getattr(spec, slot)}" for slot in SLOTS)


def model_of(combination, seed=0, **sizes):
    model = new_model(make_spec(**combination, **sizes), seed)
    model.kernel = "math"
    return model


def every_parameter_learns_and_the_loss_falls(model):
    # Two steps, because an exact zero in one (an unused bias, an expert of no token) may be chance.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scores = any(isinstance(block.attn, Attention) for block in model.blocks)
    # Where there are no scores, a scheme that biases them has no part in anything.
    named = {n: p for n, p in model.named_parameters() if scores or not n.startswith("position")}
    first, learned = None, set()
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(TOKENS[:, :-1])
        assert logits.shape == (2, 23, SMALL["vocab"])
        assert logits.dtype == torch.float32
        loss = F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        first = loss.item() if first is None else first
        loss.backward()
        for name, parameter in named.items():
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), name
            if parameter.grad.abs().max() > 0:
                learned.add(name)
        optimizer.step()
    # Softmax does not see what is added to all its scores: k's bias may rest at zero.
    never = [n for n in named if n not in learned and not n.endswith("attn.k.bias")]
    assert not never, f"{never[0]} never learns"
    assert torch.isfinite(loss)
    assert loss.item() < first


def obeys(model, law, **options):
    """Hold a model to a law of `llama_ablate.model.laws`, which plug-ins are held to as well."""
    with torch.no_grad():
        assert (broken := getattr(laws, law)(model, TOKENS, **options)) is None, broken


def cached_equals_full(model):
    obeys(model, "cached_equals_full", close=1e-5)


def padding_changes_nothing(model):
    obeys(model, "padding_changes_nothing", close=1e-5)


def documents_apart(model):
    obeys(model.double(), "documents_apart", close=1e-9)


def counted_bytes(model):
    obeys(model, "counted_bytes")


@torch.no_grad()
def no_token_sees_the_future_and_each_sees_its_past(model):
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % SMALL["vocab"]
    obeys(model, "causal")
    before, after = model(TOKENS), model(changed)
    wrong = f"breaks the law of causality, of a model of {named(model.spec)}"
    windows = [getattr(block.attn, "window", None) or 24 for block in model.blocks]
    reached = min(24, 12 + sum(window - 1 for window in windows) + 1)
    moved = (before[:, 12:reached] - after[:, 12:reached]).abs().amax((0, 2))
    unseen = [12 + i for i, change in enumerate(moved.tolist()) if not change]
    assert not unseen, f"token 12 is not seen from {unseen} in float32, and it is before: {wrong}"


@torch.no_grad()
def both_kernels_compute_the_same(model):
    spelled_out = model(TOKENS)
    model.kernel = "fused"
    torch.testing.assert_close(model(TOKENS), spelled_out, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def looking_changes_nothing_and_shows_probabilities(model):
    maps = []
    torch.testing.assert_close(model(TOKENS, maps=maps), model(TOKENS), rtol=1e-5, atol=1e-5)
    attentions = [b.attn for b in model.blocks if isinstance(b.attn, Attention)]
    for seen, attn in zip(maps, attentions, strict=True):
        heads = SMALL["heads"] * getattr(attn, "maps", 1)
        assert seen.weights.shape == (2, heads, 24, 24)
        sums = seen.weights.sum(-1)
        if getattr(attn, "sinks", None) is None:
            torch.testing.assert_close(sums, torch.ones(2, heads, 24))
        assert (sums < 1 + 1e-5).all()
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
KEPT = {
    "mha": 2 * 4 * 8,
    "gqa": 2 * 2 * 8,
    "mqa": 2 * 1 * 8,
    "differential": 2 * 4 * 8,
    "mla": 4 * 8 + 4,
}
#: What each recurrence keeps in one layer at any length: of its matrices, always in float32, heads
#: x key x value, and of its convolution 3 tokens x channels.
MATRICES = {"gated_delta": 2 * 8 * 16}
TAILS = {"gated_delta": 3 * 2 * (8 + 8 + 16)}


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
    scheme.prepare(24)
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


@torch.no_grad()
def each_layer_computes_what_it_does_alone(model):
    """In a model whose layers differ, each has the mask, the scheme and the parts of its own.

    What enters a layer is given to a model of that layer alone.
    """
    spec, seen = model.spec, []
    hooks = [
        block.register_forward_hook(lambda _block, inputs, out: seen.append((inputs[0], out)))
        for block in model.blocks
    ]
    model(TOKENS)
    for hook in hooks:
        hook.remove()
    for layer, (entered, left) in enumerate(seen):
        slots = {slot: getattr(spec, slot).choices for slot in SLOTS}
        own = {slot: choices[layer % len(choices)] for slot, choices in slots.items()}
        wrong = f"layer {layer} is not what the pattern says: {', '.join(map(str, own.values()))}"
        alone, scheme = Decoder(replace(spec, layers=1, **own)), model.schemes[layer]
        for one, other in (
            (alone.blocks[0], model.blocks[layer]),
            (alone.position, getattr(model, scheme)),
        ):
            kinds = [[type(part) for part in both.modules()] for both in (one, other)]
            assert kinds[0] == kinds[1], wrong
            one.load_state_dict(other.state_dict())
        alone.position.prepare(TOKENS.shape[1])
        ctx = Context(0, TOKENS.shape[1], alone.position, kernel="math")
        torch.testing.assert_close(alone.blocks[0](entered, ctx), left, msg=wrong)


def initial_values_are_those_declared(spec):
    """Under every rule of `model.init`, what waits for no rule is what its constructor gives."""
    for rule in INITS:
        ruled = replace(spec, init=INITS.resolve(rule))
        model, constructed = new_model(ruled, 3), Decoder(ruled, 3)
        for name, parameter in model.named_parameters():
            path, _, part = name.rpartition(".")
            module = model.get_submodule(path)
            waits = isinstance(module, Linear | Embedding) and module.start is None
            assert parameter.isfinite().all(), f"{rule} leaves {name} unfilled"
            if not (waits and part in ("weight", "bias")):
                same = torch.equal(parameter, constructed.get_parameter(name))
                assert same, f"{rule} overwrites {name}"


@torch.no_grad()
def only_what_is_declared_decays(model, optimizer="adamw"):
    """Where every gradient is zero, a step shrinks the matrices that no module exempts."""
    config = Train.check({"steps": 1, "lr": 1e-2, "weight_decay": 0.5, "optimizer": optimizer})
    stepped = make_optimizer(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    stepped.step()
    for name, parameter in model.named_parameters():
        path, _, part = name.rpartition(".")
        exempt = part in getattr(model.get_submodule(path), "no_weight_decay", ())
        left = 1.0 if parameter.dim() < 2 or exempt else 1 - 1e-2 * 0.5
        wrong = f"{name} {'decays' if left == 1 else 'does not decay as the others do'}"
        torch.testing.assert_close(parameter, left * before[name], msg=wrong)
    model.zero_grad()


class Recording(Dropout):
    """Dropout that keeps the masks that it is asked for."""

    masks: ClassVar[dict] = {}

    def mask(self, place, shape, like):
        """Return the mask of a place, for which nothing else may ask."""
        drawn = super().mask(place, shape, like)
        assert place not in self.masks, f"'{place}' is dropped twice: both share a mask"
        self.masks[place] = None if drawn is None else drawn[0]
        return drawn


def dropout_masks(model, tokens, dropout):
    """Return the masks of a forward pass, by place."""
    Recording.masks.clear()
    model(tokens, dropout=Recording(**vars(dropout)))
    return dict(Recording.masks)


@torch.no_grad()
def no_two_places_share_a_dropout_mask(model):
    """Each place of each layer is dropped once, by a mask of its own."""
    masks = dropout_masks(model, TOKENS, Dropout(DropoutRates.of(0.3), 0, 0, len(TOKENS)))
    layers = range(len(model.blocks))
    places = {"embedding"} | {f"blocks.{i}.{part}" for i in layers for part in ("attn", "ffn")}
    assert places <= set(masks), f"nothing is dropped at {places - set(masks)}"
    for (a, one), (b, other) in itertools.combinations(masks.items(), 2):
        assert one.shape != other.shape or not torch.equal(one, other), f"{a} has the mask of {b}"


def held_out_loss_is_cross_entropy_alone(spec, text, **keys):
    """What a run minimises beside cross-entropy is no part of the held-out loss of its curve."""
    model = new_model(spec, 0)
    config = Train.check({"steps": 2, "batch": 2, "evals": 1, **keys})
    compute = Compute("cpu", 1, "float32", "math")
    done = train(model, text, config, steps=2, seed=0, compute=compute)
    tokens = torch.from_numpy(text.split("validation").astype("int64"))
    nats = []
    for start in range(0, len(tokens) - 1, spec.context):
        window = tokens[start : start + spec.context + 1]
        with torch.no_grad():
            log_TV = model(window[None, :-1])[0].log_softmax(-1)
        nats.append(-log_TV.gather(1, window[1:, None]).double())
    held_out, expected = done.curve[-1]["validation_loss_nats"], torch.cat(nats).mean().item()
    wrong = f"a held-out loss of {held_out:.4f} where cross-entropy is {expected:.4f}"
    assert abs(held_out - expected) < 1e-4, wrong
