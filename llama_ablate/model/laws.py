"""Laws (invariants) that every model must obey, whatever its components.

Laws are checked without training and without data. The tests check the components of this package;
`check` checks a plug-in's component before the runs of an experiment start.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from llama_ablate.config.spec import RULES, DropoutRates, ModelSpec
from llama_ablate.errors import ConfigError, NotProvidedError
from llama_ablate.model.decoder import Decoder, block_flops, new_model
from llama_ablate.model.dropout import Dropout

_TOKENS, _VOCAB, _LAYERS = 24, 61, 2  # small enough for a second, long enough for every law
_ROWS, _LONGEST = 4, 512  # batch of a training step: some faults need its size
_CHANGED = 12  # the token that is changed to see which logits depend on it
_STEP, _STEPS = 1e-2, 3  # updates: outputs that start at zero have no gradient at first
_PADDED = 5  # tokens of padding to the left of a sequence
_SEPARATOR = 7  # the token that begins a document in models that keep documents apart
#: Starts of the documents in two sequences: close together, within a chunk and beyond, and one
#: empty document.
_BEGINS = (0, 9, 20), (3, 12, 13)
_TOLERANCE = 1e-4
#: Tokens of the FLOP count. Above 128 the kernel `math` skips scores of later keys, which closed
#: forms count; at 128, scores are over 1% of attention's count up to width 6k.
_COUNTED = 128
_FLOPS_TOLERANCE = 0.01
_DROP_ALL = 1 - 2.0**-40  # a rate that drops every number, and has a finite scale
#: Default rules, such as `init`.
_RULES: dict[str, Any] = {f.name: f.default for f in fields(ModelSpec) if f.name in RULES}

#: Function that returns how a model breaks a law, or None if the model obeys it.
Law = Callable[[Decoder, Tensor], str | None]


def finite(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that logits are finite, of the right shape, and equal in a repeated forward pass."""
    logits_BTV, again_BTV = model(tokens_BT), model(tokens_BT)
    if logits_BTV.shape != (*tokens_BT.shape, model.spec.vocab):
        return f"returns logits of shape {tuple(logits_BTV.shape)}"
    if not logits_BTV.isfinite().all():
        return "computes numbers that are not finite"
    if not torch.equal(logits_BTV, again_BTV):
        return "computes something else each time: a forward pass must not draw random numbers"
    return None


