"""Checks of identities of rotations, gates, attention and masks: each returns an error."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.claims.checks import CHECKS
from analysis.claims.counts import small
from llama_ablate.model.decoder import REGISTRIES, Decoder, build, init_weights

Dtype = Literal["float64", "float32", "bfloat16"]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _model(seed: int = 0, **changes: Any) -> Decoder:
    # Weights ten times the usual: a small model's differences are then well above rounding.
    model = init_weights(build(small(**{"init_std": 0.2, **changes})), seed)
    return model.double().eval()


def _tokens(length: int = 16) -> Tensor:
    return torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(1))


def _rotation(theta: float = 1e4, width: int = 64) -> Any:
    registry = REGISTRIES["position"]
    return registry.build(registry.resolve({"name": "rope", "theta": theta}), head_dim=width)


def _turned(q: Tensor, k: Tensor, at: Tensor, dtype: Dtype, theta: float = 1e4) -> Any:
    rope = _rotation(theta, q.shape[-1])
    rope.reach(int(at.max()) + 1)
    kind = getattr(torch, dtype)
    return rope.rotate(q.to(kind), k.to(kind), at)


@CHECKS.register("rope_length_error")
def rope_length_error(*, dtype: Dtype = "float32") -> float:
    """Return how far a rotation changes the length of a vector, relatively."""
    q = drawn(1, 1, 512, 64)
    turned, _ = _turned(q, q, torch.arange(512), dtype)
    before = q.to(turned.dtype).double().norm(dim=-1)
    return float(((turned.double().norm(dim=-1) - before) / before).abs().max())


@CHECKS.register("rope_shift_error")
def rope_shift_error(*, offset: int = 1000, dtype: Dtype = "float32") -> float:
    """Return how far scores move where both positions do, over the scores' root mean square."""
    q, k = drawn(1, 1, 64, 64), drawn(1, 1, 64, 64, seed=1)

    def scores(start: int) -> Tensor:
        turned_q, turned_k = _turned(q, k, torch.arange(64) + start, dtype)
        return torch.as_tensor(turned_q.double() @ turned_k.double().transpose(-1, -2))

    first = scores(0)
    return float((scores(offset) - first).abs().max() / first.pow(2).mean().sqrt())


@CHECKS.register("sinusoidal_shift_error")
def sinusoidal_shift_error(*, offset: int = 8) -> float:
    """Return the same of sinusoidal positions, added before queries and keys are module."""
    registry = REGISTRIES["position"]
    module = registry.build(registry.resolve("sinusoidal"), dim=64)
    x, w = drawn(1, 16, 64), drawn(64, 64, seed=1) / 8

    def scores(start: int) -> Tensor:
        h = module.embed(x.float(), torch.arange(16) + start).double()
        return torch.as_tensor((h @ w) @ h.transpose(-1, -2))

    first = scores(0)
    return float((scores(offset) - first).abs().max() / first.pow(2).mean().sqrt())


@CHECKS.register("rope_decay")
def rope_decay(*, distance: int = 100, width: int = 128, theta: float = 1e4) -> float:
    """Return the mean cosine of all pairs' angles at a distance: what two equal vectors score."""
    return float(torch.cos(distance * _rotation(theta, width).frequencies()).mean())


@CHECKS.register("rope_rises")
def rope_rises(*, upto: int = 2048, width: int = 128) -> float:
    """Return at how many of the first distances that mean rises: a decay would never."""
    distances = torch.arange(upto + 1, dtype=torch.float64)[:, None]
    means = torch.cos(distances * _rotation(1e4, width).frequencies()).mean(-1)
    return float((means.diff() > 0).sum())


@CHECKS.register("rope_rate_ratio")
def rope_rate_ratio(*, pair: int = 1, theta: float = 5e5, over: float = 1e4) -> float:
    """Return how fast a pair turns with one base over how fast with another."""
    return float(_rotation(theta).frequencies()[pair] / _rotation(over).frequencies()[pair])


@CHECKS.register("rope_rate")
def rope_rate(*, pair: int = 1, theta: float = 5e5, width: int = 128) -> float:
    """Return the angle in radians that a pair turns a position."""
    return float(_rotation(theta, width).frequencies()[pair])


@CHECKS.register("position_added")
def position_added(*, position: str = "rope") -> float:
    """Return how far a position scheme changes what enters the first block."""
    model = _model(position=position)
    x = model.embedding(_tokens()).detach()
    moved = model.position.embed(x, torch.arange(16)).detach() - x
    return float(moved.abs().max())


