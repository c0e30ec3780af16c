"""The decoder: the only place that knows all five slots, the positions, the mask and the cache."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import llama_ablate.model.rope  # noqa: F401  registers
from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.model.attention import ATTENTIONS
from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.cache import KVCache, LayerCache
from llama_ablate.model.feedforward import FEEDFORWARDS
from llama_ablate.model.kernels import AttentionContext, Kernel, Maps
from llama_ablate.model.linear import Embedding, Linear
from llama_ablate.model.norms import NORMS
from llama_ablate.model.positions import POSITIONS

REGISTRIES = {
    "norm": NORMS,
    "position": POSITIONS,
    "attention": ATTENTIONS,
    "feedforward": FEEDFORWARDS,
    "block": BLOCKS,
}


class Decoder(nn.Module):
    """A decoder-only language model of any combination of components: tokens in, logits out.

    What the components' constructors draw comes from (`seed`, name of the part); matrices of this
    package's `Linear` and `Embedding` hold whatever memory held, until `init_weights`.
    """

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.kernel: Kernel = "fused"
        self.embedding = Embedding(spec.vocab, spec.dim)
        # Any, because a slot's interface is a contract that tests hold, not a class to inherit.
        blocks: list[Any] = []
        for layer in range(spec.layers):
            name = f"blocks.{layer}"
            with _drawing_from(seed, f"{name}.attn"):
                attn = _part(spec, "attention", norm=partial(_norm, spec))
            with _drawing_from(seed, f"{name}.ffn"):
                ffn = _part(spec, "feedforward")
            with _drawing_from(seed, name):
                norm = partial(_norm, spec, spec.dim)
                blocks.append(_part(spec, "block", attn=attn, ffn=ffn, norm=norm))
        self.blocks: Any = nn.ModuleList(blocks)
        with _drawing_from(seed, "position"):
            self.position: Any = _part(spec, "position", head_dim=blocks[0].attn.rotated)
        with _drawing_from(seed, "norm"):
            self.norm = _norm(spec, spec.dim) if blocks[0].final_norm else nn.Identity()
        self.head = Linear(spec.dim, spec.vocab, bias=False)
        if spec.tie:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens_BT: Tensor,
        cache: KVCache | None = None,
        *,
        pad_B: Tensor | None = None,
        maps: list[Maps] | None = None,
    ) -> Tensor:
        """Return logits, (B, T, V), of the next token at each position: `hidden`, then `logits`."""
        return self.logits(self.hidden(tokens_BT, cache, pad_B=pad_B, maps=maps))

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return the logits, (..., V), of what `hidden` returns: all of it, or some rows."""
        logits_BTV: Tensor = self.head(x_BTD)
        cap = self.spec.logit_softcap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)

    def hidden(
        self,
        tokens_BT: Tensor,
        cache: KVCache | None = None,
        *,
        pad_B: Tensor | None = None,
        maps: list[Maps] | None = None,
    ) -> Tensor:
        """Return what the output head reads, (B, T, D), after the last norm.

        With a cache the tokens continue what it holds, and are added to it: prefill, chunk and
        single-token decoding are this one path. Training passes none. `pad_B` says how many tokens
        at the left of each sequence are padding that nobody sees. Every layer appends what its
        attention computes to `maps`. Raises ValueError where the tokens do not fit the cache or
        the position scheme.
        """
        start, held = (cache.length, cache.held) if cache else (0, 0)
        new = tokens_BT.shape[1]
        if cache and start + new > cache.capacity:
            raise ValueError(f"{start + new} tokens do not fit a cache of {cache.capacity}")
        self.position.reach(start + new)
        ctx = self._context(start, held, new, tokens_BT.device, pad_B, maps)
        x_BTD = self.position.embed(self.embedding(tokens_BT), ctx.pos_T)
        for i, block in enumerate(self.blocks):
            layer_ctx = ctx if self.position.rotates(i) else replace(ctx, rotate=_not_rotated)
            x_BTD = block(x_BTD, layer_ctx, cache.layers[i] if cache else None)
        if cache:
            cache.advance(new)
        y_BTD: Tensor = self.norm(x_BTD)
        return y_BTD

    def _context(
        self,
        start: int,
        held: int,
        new: int,
        device: torch.device,
        pad_B: Tensor | None,
        maps: list[Maps] | None,
    ) -> AttentionContext:
        window = self.blocks[0].attn.window or math.inf
        pos_S = at_S = torch.arange(start - held, start + new, device=device)
        pos_T = at_T = at_S[held:]
        hidden_TS = None
        if new > 1 or start + new > window or pad_B is not None:
            back_TS = at_T[:, None] - at_S
            hidden_TS = (back_TS < 0) | (back_TS >= window)
            if pad_B is not None:
                pos_S = (at_S - pad_B[:, None]).clamp(min=0)
                pos_T = pos_S[:, held:]
                padding_B1S = at_S < pad_B[:, None, None]
                # A padding token sees itself, or its softmax would be over nothing.
                hidden_TS = ((hidden_TS | padding_B1S) & (back_TS != 0)).unsqueeze(1)
        mask = self.position.bias(pos_T, pos_S)
        causal = new > 1 and mask is None and start == 0 and pad_B is None and new <= window
        if hidden_TS is not None:
            triangle_TS = torch.zeros(hidden_TS.shape, device=device)
            triangle_TS.masked_fill_(hidden_TS, -math.inf)
            mask = triangle_TS if mask is None else mask + triangle_TS
        return AttentionContext(pos_T, self.position.rotate, mask, causal, self.kernel, maps)

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
        """Return an empty cache for `capacity` tokens of `batch` sequences; a window needs less."""
        weight = self.embedding.weight
        layers = [
            LayerCache(
                block.attn.cached,
                batch,
                min(capacity, block.attn.window or capacity),
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


def _not_rotated(q_BHTE: Tensor, k_BKTE: Tensor, _pos_T: Tensor) -> tuple[Tensor, Tensor]:
    return q_BHTE, k_BKTE


def _norm(spec: ModelSpec, dim: int) -> nn.Module:
    """Make a norm of the model's kind, of any width."""
    return _part(spec, "norm", dim=dim)


def _part(spec: ModelSpec, slot: str, **sizes: Any) -> nn.Module:
    try:
        part: nn.Module = REGISTRIES[slot].build(getattr(spec, slot), **{**spec.sizes, **sizes})
    except ConfigError as error:  # of a norm that another part is made with, `norm` is the place
        raise (error if error.where[:1] == ("norm",) else error.under(slot)) from None
    return part


@contextmanager
def _drawing_from(seed: int, name: str) -> Iterator[None]:
    """Seed torch with (seed, name) inside; its global generator is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_stream(seed, name))
        yield


def _stream(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "little")


def build(spec: ModelSpec, device: torch.device | str = "cpu") -> Decoder:
    """Build a decoder, to be filled by `init_weights` or from a file; no global state is touched.

    Raises ConfigError where the components do not fit the sizes.
    """
    with torch.device(device):
        return Decoder(spec)


def init_weights(model: Decoder, seed: int) -> Decoder:
    """Initialise the weights of a model in place, and return it.

    The matrices of this package's `Linear` and `Embedding` are drawn from (seed, parameter name):
    each has a stream of its own, so two variants share every weight that they have in common, bit
    for bit, whatever else differs between them: that is what pairs them. They are N(0, init_std);
    those that write to the residual stream N(0, init_std / sqrt(2 layers)). All else keeps what its
    component's constructor gives it, which draws from (seed, name of the part).
    """
    spec = model.spec
    waiting = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, Linear | Embedding)
    }
    own = {k: v for k, v in Decoder(spec, seed).state_dict().items() if k not in waiting}
    model.load_state_dict(own, strict=False)
    for name, parameter in model.named_parameters():
        if name in waiting:
            small = getattr(waiting[name], "writes_residual", False)
            std = spec.init_std / math.sqrt(2 * spec.layers if small else 1)
            generator = torch.Generator().manual_seed(_stream(seed, name))
            drawn = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
            with torch.no_grad():
                parameter.copy_(drawn)
    return model


def spec_from(values: dict[str, Any]) -> ModelSpec:
    """Make the spec that `ModelSpec.to_dict` wrote. Raises ConfigError for unknown components."""
    slots = {slot: registry.resolve(values[slot], (slot,)) for slot, registry in REGISTRIES.items()}
    return ModelSpec(**{**values, **slots})
