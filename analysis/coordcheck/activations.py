"""Sizes of activations over the first steps of training, for models of several widths."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.model.decoder import Decoder, build, init_weights
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer

_TOKENS = 2_048  # of a batch, at most


@dataclass(frozen=True)
class Activation:
    """How large a tensor of a forward pass is after so many steps of training."""

    parametrization: str
    width: int
    seed: int
    place: str
    step: int
    #: The mean of |x|, and that of |x - x before the first step|, on the same text.
    size: float
    change: float


def over_widths(
    specs: Mapping[str, Mapping[int, ModelSpec]],
    tokens: Tokens,
    train: Train,
    *,
    steps: int,
    seeds: int,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Activation]:
    """Return the activations of new models of several parametrizations and widths, over seeds.

    `report` gets the number of forward passes that were measured so far, and of all.
    """
    arms = [
        (name, width, spec, seed)
        for name, of_widths in specs.items()
        for width, spec in of_widths.items()
        for seed in range(seeds)
    ]
    activations, done = [], 0
    for name, width, spec, seed in arms:
        for step, sizes in enumerate(_sizes(spec, tokens, train, steps, seed)):
            for place, (size, change) in sizes.items():
                activations.append(Activation(name, width, seed, place, step, size, change))
            done += 1
            report(done, len(arms) * (steps + 1))
    return activations


def _sizes(
    spec: ModelSpec, tokens: Tokens, train: Train, steps: int, seed: int
) -> Iterator[dict[str, tuple[float, float]]]:
    """Train a new model; yield size and change of each tensor before the first step and after each.

    Its text is that of a run of this seed, in batches of at most 2,048 tokens; its rate is the peak
    of the schedule in all steps, its loss cross-entropy and what its components add, and nothing is
    dropped. What is measured is the forward pass over a batch that no step trains on, in float32
    (Yang et al. 2022, arXiv:2203.03466, appendix D.1).
    """
    compute = Compute()
    model = compute.prepare(init_weights(build(spec), seed))
    objective = Objective(model)
    optimizer = make_optimizer(objective, train)
    rows = max(1, min(train.batch, _TOKENS // spec.context))

    def batch(step: int) -> Tensor:
        return torch.from_numpy(tokens.batch(seed, step, rows, spec.context))

    probe_BT = batch(steps)[:, :-1]
    first = _outputs(model, probe_BT)
    yield {place: (_mean(x), 0.0) for place, x in first.items()}
    for step in range(steps):
        update(objective, optimizer, [batch(step)], train, compute)
        now = _outputs(model, probe_BT)
        yield {place: (_mean(x), _mean(x - first[place])) for place, x in now.items()}


def _mean(x: Tensor) -> float:
    return float(x.abs().mean())


@torch.no_grad()
def _outputs(model: Decoder, tokens_BT: Tensor) -> dict[str, Tensor]:
    """Return what each part of a model computes for a batch, by its place."""
    outputs: dict[str, Tensor] = {}
    with _kept(model, outputs):
        logits_BTV = model(tokens_BT)
    return outputs | {"logits": logits_BTV}


@contextmanager
def _kept(model: Decoder, outputs: dict[str, Tensor]) -> Iterator[None]:
    """Keep the outputs of a model's parts while it computes."""

    def keep(place: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: outputs.update({place: output})

    parts: dict[str, Any] = {"embedding": model.embedding}
    for layer, block in enumerate(model.blocks):
        parts |= {f"attention {layer}": block.attn, f"feed-forward {layer}": block.ffn}
        parts[f"stream {layer}"] = block
    hooks = [part.register_forward_hook(keep(place)) for place, part in parts.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
