"""Token mixers, mainly softmax attention: `f(x_BTD, ctx, state) -> x_BTD`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import ConfigError, need
from llama_ablate.model.context import Context
from llama_ablate.model.kernels import attend
from llama_ablate.model.linear import Linear, OutLinear, project_fused, weights
from llama_ablate.model.mixers.convolution import Canon
from llama_ablate.model.mixers.training_only import adapt
from llama_ablate.model.state import CachedShapes, KVState, State

_LONGEST = 1 << 30  # tokens

#: Function that builds a norm of the model's kind, of a given width.
MakeNorm = Callable[[int], nn.Module]


class Mixer(Protocol):
    """Interface of a token mixer, the component of the slot `attention`."""

    @property
    def rotated(self) -> int:
        """Width of the queries and keys that the position scheme rotates; 0 for none."""

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Mix tokens, (B, T, D); with a state, the tokens continue the sequences in the state."""

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty state of `batch` sequences of at most `capacity` tokens."""

    def flops(self, context: int) -> int:
        """Count forward FLOPs per token at a context."""


ATTENTIONS = Registry("attention", sizes=(*SIZES, "layer", "norm"), interface=Mixer, adapt=adapt)


class Attention(nn.Module, ABC):
    """Base class of softmax attention, with a sliding window and a soft cap of the scores.

    `window`: a token sees itself and the `window - 1` tokens before it (Beltagy et al. 2020,
    arXiv:2004.05150). `softcap`: scores pass through `softcap * tanh(scores / softcap)` (Gemma 2,
    arXiv:2408.00118).
    """

    def __init__(self, *, window: int | None = None, softcap: float | None = None) -> None:
        super().__init__()
        sees_itself = window is None or 1 <= window <= _LONGEST
        need(sees_itself, f"window {window}: a token sees itself at least, so 1 or more")
        need(softcap is None or softcap > 0, f"softcap {softcap} must be more than 0")
        self.window, self.softcap = window, softcap

    #: Factor of the scores; None for 1/sqrt(width of a head).
    scale: float | None = None

    def _attend(
        self,
        q_BHTE: Tensor,
        k_BKSE: Tensor,
        v_BKSE: Tensor,
        ctx: Context,
        bias: Tensor | None = None,
    ) -> Tensor:
        return attend(
            q_BHTE,
            k_BKSE,
            v_BKSE,
            ctx,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
            sink_H=getattr(self, "sinks", None),
            bias=bias,
        )

    @property
    @abstractmethod
    def rotated(self) -> int:
        """Width of the queries and keys that the position scheme rotates."""

    @property
    @abstractmethod
    def cached(self) -> CachedShapes:
        """Shapes of the cached tensors per token: (heads, width) by name."""

    @abstractmethod
    def flops(self, context: int) -> int:
        """Count forward FLOPs per token: projections, dense scores and mixing over `context`."""

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> KVState:
        """Return an empty KV cache for `capacity` tokens, or for the window if it is shorter."""
        room = min(capacity, self.window or capacity)
        return KVState(self.cached, batch, room, dtype=dtype, device=device)


class MultiHead(Attention):
    """Base class of multi-head attention with an output projection `out`, and its options.

    `gate` multiplies a head's output by the sigmoid of a projection of the layer's input: one
    number per head or per element (Qiu et al. 2025, arXiv:2505.06708). `exclusive` removes from a
    head's output its component along the token's own value (exclusive self-attention,
    arXiv:2603.09078). `sinks` adds a learned logit without a value to each head's softmax (gpt-oss
    2025). `canon` adds canon layers (short causal convolutions) before attention (A), on queries,
    keys and values (B; before `qk_norm`, in PhysicsLM4 after it), or both.
    """

    heads: int
    out: Linear

    def __init__(
        self,
        *,
        gate: Literal["none", "head", "element"] = "none",
        exclusive: bool = False,
        sinks: bool = False,
        canon: Literal["none", "A", "B", "AB"] = "none",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._gate_of, self.exclusive, self.has_sinks, self.canon = gate, exclusive, sinks, canon

    def _add_parts(self, dim: int, heads: int, head_dim: int) -> None:
        """Add the parameters of the options after all others, to keep the order of the others."""
        width = self.out.in_features
        gates = {"none": 0, "head": width // head_dim, "element": width}[self._gate_of]
        self.gate = Linear(dim, gates, bias=False) if gates else None
        self.sinks = nn.Parameter(torch.zeros(heads)) if self.has_sinks else None
        self.canon_in = Canon(dim) if "A" in self.canon else None

    def finish_heads(self, mixed_BTHP: Tensor, x_BTD: Tensor, own: Callable[[], Tensor]) -> Tensor:
        """Apply the options `exclusive` and `gate` to the heads' outputs, (B, T, H, P).

        The method is called before the output projection; subclasses may override the method.
        `mixed` are the heads' outputs, and `x` is the layer's input. `own` is a function that
        computes each token's own values, (B, T, K, P), where K divides H.
        """
        if self.exclusive:
            own_BTKP = F.normalize(own(), dim=-1)
            own_BTHP = own_BTKP.repeat_interleave(mixed_BTHP.shape[2] // own_BTKP.shape[2], 2)
            along_BTH1 = (mixed_BTHP * own_BTHP).sum(-1, keepdim=True)
            mixed_BTHP = mixed_BTHP - along_BTH1 * own_BTHP
        if self.gate is not None:
            gate_BTe = self.gate(x_BTD).sigmoid()
            mixed_BTHP = mixed_BTHP * gate_BTe.view(*mixed_BTHP.shape[:3], -1)
        return mixed_BTHP

    def _project_out(self, mixed_BTe: Tensor, x_BTD: Tensor, own: Callable[[], Tensor]) -> Tensor:
        mixed_BTHP = mixed_BTe.view(*mixed_BTe.shape[:2], self.heads, -1)
        out_BTD: Tensor = self.out(self.finish_heads(mixed_BTHP, x_BTD, own).flatten(2))
        return out_BTD


class JoinedNorm(nn.Module):
    """Norm of a token's vectors of all heads, joined into one vector."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x_BHTE: Tensor) -> Tensor:
        """Return the normalised vectors, by head again."""
        joined_BTe = x_BHTE.transpose(1, 2).flatten(2)
        y_BHTE: Tensor = self.norm(joined_BTe).unflatten(2, (x_BHTE.shape[1], -1)).transpose(1, 2)
        return y_BHTE