@CHECKS.register("values_turned")
def values_turned() -> float:
    """Return how far the value of a token in the cache depends on where it stands, under RoPE."""
    model, token = _model(), _tokens(1)
    caches = [model.new_state(1, 8, torch.float64) for _ in range(2)]
    with torch.inference_mode():
        model(token, caches[0])
        model(token.repeat(1, 4), caches[1])
    values = [cache.layers[0].tensors[1] for cache in caches]
    return float((values[1][:, :, 3] - values[0][:, :, 0]).abs().max())


@CHECKS.register("grouped_is_full")
def grouped_is_full(*, kv_heads: int = 4) -> float:
    """Return how far grouped attention is from full attention with its keys and values repeated."""
    grouped = _model(attention={"name": "gqa", "kv_heads": kv_heads})
    full = _model(attention="mha")
    state = grouped.state_dict()
    for name in [n for n in state if n.endswith(("attn.k.weight", "attn.v.weight"))]:
        heads = state[name].view(kv_heads, 8, -1)
        state[name] = heads.repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    with torch.no_grad():
        return float((full(_tokens()) - grouped(_tokens())).abs().max())


@CHECKS.register("future_seen")
def future_seen() -> float:
    """Return the largest gradient of any token's logits with respect to a later token."""
    model, tokens = _model(), _tokens(8)
    kept: list[Tensor] = []
    hook = model.embedding.register_forward_hook(
        lambda _module, _inputs, output: kept.append(output)
    )
    logits = model(tokens)
    hook.remove()
    worst = 0.0
    for position in range(7):
        (gradient,) = torch.autograd.grad(logits[0, position].sum(), kept[0], retain_graph=True)
        worst = max(worst, float(gradient[0, position + 1 :].abs().max()))
    return worst


@CHECKS.register("cache_error")
def cache_error(*, prompt: int = 5) -> float:
    """Return how far decoding with a cache is from one pass over everything."""
    model, tokens = _model(), _tokens()
    with torch.inference_mode():
        cache = model.new_state(1, 16, torch.float64)
        parts = [model(tokens[:, :prompt], cache)]
        parts += [model(tokens[:, i : i + 1], cache) for i in range(prompt, 16)]
        return float((torch.cat(parts, 1) - model(tokens)).abs().max())


@CHECKS.register("order_seen")
def order_seen(*, layers: int = 1, position: str = "none") -> float:
    """Return how far the last token's logits move where the tokens before it change places."""
    model, tokens = _model(layers=layers, position=position), _tokens()
    swapped = torch.cat([tokens[:, :15].flip(1), tokens[:, 15:]], 1)
    with torch.no_grad():
        return float((model(swapped)[:, -1] - model(tokens)[:, -1]).abs().max())


@CHECKS.register("kernels_apart")
def kernels_apart() -> float:
    """Return how far torch's fused attention is from the written-out one, in float32."""
    model, tokens = _model().float(), _tokens()
    with torch.no_grad():
        model.kernel = "fused"
        fused = model(tokens)
        model.kernel = "math"
        return float((model(tokens) - fused).abs().max())


@CHECKS.register("attention_rows")
def attention_rows() -> float:
    """Return how far a row of attention weights is from summing to one."""
    model = _model()
    maps: list[Any] = []
    with torch.no_grad():
        model(_tokens(), maps=maps)
    return float((maps[0].weights.sum(-1) - 1).abs().max())


@CHECKS.register("glu_error")
def glu_error(*, form: Literal["primer", "paper"] = "primer") -> float:
    """Return how far a GLU is from a form: x sigmoid(Wx), or sigmoid(Wx) (Vx)."""
    registry = REGISTRIES["feedforward"]
    module = registry.build(registry.resolve({"name": "glu", "width": 32}), dim=32, bias=False)
    for i, parameter in enumerate(module.parameters()):
        parameter.data = drawn(*parameter.shape, seed=i).float() / 6
    x = drawn(10, 32).float()
    gate = torch.sigmoid(module.gate(x))
    inner = x * gate if form == "primer" else module.up(x) * gate
    with torch.no_grad():
        return float((module(x) - module.down(inner)).abs().max())


@CHECKS.register("gelu_minus_silu")
def gelu_minus_silu() -> float:
    """Return the largest distance of GELU from SiLU on a fine grid."""
    x = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    return float((F.gelu(x) - F.silu(x)).abs().max())


@CHECKS.register("relu_silent")
def relu_silent(*, activation: Literal["relu", "silu", "gelu"] = "relu") -> float:
    """Return the share of negative inputs that an activation gives no gradient for."""
    x = torch.linspace(-4, -1e-3, 10_001, dtype=torch.float64, requires_grad=True)
    getattr(F, activation)(x).sum().backward()
    assert x.grad is not None
    return float((x.grad == 0).double().mean())
