"""Compute: device, threads, precision and attention kernel, chosen by device and model size."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any, cast

import psutil
import torch
from torch import Tensor, nn

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build, init_weights
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.kernels import Kernel
from llama_ablate.results.record import ComputeSettings
from llama_ablate.training.losses import Objective, losses_of, predicted
from llama_ablate.training.optimizers import Optimizer, make_optimizer
from llama_ablate.training.ranks import ALONE, Ranks
from llama_ablate.training.timing import interleave, seconds_of

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BLOCK = 32 << 20  # bytes: the largest that glibc accepts
#: What `auto` means, from CPU seconds of interleaved steps (benchmarks/README.md): numbers of a
#: step (tokens x width) up to which it is faster in float32 on a CPU, and the longest context at
#: which attention spelled out is faster in bfloat16 on a CPU than torch's kernel.
_FEW_NUMBERS, _SHORT_CONTEXT = 1 << 14, 512
#: Of a step that is timed, at most: some tenths of a second. A device that is given less than it
#: can do at once is slower than it will be.
_TIMED_FLOPS = {"cpu": 5e10, "cuda": 1e14}
_RECOMPILED = 8  # times that torch compiles a forward pass again for another shape, at most


@dataclass(frozen=True)
class Compute(ComputeSettings):
    """What a run computes with, and what torch does for it."""

    kernel: Kernel = "fused"

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Compute":
        """Make the compute that `to_dict` wrote. Keys of other versions are left out."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**known, "tried_s": tuple((n, t) for n, t in values.get("tried_s", ()))})

    @classmethod
    def of(cls, settings: ComputeSettings | None) -> "Compute":
        """Make the compute that a plan names."""
        assert settings is not None, "the compute is chosen before anything is launched"
        return cls.from_dict(settings.to_dict())

    def trained_as(self, train: Train) -> "Compute":
        """Return what a train config computes with: in the precision that it states."""
        return replace(self, precision=train.precision.replace("auto", self.precision))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass runs in this precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16")

    def prepare(self, model: Decoder) -> Decoder:
        """Set up this process, move a model to the device, and give it the kernel."""
        settle(self.threads, self.device)
        model.kernel = self.kernel
        return model.to(self.device)

    def wrap(self, objective: Objective) -> nn.Module:
        """Return what trains: compiled where that was chosen, with the same parameters.

        All but modules that say `sizes_vary`: the sizes of their tensors depend on values.
        """
        if not self.compiled:
            return objective
        model = objective.model
        # A process of its own for each of many cores would take them from other workers.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self.threads))
        # torch counts how often a forward pass was compiled over all objectives of a process: the
        # ninth variant that is timed in one would run as it is, and nothing would say so.
        from torch._dynamo import config as limits  # two seconds

        limits.recompile_limit += _RECOMPILED
        limits.accumulated_recompile_limit += _RECOMPILED
        # Tables made in the first step would be part of its graph alone, and not rounded there: a
        # run that goes on from a checkpoint would differ from one that was not stopped.
        for scheme in model.positions.values():
            scheme.reach(model.spec.context)
        for module in model.modules():
            if getattr(module, "sizes_vary", False):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
        return cast("nn.Module", torch.compile(objective, dynamic=False))

    def synchronize(self) -> None:
        """Wait until the device has finished its queue."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def settle(threads: int, device: str = "cpu") -> None:
    """Configure this process for steady speed: its threads, no denormals, freed memory kept.

    Products of float32 are exact to float32, also where the environment asks GPUs for TF32. On a
    GPU only kernels that give the same bits again are used; an operation that has none raises
    RuntimeError, which names it.

    glibc gives every freed block of a few megabytes back to the system and faults it in again,
    page by page, for the next one: up to a third of a small model's step. Here it keeps them.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("highest")
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True)
        # torch would also fill every new tensor, for code that reads uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    _glibc("mallopt", _MMAP_THRESHOLD, _KEPT_BLOCK)
    _glibc("mallopt", _TRIM_THRESHOLD, (1 << 31) - 1)


def give_back() -> None:
    """Give what was freed back to the system: what comes now needs blocks of other sizes."""
    _glibc("malloc_trim", 0)


def _glibc(function: str, *arguments: int) -> None:
    """Call a function that other systems, and Linux with musl, do not have."""
    if sys.platform == "linux" and (found := getattr(ctypes.CDLL(None), function, None)):
        found(*arguments)


