"""Micro-benchmarks of components, alone and in a training step: naive, fused and compiled.

The cases of a table are timed in interleaved rounds, in each of several new processes, together
with two controls: a copy of one case, and the same case with a known extra cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.components import decode, feedforward, norms, parts
from benchmarks.components.timing import Ratio, Setup, Table, joined
from llama_ablate.errors import ConfigError
from llama_ablate.launch import processes
from llama_ablate.training.compute import configure_process, free_bytes

__all__ = ["BENCHES", "Bench", "Ratio", "Setup", "Table", "run"]


@dataclass(frozen=True)
class Bench:
    """Benchmark: functions that time its tables and compute its ratios.

    The tables are timed in the calling process.
    """

    tables: Callable[[Setup], list[Table]]
    ratios: Callable[[Sequence[Table]], list[Ratio]]


BENCHES = {
    "norms": Bench(norms.tables, norms.ratios),
    "feedforward": Bench(feedforward.tables, feedforward.ratios),
    "parts": Bench(parts.tables, parts.ratios),
    "decode": Bench(decode.tables, decode.ratios),
}


def run(
    name: str, setup: Setup, progress: Callable[[int, int], object] = lambda _done, _all: None
) -> list[Table]:
    """Time a benchmark in `setup.processes` consecutive processes; return its tables.

    `progress` is called with the number of ended processes, and of all processes. Raises
    ConfigError if the benchmark would need more memory than is free.
    """
    timed = []
    with TemporaryDirectory() as folder:
        for done in range(setup.processes):
            progress(done, setup.processes)
            log = Path(folder) / "log"
            timed.append(processes.call(_tables, name, setup, anew=True, log=log))
    progress(setup.processes, setup.processes)
    return [joined(of_processes) for of_processes in zip(*timed, strict=True)]


def _tables(_report: Callable[[object], None], name: str, setup: Setup) -> list[Table]:
    """Time a benchmark's tables in this process."""
    needed = 40 * setup.dim * setup.rows * 4  # bytes of some tensors of 4 * dim, with gradients
    if needed > free_bytes(setup.device):
        raise ConfigError(
            f"dim {setup.dim} x rows {setup.rows} need some "
            f"{needed / 2**30:,.0f} GiB, more than is free"
        )
    configure_process(setup.threads, setup.device)
    return BENCHES[name].tables(setup)
