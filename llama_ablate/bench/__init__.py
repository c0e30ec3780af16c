"""A component timed alone and inside a training step: naive, fused and compiled, side by side.

What the source documents said stands beside what was measured. All cases of a table take turns in
one process, with a control that tells what the machine's memory or arithmetic allows.
"""

from llama_ablate.bench import decode, feedforward, norms
from llama_ablate.bench.timing import Said, Setup, Table
from llama_ablate.errors import ConfigError
from llama_ablate.model.memory import free_bytes
from llama_ablate.training.engine import settle

BENCHES = {"norms": norms.run, "feedforward": feedforward.run, "decode": decode.run}


def run(name: str, setup: Setup) -> tuple[list[Table], list[Said]]:
    """Return what was measured, and what was said of it.

    Raises ConfigError where that would need more memory than is free.
    """
    needed = 40 * setup.dim * setup.rows * 4  # a few tensors forward and backward, 4 * dim wide
    if needed > free_bytes(setup.device):
        raise ConfigError(f"dim {setup.dim} x rows {setup.rows} need some "
                          f"{needed / 2**30:,.0f} GiB, more than is free")  # fmt: skip
    settle(setup.threads, setup.device)
    return BENCHES[name](setup)