class SharedHeads(MultiHead):
    """Softmax attention in which `heads // kv_heads` query heads share a key/value head.

    `qk_norm` normalises each head's queries and keys with a norm of the model's kind (Henry et al.
    2020, arXiv:2010.04245), or, with `joined`, the queries of all heads as one vector, and the keys
    alike (OLMo 2 2025, arXiv:2501.00656). `qkv_bias` says whether queries, keys and values have a
    bias (null: as the model). `value_residual` adds the first layer's values to this layer's
    values, each times a learned number that starts at 1/2 (Zhou et al. 2024, arXiv:2410.17897);
    unlike in the paper, the first layer has both numbers, too.
    """

    #: Whether the position scheme can rotate the values.
    rotates_values: bool = True
    #: Number of heads that `finish_heads` merges into one.
    maps: int = 1

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool,
        norm: MakeNorm,
        *,
        qk_norm: bool | Literal["joined"] = False,
        qkv_bias: bool | None = None,
        value_residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        divides = kv_heads >= 1 and heads % kv_heads == 0
        need(divides, f"{heads} query heads do not divide into {kv_heads} kv_heads")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        biased = bias if qkv_bias is None else qkv_bias
        self.q = Linear(dim, heads * head_dim, bias=biased)
        self.k = Linear(dim, kv_heads * head_dim, bias=biased)
        self.v = Linear(dim, kv_heads * head_dim, bias=biased)
        self.out = OutLinear(heads // self.maps * head_dim, dim, bias=bias)
        if qk_norm == "joined":
            norms: list[nn.Module] = [JoinedNorm(norm(n * head_dim)) for n in (heads, kv_heads)]
        else:
            norms = [norm(head_dim) if qk_norm else nn.Identity() for _ in range(2)]
        self.q_norm, self.k_norm = norms
        self._add_parts(dim, heads, head_dim)
        self.canon_qkv = Canon((heads + 2 * kv_heads) * head_dim) if "B" in self.canon else None
        self.value_mix = nn.Parameter(torch.full((2,), 0.5)) if value_residual else None

    def forward(self, x_BTD: Tensor, ctx: Context, state: KVState | None = None) -> Tensor:
        """Return the output, (B, T, D); with a state, new tokens also attend to cached tokens."""
        if self.canon_in is not None:
            x_BTD = self.canon_in(x_BTD, ctx)
        q_BHTE, k_BKTE, v_BKTE = self._project(x_BTD, ctx)
        if self.value_mix is not None:
            v_BKTE = self._with_first(v_BKTE, ctx)
        q_BHTE, k_BKTE = ctx.rotate(self.q_norm(q_BHTE), self.k_norm(k_BKTE), ctx.pos_T)
        # A norm's gains may have a higher precision than autocast's projections.
        q_BHTE, k_BKTE = q_BHTE.type_as(v_BKTE), k_BKTE.type_as(v_BKTE)
        v_BKTE = ctx.rotate_values(v_BKTE)
        values = partial(v_BKTE.transpose, 1, 2)
        cached = {"keys": k_BKTE, "values": v_BKTE, **self.remember(x_BTD, ctx)}
        cached = state.update(**cached) if state else cached
        bias = self.bias(cached, ctx)
        mixed_BTe = self._attend(q_BHTE, cached["keys"], cached["values"], ctx, bias)
        return self._project_out(mixed_BTe, x_BTD, values)

    def remember(self, x_BTD: Tensor, ctx: Context) -> Mapping[str, Tensor]:
        """Compute additional tensors of new tokens to cache, (B, heads, T, width), by name.

        `x` is the layer's input. A subclass that overrides this method must declare the tensors'
        shapes in `cached`.
        """
        del x_BTD, ctx
        return {}

    def bias(self, cached: Mapping[str, Tensor], ctx: Context) -> Tensor | None:
        """Compute a bias of the scores from the cached tensors, (B, H, T, S), or None."""
        del cached, ctx
        return None

    def _with_first(self, v_BKTE: Tensor, ctx: Context) -> Tensor:
        """Mix this layer's values with the first layer's values (option `value_residual`)."""
        assert self.value_mix is not None, "asked before"
        first_BKTE = ctx.first("values", v_BKTE.transpose(1, 2)).transpose(1, 2)
        if first_BKTE.shape != v_BKTE.shape:
            here, there = (f"{v.shape[1]} x {v.shape[3]}" for v in (v_BKTE, first_BKTE))
            what = f"layer {ctx.layer} has values of {here} (heads x width), the first {there}"
            raise ConfigError(f"value_residual: {what}: they must be alike", ("attention",))
        return self.value_mix[0] * first_BKTE + self.value_mix[1] * v_BKTE

    def _project(self, x_BTD: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        joined_BTe = project_fused(x_BTD, (self.q, self.k, self.v))
        if self.canon_qkv is not None:
            joined_BTe = self.canon_qkv(joined_BTe, ctx)
        joined_BTNE = joined_BTe.view(*x_BTD.shape[:2], -1, self.head_dim)
        # One copy that puts heads first in memory: all later operations then read whole rows.
        joined_BNTE = joined_BTNE.permute(2, 0, 1, 3).contiguous().transpose(0, 1)
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q_BHTE, k_BKTE, v_BKTE = joined_BNTE.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        return q_BHTE, k_BKTE, v_BKTE

    @property
    def rotated(self) -> int:
        """Width of a head, since the position scheme rotates whole heads."""
        return self.head_dim

    @property
    def cached(self) -> CachedShapes:
        """Shapes of keys and values, not repeated for query heads."""
        return dict.fromkeys(("keys", "values"), (self.kv_heads, self.head_dim))

    def flops(self, context: int) -> int:
        """Count forward FLOPs per token: projections, dense scores and mixing over `context`."""
        keys = context + self.has_sinks
        return 2 * (weights(self) + 2 * keys * self.heads * self.head_dim)


@ATTENTIONS.register("mha")
class MHA(SharedHeads):
    """Give every query head a key/value head (Vaswani et al. 2017, arXiv:1706.03762)."""

    def __init__(
        self, dim: int, heads: int, head_dim: int, bias: bool, norm: MakeNorm, **options: Any
    ) -> None:
        super().__init__(dim, heads, heads, head_dim, bias, norm, **options)


@ATTENTIONS.register("gqa")
class GQA(SharedHeads):
    """Share `kv_heads` among groups of query heads (Ainslie et al. 2023, arXiv:2305.13245)."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        bias: bool,
        norm: MakeNorm,
        *,
        kv_heads: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, kv_heads, head_dim, bias, norm, **options)


@ATTENTIONS.register("mqa")
class MQA(SharedHeads):
    """Share one key/value head among all query heads (Shazeer 2019, arXiv:1911.02150)."""

    def __init__(
        self, dim: int, heads: int, head_dim: int, bias: bool, norm: MakeNorm, **options: Any
    ) -> None:
        super().__init__(dim, heads, 1, head_dim, bias, norm, **options)


@ATTENTIONS.register("differential")
class Differential(SharedHeads):
    """Subtract one softmax from another (Ye et al. 2024, arXiv:2410.05258; version 2, 2026).

    There are twice as many query heads as the model has heads. All query heads share `kv_heads`
    heads of keys and values, by default as many as the model has heads. In each pair of
    neighbouring query heads, the second head's output is multiplied by a gate, the sigmoid of a
    projection of the layer's input (one number per pair and token), and subtracted from the first
    head's output.
    """

    maps = 2

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        bias: bool,
        norm: MakeNorm,
        *,
        kv_heads: int | None = None,
        **options: Any,
    ) -> None:
        shared = heads if kv_heads is None else kv_heads
        need(
            shared >= 1 and heads % shared == 0,
            f"kv_heads {shared} do not divide the {heads} heads: the two softmaxes of a head "
            "would have different keys and values",
        )
        super().__init__(dim, 2 * heads, shared, head_dim, bias, norm, **options)
        self.subtract = Linear(dim, heads, bias=bias)

    def finish_heads(self, mixed_BTHP: Tensor, x_BTD: Tensor, own: Callable[[], Tensor]) -> Tensor:
        """Subtract gated odd heads from even heads; apply the other options, (B, T, H / 2, P)."""
        share_BTH1 = self.subtract(x_BTD).sigmoid().unsqueeze(-1)
        less_BTHP = mixed_BTHP[:, :, 0::2] - share_BTH1 * mixed_BTHP[:, :, 1::2]
        return super().finish_heads(less_BTHP, x_BTD, own)


@ATTENTIONS.register("mla")
class MLA(MultiHead):
    """Compute keys and values from one small cached latent (DeepSeek-V2 2024, 2405.04434).

    This is multi-head latent attention. For each token the cache has `latent` numbers (by default
    four times the head width) and one shared key of width `rope_dim` (by default half of the head
    width), which alone is rotated. The keys and values of all heads are two linear maps of the
    latent, without bias. With a cache, these two maps are applied to the queries and to the mixed
    latents instead, so that decoding reads only the latents. `qk_norm` normalises each head's
    queries and keys as in other attentions, except for the rotated part; keys are then computed
    from the cached latents, since a norm cannot be moved to the queries. `qkv_bias` says whether
    the projections of the layer's input have a bias (null: as the model).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        bias: bool,
        norm: MakeNorm,
        *,
        latent: int | None = None,
        rope_dim: int | None = None,
        qk_norm: bool = False,
        qkv_bias: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        message = f"canon {self.canon}: 'mla' makes keys of a latent; allowed: none, A"
        need("B" not in self.canon, message)
        self.heads, self.head_dim = heads, head_dim
        self.latent = 4 * head_dim if latent is None else latent
        self.rope_dim = max(2, head_dim // 4 * 2) if rope_dim is None else rope_dim
        fits = 0 < self.latent <= 1 << 20 and 0 < self.rope_dim <= 1 << 16
        need(fits, f"latent {self.latent} and rope_dim {self.rope_dim} must be 1 or more")
        self.scale = (head_dim + self.rope_dim) ** -0.5
        biased = bias if qkv_bias is None else qkv_bias
        self.q = Linear(dim, heads * (head_dim + self.rope_dim), bias=biased)
        self.down = Linear(dim, self.latent + self.rope_dim, bias=biased)
        self.q_norm = norm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm(head_dim) if qk_norm else nn.Identity()
        self.is_absorbed = not qk_norm
        self.latent_norm = norm(self.latent)
        self.k = Linear(self.latent, heads * head_dim, bias=False)
        self.v = Linear(self.latent, heads * head_dim, bias=False)
        self.out = OutLinear(heads * head_dim, dim, bias=bias)
        self._add_parts(dim, heads, head_dim)

    def forward(self, x_BTD: Tensor, ctx: Context, state: KVState | None = None) -> Tensor:
        """Return the output, (B, T, D).

        In names of tensors, L is the width of the latent and R the width of the rotated part.
        """
        if self.canon_in is not None:
            x_BTD = self.canon_in(x_BTD, ctx)
        T, sizes = x_BTD.shape[1], [self.head_dim, self.rope_dim]
        q_BHTe = self._heads(self.q(x_BTD))
        q_BHTE, turning_BHTR = q_BHTe.split(sizes, dim=-1)  # type: ignore[no-untyped-call]
        latent_BTL, key_BTR = self.down(x_BTD).split([self.latent, self.rope_dim], dim=-1)
        # A norm's gains may have a higher precision than autocast's projections.
        latent_BTL = self.latent_norm(latent_BTL).to(q_BHTe.dtype)
        q_BHTE = self.q_norm(q_BHTE).to(q_BHTe.dtype)
        turning_BHTR, key_B1TR = ctx.rotate(turning_BHTR, key_BTR[:, None], ctx.pos_T)
        kept_B1Sl, latent_BSL, key_B1SR = None, latent_BTL, key_B1TR
        if state is not None:
            joined_B1Tl = torch.cat([latent_BTL[:, None], key_B1TR], -1)
            kept_B1Sl = state.update(latents=joined_B1Tl)["latents"]
            latent_BSL, key_B1SR = kept_B1Sl[:, 0, :, : self.latent], kept_B1Sl[..., self.latent :]
        if kept_B1Sl is None or not self.is_absorbed:
            k_BHSE = self.k_norm(self._heads(self.k(latent_BSL))).to(q_BHTe.dtype)
            v_BHSE = self._heads(self.v(latent_BSL))
            q_BHTe = torch.cat([q_BHTE, turning_BHTR], -1)
            k_BHSe = torch.cat([k_BHSE, key_B1SR.expand(-1, self.heads, -1, -1)], -1)
            mixed_BTe = self._attend(q_BHTe, k_BHSe, v_BHSE, ctx)
            values = partial(v_BHSE[:, :, -T:].transpose, 1, 2)
        else:
            up_k_HEL, up_v_HEL = (
                part.weight.view(self.heads, self.head_dim, -1).to(q_BHTE.dtype)
                for part in (self.k, self.v)
            )
            q_BHTl = torch.cat([q_BHTE @ up_k_HEL, turning_BHTR], -1)
            mixed_BTl = self._attend(q_BHTl, kept_B1Sl, latent_BSL[:, None], ctx)
            mixed_BTHL = mixed_BTl.view(*mixed_BTl.shape[:2], self.heads, self.latent)
            mixed_BTe = torch.einsum("bthl,hel->bthe", mixed_BTHL, up_v_HEL).flatten(2)
            values = partial(torch.einsum, "btl,hel->bthe", latent_BTL, up_v_HEL)
        return self._project_out(mixed_BTe, x_BTD, values)

    def _heads(self, x_BTe: Tensor) -> Tensor:
        return x_BTe.view(*x_BTe.shape[:2], self.heads, -1).transpose(1, 2)

    @property
    def rotated(self) -> int:
        """Width of the shared key."""
        return self.rope_dim

    @property
    def cached(self) -> CachedShapes:
        """Shape of the latent and the shared key, stored as one vector."""
        return {"latents": (1, self.latent + self.rope_dim)}

    def flops(self, context: int) -> int:
        """Count forward FLOPs per token without a cache, as in training."""
        dense = (context + self.has_sinks) * self.heads * (2 * self.head_dim + self.rope_dim)
        return 2 * (weights(self) + dense)
