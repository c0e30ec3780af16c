"""Metrics of a trained model layer by layer: activations, gradients and load of experts."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from llama_ablate.measure.metrics import METRICS, Subject, Unmeasured
from llama_ablate.results.record import Value, row
from llama_ablate.training.compute import loss_of
from llama_ablate.training.evaluation import windows

_TOKENS = 16_384  # of held-out text


@METRICS.add("activations", per="run")
def activations(subject: Subject) -> Iterator[Value]:
    """RMS of the residual stream after each layer, and the share of dead feed-forward units.

    A unit is dead if its input to the down projection is zero for every token, of at most 16,384
    (the dying ReLU problem). `dead_units_share` is the mean of the layers' shares. Down projections
    are all modules named `down` in a layer's feed-forward network, including its experts. Layers
    without such a module are not measured.
    """
    model = subject.model
    squares: list[list[float]] = [[] for _ in model.blocks]
    alive: list[dict[str, Tensor]] = [{} for _ in model.blocks]

    def stream(layer: int, _block: nn.Module, _inputs: Any, x_BTD: Tensor) -> None:
        squares[layer].append(x_BTD.float().square().mean().item())

    def units(layer: int, name: str, _down: nn.Module, inputs: Any) -> None:
        active = (inputs[0] != 0).flatten(0, -2).any(0)
        alive[layer][name] = alive[layer].get(name, active) | active

    hooks = [b.register_forward_hook(partial(stream, i)) for i, b in enumerate(model.blocks)]
    hooks += [
        module.register_forward_pre_hook(partial(units, i, name))
        for i, block in enumerate(model.blocks)
        for name, module in block.ffn.named_modules()
        if name.rpartition(".")[2] == "down"
    ]
    _read(subject, hooks)
    for i, means in enumerate(squares):
        rms = (sum(means) / len(means)) ** 0.5
        yield row(f"layer_{i}_stream_rms", rms, quantity="stream_rms", layer=i)
    dead = {
        i: 1 - torch.cat([*by_name.values()]).float().mean().item()
        for i, by_name in enumerate(alive)
        if by_name
    }
    for i, share in dead.items():
        yield row(f"layer_{i}_dead_units_share", share, quantity="dead_units_share", layer=i)
    if dead:
        yield row("dead_units_share", sum(dead.values()) / len(dead))
    if other := [str(i) for i in range(len(alive)) if i not in dead]:
        raise Unmeasured(
            f"no dead units of layer {', '.join(other)}, whose feed-forward has no 'down'"
        )


@METRICS.add("expert_load", per="run", worse={"load_max_over_mean": "higher"})
def expert_load(subject: Subject) -> Iterator[Value]:
    """Load of each layer's experts: the share of routed tokens that each expert gets.

    Shares are over at most 16,384 held-out tokens. Each layer also has the largest load over the
    mean load (1 is even; the number of experts is the worst with one expert per token) and the
    entropy of the shares; `load_max_over_mean` is the value of the worst layer. Only feed-forward
    networks with a method `load` are measured.
    """
    model = subject.model
    loads: dict[int, Tensor] = {}

    def count(layer: int, ffn: Any, inputs: Any) -> None:
        loads[layer] = loads.get(layer, 0) + ffn.load(inputs[0])

    _read(
        subject,
        [
            block.ffn.register_forward_pre_hook(partial(count, i))
            for i, block in enumerate(model.blocks)
            if hasattr(block.ffn, "load")
        ],
    )
    if not loads:
        raise Unmeasured("no layer has experts")
    worst = 0.0
    for i, load_N in loads.items():
        share_N = load_N.double() / load_N.sum()
        for n, share in enumerate(share_N.tolist()):
            yield row(f"layer_{i}_expert_{n}_load", share, quantity="load", layer=i, expert=n)
        over = (share_N.max() * len(share_N)).item()
        worst = max(worst, over)
        yield row(f"layer_{i}_load_max_over_mean", over, quantity="load_max_over_mean", layer=i)
        entropy = torch.special.entr(share_N).sum().item()
        name = f"layer_{i}_load_entropy_nats"
        yield row(name, entropy, "nats", "load_entropy", layer=i)
    yield row("load_max_over_mean", worst)


@METRICS.add("gradients", per="run")
def gradients(subject: Subject) -> Iterator[Value]:
    """Gradient norm of each layer's weights, after training.

    Gradients are computed in float32 over one batch of held-out text. `first_to_last_ratio` is the
    first layer's norm over the last layer's norm: the ratio is far from 1 if gradients vanish or
    explode in the backward pass.
    """
    model = subject.model
    tokens = next(_batches(subject))
    model.zero_grad()
    loss_of(model, tokens).backward()  # type: ignore[no-untyped-call]
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
    full_windows = windows(split, context, max(_TOKENS, context))[0]
    for part in torch.from_numpy(full_windows).split(max(1, 4096 // context)):  # type: ignore[no-untyped-call]
        yield part.to(subject.compute.device)


@torch.no_grad()
def _read(subject: Subject, hooks: Iterable[RemovableHandle]) -> None:
    """Run the model over held-out text in float32, as in all evaluation; then remove the hooks."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        for tokens in _batches(subject):
            subject.model.hidden(tokens[:, :-1])
