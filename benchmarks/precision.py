"""Time a training step by precision and attention kernel, to check `auto`.

    python benchmarks/precision.py
    python benchmarks/precision.py --device cuda --width 512 --tokens 32768

The model has one layer (RMSNorm, RoPE, SwiGLU) and a vocabulary of 256 tokens; it runs on one
thread. Pairs of precision and kernel are timed in interleaved rounds of random order. Ratios are to
the fastest pair of a row, and the choice of `auto`, which follows a rule, has a star. On a CPU,
times are CPU seconds of the process, which other load on the machine hardly affects. The
environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI disables a CPU's instructions for bfloat16.
"""

import argparse
import itertools
import random
import statistics
import time
from functools import partial
from typing import get_args

import torch

from llama_ablate.config.experiment import Model, Train
from llama_ablate.design.variants import resolve
from llama_ablate.model.decoder import new_model
from llama_ablate.model.kernels import Kernel
from llama_ablate.training.compute import Compute, choose, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer
from llama_ablate.training.timing import interleave, seconds_of

VOCAB = 256
PAIRS = [*itertools.product(("float32", "bfloat16"), get_args(Kernel))]


def row(dim: int, head_dim: int, context: int, batch: int, options: argparse.Namespace) -> str:
    """Time a training step with each pair; return their ratios to the fastest."""
    sizes = {"dim": dim, "layers": 1, "heads": dim // head_dim, "context": context, "vocab": VOCAB}
    spec = resolve(Model.check(sizes))
    train = Train.check({"steps": 1, "batch": batch})
    computes = {pair: Compute(options.device, 1, *pair) for pair in PAIRS}
    objective = Objective(computes[PAIRS[0]].prepare(new_model(spec, 0)))
    optimizer = make_optimizer(objective, train)
    tokens = torch.randint(0, VOCAB, (batch, context + 1)).to(options.device)

    def seconds(compute: Compute) -> float:
        compute.prepare(objective.model)
        step = partial(update, objective, optimizer, [tokens], train, compute)
        if options.device != "cpu":
            return seconds_of(step, compute.synchronize)
        start = time.process_time()
        step()
        return time.process_time() - start

    cases = {pair: partial(seconds, compute) for pair, compute in computes.items()}
    times, errors = interleave(cases, options.rounds, warm_up=1, shuffle=random.shuffle)
    for error in errors.values():
        raise error
    medians = {pair: statistics.median(samples) for pair, samples in times.items()}
    fastest, chosen = min(medians.values()), choose(spec, train, options.device)
    cells = [
        f"{middle / fastest:.2f}{'*' if pair == (chosen.precision, chosen.kernel) else ' '}"
        for pair, middle in medians.items()
    ]
    shape = f"{dim} ({head_dim} a head), {batch} x {context}"
    return f"{shape:28s}{''.join(f'{cell:>16s}' for cell in cells)}{fastest * 1e3:12.1f} ms"


def main() -> None:
    """Print three tables: by width, by context and head width, and for small steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--context", type=int, nargs="+", default=[64, 256, 512, 768, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=4096, help="of a step")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    shapes = {
        "width": [(d, min(d // 4, 64), 128, options.tokens // 128) for d in options.width],
        "context and head width": [
            (4 * e, e, context, max(1, options.tokens // context))
            for e in (16, 32, 64, 128)
            for context in options.context
        ],
        "small steps": [
            (d, d // 4, context, batch)
            for d in options.width[:4]
            for context, batch in ((24, 4), (32, 16), (64, 8), (128, 16))
        ],
    }
    for question, rows in shapes.items():
        print(f"{question:28s}" + "".join(f"{' '.join(pair):>15s} " for pair in PAIRS))
        for shape in rows:
            print(row(*shape, options), flush=True)


if __name__ == "__main__":
    main()
