"""Activations and gradients of a trained model, layer by layer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from llama_ablate.measure.registry import METRICS, Subject
from llama_ablate.results.metrics import Value, row
from llama_ablate.training.compute import loss_of
from llama_ablate.training.evaluation import LOGITS, windows

_TOKENS = 16_384  # of held-out text


@METRICS.add("activations", per="run")
def activations(subject: Subject) -> Iterator[Value]:
    """RMS of the residual stream after each layer, and the share of dead feed-forward units.

    A unit is dead where its input to the down projection is zero for every token (of at most
    16,384): the dying ReLU. The share over all layers is `dead_units_share`.
    """
    model = subject.model
    squares: dict[int, list[float]] = {}
    alive: dict[int, Tensor] = {}

    def stream(layer: int, x_BTD: Tensor) -> None:
        squares.setdefault(layer, []).append(x_BTD.float().square().mean().item())

    def hidden(layer: int, h_BTF: Tensor) -> None:
        seen = (h_BTF != 0).flatten(0, 1).any(0)
        alive[layer] = alive[layer] | seen if layer in alive else seen

    with _watched(model, stream, hidden), torch.no_grad(), subject.compute.autocast():
        for tokens in _batches(subject):
            model.hidden(tokens[:, :-1])
    for i, means in squares.items():
        rms = (sum(means) / len(means)) ** 0.5
        yield row(f"layer_{i}_stream_rms", rms, quantity="stream_rms", layer=i)
    dead = {i: 1 - units.float().mean().item() for i, units in alive.items()}
    for i, share in dead.items():
        yield row(f"layer_{i}_dead_units_share", share, quantity="dead_units_share", layer=i)
    yield row("dead_units_share", sum(dead.values()) / len(dead))


@METRICS.add("gradients", per="run")
def gradients(subject: Subject) -> Iterator[Value]:
    """Gradient norm of each layer's weights, after training.

    Taken in float32 over one batch of held-out text. `first_to_last_ratio` is the first layer's
    over the last's: far from 1 where gradients vanish or explode on their way down.
    """
    model = subject.model
    tokens = next(_batches(subject))
    model.zero_grad()
    rows = max(1, LOGITS // model.spec.vocab // tokens.shape[1])
    for part in tokens.split(rows):  # type: ignore[no-untyped-call]
        loss = loss_of(model, part) * (len(part) / len(tokens))
        loss.backward()  # type: ignore[no-untyped-call]
    norms = [
        torch.stack([p.grad.norm() for p in block.parameters() if p.grad is not None]).norm().item()
        for block in model.blocks
    ]
    model.zero_grad()
    for i, norm in enumerate(norms):
        yield row(f"layer_{i}_gradient_norm", norm, quantity="gradient_norm", layer=i)
    yield row("first_to_last_ratio", norms[0] / norms[-1] if norms[-1] else math.inf)


def _batches(subject: Subject) -> Iterator[Tensor]:
    context = subject.model.spec.context
    split = subject.tokens.split(subject.tokens.heldout[-1])
    whole = windows(split, context, max(_TOKENS, context))[0]
    for part in torch.from_numpy(whole).split(max(1, 4096 // context)):  # type: ignore[no-untyped-call]
        yield part.to(subject.compute.device)


@contextmanager
def _watched(model: Any, stream: Any, hidden: Any) -> Iterator[None]:
    """Call `stream` with each block's output, and `hidden` with each down projection's input."""
    hooks = []
    for i, block in enumerate(model.blocks):

        def after(_module: nn.Module, _inputs: Any, x: Tensor, layer: int = i) -> None:
            stream(layer, x)

        def before(_module: nn.Module, inputs: tuple[Tensor, ...], layer: int = i) -> None:
            hidden(layer, inputs[0])

        hooks += [
            block.register_forward_hook(after),
            block.ffn.down.register_forward_pre_hook(before),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
