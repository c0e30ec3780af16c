"""Rules for initial weights, by name in `model.init`.

A rule fills the matrices of layers that have no initialiser `start`. Each tensor is drawn on the
CPU, seeded by (seed, parameter name). Two variants of a model therefore start from bit-identical
values in every weight that both variants have, whatever else differs, and the runs of both variants
with the same seed can be compared as a pair.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES, ModelSpec
from llama_ablate.model.linear import Embedding, Kind, Linear
from llama_ablate.model.parametrization import Parametrization


class Init(Protocol):
    """Rule for initial weights and biases."""

    def weight(self, weight: Tensor, kind: Kind, inputs: float, draw: Generator) -> None:
        """Fill a matrix, (out, in) or (entries, width), in place.

        `inputs` is the fan-in, the number of inputs of each output, in the parametrization's base
        model.
        """

    def bias(self, bias: Tensor, inputs: float, draw: Generator) -> None:
        """Fill the bias of a linear layer that has `inputs` inputs in the base model."""


INITS = Registry("init", sizes=SIZES, interface=Init)


@INITS.register("normal")
class Normal:
    """Draw every matrix from N(0, init_std^2), biases zero (Radford et al. 2018, GPT, 4.1)."""

    def __init__(self, init_std: float) -> None:
        self.std = init_std

    def weight(self, weight: Tensor, kind: Kind, inputs: float, draw: Generator) -> None:
        """Fill a matrix, whatever its kind."""
        del kind, inputs
        weight.normal_(0.0, self.std, generator=draw)

    def bias(self, bias: Tensor, inputs: float, draw: Generator) -> None:
        """Fill a bias with zeros."""
        del inputs, draw
        bias.zero_()


@INITS.register("depth-scaled")
class DepthScaled(Normal):
    """Draw from N(0, init_std^2), residual outputs smaller (Radford et al. 2019, GPT-2, 2.3).

    Projections whose outputs are added to the residual stream have the standard deviation
    `init_std / sqrt(2 layers)`, so that the stream's variance does not grow with depth. Biases are
    zero.
    """

    def __init__(self, init_std: float, layers: int) -> None:
        super().__init__(init_std)
        self.out_std = init_std / math.sqrt(2 * layers)

    def weight(self, weight: Tensor, kind: Kind, inputs: float, draw: Generator) -> None:
        """Fill a matrix."""
        del inputs
        weight.normal_(0.0, self.out_std if kind == "out" else self.std, generator=draw)


@INITS.register("torch")
class Torch:
    """Draw like torch's own layers, uniform within 1/sqrt(inputs) (LeCun et al. 1998; torch 2).

    Linear layers: weights and biases uniform within +-1/sqrt(inputs); embeddings: N(0, 1).
    """

    def weight(self, weight: Tensor, kind: Kind, inputs: float, draw: Generator) -> None:
        """Fill a matrix."""
        if kind == "embedding":
            weight.normal_(generator=draw)
        else:
            self.bias(weight, inputs, draw)

    def bias(self, bias: Tensor, inputs: float, draw: Generator) -> None:
        """Fill a bias."""
        bias.uniform_(-(inputs**-0.5), inputs**-0.5, generator=draw)


@INITS.register("mup")
class MuP(Normal):
    """Draw by the maximal update parametrization (Yang et al. 2022, 2203.03466, Table 3).

    Matrices of the blocks are N(0, 1/inputs) and the output head N(0, 1/inputs^2), so that logits
    of a wide model begin near 0; embeddings are N(0, init_std^2) and biases zero.
    """

    def weight(self, weight: Tensor, kind: Kind, inputs: float, draw: Generator) -> None:
        """Fill a matrix."""
        std = {"embedding": self.std, "head": 1 / inputs}.get(kind, inputs**-0.5)
        weight.normal_(0.0, std, generator=draw)


def fill(model: nn.Module, spec: ModelSpec, parametrization: Parametrization, seed: int) -> None:
    """Fill weights and biases of all layers without an initialiser `start`, by the spec's rule.

    The tensors are filled in place. The rule gets the sizes of the parametrization's base model;
    the parametrization then scales the weights that the rule drew.
    """
    sizes = spec.sizes | {"layers": round(spec.layers / parametrization.depth)}
    init: Init = INITS.build(spec.init, **sizes)
    parameters = dict(model.named_parameters())
    for path, module in model.named_modules():
        if not isinstance(module, Linear | Embedding) or module.start is not None:
            continue
        inputs = module.weight.shape[1] / parametrization.width
        for part in ("weight", "bias"):
            name = f"{path}.{part}"
            if name not in parameters:  # it has no bias, or a tied weight has another name
                continue
            draw = torch.Generator().manual_seed(stream(seed, name))
            values = torch.empty(parameters[name].shape)
            if part == "weight":
                init.weight(values, module.kind, inputs, draw)
                values *= parametrization.start(module.kind)
            else:
                init.bias(values, inputs, draw)
            with torch.no_grad():
                parameters[name].copy_(values)


@contextmanager
def drawing_from(seed: int, name: str) -> Iterator[None]:
    """Seed torch's global generator by (seed, name) for a `with` block; restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(seed, name))
        yield


def stream(seed: int, name: str) -> int:
    """Return the seed of the random numbers for (seed, name), from a SHA-256 hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "little")
