"""Compute: device, threads, precision and attention kernel, chosen by device and model size."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import psutil
import torch
from torch import Tensor, nn

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.kernels import Kernel
from llama_ablate.results.record import ComputeSettings
from llama_ablate.training import containers
from llama_ablate.training.losses import Objective, losses_of, mean_cross_entropy
from llama_ablate.training.optimizers import Optimizer, do_step
from llama_ablate.training.ranks import ALONE, Ranks
from llama_ablate.training.timing import interleave, seconds_of

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_KEPT_BLOCK = 32 << 20  # bytes: the largest that glibc accepts
#: Thresholds of `auto`, from CPU seconds of interleaved steps (benchmarks/README.md): the size of a
#: step (tokens x width) up to which float32 is faster on a CPU, and the longest context at which
#: explicit attention is faster in bfloat16 on a CPU than torch's kernel.
_MAX_FLOAT32_SIZE, _MAX_MATH_CONTEXT = 1 << 14, 512
#: Largest FLOPs of a timed step: some tenths of a second. A step that does not fill the device
#: would underestimate its speed.
_TIMED_FLOPS = {"cpu": 2e10, "cuda": 1e14}
#: Fewest tokens of a timed step.
_MIN_TIMED_TOKENS = 512
#: Seconds of a fused AdamW step for each parameter: measured on a CPU, 1 to 2.7 ns for matrices of
#: 1,024 to 64 rows; on a GPU by its memory traffic of 28 bytes at 1 TB/s.
_ADAMW_S = {"cpu": 2e-9, "cuda": 3e-11}
_MAX_RECOMPILATIONS = 8  # largest number of recompilations of a forward pass for other shapes


@dataclass(frozen=True)
class Compute(ComputeSettings):
    """Compute configuration of a run, with its operations in torch."""

    kernel: Kernel = "fused"

    @property
    def dtype(self) -> torch.dtype:
        """Torch dtype of the precision."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Compute":
        """Create a Compute from the output of `to_dict`; unknown keys are ignored."""
        given = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**given, "tried_s": tuple((n, t) for n, t in values.get("tried_s", ()))})

    @classmethod
    def of(cls, settings: ComputeSettings | None) -> "Compute":
        """Create a Compute from a plan's settings."""
        assert settings is not None, "the compute is chosen before anything is launched"
        return cls.from_dict(settings.to_dict())

    def trained_as(self, train: Train) -> "Compute":
        """Return this Compute with the precision of a train config."""
        return replace(self, precision=train.precision.replace("auto", self.precision))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager for forward passes in this precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16")

    def prepare(self, model: Decoder) -> Decoder:
        """Configure this process, set a model's attention kernel, and move it to the device."""
        configure_process(self.threads, self.device)
        model.kernel = self.kernel
        return model.to(self.device)

    def wrap(self, objective: Objective) -> nn.Module:
        """Compile an objective if the settings require it; parameters stay shared.

        Modules with `sizes_vary` are not compiled, since the sizes of their tensors depend on
        values.
        """
        if not self.compiled:
            return objective
        model = objective.model
        # A compile process on each core would take cores from other workers.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self.threads))
        # torch counts the compilations of a forward pass over all objectives of a process: the
        # ninth variant that is timed in a process would run uncompiled, without a message.
        from torch._dynamo import config as limits  # two seconds

        limits.recompile_limit += _MAX_RECOMPILATIONS
        limits.accumulated_recompile_limit += _MAX_RECOMPILATIONS
        # Position tables made in the first step would be part of its graph alone, without rounding:
        # a resumed run would then differ from an uninterrupted run.
        for scheme in model.positions.values():
            scheme.prepare(model.spec.context)
        for module in model.modules():
            if getattr(module, "sizes_vary", False):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
        return cast("nn.Module", torch.compile(objective, dynamic=False))

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def configure_process(threads: int, device: str = "cpu") -> None:
    """Configure this process for steady speed: its threads, no denormals, freed memory kept.

    Products of float32 have float32 precision, also where the environment requests TF32 on GPUs. On
    a GPU only deterministic kernels are used; an operation without such a kernel raises
    RuntimeError, which names it.

    By default glibc returns every freed block of a few megabytes to the system and faults in the
    next block page by page, which takes up to a third of a small model's step. This function makes
    glibc keep freed blocks.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("highest")
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True)
        # Otherwise torch also fills every new tensor, for code that reads uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    _call_glibc("mallopt", _MMAP_THRESHOLD, _MAX_KEPT_BLOCK)
    _call_glibc("mallopt", _TRIM_THRESHOLD, (1 << 31) - 1)


def trim_memory() -> None:
    """Return freed memory to the system, when later steps need blocks of other sizes."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(function: str, *arguments: int) -> None:
    """Call a glibc function; do nothing on systems without it (other systems, Linux with musl)."""
    if sys.platform == "linux" and (symbol := getattr(ctypes.CDLL(None), function, None)):
        symbol(*arguments)


