"""Timing of a small Llama's training steps with one component or the optimizer replaced."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from benchmarks.components.timing import Controls, Setup, Table, Work, in_turns
from llama_ablate.config.experiment import Model, Train
from llama_ablate.design.variants import resolve
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer

_MODEL = {"dim": 256, "layers": 4, "heads": 4, "context": 256, "vocab": 1024}
_BATCH = 4


def steps(
    title: str, swaps: Mapping[str, Mapping[str, Any]], setup: Setup, *, against: str
) -> Table:
    """Time a full optimizer step for each set of changes to a small model.

    The model has 4 layers and width 256. A set of changes maps keys of `model`, or `optimizer`, to
    entries; `norm` may also be a function from a width to a module, which replaces all norms of the
    model. Steps are timed in a third of the rounds, since the time of hundreds of operations varies
    less than that of a single one.
    """
    cases = {name: _step(changes, setup) for name, changes in swaps.items()}
    context = swaps[against].get("context", _MODEL["context"])
    again = _step(swaps[against], setup)
    # The positive control has another layer, which costs time whether arithmetic or kernel launches
    # dominate.
    deeper = _step({**swaps[against], "layers": _MODEL["layers"] + 1}, setup)
    return in_turns(
        title,
        cases,
        replace(setup, rounds=max(2, setup.rounds // 3)),
        against=against,
        controls=Controls(against, again, deeper, "one layer more"),
        note=f"4 layers of 256, {_BATCH} x {context} tokens, AdamW unless swapped, {setup.dtype}",
    )


def _step(swap_in: Mapping[str, Any], setup: Setup) -> Work:
    changes = dict(swap_in)
    swap: Callable[[int], torch.nn.Module] | None = None
    if callable(changes.get("norm")):
        swap = changes.pop("norm")
    values = {"steps": 1, "batch": _BATCH, "optimizer": changes.pop("optimizer", "adamw")}
    train = Train.check(values)
    spec = resolve(Model.check(_MODEL | changes))
    compute = Compute(setup.device, setup.threads, setup.dtype)
    model = new_model(spec, 0)
    if swap:
        for block in model.blocks:
            for name in block.norms:
                setattr(block, name, swap(spec.dim))
        model.norm = swap(spec.dim)
    compute.prepare(model)
    objective = Objective(model)
    optimizer = make_optimizer(objective, train)
    generator = torch.Generator().manual_seed(0)
    shape = (_BATCH, spec.context + 1)
    tokens = torch.randint(0, spec.vocab, shape, generator=generator).to(setup.device)
    return lambda: update(objective, optimizer, [tokens], train, compute)
