"""Micro-benchmark of token mixers, alone and in a training step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.components.step import steps
from benchmarks.components.timing import (
    Controls,
    Ratio,
    Setup,
    Table,
    Work,
    both_ways,
    in_turns,
    more,
)
from llama_ablate.config.experiment import Model
from llama_ablate.design.variants import resolve
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import new_model
from llama_ablate.model.kernels import Kernel

_CONTEXT = 512
_KERNELS: tuple[Kernel, ...] = ("math", "fused")
_RECURRENT = ("gated_delta",)


def tables(setup: Setup) -> list[Table]:
    """Time token mixers forward and backward, and training steps of models with them."""
    swaps = {name: {"attention": name, "context": _CONTEXT} for name in ("mha", *_RECURRENT)}
    return [_alone(setup), steps("training step", swaps, setup, against="mha")]


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of times of recurrent mixers to attention."""
    alone, step = tables
    return [
        Ratio(f"{name} / {mha}, {what}", table.ratio(name, mha))
        for what, table, attentions in (
            ("forward and backward", alone, ("mha, math", "mha, fused")),
            ("training step", step, ("mha",)),
        )
        for mha in attentions
        for name in _RECURRENT
    ]


def _alone(setup: Setup) -> Table:
    """Time each mixer, forward and backward, on sequences with `rows` tokens in total."""
    context = min(_CONTEXT, setup.rows)
    batch = max(1, setup.rows // context)

    def of(attention: str, kernel: Kernel = "fused", size: int = batch) -> Work:
        sizes = {"dim": setup.dim, "layers": 1, "heads": max(1, setup.dim // 64)}
        entry = {"attention": attention, "context": context, "vocab": 256}
        spec = resolve(Model.check(sizes | entry))
        model = new_model(spec, 0).to(setup.device)
        model.position.prepare(context)
        ctx = Context(0, context, model.position, kernel=kernel, device=setup.device)
        low = setup.torch_dtype == torch.bfloat16

        def mix(x: Tensor) -> Tensor:
            with torch.autocast(setup.device, torch.bfloat16, enabled=low):
                y: Tensor = model.blocks[0].attn(x.view(size, context, -1), ctx)
            return y.flatten(0, 1)

        return both_ways(mix, setup.tensors(size * context, setup.dim)[0])

    attentions: dict[str, Work] = {f"mha, {kernel}": of("mha", kernel) for kernel in _KERNELS}
    return in_turns(
        "mixer alone, forward and backward",
        attentions | {name: of(name) for name in _RECURRENT},
        setup,
        against="mha, fused",
        controls=Controls(
            "mha, fused", of("mha"), of("mha", size=more(batch)), f"{more(batch)} sequences"
        ),
        note=f"{batch} x {context} tokens of {setup.dim}, {setup.dtype}",
    )
