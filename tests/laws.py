"""What laws are checked of: all that the registries offer; and laws beside those of the package."""

import itertools
from dataclasses import replace
from typing import ClassVar

import torch

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import SLOTS
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.linear import Embedding, Linear
from llama_ablate.model.mixers.attention import Attention
from llama_ablate.training.optimizers import make_optimizer

from .conftest import LLAMA, SMALL, make_spec

TOKENS = torch.randint(0, SMALL["vocab"], (2, 24), generator=torch.Generator().manual_seed(1))
GATED = ("glu", "bilinear", "reglu", "geglu", "swiglu")
BLOCKS = ("pre", "post", "reordered", "sandwich", "parallel", "parallel-two-norms")
UNGATED = ("linear", "relu", "relu2", "gelu", "silu")
LONGER = {"name": "rope", "factor": 8.0, "original_context": 16}
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
        LONGER | {"scaling": "llama3", "low_freq": 1.5, "high_freq": 2.5},
        LONGER | {"scaling": "yarn", "beta_slow": 0.5, "beta_fast": 2.0, "truncate": False},
        {"name": "t5", "buckets": 8, "max_distance": 12},
    ],
    "attention": [
        {"name": "gqa", "kv_heads": 4, "qk_norm": True},
        {"name": "gqa", "qk_norm": "joined"},
        {"name": "gqa", "qkv_bias": False, "window": 5, "softcap": 0.5},
        {"name": "mha", "qk_norm": True, "window": 5},
        {"name": "mqa", "qk_norm": True, "qkv_bias": False, "softcap": 0.5},
        {"name": "mqa", "window": 5},
        {"name": "mha", "qkv_bias": False, "softcap": 0.5},
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


def model_of(combination, seed=0, **sizes):
    model = new_model(make_spec(**combination, **sizes), seed)
    model.kernel = "math"
    return model


#: Tolerances of laws that this package's components obey more closely than a plug-in must.
STRICT = {
    "batch_apart": {"close": 1e-5},
    "cached_equals_full": {"close": 1e-5},
    "padding_changes_nothing": {"close": 1e-5},
    "documents_apart": {"close": 1e-9},
    "counted_flops": {"within": 0},
}

#: What a law needs of a model. Weights near zero learn too little in a step or two.
CHANGES = {
    "documents_apart": {"separator": 7, "init_std": 32**-0.5},
    "drops_sublayers": {"dropout": 0.1},
    "every_parameter_learns": {"init_std": 32**-0.5},
}


@torch.no_grad()
def obeys(model, law):
    """Check a law of `llama_ablate.model.laws`, as `check` does for plug-ins."""
    model = model.double() if law == "documents_apart" else model
    given = TOKENS.to(model.embedding.weight.device)
    assert (broken := getattr(laws, law)(model, given, **STRICT.get(law, {}))) is None, broken


@torch.no_grad()
def each_token_sees_its_past(model):
    """Check that logits change as far behind a token as windows reach; `causal` looks before it."""
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % SMALL["vocab"]
    windows = [getattr(block.attn, "window", None) or 24 for block in model.blocks]
    reached = min(24, 12 + sum(window - 1 for window in windows) + 1)
    moved = (model(TOKENS) - model(changed))[:, 12:reached].abs().amax((0, 2))
    assert moved.all(), f"token 12 is not seen from {(moved == 0).nonzero().flatten() + 12}"


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