def pick_device(requested: str) -> str:
    """Return cpu or cuda. Raises ConfigError if cuda is requested but not available."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA GPU here; allowed: auto, cpu")
    if requested == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return requested


def loss_of(model: Decoder, tokens_BT1: Tensor, dropout: Dropout | None = None) -> Tensor:
    """Compute the mean cross-entropy in nats of next-token predictions."""
    hidden_BTD = model.hidden(tokens_BT1[:, :-1], dropout=dropout)
    return mean_cross_entropy(model, hidden_BTD, tokens_BT1[:, 1:])


def update(
    objective: nn.Module,
    optimizer: Optimizer,
    parts: Sequence[Tensor],
    train: Train,
    compute: Compute,
    ranks: Ranks = ALONE,
    dropout: Dropout | None = None,
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Run one optimizer step over the micro-batches of a (possibly wrapped) Objective.

    Returns the parts of the loss by name, `cross_entropy` first, and the gradient's norm before
    clipping. Each micro-batch, and each rank's share of it, uses its rows of the batch's dropout
    masks. After the step, each module's method `after_step`, if any,
    is called with a function that computes the mean of a tensor over the ranks.
    """
    means: dict[str, Tensor] = {}
    passes = _Step(objective, parts, compute, train.clip, ranks, dropout)
    for total, by_name in passes.losses():
        (total / len(parts)).backward()
        for name, value in by_name.items():
            before = means.get(name, torch.zeros((), device=compute.device))
            means[name] = before + value.detach() / len(parts)
    means = {name: ranks.mean(value) for name, value in means.items()}
    norm = _clip(objective, train.clip)
    do_step(optimizer, passes)
    optimizer.zero_grad()
    for module in objective.modules():
        after_step: Callable[..., None] | None = getattr(module, "after_step", None)
        if after_step is not None:
            after_step(ranks.mean)
    return means, norm


@dataclass
class _Step:
    """Passes over the micro-batches of a step; a call is an `optimizers.Closure`."""

    objective: nn.Module
    parts: Sequence[Tensor]
    compute: Compute
    clip: float = 0.0
    ranks: Ranks = ALONE
    dropout: Dropout | None = None

    @property
    def tokens(self) -> int:
        return sum(part[:, 1:].numel() for part in self.parts)

    def losses(self, *, sampled: bool = False) -> Iterator[tuple[Any, Mapping[str, Tensor]]]:
        """Yield each micro-batch's loss on this rank, with the parts of the loss by name.

        If a loss balances the experts of a mixture, and the step has several micro-batches or
        ranks, the experts' load shares in the whole step are first counted in a forward pass
        without gradients: the loss is a product of two means, and a mean of such products over
        parts of the step would be a different function.
        """
        mixtures: list[Any] = [
            module
            for module in self.objective.modules()
            if getattr(module, "balances_by_loss", False)
        ]
        if mixtures and (len(self.parts) > 1 or self.ranks.count > 1):
            for mixture in mixtures:
                mixture.is_counting = True
            with torch.no_grad():
                for _ in self._forward(sampled=sampled):
                    pass
            for mixture in mixtures:
                mixture.know_step(self.ranks.mean)
        yield from self._forward(sampled=sampled)

    def _forward(self, *, sampled: bool) -> Iterator[tuple[Any, Mapping[str, Tensor]]]:
        first = 0
        for part in self.parts:
            mine = self.ranks.share(part)
            row = first + self.ranks.index * len(mine)
            masks = self.dropout.from_row(row) if self.dropout else None
            with self.compute.autocast():
                result = self.objective(mine, masks, sampled=sampled)
            first += len(part)
            yield result

    def __call__(self, *, sampled: bool = False) -> Tensor:
        self.objective.zero_grad()
        with torch.enable_grad():
            losses = []
            for total, _ in self.losses(sampled=sampled):
                (total / len(self.parts)).backward()
                losses.append(total.detach())
        if not sampled:
            _clip(self.objective, self.clip)
        return torch.stack(losses).mean()