def causal(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that a token changes no logits of earlier tokens, in evaluation and in training mode.

    The check replaces one token.
    """
    changed_BT = tokens_BT.clone()
    changed_BT[:, _CHANGED] = (changed_BT[:, _CHANGED] + 1) % model.spec.vocab
    for logits in (_read, _trained):
        moved_BT = (logits(model, tokens_BT) - logits(model, changed_BT)).abs().amax(-1)
        if moved_BT[:, :_CHANGED].max() > _TOLERANCE * moved_BT.max():
            return "lets a token see tokens that come after it"
    return None


@torch.no_grad()
def predicts_from_prefix(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that the first half of a sequence gets the same logits without the second half.

    This check is for trained weights and held-out text, since a component that obeys `causal`
    before training may still look ahead in a training run.
    """
    half = tokens_BT.shape[1] // 2
    whole_BTV, prefix_BTV = model(tokens_BT), model(tokens_BT[:, :half])
    moved = (whole_BTV[:, :half] - prefix_BTV).abs().max()
    if not moved <= _TOLERANCE * whole_BTV.abs().max():
        return "its predictions depend on the tokens that they predict: a component looks ahead"
    return None


def as_in_training(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check causality and independence of sequences at the training context, and in bfloat16.

    A component that works in chunks may break the laws `causal` and `batch_apart` only in long
    sequences; a component with another kernel in bfloat16 may break `causal` only in bfloat16.
    """
    T = min(model.spec.context, _LONGEST)
    pieces = -(-_ROWS * T // tokens_BT.numel())
    long_BT = tokens_BT.flatten().repeat(pieces)[: _ROWS * T].view(_ROWS, T)
    if failure := causal(model, long_BT) or batch_apart(model, long_BT):
        return f"{failure}, in {_ROWS} sequences of {T}"
    with suppress(RuntimeError), torch.autocast(tokens_BT.device.type, torch.bfloat16):
        if failure := causal(model, long_BT):  # else it is not trained in bfloat16
            return f"{failure}, in bfloat16"
    return None


def batch_apart(model: Decoder, tokens_BT: Tensor, close: float = _TOLERANCE) -> str | None:
    """Check that a sequence gets the same logits in a batch as alone, also in training mode."""
    for logits in (_read, _trained):
        alone = [logits(model, tokens_BT, i, i + 1) for i in range(len(tokens_BT))]
        if not _are_close(logits(model, tokens_BT), torch.cat(alone), close):
            return "mixes the sequences of a batch"
    return None


def _read(model: Decoder, tokens_BT: Tensor, first: int = 0, end: int | None = None) -> Tensor:
    """Return the logits of a batch's rows `first` to `end` in evaluation mode."""
    logits_BTV: Tensor = model.eval()(tokens_BT[first:end])
    model.train()
    return logits_BTV


def _trained(model: Decoder, tokens_BT: Tensor, first: int = 0, end: int | None = None) -> Tensor:
    """Return the logits of a batch's rows `first` to `end` as a training step computes them.

    The pass has gradients, the components' losses, and dropout if the model has dropout.
    """
    masks = Dropout.for_step(model.spec, seed=0, step=0, batch=len(tokens_BT))
    with torch.enable_grad():
        logits_BTV: Tensor = model(
            tokens_BT[first:end], losses={}, dropout=masks and masks.from_row(first)
        )
    return logits_BTV.detach()


def cached_equals_full(model: Decoder, tokens_BT: Tensor, close: float = _TOLERANCE) -> str | None:
    """Check that prefill, a chunk and single tokens give the logits of a full pass."""
    B, T = tokens_BT.shape
    state, pieces = model.new_state(batch=B, capacity=T), []
    for part in _pieces(tokens_BT, 7, 6):
        pieces.append(model(part, state))
        lengths = [part.length for part in state.states]
        if wrong := [length for length in lengths if length != state.length]:
            return f"has a state that counts {wrong[0]} tokens where it has read {state.length}"
    if not _are_close(torch.cat(pieces, 1), model(tokens_BT), close):
        return "decodes with a state to other logits than without"
    return None


def padding_changes_nothing(
    model: Decoder, tokens_BT: Tensor, close: float = _TOLERANCE
) -> str | None:
    """Check that a sequence gets the same logits with padding on the left as without.

    The check covers one full pass, and a pass in pieces with a state (such as a KV cache), in which
    the first piece is all padding.
    """
    T = tokens_BT.shape[1]
    short_BT = tokens_BT[1:2, : T - _PADDED]
    batch_BT = torch.cat([tokens_BT[:1], F.pad(short_BT, (_PADDED, 0))])
    pad_B = torch.tensor([0, _PADDED])
    state = model.new_state(batch=2, capacity=T)
    pieces = [model(part, state, pad_B=pad_B) for part in _pieces(batch_BT, 3, 6)]
    alone_TV = model(short_BT)[0]
    for logits_BTV in (model(batch_BT, pad_B=pad_B), torch.cat(pieces, 1)):
        if not _are_close(logits_BTV[1, _PADDED:], alone_TV, close):
            return "lets padding change the sequence after it: what ctx.valid_BT says is none"
    return None


def documents_apart(model: Decoder, tokens_BT: Tensor, close: float = _TOLERANCE) -> str | None:
    """Check that each document gets the same logits within a sequence of documents as alone.

    The check covers one full pass and a pass in pieces with a state, with and without padding on
    the left. The gradient of the whole sequence must be the sum of the documents' gradients. The
    law applies only to models that keep documents apart (per-document mask).
    """
    if (separator := model.spec.separator) is None:
        return None
    tokens_BT = tokens_BT[:2].masked_fill(
        tokens_BT[:2] == separator, (separator + 1) % model.spec.vocab
    )
    alone: list[list[Tensor]] = []
    for tokens_T, begins in zip(tokens_BT, _BEGINS, strict=True):
        tokens_T[list(begins)] = separator
        cuts = [at for at in begins if at]
        alone.append([part[None] for part in tokens_T.tensor_split(cuts)])
    expected_BTV = torch.cat([torch.cat([model(part) for part in row], 1) for row in alone])
    T = tokens_BT.shape[1]
    for padding in (0, _PADDED):
        text_BT = F.pad(tokens_BT[:, : T - padding], (padding, 0), value=separator)
        pad_B = torch.full((2,), padding, device=text_BT.device) if padding else None
        state = model.new_state(batch=2, capacity=T)
        pieces = [model(part, state, pad_B=pad_B) for part in _pieces(text_BT, 7, 11)]
        for logits_BTV in (model(text_BT, pad_B=pad_B), torch.cat(pieces, 1)):
            if not _are_close(logits_BTV[:, padding:], expected_BTV[:, : T - padding], close):
                return (
                    "lets a document see the one before it, and 'documents: mask' keeps them "
                    "apart: what it keeps of earlier tokens is to end where ctx.begins_BT says so"
                )
    joint = _gradients(model, [tokens_BT])
    parts = _gradients(model, [part for row in alone for part in row])
    for name, gradient in joint.items():
        if (gradient - parts[name]).abs().max() > close * parts[name].abs().max().clamp(min=1):
            return f"gives '{name}' another gradient of two documents than of each alone"
    return None


def _gradients(model: Decoder, texts: list[Tensor]) -> dict[str, Tensor]:
    """Return the gradient of the sum of the squared logits of texts, by parameter."""
    with torch.enable_grad():
        for tokens_BT in texts:
            model(tokens_BT).square().sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


def counted_bytes(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that a state has the counted bytes for each sequence, empty and full.

    The bytes are compared at several contexts and in two precisions.
    """
    B, T = tokens_BT.shape
    in_bfloat16 = copy.deepcopy(model).to(torch.bfloat16)
    for length, checked in itertools.product((1, 2, T // 2, T), (model, in_bfloat16)):
        dtype: torch.dtype = checked.embedding.weight.dtype
        state = checked.new_state(batch=B, capacity=length)
        counted = checked.state_bytes(length, dtype)
        for _ in range(2):
            if state.nbytes != B * counted:
                live = state.nbytes / B
                sequence = f"a sequence of length {length} in {str(dtype).removeprefix('torch.')}"
                return f"counts {counted:,} bytes for {sequence}, and keeps {live:,.0f}"
            if not state.length:
                checked(tokens_BT[:, :length], state)
    return None


def counted_flops(
    model: Decoder, tokens_BT: Tensor, within: float = _FLOPS_TOLERANCE
) -> str | None:
    """Check the counted FLOPs of matrix products against torch's counter.

    The FLOPs are compared for each layer, for the attention and the feed-forward network of the
    layer, and for the whole model.
    """
    T = min(model.spec.context, _COUNTED)
    text_BT = tokens_BT[:1].repeat(1, -(-T // tokens_BT.shape[1]))[:, :T]
    # Among the kernels of fused attention, torch counts only those of a GPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(text_BT)
    counted: dict[str, Any] = {}
    for i, block in enumerate(model.blocks):
        parts = block_flops(block, T)
        counted |= {f"Decoder.blocks.{i}.{name}": parts[name] for name in ("attn", "ffn")}
        counted[f"Decoder.blocks.{i}"] = sum(parts.values())
    for name, flops in {**counted, "Global": model.flops(T)}.items():
        measured = sum(counter.get_flop_counts().get(name, {}).values()) / T
        if not isinstance(flops, int | float):
            return f"counts {flops!r} FLOPs per token, which is no number"
        if not abs(flops - measured) <= within * measured:  # NaN, too
            part = "the whole model" if name == "Global" else name.removeprefix("Decoder.")
            counts = f"counts {flops:,.0f} FLOPs per token in {part}"
            return f"{counts}, and torch's counter {measured:,.0f}"
    return None


def exempts_what_it_has(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that every name in a module's `no_weight_decay` names a parameter of the module."""
    del tokens_BT
    for path, module in model.named_modules():
        for name in getattr(module, "no_weight_decay", ()):
            if not isinstance(getattr(module, name, ""), nn.Parameter | None):
                return f"exempts '{path}.{name}' from weight decay, and has no such parameter"
    return None


def every_parameter_learns(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that every parameter gets a finite gradient, nonzero in one of the first steps."""
    waiting = dict(model.named_parameters())
    for _ in range(_STEPS):
        with torch.enable_grad():
            logits_BTV = model(tokens_BT[:, :-1])
            F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        for name, parameter in list(waiting.items()):
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"gives '{name}' a gradient that is not finite"
            if parameter.grad is not None and parameter.grad.abs().max() > 0:
                del waiting[name]
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(_STEP * parameter.grad.sign())
        model.zero_grad()
    # Softmax ignores a constant added to all scores: the bias of the keys may have no gradient.
    if still := [name for name in waiting if not name.endswith("attn.k.bias")]:
        return f"gives '{still[0]}' no gradient: it would never learn; use it, or drop it"
    return None


def drawn_from_the_seed(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that a seed gives the same weights each time, and that every weight is saved."""
    repeated, other = _model(model.spec), Decoder(model.spec, seed=1)
    here, other.kernel = model.state_dict(), model.kernel
    if any(not torch.equal(here[name], tensor) for name, tensor in repeated.state_dict().items()):
        return "starts from other weights each time: draw with torch, which is seeded"
    other.load_state_dict(here)
    if not torch.equal(other(tokens_BT), model(tokens_BT)):
        return "draws something that is not saved: make it a parameter or a persistent buffer"
    return None


def _pieces(tokens_BT: Tensor, *sizes: int) -> list[Tensor]:
    """Split tokens into pieces of the given sizes, and the remaining tokens into single tokens."""
    single = [1] * (tokens_BT.shape[1] - sum(sizes))
    return list(tokens_BT.split_with_sizes([*sizes, *single], 1))


def _are_close(some: Tensor, others: Tensor, close: float) -> bool:
    return torch.allclose(some, others, rtol=close, atol=close)


def drops_sublayers(model: Decoder, tokens_BT: Tensor) -> str | None:
    """Check that a model with sub-layer dropout drops the outputs of every sub-layer.

    With a dropout rate of nearly 1, which drops every output, the logits must equal the logits of a
    model whose sub-layers return zeros.
    """
    if model.spec.dropout.sublayer == 0:
        return None
    everything = Dropout(DropoutRates(sublayer=_DROP_ALL), 0, 0, len(tokens_BT))
    dropped_BTV = model(tokens_BT, dropout=everything)
    with ExitStack() as hooks:
        for part in (part for block in model.blocks for part in (block.attn, block.ffn)):
            hooks.enter_context(
                part.register_forward_hook(lambda *given: torch.zeros_like(given[-1]))
            )
        silent_BTV = model(tokens_BT)
    if not _are_close(dropped_BTV, silent_BTV, _TOLERANCE):
        return "does not drop all that attention and feed-forward add: pass both to ctx.drop"
    return None


#: All laws, in the order of their checks; the law that changes the weights comes last.
LAWS: tuple[Law, ...] = (
    finite,
    drawn_from_the_seed,
    causal,
    batch_apart,
    as_in_training,
    cached_equals_full,
    padding_changes_nothing,
    documents_apart,
    counted_bytes,
    counted_flops,
    exempts_what_it_has,
    drops_sublayers,
    every_parameter_learns,
)


def breach(law: Callable[..., str | None], given: Callable[[], tuple[object, ...]]) -> str | None:
    """Check a law; return a description of the breach, or None if the law is obeyed.

    If the check raises an error, the description says so; only a ConfigError is raised again.
    """
    try:
        return law(*given())
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  a plug-in can raise anything
        first = (str(error).splitlines() or [""])[0]
        return f"fails where '{law.__name__}' is checked: {type(error).__name__}: {first}"


def check(spec: ModelSpec, slot: str) -> None:
    """Check a slot's component against every law, in a small version of the spec's model.

    A slot is an interchangeable part of a model, such as `attention`. Raises ConfigError, which
    names the component and the broken law, if a law is broken.
    """
    small = replace(
        spec,
        vocab=_VOCAB,
        layers=min(spec.layers, _LAYERS),
        context=max(spec.context, _TOKENS),
        # Near zero most activations are alike; far from zero most softmaxes are saturated.
        tie=False,
        separator=None if spec.separator is None else _SEPARATOR,
        init_std=max(spec.init_std, spec.dim**-0.5),
        **_RULES,
    )
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(0, _VOCAB, (2, _TOKENS), generator=generator)
    if broken := dict(_broken(small, tokens_BT)):
        (_, said), *others = broken.items()
        also = f" (and breaks {', '.join(other for other, _ in others)})" if others else ""
        example = f"`llama-ablate init component {slot}` writes one that obeys"
        what = f"the {slot} '{getattr(spec, slot).name}' {said}{also}; {example}"
        raise ConfigError(what, (slot,))


@torch.no_grad()
def _broken(spec: ModelSpec, tokens_BT: Tensor) -> Iterator[tuple[str, str]]:
    """Yield the name of each broken law, and a description of the breach."""
    for law in LAWS:
        try:
            failure = breach(law, lambda: (_model(spec), tokens_BT))
        except NotProvidedError:
            continue  # the law is about a method that the component does not provide
        if failure:
            first, *_ = (law.__doc__ or "").splitlines() or [""]  # python -OO leaves them out
            statement = first.removeprefix("Check that ").removeprefix("Check ").rstrip(".")
            said = f"{failure}; the law '{law.__name__}'" + f": {statement}" * bool(statement)
            yield law.__name__, said


def _model(spec: ModelSpec) -> Decoder:
    model = new_model(spec, 0)
    model.kernel = "math"
    return model
