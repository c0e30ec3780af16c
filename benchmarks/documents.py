"""Time a training step with a per-document mask against a step without.

    python benchmarks/documents.py
    python benchmarks/documents.py --context 1024 --batch 2 --precision float32

Both steps have the same model, weights and tokens, in documents of 100 tokens on average. With the
mask, the model knows the separator token, and attention does not cross documents; without it, the
separator is an ordinary token. Rounds are interleaved, and ratios are computed within a round. On a
CPU, times are CPU seconds of the process, which other load on the machine hardly affects.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from llama_ablate.config.experiment import Model, Train
from llama_ablate.design.variants import resolve
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute, configure_process, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer
from llama_ablate.training.timing import interleave, seconds_of

LENGTH, VOCAB = 100, 1024  # mean tokens of a document; entries of the vocabulary
MIXERS = {
    "mha, math": ("math", {}),
    "mha, fused": ("fused", {}),
    "mha and t5, math": ("math", {"position": "t5"}),
    "mha and alibi, fused": ("fused", {"position": "alibi"}),
    "mha and sinusoidal, math": ("math", {"position": "sinusoidal"}),
    "gated_delta": ("math", {"attention": "gated_delta"}),
}


def step_s(name: str, separator: int | None, options: argparse.Namespace) -> partial[float]:
    """Return a function that times one training step, in seconds.

    `separator` is the token that separates documents for a per-document mask; None for no mask.
    """
    kernel, changes = MIXERS[name]
    sizes = {"dim": options.dim, "layers": options.layers, "heads": options.dim // 32}
    recipe = Model.check({**sizes, "context": options.context, "vocab": VOCAB, **changes})
    spec = replace(resolve(recipe), separator=separator)
    compute = Compute(options.device, options.threads, options.precision, kernel)
    objective = Objective(compute.prepare(new_model(spec, 0)))
    train = Train.check({"steps": 1, "batch": options.batch})
    optimizer = make_optimizer(objective, train)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, options.context + 1)
    tokens = torch.randint(1, VOCAB, shape, generator=generator)
    tokens[torch.rand(shape, generator=generator) < 1 / LENGTH] = 0
    step = partial(update, objective, optimizer, [tokens.to(options.device)], train, compute)
    if options.device == "cpu":
        return partial(cpu_s, step)
    return partial(seconds_of, step, compute.synchronize)


def cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU seconds of this process in a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Print a table: time of a step, and ratio of times with and without mask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mixer", choices=MIXERS, action="append")
    options = parser.parse_args()
    configure_process(options.threads, options.device)
    print(f"dim {options.dim}, {options.layers} layers, {options.batch} x {options.context} tokens")
    for name in options.mixer or MIXERS:
        cases = {separator: step_s(name, separator, options) for separator in (None, 0)}
        times, errors = interleave(cases, options.rounds, warm_up=2)
        if errors:
            raise next(iter(errors.values()))
        ratios = [apart / plain for plain, apart in zip(times[None], times[0], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = statistics.median(times[None]) * 1e3
        print(
            f"{name:26s} {options.precision} {milliseconds:8.1f} ms, apart {middle:.2f} times "
            f"that [{low:.2f}, {high:.2f}: half of {options.rounds} rounds]",
            flush=True,
        )


if __name__ == "__main__":
    main()