def _clip(objective: nn.Module, most: float) -> Tensor:
    """Clip gradients to a total norm of `most` (0: no limit); return the norm before clipping."""
    parameters = [p for p in objective.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, most or math.inf, norm)
    return norm


def choose(spec: ModelSpec, train: Train, device: str) -> Compute:
    """Choose the compute configuration of a spec from device, sizes and train config.

    Nothing is timed, so that the choice does not depend on a machine's load. For the precision,
    `auto` is bfloat16 on devices with bfloat16 products, except on a CPU for steps so small that
    conversions cost more than they save. For the kernel it is torch's attention kernel, except on a
    CPU in bfloat16 for contexts of up to 512.
    """
    precision, kernel = train.precision, train.kernel
    if precision == "auto":
        numbers = train.batch // train.accumulate * spec.context * spec.dim
        pays = device == "cuda" or numbers > _MAX_FLOAT32_SIZE
        precision = "bfloat16" if pays and multiplies_bfloat16(device) else "float32"
    if kernel == "auto":
        on_cpu = device == "cpu" and precision == "bfloat16"
        kernel = "math" if on_cpu and spec.context <= _MAX_MATH_CONTEXT else "fused"
    return Compute(device, 1, precision, kernel, compiled=train.compile == "always")


def multiplies_bfloat16(device: str) -> bool:
    """Return whether a device has instructions for products in bfloat16.

    On CPUs these are AVX512-BF16, which every CPU with AMX has too; other CPUs are slower in
    bfloat16 than in float32, and ARM CPUs were not measured.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001  public from torch 2.11 on


def measured(spec: ModelSpec, train: Train, compute: Compute) -> Compute:
    """Measure the training speed of a compute configuration, for forecasts.

    The function times the forward and backward pass of a one-layer model, or of one period of a
    layer pattern, and the same pass in float32, the precision of held-out evaluation, once each
    after a warm-up. The optimizer's share is not timed but computed for AdamW. The measurement
    takes about half a second for small models.
    """
    configure_process(compute.threads, compute.device)
    one_layer = replace(spec, layers=spec.period)
    # A micro-batch, or a part of it or of a sequence that is quick enough.
    most = int(_TIMED_FLOPS[compute.device] / count(one_layer).work)
    context = min(spec.context, max(_MIN_TIMED_TOKENS, most))
    one_layer = replace(one_layer, context=context)
    batch = max(1, min(train.batch // train.accumulate, most // context))
    objective = Objective(new_model(one_layer, 0).to(compute.device), losses_of(train))
    tokens = torch.randint(0, one_layer.vocab, (batch, one_layer.context + 1)).to(compute.device)
    in_float32 = replace(compute, precision="float32")
    cases = {
        case: partial(_forward_backward_s, objective, tokens, case)
        for case in (compute, in_float32)
    }
    seconds, errors = interleave(cases, rounds=1, warm_up=1)
    for error in errors.values():
        raise error
    optimizer_s = count(one_layer).parameters * _ADAMW_S[compute.device]
    steps_s = {case: second + optimizer_s for case, (second,) in seconds.items()}
    flops = count(one_layer).work * batch * one_layer.context
    return replace(
        compute,
        flops_per_s=flops / steps_s[compute],
        tried_s=tuple((f"{case.precision} {case.kernel}", s) for case, s in steps_s.items()),
    )


def _forward_backward_s(objective: Objective, tokens: Tensor, compute: Compute) -> float:
    """Time the forward and backward pass of one micro-batch."""
    compute.prepare(objective.model)
    dropout = Dropout.for_step(objective.model.spec, 0, 0, len(tokens))

    def step() -> None:
        ((loss, _),) = _Step(objective, [tokens], compute, dropout=dropout).losses()
        loss.backward()
        objective.zero_grad()

    return seconds_of(step, compute.synchronize)


def free_bytes(device: torch.device | str) -> int:
    """Return the free memory of a GPU, or of this machine or container, in bytes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(min(psutil.virtual_memory().available, containers.memory_left()))
