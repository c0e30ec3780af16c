"""Checks that count exactly: parameters, bytes and products, on the meta device."""

from typing import Any, Literal

import torch

from analysis.claims.checks import CHECKS
from llama_ablate.config import experiment
from llama_ablate.config.experiment import Model
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design.specs import resolve
from llama_ablate.design.summary import resolve_preset
from llama_ablate.model.counts import count, parts
from llama_ablate.model.decoder import REGISTRIES, build, init_weights


def _preset(name: str) -> ModelSpec:
    return resolve_preset(name)[0]


def small(**changes: Any) -> ModelSpec:
    """Return the spec of a small Llama with some keys changed."""
    sizes: dict[str, Any] = {"dim": 32, "layers": 2, "heads": 4, "context": 32, "vocab": 64}
    return resolve(Model.check(sizes | changes), REGISTRIES)


@CHECKS.register("parameters")
def parameters(*, preset: str = "llama2-7b", tie: bool = False) -> float:
    """Return all parameters of a preset."""
    spec = _preset(preset)
    values = experiment.preset(preset).model.model_dump() | {"tie": tie or spec.tie}
    return float(count(resolve(Model.check(values), REGISTRIES)).parameters)


@CHECKS.register("part_parameters")
def part_parameters(*, preset: str = "llama2-7b", part: str = "attention") -> float:
    """Return the parameters of one part of a preset, over all layers."""
    return float({p.name: p.parameters for p in parts(_preset(preset))}[part])


@CHECKS.register("feedforward_share")
def feedforward_share(
    *,
    name: str = "swiglu",
    dim: int = 256,
    width: int = 1024,
    of: Literal["network", "block"] = "network",
) -> float:
    """Return the matrices of a network, or with attention of a block, over ReLU's at 4d."""

    def matrices(entry: Any) -> int:
        spec = small(dim=dim, heads=4, layers=1, feedforward=entry)
        counted = {p.name: p.parameters for p in parts(spec)}
        return counted["feedforward"] + (counted["attention"] if of == "block" else 0)

    return matrices({"name": name, "width": width}) / matrices({"name": "relu", "width": 4 * dim})


@CHECKS.register("llama_width")
def llama_width(*, dim: int = 128, multiple_of: int = 256) -> float:
    """Return the feed-forward width that Meta's rule gives."""
    from llama_ablate.model.feedforward import llama_width as rule

    return float(rule(dim, multiple_of))


@CHECKS.register("norm_parameters")
def norm_parameters(*, norm: str = "rmsnorm", dim: int = 256) -> float:
    """Return the parameters of one norm over its width; LayerNorm with its bias."""
    module = REGISTRIES["norm"].build(REGISTRIES["norm"].resolve(norm), dim=dim, bias=True)
    return float(sum(p.numel() for p in module.parameters()) / dim)


@CHECKS.register("position_parameters")
def position_parameters(*, position: str = "rope") -> float:
    """Return how many parameters a position scheme adds to a model."""
    return float(
        count(small(position=position)).parameters - count(small(position="none")).parameters
    )


@CHECKS.register("cache_bytes")
def cache_bytes(
    *,
    preset: str = "llama2-7b",
    attention: str = "",
    kv_heads: int | None = None,
    batch: int = 1,
    context: int = 4096,
    bytes_each: Literal[1, 2, 4] = 2,
) -> float:
    """Return the bytes of a preset's cache, of its live tensors (on the meta device)."""
    values = experiment.preset(preset).model.model_dump()
    if attention:
        heads = {} if kv_heads is None else {"kv_heads": kv_heads}
        values["attention"] = {"name": attention, **heads}
    model = build(resolve(Model.check(values), REGISTRIES), "meta")
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32}[bytes_each]
    return float(model.new_state(batch, context, dtype).nbytes)


@CHECKS.register("cache_saved")
def cache_saved(*, preset: str = "llama2-70b", batch: int = 1, context: int = 4096) -> float:
    """Return the bytes that a preset's grouped heads save of a cache with all heads."""
    full = cache_bytes(preset=preset, attention="mha", batch=batch, context=context)
    return full - cache_bytes(preset=preset, batch=batch, context=context)


@CHECKS.register("cached_heads")
def cached_heads(*, kv_heads: int = 2) -> float:
    """Return how many heads the cache of a grouped attention holds: copies would show."""
    model = build(small(attention={"name": "gqa", "kv_heads": kv_heads}), "meta")
    return float(model.new_state(1, 8).layers[0].tensors[0].shape[1])


@CHECKS.register("grouped_share")
def grouped_share(
    *,
    dim: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    of: Literal["kv_projections", "projections", "scores", "cache"] = "scores",
) -> float:
    """Return what grouped attention costs over what attention with all heads does."""

    def cost(entry: Any) -> int:
        spec = resolve(
            Model.check({"dim": dim, "heads": heads, "layers": 1, "attention": entry}), REGISTRIES
        )
        attn = build(spec, "meta").blocks[0].attn
        if of == "cache":
            return int(sum(h * width for h, width in attn.cached))
        if of == "kv_projections":
            return int(attn.k.weight.numel() + attn.v.weight.numel())
        products = sum(p.numel() for p in attn.parameters() if p.dim() == 2)
        return int(attn.flops(1024)) - 2 * products if of == "scores" else int(products)

    return cost({"name": "gqa", "kv_heads": kv_heads}) / cost("mha")


@CHECKS.register("kv_computations")
def kv_computations(
    *, prompt: int = 1, new: int = 100, what: Literal["ratio", "total", "mean", "first"] = "ratio"
) -> float:
    """Return how often keys and values are computed without a cache, counted while decoding.

    `ratio` is over the count with a cache, `total` the count itself, `mean` that of each token
    beyond its first, `first` that of the first token.
    """
    model = init_weights(build(small(context=prompt + new)), 0)
    seen = [0] * (prompt + new)

    def counted(_module: Any, inputs: tuple[torch.Tensor, ...], _out: Any) -> None:
        for position in range(inputs[0].shape[1]):
            seen[position] += 1

    hook = model.blocks[0].attn.register_forward_hook(counted)
    tokens = torch.zeros(1, prompt + new, dtype=torch.long)
    with torch.inference_mode():
        for step in range(new):
            model(tokens[:, : prompt + step])
    hook.remove()
    needed = prompt + new - 1  # with a cache each token but the last is computed once
    again = [times - 1 for times in seen[:needed]]
    answers = {
        "ratio": sum(seen) / needed,
        "total": float(sum(seen)),
        "mean": sum(again) / len(again),
        "first": float(again[0]),
    }
    return answers[what]
