"""Micro-benchmarks of components, alone and in a training step: naive, fused and compiled.

All cases of a table take turns, in each of several fresh processes, beside two controls: the same
code under another name, and a known extra cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.components import decode, feedforward, mixers, norms, optimizers, parts
from benchmarks.components.timing import Ratio, Setup, Table, joined
from llama_ablate.errors import ConfigError
from llama_ablate.launch import processes
from llama_ablate.training.compute import configure_process, free_bytes

__all__ = ["BENCHES", "Bench", "Ratio", "Setup", "Table", "run"]


@dataclass(frozen=True)
class Bench:
    """How a benchmark's tables are timed in one process, and the ratios that it was made for."""

    tables: Callable[[Setup], list[Table]]
    ratios: Callable[[Sequence[Table]], list[Ratio]]


BENCHES = {
    "norms": Bench(norms.tables, norms.ratios),
    "feedforward": Bench(feedforward.tables, feedforward.ratios),
    "mixers": Bench(mixers.tables, mixers.ratios),
    "optimizers": Bench(optimizers.tables, optimizers.ratios),
    "parts": Bench(parts.tables, parts.ratios),
    "decode": Bench(decode.tables, decode.ratios),
}


def run(
    name: str, setup: Setup, progress: Callable[[int, int], object] = lambda _done, _all: None
) -> list[Table]:
    """Return the tables of a benchmark, timed in `setup.processes` processes one after another.

    `progress` gets the number of processes that have ended, and of all. Raises ConfigError where
    the benchmark would need more memory than is free.
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
    needed = 40 * setup.dim * setup.rows * 4  # a few tensors forward and backward, 4 * dim wide
    if needed > free_bytes(setup.device):
        raise ConfigError(
            f"dim {setup.dim} x rows {setup.rows} need some "
            f"{needed / 2**30:,.0f} GiB, more than is free"
        )
    configure_process(setup.threads, setup.device)
    return BENCHES[name].tables(setup)
