"""The decoder: embedding, blocks, last norm and head; contexts and states of forward passes."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError, need
from llama_ablate.model.components import make_norm, make_parametrization, make_part
from llama_ablate.model.context import Context
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.initialisation import drawing_from, fill
from llama_ablate.model.kernels import Kernel, Maps
from llama_ablate.model.linear import Embedding, Head
from llama_ablate.model.mixers.training_only import TrainingOnly
from llama_ablate.model.positions import POSITIONS, Position
from llama_ablate.model.state import DecoderState, Stateful


class PassOptions(TypedDict, total=False):
    """Options of a forward pass."""

    #: Number of padding tokens at the left of each sequence, which no other token sees, (B,).
    pad_B: Tensor | None
    #: List to which every layer appends its attention maps.
    maps: list[Maps] | None
    #: Training losses of the layers by name, to which every layer adds; None outside of training.
    losses: dict[str, Tensor] | None
    #: Dropout masks of a training step; None outside of training.
    dropout: Dropout | None


class Decoder(nn.Module):
    """Decoder-only language model of any combination of components: tokens in, logits out.

    Random numbers in the components' constructors are seeded by (`seed`, name of the part).
    Matrices that the rule `model.init` fills are uninitialised. `layers` are the indices of the
    layers to build, by default all.
    """

    #: Position scheme of the first layer.
    position: Any

    def __init__(self, spec: ModelSpec, seed: int = 0, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        self.spec, self._seed = spec, seed
        self.kernel: Kernel = "fused"
        self.parametrization = make_parametrization(spec)
        self.embedding = Embedding(spec.vocab, spec.dim)
        built = range(spec.layers) if layers is None else layers
        # Any, because a slot's interface is a protocol that tests check, not a base class.
        self.blocks: Any = nn.ModuleList(map(self._block, built))
        self._check_streams()
        #: Modules other than mixers that keep a state between tokens, by name.
        self.stateful = {
            name: part for name, part in self.named_modules() if isinstance(part, Stateful)
        }
        for name, part in self.stateful.items():
            part.state_name = name
        #: Name of each block's position module.
        self.schemes: list[str] = []
        self._add_positions(built)
        self.norm = self._final_norm() if self.blocks[-1].final_norm else nn.Identity()
        self.head = Head(spec.dim, spec.vocab, bias=False)
        if spec.tie:
            self.head.weight = self.embedding.weight

    def _check_streams(self) -> None:
        """Raise ConfigError if the pattern's blocks have different numbers of residual streams."""
        streams = {getattr(block, "streams", 1) for block in self.blocks}
        names = ", ".join(dict.fromkeys(choice.name for choice in self.spec.block.choices))
        message = f"{names} keep different residual streams: they cannot be one pattern"
        need(len(streams) == 1, message, "block")

    def _add_positions(self, built: Sequence[int]) -> None:
        """Add a module for each distinct position scheme, named `position`, `position_1`, ..."""
        spec, names = self.spec, dict[tuple[Choice, int | None], str]()
        rotated = [block.attn.rotated for block in self.blocks]
        usual = next(filter(None, rotated), spec.head_dim)
        for layer, width, block in zip(built, rotated, self.blocks, strict=True):
            choice = spec.position.at(layer)
            rotates = "head_dim" in POSITIONS.sizes(choice.name)
            key = choice, (width or usual) if rotates else None
            if key not in names:
                names[key] = f"position_{len(names)}" if names else "position"
                part = self._build_part("position", choice, names[key], head_dim=width or usual)
                self.add_module(names[key], part)
            if isinstance(block.attn, TrainingOnly):
                self._check_training_only(choice, block.attn)
            values = width and getattr(self.get_submodule(names[key]), "rotates_values", False)
            message = f"'{spec.attention.at(layer).name}' has no values that position could rotate"
            need(not values or getattr(block.attn, "rotates_values", False), message, "position")
            self.schemes.append(names[key])
        for choice, _width in names:
            embeds = POSITIONS.get(choice.name).embed is not Position.embed  # type: ignore[attr-defined]
            message = (
                f"'{choice.name}' is added to the embeddings, before the first layer: it cannot"
            )
            need(len(names) == 1 or not embeds, f"{message} be one of a pattern", "position")

    def _check_training_only(self, position: Choice, mixer: TrainingOnly) -> None:
        """Raise ConfigError for options that a mixer with only `forward(x)` would not apply."""
        spec, embedded = self.spec, [name for name in POSITIONS if not _acts_inside(name)]
        inside = {
            f"position: {position.name}": position.name not in embedded,
            "documents: mask": spec.separator is not None,
            "dropout of attention": spec.dropout.attention > 0,
            f"parametrization: {spec.parametrization.name}": self.parametrization.scores != 1,
        }
        if what := next((what for what, acts in inside.items() if acts), ""):
            raise ConfigError(
                f"'{mixer.registered}' has forward(x) alone, and '{what}' acts inside attention: "
                "it would be another model than the file says; allowed: what acts on embeddings, "
                f"as position {', '.join(embedded)}",
                ("attention",),
            )

    def _build_part(self, slot: str, choice: Choice, name: str, **sizes: Any) -> nn.Module:
        """Build a part, whose random numbers are seeded by (seed, name of the part)."""
        with drawing_from(self._seed, name):
            return make_part(self.spec, slot, choice, **sizes)

    def _block(self, layer: int) -> nn.Module:
        """Build one layer."""
        spec, chosen, name = self.spec, self.spec.layer(layer), f"blocks.{layer}"
        norm = partial(make_norm, spec, chosen.norm, layer)
        sizes: dict[str, Any] = {"layer": layer, "norm": norm}
        attn = self._build_part("attention", chosen.attention, f"{name}.attn", **sizes)
        ffn = self._build_part("feedforward", chosen.feedforward, f"{name}.ffn", **sizes)
        sizes |= {"attn": attn, "ffn": ffn, "norm": partial(norm, spec.dim)}
        return self._build_part("block", chosen.block, name, **sizes)

    def _final_norm(self) -> nn.Module:
        last = self.spec.layers - 1
        return self._build_part(
            "norm", self.spec.norm.at(last), "norm", layer=last, dim=self.spec.dim
        )

    @property
    def positions(self) -> dict[str, Any]:
        """Position schemes by the names of their modules."""
        return {name: getattr(self, name) for name in dict.fromkeys(self.schemes)}

    def forward(
        self, tokens_BT: Tensor, state: DecoderState | None = None, **given: Unpack[PassOptions]
    ) -> Tensor:
        """Return the logits of the next token at each position, (B, T, V)."""
        return self.logits(self.hidden(tokens_BT, state, **given))

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Compute logits, (..., V), from hidden states, (..., D)."""
        logits_BTV: Tensor = self.head(x_BTD)
        if (factor := self.parametrization.logits) != 1:
            logits_BTV = factor * logits_BTV
        cap = self.spec.logit_softcap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)

    def hidden(
        self, tokens_BT: Tensor, state: DecoderState | None = None, **given: Unpack[PassOptions]
    ) -> Tensor:
        """Compute the hidden states after the last norm, (B, T, D), which the output head reads.

        With a state (such as a KV cache), the tokens continue the sequences in the state and are
        added to the state: prefill, chunks and single-token decoding share this code. Training
        passes no state. Raises ValueError if the tokens do not fit the state or the position
        scheme.
        """
        schemes, dropout = self.positions, given.get("dropout")
        ctx = self.context(tokens_BT, state, **given)
        x_BTD = self.position.embed(self.embedding(tokens_BT), ctx.pos_T)
        x_BTD = x_BTD if dropout is None else dropout(x_BTD, "embedding")
        for i, block in enumerate(self.blocks):
            layer_ctx = ctx.at(i, schemes[self.schemes[i]])
            x_BTD = block(x_BTD, layer_ctx, state.layers[i] if state else None)
        if state:
            state.length += tokens_BT.shape[1]
        y_BTD: Tensor = self.norm(x_BTD)
        return y_BTD

    def context(
        self, tokens_BT: Tensor, state: DecoderState | None = None, **given: Unpack[PassOptions]
    ) -> Context:
        """Return the context of a forward pass over tokens. Raises ValueError as `hidden` does."""
        start, new = state.length if state else 0, tokens_BT.shape[1]
        if state and start + new > state.capacity:
            raise ValueError(f"{start + new} tokens do not fit a state of {state.capacity}")
        for scheme in self.positions.values():
            scheme.prepare(start + new)
        return Context(
            start,
            new,
            self.position,
            kernel=self.kernel,
            device=tokens_BT.device,
            first_BT=self._find_document_starts(tokens_BT, start, state, given.get("pad_B")),
            parametrization=self.parametrization,
            tokens_BT=tokens_BT,
            states=state.others if state else None,
            **given,
        )

    def _find_document_starts(
        self, tokens_BT: Tensor, start: int, state: DecoderState | None, pad_B: Tensor | None
    ) -> Tensor | None:
        """Compute the start index of each token's document, (B, T), and store it in the state.

        The separator token before a document counts as the document's first token. Return None if
        the model does not keep documents apart (per-document mask).
        """
        if self.spec.separator is None:
            return None
        at_T = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        first_BT = torch.where(tokens_BT == self.spec.separator, at_T, 0).cummax(1).values
        if pad_B is not None:  # a padding token may equal the separator
            first_BT = torch.maximum(first_BT, pad_B[:, None])
        if state:
            assert state.first_BS is not None, "the state is of this model"
            if start:
                first_BT = torch.maximum(first_BT, state.first_BS[:, start - 1 : start])
            state.first_BS[:, start : start + tokens_BT.shape[1]] = first_BT
        return first_BT

    def new_state(
        self,
        batch: int,
        capacity: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> DecoderState:
        """Return an empty state of all layers, for `capacity` tokens of `batch` sequences."""
        weight, first_BS = self.embedding.weight, None
        kind: dict[str, Any] = {"dtype": dtype or weight.dtype, "device": device or weight.device}
        if self.spec.separator is not None:
            first_BS = torch.zeros(batch, capacity, dtype=torch.long, device=kind["device"])
        return DecoderState(
            [block.attn.new_state(batch, capacity, **kind) for block in self.blocks],
            capacity,
            {n: part.new_state(batch, capacity, **kind) for n, part in self.stateful.items()},
            first_BS,
        )

    def state_bytes(self, context: int, dtype: torch.dtype) -> int:
        """Count the bytes of the state of one sequence of `context` tokens, over all layers."""
        return self.new_state(1, context, dtype, "meta").nbytes

    def flops(self, context: int | None = None) -> int:
        """Count forward FLOPs per token at a context: 2 per multiply-add of every matrix product.

        Scores are counted dense (all T x T), as they are computed without a fused kernel; norms,
        activations and the look-up of embeddings count nothing, as in Kaplan et al. 2020
        (arXiv:2001.08361). Training costs three times this.
        """
        length = context or self.spec.context
        layers = sum(sum(block_flops(block, length).values()) for block in self.blocks)
        return int(layers + 2 * self.head.weight.numel())


def block_flops(block: Any, context: int) -> dict[str, Any]:
    """Return a block's forward FLOPs per token: attention, feed-forward network, and the rest."""
    other = block.flops(context) if hasattr(block, "flops") else 0
    return {"attn": block.attn.flops(context), "ffn": block.ffn.flops(), "": other}


def _acts_inside(position: str) -> bool:
    """Return whether a position scheme acts inside attention rather than on the embeddings."""
    scheme, hooks = POSITIONS.get(position), ("rotate", "rotate_values", "bias")
    return any(getattr(scheme, hook, None) is not getattr(Position, hook) for hook in hooks)


def build(spec: ModelSpec, device: torch.device | str = "cpu") -> Decoder:
    """Build a decoder with uninitialised weights, for weights of a file.

    No global state is changed. Raises ConfigError if the components do not fit the sizes.
    """
    with torch.device(device):
        return Decoder(spec)


def new_model(spec: ModelSpec, seed: int) -> Decoder:
    """Build a decoder with the initial weights of a seed.

    The rule `model.init` fills the matrices of this package's `Linear` and `Embedding` layers, each
    seeded by (seed, parameter name), unless the layer has an initialiser `start`. All other
    parameters get the values of their component's constructor, seeded by (seed, name of the part).
    Raises ConfigError if the components do not fit the sizes.
    """
    model = Decoder(spec, seed)
    fill(model, spec, model.parametrization, seed)
    return model
