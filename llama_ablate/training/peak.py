"""The peak memory of a run, found without memory: a step on tensors that have shapes and no data.

Every operation of a training step is dispatched with torch's fake tensors, which know the bytes of
their storages and hold none; the peak is the most bytes that were alive at once. So what a
component, kernel or loss keeps for its backward pass is counted as it is written.
"""

import json
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.data.tokens import cache_folder
from llama_ablate.files import disk
from llama_ablate.model import dropout
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.dropout import Dropout
from llama_ablate.training.compute import KEPT_BLOCK, Compute
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.losses import Objective, losses_of
from llama_ablate.training.optimizers import make_optimizer, state_bytes
from llama_ablate.training.token_losses import rows_at_once

_FORMAT = 1  # of what is kept of a forecast: raised when it should be made anew
#: What a process takes beside tensors once it computes: libraries that torch imports when it first
#: trains, their buffers, text that was read. Measured as the rest of eight shapes on a CPU.
_PROCESS = {"cpu": 175 << 20, "cuda": 16 << 20}
#: Small blocks of memory leave gaps that others do not fit in: so much more, in those eight shapes.
_GAPS = 1.15


def peak_bytes(spec: ModelSpec, train: Train, compute: Compute) -> int | None:
    """Return the most bytes that a run takes at once on its device, beside the program itself.

    Of ranks that cut a model no more than that: their gradients are counted whole.

    On a CPU that is what the resident set grows by, on a GPU what torch allocates. Cached, as it
    takes a second or two. None where the shapes of tensors depend on their values, as in mixtures
    of experts.
    """
    of_compute = [compute.device, compute.precision, compute.kernel, compute.ranks, compute.shards]
    without = "lr", "min_lr", "warmup", "weight_decay", "betas", "eps", "steps", "tokens"
    about = [spec.identity(), train.identity(*without), of_compute, torch.__version__]
    file = cache_folder() / "memory" / f"{digest([_FORMAT, about], 16)}.json"
    with suppress(OSError, ValueError):  # not there, or damaged
        kept: int | None = json.loads(file.read_text("utf-8"))
        return kept
    peak = _peak(spec, train, compute)
    with suppress(OSError):  # an unwritable cache only means to count again
        disk.make(file.parent)
        disk.replace(file, json.dumps(peak).encode())
    return peak


def _peak(spec: ModelSpec, train: Train, compute: Compute) -> int | None:
    from torch._subclasses.fake_tensor import (  # takes a second to import
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    dropout.forget()
    try:
        with (
            FakeTensorMode(),
            _Alive(keeps=compute.device == "cpu" and not compute.shards) as alive,
            torch.device(compute.device),
        ):
            model = Decoder(spec)
            model.kernel = compute.kernel
            objective = Objective(model, losses_of(train))
            own = sum(parameter.nbytes for parameter in objective.parameters())
            kept = state_bytes(make_optimizer(objective, train))
            if train.branches:  # goes back to a copy of both
                kept += own + kept
            if train.average > 1:
                kept += own
            _train(objective, train, compute)
            _evaluate(model)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    finally:
        dropout.forget()  # numbers that are fake here would be taken for real ones in a run
    cut = 1 / compute.ranks if compute.shards else 1
    held: float = alive.held - own + cut * (own + kept)
    return round(held) + _PROCESS[compute.device]


def _train(objective: Objective, train: Train, compute: Compute) -> None:
    """Compute the gradients of a step; of several micro-batches the second has those before it."""
    spec = objective.model.spec
    rows = train.batch // train.accumulate // compute.ranks
    tokens = torch.zeros(rows, spec.context + 1, dtype=torch.long)
    masks = Dropout.of_step(spec, 0, 0, train.batch)
    for _ in range(min(2, train.accumulate)):
        with compute.autocast():
            total, _ = objective(tokens, masks)
        total.backward()
        del total
    objective.zero_grad()


@torch.no_grad()
def _evaluate(model: Decoder) -> None:
    """Predict some tokens as `evaluation.predictions` does."""
    rows = max(1, BATCH_TOKENS // model.spec.context)
    tokens = torch.zeros(rows, model.spec.context, dtype=torch.long)
    hidden_ND = model.hidden(tokens).flatten(0, 1)
    some = rows_at_once(model, len(hidden_ND))
    F.cross_entropy(model.logits(hidden_ND[:some]).float(), tokens.flatten()[:some])


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of the storages that are alive, and the most that a process holds for them.

    A GPU's memory is given back at once. What glibc has given out in blocks up to `KEPT_BLOCK` it
    keeps (`compute.settle`), and larger ones come from the system each time: the most of the ones
    and the most of the others are held together, whenever either was.
    """

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = KEPT_BLOCK if keeps else 0
        self._sizes: dict[Any, int] = {}
        self._alive, self._most = [0, 0], [0, 0]

    @property
    def held(self) -> int:
        """The most bytes so far."""
        small, large = self._most
        return round(_GAPS * small) + large

    def count(self, tensors: Iterable[Any]) -> None:
        """Count the storages of tensors until they are freed."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata  # noqa: SLF001  what a storage is known by
                if key not in self._sizes:
                    self._sizes[key] = size = storage.nbytes()
                    self._add(size)
                    weakref.finalize(storage, self._freed, key)

    def _add(self, size: int) -> None:
        large = abs(size) > self._kept
        self._alive[large] += size
        self._most[large] = max(self._most[large], self._alive[large])

    def _freed(self, key: Any) -> None:
        self._add(-self._sizes.pop(key))

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.count(tree_leaves(result))
        return result
