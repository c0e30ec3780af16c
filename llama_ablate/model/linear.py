"""Linear and embedding layers with an initialisation and a weight decay flag."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Kind of a weight, on which the rules of initialisation and learning rates depend.
Kind = Literal["embedding", "hidden", "out", "head", "vector", "last"]
#: Function that fills a weight in place.
Start = Callable[[Tensor], object]


class Linear(nn.Linear):
    """`nn.Linear` whose weight is initialised by `start`, or else by the rule `model.init`.

    `start` fills the weight in place, and no rule overwrites the weight; biases start at zero. With
    `decay` False, the weight has no weight decay.
    """

    kind: ClassVar[Kind] = "hidden"

    def __init__(
        self,
        size: int,
        out: int,
        *,
        bias: bool = True,
        start: Start | None = None,
        decay: bool = True,
    ) -> None:
        self.start = start
        self.no_weight_decay = frozenset() if decay else frozenset({"weight"})
        super().__init__(size, out, bias=bias)

    def reset_parameters(self) -> None:
        """Fill the weight by `start`, if given; otherwise the rule `model.init` fills it later."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.start is not None:
            self.start(self.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias`."""
        if torch.compiler.is_compiling():
            return _product(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


class OutLinear(Linear):
    """Projection whose output is added to the residual stream."""

    kind: ClassVar[Kind] = "out"


class Head(Linear):
    """Output head: the projection to the logits."""

    kind: ClassVar[Kind] = "head"


class Embedding(nn.Embedding):
    """`nn.Embedding` whose weight is initialised by `start`, or else by the rule `model.init`."""

    kind: ClassVar[Kind] = "embedding"

    def __init__(self, count: int, size: int, *, start: Start | None = None) -> None:
        self.start = start
        super().__init__(count, size)

    def reset_parameters(self) -> None:
        """Fill the weight by `start`, if given; otherwise the rule `model.init` fills it later."""
        if self.start is not None:
            self.start(self.weight.detach())


def weights(part: nn.Module) -> int:
    """Count the multiply-adds per token of a module's linear layers, each applied once."""
    return sum(m.weight.numel() for m in part.modules() if isinstance(m, nn.Linear))


def numel(part: nn.Module) -> int:
    """Count a module's parameters."""
    return sum(parameter.numel() for parameter in part.parameters())


def project_fused(x_BTD: Tensor, parts: Sequence[Linear]) -> Tensor:
    """Apply several linear layers to one input in a fused projection, (B, T, sum of outputs).

    The weights are concatenated for one matrix product, since they are smaller than the
    activations. For a single token the outputs are concatenated instead, as joining the weights
    would take longer than the products.
    """
    if x_BTD.shape[1] == 1:
        return torch.cat([part(x_BTD) for part in parts], -1)
    weight, biases = torch.cat([part.weight for part in parts]), [part.bias for part in parts]
    if all(bias is None for bias in biases):
        return F.linear(x_BTD, weight)
    zeros = (weight.new_zeros(part.out_features) for part in parts)
    filled = (z if bias is None else bias for bias, z in zip(biases, zeros, strict=True))
    return F.linear(x_BTD, weight, torch.cat(tuple(filled)))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`.

    In a compiled step on a CPU, a single vector is multiplied elementwise and summed, in float32 or
    wider: the compiler fuses this into one pass over the weights, while torch's matrix product
    takes twice as long in bfloat16.
    """
    vector = x.numel() == x.shape[-1] and x.device.type == "cpu" and not torch.is_grad_enabled()
    if not vector:
        return F.linear(x, weight, bias)
    wide = torch.promote_types(x.dtype, torch.float32)
    y = (weight.to(wide) * x.flatten().to(wide)).sum(-1)
    y = y if bias is None else y + bias
    return y.to(x.dtype).view(*x.shape[:-1], -1)


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Kind, bool]]:
    """Yield the name, tensor, kind and weight decay flag of each parameter.

    The kind of a layer's `weight` is the kind of the layer. The kind of all other parameters is
    `vector`, whatever the shape, except in the norm after the last block: its parameters have the
    kind `last`, since their scale does not depend on depth. A tied weight is yielded once, under
    its first name. A matrix has weight decay, unless the set `no_weight_decay` of the module has
    the name of the matrix.
    """
    yielded: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        kind: Kind = getattr(module, "kind", "vector")
        no_weight_decay = getattr(module, "no_weight_decay", ())
        last = path.removeprefix("model.").partition(".")[0] == "norm"
        for part, parameter in module.named_parameters(recurse=False):
            if parameter not in yielded:
                yielded.add(parameter)
                part_kind: Kind = "last" if last else kind if part == "weight" else "vector"
                decays = parameter.dim() >= 2 and part not in no_weight_decay
                yield f"{path}.{part}".lstrip("."), parameter, part_kind, decays