def pick_device(requested: str) -> str:
    """Return cpu or cuda. Raises ConfigError where cuda is requested and not available."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA GPU here; allowed: auto, cpu")
    if requested == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return requested


def loss_of(model: Decoder, tokens_BT1: Tensor, dropout: Dropout | None = None) -> Tensor:
    """Return the mean cross-entropy in nats of predicting each token from those before it."""
    hidden_BTD = model.hidden(tokens_BT1[:, :-1], dropout=dropout)
    return predicted(model, hidden_BTD, tokens_BT1[:, 1:])


def update(
    objective: nn.Module,
    optimizer: Optimizer,
    parts: Sequence[Tensor],
    train: Train,
    compute: Compute,
    ranks: Ranks = ALONE,
    dropout: Dropout | None = None,
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Do one optimizer step over micro-batches of an Objective, alone or wrapped for its ranks.

    Returns the parts of the loss by name, `cross_entropy` first, and the gradient's norm before
    clipping. Each micro-batch, and each rank's share of it, has its rows of the batch's dropout.
    Parts of the model with a method `after_step` change after the step: it is called with a
    function that takes the mean of a tensor over the ranks.
    """
    means: dict[str, Tensor] = {}
    first = 0
    for part in parts:
        mine = ranks.share(part)
        masks = dropout.from_row(first + ranks.index * len(mine)) if dropout else None
        with compute.autocast():
            total, by_name = objective(mine, masks)
        first += len(part)
        (total / len(parts)).backward()
        for name, value in by_name.items():
            before = means.get(name, torch.zeros((), device=compute.device))
            means[name] = before + value.detach() / len(parts)
    means = {name: ranks.mean(value) for name, value in means.items()}
    norm = _clip([p for p in objective.parameters() if p.grad is not None], train.clip)
    optimizer.step()
    optimizer.zero_grad()
    for module in objective.modules():
        after_step: Callable[..., None] | None = getattr(module, "after_step", None)
        if after_step is not None:
            after_step(ranks.mean)
    return means, norm


def _clip(parameters: Sequence[nn.Parameter], most: float) -> Tensor:
    """Scale gradients down to a norm of at most so much, 0 for any; return their norm before."""
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, most or math.inf, norm)
    return norm


def choose(spec: ModelSpec, train: Train, device: str) -> Compute:
    """Return what a spec is trained with: a function of the device, the sizes and what was asked.

    Nothing is timed, so that a machine chooses alike whatever else it does. `auto` is bfloat16
    where the device multiplies in it, but for steps so small that conversions cost more than they
    save; and torch's attention kernel, but on a CPU in bfloat16 for contexts of up to 512.
    """
    precision, kernel = train.precision, train.kernel
    if precision == "auto":
        numbers = train.batch // train.accumulate * spec.context * spec.dim
        pays = device == "cuda" or numbers > _FEW_NUMBERS
        precision = "bfloat16" if pays and multiplies_bfloat16(device) else "float32"
    if kernel == "auto":
        on_cpu = device == "cpu" and precision == "bfloat16"
        kernel = "math" if on_cpu and spec.context <= _SHORT_CONTEXT else "fused"
    return Compute(device, 1, precision, kernel, compiled=train.compile == "always")


def multiplies_bfloat16(device: str) -> bool:
    """Whether a device has instructions for products in bfloat16.

    Of CPUs those with AVX512-BF16, which all that have AMX have too; others are slower in bfloat16
    than in float32, and ARM's were not measured.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001  public from torch 2.11 on


def measured(spec: ModelSpec, train: Train, compute: Compute, rounds: int = 3) -> Compute:
    """Return a compute with its speed, for forecasts.

    A training step of a model of one layer, or of a pattern's layers once, in turn with the same
    step in float32, in which held-out text is read: about half a second for small models.
    """
    settle(compute.threads, compute.device)
    one = replace(spec, layers=spec.period)
    batch = _batch(one, train, compute.device)
    objective = Objective(init_weights(build(one), 0).to(compute.device), losses_of(train))
    step = _step(objective, train, batch)
    in_float32 = replace(compute, precision="float32")
    cases = {case: partial(step, objective, case) for case in (compute, in_float32)}
    seconds, errors = interleave(cases, rounds, warm_up=1)
    for error in errors.values():
        raise error
    medians = {case: median(samples) for case, samples in seconds.items()}
    flops = count(one).work * batch * one.context
    return replace(
        compute,
        flops_per_s=flops / medians[compute],
        tried_s=tuple((f"{case.precision} {case.kernel}", s) for case, s in medians.items()),
    )


def _batch(one: ModelSpec, train: Train, device: str) -> int:
    """Return the sequences of a step that is timed: a micro-batch, or a part of a large one."""
    most = _TIMED_FLOPS[device] / (count(one).work * one.context)
    return max(1, min(train.batch // train.accumulate, int(most)))


def _step(objective: Objective, train: Train, batch: int) -> Callable[[nn.Module, Compute], float]:
    """Return what times a training step of an objective, given as it is or compiled."""
    spec, device = objective.model.spec, objective.model.embedding.weight.device
    tokens = torch.randint(0, spec.vocab, (batch, spec.context + 1)).to(device)
    optimizer = make_optimizer(objective, train)
    dropout = Dropout.of_step(spec, 0, 0, batch)

    def step_s(trained: nn.Module, compute: Compute) -> float:
        compute.prepare(objective.model)

        def step() -> None:
            update(trained, optimizer, [tokens], train, compute, dropout=dropout)

        return seconds_of(step, compute.synchronize)

    return step_s


def free_bytes(device: torch.device | str) -> int:
    """Return the bytes that are free on a GPU, or to processes of this machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
