"""Attention maps of a prompt: scores, masked scores and weights of every layer and head."""

from collections.abc import Sequence

import torch

from llama_ablate.errors import need
from llama_ablate.interop.attention_figures import AttentionMaps
from llama_ablate.interop.loader import OpenedModel
from llama_ablate.model.kernels import Maps

_MOST = 512  # tokens: figures of more are illegible, and the arrays take gigabytes


def attention_maps(opened: OpenedModel, prompt: Sequence[int]) -> AttentionMaps:
    """Return the attention maps of a prompt for all heads of all layers with attention.

    Raises ConfigError for a prompt that is empty, longer than the context or longer than 512
    tokens, and if no layer has an attention.
    """
    most = min(_MOST, opened.model.spec.context)
    fits = 0 < len(prompt) <= most
    need(fits, f"the prompt has {len(prompt):,} tokens; allowed: 1 to {most:,}")
    maps: list[Maps] = []
    layers: list[int] = []  # a recurrence adds no maps
    hooks = [
        block.register_forward_hook(lambda *_, i=i: layers.extend([i] * (len(maps) - len(layers))))
        for i, block in enumerate(opened.model.blocks)
    ]
    device = opened.model.embedding.weight.device
    with torch.inference_mode():
        opened.model(torch.tensor([list(prompt)], device=device), maps=maps)
    for hook in hooks:
        hook.remove()
    need(maps, f"no layer of '{opened.title}' is an attention: it has no maps")
    scores, masked, weights = (
        torch.stack([getattr(layer, name)[0].float().cpu() for layer in maps]).numpy()
        for name in ("scores", "masked", "weights")
    )
    labels = [opened.tokenizer.piece(token) for token in prompt]
    return AttentionMaps(scores, masked, weights, labels, opened.title, layers)
