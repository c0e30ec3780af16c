"""A model's weights in a safetensors file, under this package's parameter names."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from llama_ablate.files.disk import Writer
from llama_ablate.model.decoder import Decoder


def save_weights(weights: Mapping[str, Tensor], file: Writer, *, tied: bool) -> None:
    """Write a model's parameters and saved buffers to an open file; a tied head is written once."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    if tied:
        del tensors["head.weight"]
    file.write(save(tensors))


def load_weights(model: Decoder, path: Path) -> Decoder:
    """Fill a model with the weights in a file of `save_weights`, and return the model."""
    tensors = load_file(path)
    if model.spec.tie:
        tensors["head.weight"] = tensors["embedding.weight"]
    model.load_state_dict(tensors)
    return model
