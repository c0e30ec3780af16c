"""Exact parameters, FLOPs and cache bytes, counted on a model on the meta device."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from torch import nn

from llama_ablate.config.spec import ModelSpec
from llama_ablate.model.decoder import build


@dataclass(frozen=True)
class Part:
    """Parameters, FLOPs and cached numbers of one part of a model, over all layers."""

    name: str
    component: str
    parameters: int
    #: Forward FLOPs per token of its matrix products.
    flops_per_token: int = 0
    #: Numbers (not bytes) that each token adds to the cache.
    cached_per_token: int = 0


@dataclass(frozen=True)
class Counts:
    """Parameters, FLOPs and cache bytes of a spec."""

    parameters: int
    #: Without token embedding, output head and learned position table.
    non_embedding: int
    #: Forward FLOPs per token at the training context, dense scores; training costs three times it.
    flops_per_token: int
    #: Bytes that each token adds to the cache in a 16-bit format.
    kv_bytes_per_token: int

    @property
    def train_flops_per_token(self) -> int:
        """Forward and backward: the backward pass computes two products for each of the forward."""
        return 3 * self.flops_per_token

    def to_dict(self) -> dict[str, int]:
        """Return plain numbers."""
        return asdict(self)


OUTSIDE = ("embedding", "position", "head")  # parts that are not of the blocks


def parts(spec: ModelSpec, context: int | None = None) -> tuple[Part, ...]:
    """Count a spec part by part. Raises ConfigError where its components do not fit its sizes.

    One layer is built and counted `layers` times, which holds because all layers are alike; a test
    compares with the whole model.
    """
    model = build(replace(spec, layers=1), "meta")
    (block,) = model.blocks
    layers, length = spec.layers, context or spec.context
    cached = sum(heads * width for heads, width in block.attn.cached)
    norms = _numel(block) - _numel(block.attn) - _numel(block.ffn)
    return (
        Part("embedding", f"{spec.vocab:,} x {spec.dim:,}", _numel(model.embedding)),
        Part("position", spec.position.name, _numel(model.position)),
        Part(
            "attention",
            f"{layers} x {spec.attention.name}",
            layers * _numel(block.attn),
            layers * block.attn.flops(length),
            layers * cached,
        ),
        Part(
            "feedforward",
            f"{layers} x {spec.feedforward.name}, width {block.ffn.width:,}",
            layers * _numel(block.ffn),
            layers * block.ffn.flops(),
        ),
        Part("norms", f"{layers} x {len(block.norms)} x {spec.norm.name}", layers * norms),
        Part("last norm", spec.norm.name if block.final_norm else "none", _numel(model.norm)),
        Part(
            "head",
            "the embedding, shared" if spec.tie else f"{spec.dim:,} x {spec.vocab:,}",
            0 if spec.tie else _numel(model.head),
            2 * model.head.weight.numel(),
        ),
    )


@lru_cache(maxsize=100_000)
def count(spec: ModelSpec) -> Counts:
    """Count a spec as a whole. Raises ConfigError where its components do not fit its sizes."""
    by_part = parts(spec)
    return Counts(
        parameters=sum(part.parameters for part in by_part),
        non_embedding=sum(part.parameters for part in by_part if part.name not in OUTSIDE),
        flops_per_token=sum(part.flops_per_token for part in by_part),
        kv_bytes_per_token=2 * sum(part.cached_per_token for part in by_part),
    )


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
