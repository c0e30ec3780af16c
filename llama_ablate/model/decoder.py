"""The decoder: the only place that knows all five slots, the positions, the mask and the cache."""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.attention import ATTENTIONS, AttentionContext
from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.cache import KVCache, LayerCache
from llama_ablate.model.feedforward import FEEDFORWARDS
from llama_ablate.model.kernels import Kernel
from llama_ablate.model.linear import Embedding, Linear
from llama_ablate.model.norms import NORMS
from llama_ablate.model.positions import POSITIONS
from llama_ablate.spec import ModelSpec

REGISTRIES = {
    "norm": NORMS,
    "position": POSITIONS,
    "attention": ATTENTIONS,
    "feedforward": FEEDFORWARDS,
    "block": BLOCKS,
}


class Decoder(nn.Module):
    """A decoder-only language model of any combination of components: tokens in, logits out."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.kernel: Kernel = "fused"
        self.embedding = Embedding(spec.vocab, spec.dim)
        # Any, because a slot's interface is a contract that tests hold, not a class to inherit.
        self.position: Any = _part(spec, "position")
        self.blocks: Any = nn.ModuleList(
            BLOCKS.get(spec.block.name)(
                _part(spec, "attention"),
                _part(spec, "feedforward"),
                lambda: _part(spec, "norm"),
                **dict(spec.block.options),
            )
            for _ in range(spec.layers)
        )
        final_norm = BLOCKS.get(spec.block.name).final_norm  # type: ignore[attr-defined]
        self.norm = _part(spec, "norm") if final_norm else nn.Identity()
        self.head = Linear(spec.dim, spec.vocab, bias=False)
        if spec.tie:
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return logits, (B, T, V), of the next token at each position.

        With a cache the tokens continue what it holds, and are added to it: prefill, chunk and
        single-token decoding are this one path. Training passes none. Raises ValueError where
        the tokens do not fit the cache or the position scheme.
        """
        start, new = (cache.length if cache else 0), tokens_BT.shape[1]
        if cache and start + new > cache.capacity:
            raise ValueError(f"{start + new} tokens do not fit a cache of {cache.capacity}")
        self.position.reach(start + new)
        ctx = self._context(start, new, tokens_BT.device)
        x_BTD = self.position.embed(self.embedding(tokens_BT), ctx.pos_T)
        for i, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, ctx, cache.layers[i] if cache else None)
        if cache:
            cache.advance(new)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV

    def _context(self, start: int, new: int, device: torch.device) -> AttentionContext:
        pos_S = torch.arange(start + new, device=device)
        pos_T = pos_S[start:]
        mask = self.position.bias(pos_T, pos_S)
        causal = mask is None and start == 0 and new > 1
        if new > 1:
            hidden_TS = pos_T[:, None] < pos_S[None, :]
            triangle_TS = torch.zeros(hidden_TS.shape, device=device)
            triangle_TS.masked_fill_(hidden_TS, -math.inf)
            mask = triangle_TS if mask is None else mask + triangle_TS
        return AttentionContext(pos_T, self.position.rotate, mask, causal, self.kernel)

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
        """Return an empty cache for `capacity` tokens of `batch` sequences."""
        weight = self.embedding.weight
        layers = [
            LayerCache(
                block.attn.cached,
                batch,
                capacity,
                dtype=dtype or weight.dtype,
                device=weight.device,
            )
            for block in self.blocks
        ]
        return KVCache(layers, capacity)

    def flops(self, context: int | None = None) -> int:
        """Forward FLOPs per token at a context: 2 per multiply-add of every matrix product.

        Scores are counted dense (all T x T), as they are computed without a fused kernel; norms,
        activations and the look-up of embeddings count nothing, as in Kaplan et al. 2020
        (arXiv:2001.08361). Training costs three times this.
        """
        length = context or self.spec.context
        layers = sum(block.attn.flops(length) + block.ffn.flops() for block in self.blocks)
        return int(layers + 2 * self.head.weight.numel())


def _part(spec: ModelSpec, slot: str) -> nn.Module:
    try:
        part: nn.Module = REGISTRIES[slot].build(getattr(spec, slot), **spec.sizes)
    except ConfigError as error:
        raise error.under(slot) from None
    return part


def build(spec: ModelSpec, device: torch.device | str = "cpu") -> Decoder:
    """Build a decoder without drawing a random number: weights are whatever memory held.

    Raises ConfigError where the components do not fit the sizes.
    """
    with torch.device(device):
        return Decoder(spec)


def init_weights(model: Decoder, seed: int) -> Decoder:
    """Fill the matrices from (seed, parameter name), and return the model.

    Each tensor has a stream of its own, so two variants share every weight that they have in
    common, bit for bit, whatever else differs between them: that is what pairs them. Matrices are
    N(0, init_std); those that write to the residual stream N(0, init_std / sqrt(2 layers)). Gains
    are ones and biases zeros from the start.
    """
    spec = model.spec
    small = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, Linear) and module.writes_residual
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        std = spec.init_std / (math.sqrt(2 * spec.layers) if id(parameter) in small else 1.0)
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        drawn = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
        with torch.no_grad():
            parameter.copy_(drawn)
    return model


def spec_from(values: dict[str, Any]) -> ModelSpec:
    """Make the recipe that `ModelSpec.to_dict` wrote. Raises ConfigError for unknown components."""
    slots = {slot: registry.resolve(values[slot], (slot,)) for slot, registry in REGISTRIES.items()}
    return ModelSpec(**{**values, **slots})
