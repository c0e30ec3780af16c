"""Memory: bytes of the KV cache from its live tensors, and a process's peak memory."""

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.results.record import Value, row


def _check_cache(_spec: ModelSpec, tokens: Tokens, *, context: int | None) -> None:
    most = tokens.counts["train"]
    if context is not None and not 1 <= context <= most:
        message = f"kv_cache: context {context!s:.60} must be from 1 to the text's {most:,} tokens"
        raise ConfigError(message, ("context",))


@METRICS.add(
    "kv_cache",
    per="variant",
    check=_check_cache,
    reads_text=False,
    worse={"kv_cache_bytes": "higher", "kv_cache_added_bytes": "higher"},
)
def kv_cache(subject: Subject, *, context: int | None = None) -> list[Value]:
    """Bytes of the KV cache after a prefill of one sequence, and bytes per further token.

    Bytes are counted on live tensors, in the dtype of the compute configuration.
    """
    model = subject.model.to(subject.compute.dtype)
    length = context or model.spec.context
    tokens = torch.zeros(length, dtype=torch.int64)  # the bytes depend on no token
    cache = model.new_state(1, length)
    with torch.inference_mode():
        model.hidden(tokens[None].to(subject.compute.device), cache)
    added = model.new_state(1, length + 1).nbytes - cache.nbytes
    return [
        row("kv_cache_context_tokens", length, "tokens"),
        row("kv_cache_bytes", cache.nbytes, "bytes", context=length),
        row("kv_cache_added_bytes", added, "bytes", context=length),
    ]


class PeakMemory:
    """Peak memory of this process since the object was created, in bytes.

    On a GPU the peak is of torch's allocated memory, on a CPU of the growth of the resident set.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._before = 0 if device == "cuda" else int(psutil.Process().memory_info().rss)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> int:
        """Return the peak so far."""
        if self._device == "cuda":
            return torch.cuda.max_memory_allocated()
        return max(0, most_resident() - self._before)


def most_resident() -> int:
    """Return the peak resident memory of this program in bytes.

    On Linux /proc is read, since `ru_maxrss` also includes the peak before exec, when the process
    was still a copy of the parent process.
    """
    with suppress(OSError):
        status = Path("/proc/self/status").read_bytes()  # a program's name may be any bytes
        if match := re.search(rb"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return int(match[1]) << 10
    unit = 1 if sys.platform == "darwin" else 1024  # the unit differs by system
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
