"""Exact sizes and costs of a recipe, counted on a model that is built without memory."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from torch import nn

from llama_ablate.model.decoder import build
from llama_ablate.spec import ModelSpec


@dataclass(frozen=True)
class Counts:
    """What a recipe weighs and costs."""

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


@lru_cache(maxsize=100_000)
def count(spec: ModelSpec) -> Counts:
    """Count a recipe exactly. Raises ConfigError where its components do not fit its sizes.

    One layer is built and counted `layers` times, which holds because all layers are alike; a test
    compares with the whole model.
    """
    model = build(replace(spec, layers=1), "meta")
    (block,) = model.blocks
    total = _numel(model) + (spec.layers - 1) * _numel(block)
    embedding = _numel(model.embedding) + _numel(model.position)
    head = 0 if spec.tie else _numel(model.head)
    head_flops = 2 * model.head.weight.numel()
    cached = sum(heads * width for heads, width in block.attn.cached)
    return Counts(
        parameters=total,
        non_embedding=total - embedding - head,
        flops_per_token=head_flops + spec.layers * (model.flops() - head_flops),
        kv_bytes_per_token=2 * spec.layers * cached,
    )


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
