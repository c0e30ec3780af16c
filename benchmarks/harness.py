"""Time the harness itself: planning of 1,000 variants, and reading of 10,000 runs.

    python benchmarks/harness.py
    python benchmarks/harness.py --quick

Each command is timed as a whole process, as users start it, in wall-clock and CPU seconds, with
medians over rounds. The finished runs are generated in a temporary folder by the functions that
store results; nothing is trained. `report` is also timed with a fifth of the runs, to show that its
time is linear.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the generated results of `tests.filled`

from tests import filled

PLAN = """\
name: many
model: {dim: 64, layers: 2, heads: 4, context: 64}
variants:
  design: product
  axes:
    norm: [rmsnorm, layernorm, {label: eps, name: rmsnorm, eps: 1.0e-3}, dyt, none]
    position: [rope, learned, alibi, none, {label: far, name: rope, theta: 250_000}]
    attention:
      - mha
      - {label: two, name: gqa, kv_heads: 2}
      - mqa
      - {label: w32, name: mha, window: 32}
      - {label: w16, name: mha, window: 16}
    feedforward: [swiglu, gelu, relu, geglu]
    block: [pre, post]
  match: parameters
train: {tokens: 300_000, batch: 16}
seeds: 4
"""
SEEDS = 5


def seconds(*words: str) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of a `llama_ablate` command."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "llama_ablate", *words]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  our own
    took, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system
    return took, used - before.children_user - before.children_system


def main() -> None:
    """Time the commands in interleaved rounds; print medians, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round after one that warms up")
    options = parser.parse_args()
    compileall.compile_dir("llama_ablate", quiet=1)  # as for an installed package
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "many.yaml"
        file.write_text(PLAN, "utf-8")
        many, few = (
            str(filled.store(Path(folder) / str(runs) / "x", runs // SEEDS, SEEDS).root)
            for runs in (10_000, 2_000)
        )
        commands = {
            "plan, 8 variants": ("plan", "experiments/first.yaml"),
            "plan, 1,000 variants": ("plan", str(file)),
            "status, 10,000 runs": ("status", many),
            "report, 2,000 runs": ("report", few),
            "report, 10,000 runs": ("report", many),
        }
        for words in list(commands.values())[:2]:
            seconds(*words)  # tokenizes the text into the cache
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(1 if options.quick else options.rounds):
            for name, words in commands.items():
                times[name].append(seconds(*words))
    for name, taken in times.items():
        wall, used = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name:24s} {wall:7.2f} s   CPU {used:7.2f} s")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
