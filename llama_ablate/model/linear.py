"""Linear and embedding layers with an initialisation and a weight decay flag."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a weight is to the rules of initialisation and of learning rates.
Kind = Literal["embedding", "hidden", "out", "head", "vector", "last"]
#: Fills a weight in place.
Start = Callable[[Tensor], object]


class Linear(nn.Linear):
    """`nn.Linear` whose weight is drawn by `model.init`, unless `start` says how it begins.

    `start` fills the weight in place and nothing overwrites it; biases start at zero. `decay`
    False exempts the weight from weight decay.
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
        """Fill the weight by `start`; one without it is drawn later, from seed and name."""
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
    """The projection to the logits."""

    kind: ClassVar[Kind] = "head"


class Embedding(nn.Embedding):
    """`nn.Embedding` whose weight is drawn by `model.init`, unless `start` says how it begins."""

    kind: ClassVar[Kind] = "embedding"

    def __init__(self, count: int, size: int, *, start: Start | None = None) -> None:
        self.start = start
        super().__init__(count, size)

    def reset_parameters(self) -> None:
        """Fill the weight by `start`; one without it is drawn later, from seed and name."""
        if self.start is not None:
            self.start(self.weight.detach())


def weights(part: nn.Module) -> int:
    """Return the multiply-adds per token of all linear layers of a part, each passed once."""
    return sum(m.weight.numel() for m in part.modules() if isinstance(m, nn.Linear))


def numel(part: nn.Module) -> int:
    """Count a part's parameters."""
    return sum(parameter.numel() for parameter in part.parameters())


def project_fused(x_BTD: Tensor, parts: Sequence[Linear]) -> Tensor:
    """Apply several linear layers to one input in a fused projection, (B, T, sum of outputs).

    It is one matrix product: the small weights are joined, not the activations. For a single token
    it is the other way round, as joining weights would take longer than the products.
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

    One vector on a CPU, in a compiled step, is multiplied as a sum over products, in float32 at
    least: the compiler fuses it into one pass over the weights, and torch's product of matrices
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
    """Yield the name, parameter, kind and weight decay (a bool) of each parameter.

    It is its layer's kind, or a `vector`. A weight that is tied has its first name alone.
    Parameters of a component's own are vectors, whatever their shape; those of the norm after the
    last block, which no depth scales, are `last`. Matrices take weight decay, unless a module
    exempts its own by naming them in `no_weight_decay`, a set.
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
