"""The peak memory of a run, found without memory: a step on tensors that have shapes and no data.

Every operation of a training step is dispatched with torch's fake tensors, which know the bytes of
their storages and hold none; the peak is the most bytes that were alive at once, on a CPU with a
factor for the holes between them. So what a component, kernel or loss keeps for its backward pass
is counted as it is written.
"""

import weakref
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.data.tokens import cache_folder
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.model import dropout
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.dropout import Dropout
from llama_ablate.training.compute import KEPT_BLOCK, Compute
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.losses import Objective, losses_of
from llama_ablate.training.optimizers import kept_shapes, make_optimizer
from llama_ablate.training.token_losses import rows_at_once

_FORMAT = 4  # of what is kept of a forecast: raised when it should be made anew
#: What a process takes beside tensors once it computes: pages of libraries, their buffers, text
#: that was read. This and the next are the middle of what thirteen shapes took.
_PROCESS = {"cpu": 60 << 20, "cuda": 16 << 20}
#: So much more than the most of its blocks glibc's heap takes, for its holes: thirteen shapes took
#: what is forecast within 12%, and within as much what a simulation had that placed each block.
_HOLES = 1.2
_EXPERTS = 512  # counted in three passes over all layers: five seconds


def peak_bytes(spec: ModelSpec, train: Train, compute: Compute) -> int | None:
    """Return the most bytes that a run takes at once on its device, beside the program itself.

    Of ranks that cut a model no more than that: their gradients are counted whole.

    On a CPU that is what the resident set grows by, on a GPU what torch allocates. Cached, as it
    takes a second or two. The experts of a mixture are taken to have equally many rows. None where
    else something depends on the values of tensors, as in the loss `multi_token`, and for a mixture
    in bfloat16 on a CPU: oneDNN makes code for its sizes, which takes more than the tensors. Nor of
    a mixture of more than some 100 experts over its layers, which would take long.
    """
    compute = compute.trained_as(train)
    of_compute = [compute.device, compute.precision, compute.kernel, compute.ranks, compute.shards]
    without = "lr", "min_lr", "warmup", "weight_decay", "betas", "eps", "steps", "tokens"
    about = [spec.identity(), train.identity(*without), of_compute, torch.__version__]
    file = cache_folder() / "memory" / f"{digest([_FORMAT, about], 16)}.json"
    place = f"memory/{file.name}"
    with suppress(OSError, ConfigError):  # not there, or damaged
        kept: int | None = read_json(file, place)["bytes"]
        return kept
    peak = _peak(spec, train, compute)
    with suppress(OSError):  # an unwritable cache only means to count again
        disk.make(file.parent)
        disk.replace(file, sealed({"bytes": peak}, place))
    return peak


def _peak(spec: ModelSpec, train: Train, compute: Compute) -> int | None:
    from torch._subclasses.fake_tensor import (  # takes a second to import
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    makes_code = (compute.device, compute.precision) == ("cpu", "bfloat16")  # for every size
    dropout.forget()
    try:
        with (
            FakeTensorMode(),
            _Alive(keeps=compute.device == "cpu" and not compute.shards) as alive,
            nullcontext() if makes_code else _Counts(),
            torch.device(compute.device),
        ):
            model = Decoder(spec)
            model.kernel = compute.kernel
            objective = Objective(model, losses_of(train))
            kept: list[Tensor] = list(objective.parameters())
            _gradients(objective, train, compute, 1)
            kept += _state(objective, train)  # made by the first step, when gradients are there
            objective.zero_grad()
            _gradients(objective, train, compute, min(2, train.accumulate))
            objective.zero_grad()
            _evaluate(model, compute.device)
            whole = sum(tensor.nbytes for tensor in kept)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    finally:
        dropout.forget()  # numbers that are fake here would be taken for real ones in a run
    cut = 1 / compute.ranks if compute.shards else 1
    held: float = alive.most - whole + cut * whole
    return round(held) + _PROCESS[compute.device]


def _gradients(objective: Objective, train: Train, compute: Compute, micro_batches: int) -> None:
    """Add the gradients of micro-batches: the second is computed beside those of the first."""
    spec = objective.model.spec
    rows = train.batch // train.accumulate // compute.ranks
    tokens = torch.zeros(rows, spec.context + 1, dtype=torch.long)
    masks = Dropout.of_step(spec, 0, 0, train.batch)
    for _ in range(micro_batches):
        with compute.autocast():
            total, _ = objective(tokens, masks)
        total.backward()
        del total


def _state(objective: Objective, train: Train) -> list[Tensor]:
    """Return as many tensors as a run keeps beside its weights, in their shapes."""
    optimizer = make_optimizer(objective, train)
    weights: list[Tensor] = [weight for of in optimizer.param_groups for weight in of["params"]]
    state = [weight.new_empty(shape) for weight, shape in kept_shapes(optimizer)]
    if train.branches:  # goes back to a copy of both
        state += [torch.empty_like(tensor) for tensor in [*weights, *state]]
    if train.average > 1:
        state += [torch.empty_like(weight) for weight in weights]
    return state


@torch.no_grad()
def _evaluate(model: Decoder, device: str) -> None:
    """Predict some tokens as `evaluation.predictions` does."""
    rows = max(1, BATCH_TOKENS[device] // model.spec.context)
    tokens = torch.zeros(rows, model.spec.context, dtype=torch.long)
    hidden_ND = model.hidden(tokens).flatten(0, 1)
    some = rows_at_once(model, len(hidden_ND))
    F.cross_entropy(model.logits(hidden_ND[:some]).float(), tokens.flatten()[:some])


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of the storages that are alive, and the most that a process holds for them.

    A GPU's memory is given back at once. On a CPU blocks of less than `KEPT_BLOCK` lie in glibc's
    heap, which keeps what it had (`compute.settle`), and larger ones come from the system each
    time. `most` is the most bytes so far.
    """

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = KEPT_BLOCK if keeps else 0
        self._small = self._large = self._heap = 0
        self._known: set[Any] = set()
        self.most = 0

    def count(self, tensors: Iterable[Any]) -> None:
        """Count the storages of tensors until they are freed."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key, size = _storage(tensor), storage.nbytes()
                if key not in self._known and size:
                    self._known.add(key)
                    weakref.finalize(storage, self._freed, key, size)
                    self._add(size)
                    self._heap = max(self._heap, self._small)
                    self.most = max(self.most, self._large + round(_HOLES * self._heap))

    def _add(self, size: int, times: int = 1) -> None:
        if size < self._kept:
            self._small += times * size
        else:
            self._large += times * size

    def _freed(self, key: Any, size: int) -> None:
        self._known.remove(key)
        self._add(size, -1)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.count(tree_leaves(result))
        return result


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers where a step asks how many rows each expert has, which fake tensors do not know.

    All have equally many, as if the router kept them in balance. Of many experts the step would
    take long: they stay unknown.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts: dict[Any, tuple[Tensor, int]] = {}  # by storage, which the tensor keeps

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        aten = torch.ops.aten
        if operation is aten.bincount.default and len(args) == 3:
            values, _, bins = args
            if len(self._counts) * bins < _EXPERTS:
                counts = values.new_empty(bins)
                self._counts[_storage(counts)] = counts, len(values) // bins
                return counts
        if operation is aten._local_scalar_dense.default:  # noqa: SLF001  what `tolist` calls
            known = self._counts.get(_storage(args[0]))
            if known is not None:
                return known[1]
        return operation(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> Any:
    """Return what a storage is known by while it lives."""
    return tensor.untyped_storage()._cdata  # noqa: SLF001
