"""Micro-benchmarks of components, alone and in a training step: naive, fused and compiled.

All cases of a table take turns in one process, with a control that tells what the machine's memory
or arithmetic allows.
"""

from llama_ablate.bench import decode, feedforward, norms
from llama_ablate.bench.timing import Ratio, Setup, Table
from llama_ablate.errors import ConfigError
from llama_ablate.model.memory import free_bytes
from llama_ablate.training.compute import settle

__all__ = ["BENCHES", "Ratio", "Setup", "Table", "run"]
BENCHES = {"norms": norms.run, "feedforward": feedforward.run, "decode": decode.run}


def run(name: str, setup: Setup) -> tuple[list[Table], list[Ratio]]:
    """Return the tables of a benchmark, and the ratios that it was made for.

    Raises ConfigError where that would need more memory than is free.
    """
    needed = 40 * setup.dim * setup.rows * 4  # a few tensors forward and backward, 4 * dim wide
    if needed > free_bytes(setup.device):
        raise ConfigError(
            f"dim {setup.dim} x rows {setup.rows} need some "
            f"{needed / 2**30:,.0f} GiB, more than is free"
        )
    settle(setup.threads, setup.device)
    return BENCHES[name](setup)
