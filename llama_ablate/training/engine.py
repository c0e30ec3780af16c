"""How a machine computes: device, threads, precision and attention kernel, chosen by measuring."""

import ctypes
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate import disk
from llama_ablate.data.tokens import cache_folder
from llama_ablate.errors import ConfigError
from llama_ablate.experiment import Train
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build, init_weights
from llama_ablate.model.kernels import Kernel
from llama_ablate.model.memory import free_bytes
from llama_ablate.spec import ModelSpec, digest
from llama_ablate.training.optimizer import make_optimizer
from llama_ablate.training.ranks import ALONE, Ranks

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_FORMAT = 1  # of what is kept of a choice: raised when it should be measured anew
#: Of a probe's batch, at most. A GPU that is given less than it can do at once takes the same time
#: for it in either precision, and is three times faster in one of them once it is filled.
_PROBE_TOKENS = {"cpu": 4096, "cuda": 16384}
_PROBE_SCORES = 1 << 27  # do not try the spelled-out kernel where its scores would be larger


@dataclass(frozen=True)
class Engine:
    """What a run computes with. It is part of every record: figures of two engines differ."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    kernel: Kernel = "fused"
    #: Processes that share the batches of one run.
    ranks: int = 1
    #: What held-out text is predicted in; records from before it was float32 do not say.
    evaluation: str = "float32"
    #: FLOP/s of a training step of one layer, measured when this engine was chosen.
    flops_per_s: float = 0.0
    #: Median seconds of that step for everything that was tried.
    tried_s: tuple[tuple[str, float], ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Engine":
        """Make the engine that `to_dict` wrote."""
        return cls(**{**values, "tried_s": tuple((n, t) for n, t in values["tried_s"])})

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass runs in this precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16")

    def prepare(self, model: Decoder) -> Decoder:
        """Set up this process, move a model to the device, and give it the kernel."""
        settle(self.threads, self.device)
        model.kernel = self.kernel
        return model.to(self.device)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def settle(threads: int, device: str = "cpu") -> None:
    """Make this process compute steadily: its threads, no denormals, and memory that is kept.

    Products of float32 are exact to float32, also where the environment asks GPUs for TF32. On a
    GPU only kernels that give the same bits again are used; an operation that has none raises
    RuntimeError, which names it.

    glibc gives every freed block of a few megabytes back to the system and faults it in again,
    page by page, for the next one: up to a third of a small model's step. It is told not to.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("highest")
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True)
        # torch would fill every new tensor first, for whoever reads what was never written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc accepts
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def pick_device(asked: str) -> str:
    """Return cpu or cuda. Raises ConfigError where cuda was asked for and is not there."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA GPU here; allowed: auto, cpu")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked


def loss_of(model: nn.Module, tokens_BT1: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of predicting each token from those before it."""
    logits_BTV = model(tokens_BT1[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT1[:, 1:].flatten())


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Tensor],
    train: Train,
    engine: Engine,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, Tensor]:
    """Do one optimizer step over micro-batches; return loss and gradient norm before clipping."""
    total = torch.zeros((), device=engine.device)
    for part in parts:
        with engine.autocast():
            loss = loss_of(model, ranks.share(part)) / len(parts)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    total = ranks.mean(total)
    norm = nn.utils.clip_grad_norm_(model.parameters(), train.clip or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def choose(spec: ModelSpec, train: Train, device: str, threads: int = 1, rounds: int = 3) -> Engine:
    """Return the fastest engine for a recipe on this machine; it is measured once, and kept.

    Every allowed pair of precision and kernel takes turns at a training step of a one-layer model;
    the best median wins. About half a second for small models. The choice lies in the cache, so
    that `plan` and `run` agree where two are close. Raises ConfigError where one layer does not fit
    the memory.
    """
    settle(threads, device)
    one = replace(spec, layers=1)
    # Weights, gradients and the optimizer's two moments, of four bytes each.
    needed = 16 * count(one).parameters
    free = free_bytes(device)
    if needed > free:
        raise ConfigError(
            f"training one layer needs {needed / 1e9:,.1f} GB of memory for weights, gradients and "
            f"moments alone; {free / 1e9:,.1f} GB are free ({device})", ("model",),
        )  # fmt: skip
    asked = [spec.to_dict(), train.batch, train.accumulate, train.precision, train.kernel, threads]
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    machine = [platform.node(), os.cpu_count(), device, gpu, torch.__version__]
    file = cache_folder() / "engines" / f"{digest([_FORMAT, asked, machine], 16)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # not there, or damaged
        return Engine.from_dict(json.loads(file.read_text("utf-8")))
    found = _fastest(one, train, device, threads, rounds)
    with suppress(OSError):  # a cache that cannot be written is no reason not to compute
        disk.make(file.parent)
        disk.replace(file, json.dumps(found.to_dict()).encode())
    return found


def _fastest(one: ModelSpec, train: Train, device: str, threads: int, rounds: int) -> Engine:
    """Time a training step of a one-layer model on every engine that is allowed."""
    batch = max(1, min(train.batch // train.accumulate, _PROBE_TOKENS[device] // one.context))
    kernels: list[Kernel] = list(get_args(Kernel)) if train.kernel == "auto" else [train.kernel]
    if len(kernels) > 1 and batch * one.heads * one.context**2 > _PROBE_SCORES:
        kernels.remove("math")
    precisions = ["float32", "bfloat16"] if train.precision == "auto" else [train.precision]
    engines = [Engine(device, threads, p, k) for p in precisions for k in kernels]
    tokens = torch.randint(0, one.vocab, (batch, one.context + 1)).to(device)
    model = init_weights(build(one), 0)
    optimizer = make_optimizer(model.to(device), train)
    times: dict[Engine, list[float]] = {engine: [] for engine in engines}
    for turn in range(rounds + 1):
        for engine in engines:
            engine.prepare(model)
            engine.synchronize()
            began = time.perf_counter()
            with engine.autocast():
                loss = loss_of(model, tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            engine.synchronize()
            if turn:  # the first turn warms up
                times[engine].append(time.perf_counter() - began)
    medians = {engine: sorted(taken)[len(taken) // 2] for engine, taken in times.items()}
    best = min(engines, key=medians.__getitem__)
    flops = count(one).train_flops_per_token * batch * one.context
    return replace(
        best,
        flops_per_s=flops / medians[best],
        tried_s=tuple((f"{e.precision} {e.kernel}", medians[e]) for e in engines),
    )
