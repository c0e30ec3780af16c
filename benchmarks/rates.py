"""Measure training speed against matrix products, and decoding against memory bandwidth.

    python benchmarks/rates.py --device cuda
    python benchmarks/rates.py --device cpu --tiny

Model FLOPs utilisation (MFU) is here the rate of a training step's matrix products (three times the
FLOPs of a forward pass), divided by the rate of one large matrix product in the same precision on
the same device, not by a data sheet's peak. Decoding one sequence reads every weight once per
token: its bytes per second are compared with those of a memory copy.
"""

import argparse
import json
import statistics
from functools import partial

import torch

from llama_ablate.config.experiment import Model, Train
from llama_ablate.design.variants import resolve
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer
from llama_ablate.training.timing import seconds_of

#: Dim, layers, heads, vocabulary, context, and batch size, by approximate number of parameters.
SHAPES = {
    "10M": (384, 6, 6, 256, 512, 64),
    "125M": (768, 12, 12, 32_000, 1024, 16),
    "350M": (1024, 24, 16, 32_000, 1024, 16),
    "1.2B": (2048, 22, 16, 32_000, 1024, 8),
}
TINY = {"tiny": (32, 2, 2, 256, 32, 2)}


def main() -> None:
    """Measure matrix products, copies and models; print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a shape of seconds, to try it out")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    compute = Compute(options.device, 1, "bfloat16", "fused")
    products, copies = _products(compute, options), _copies(compute, options)
    print(f"one product: {products / 1e12:.2f} TFLOP/s; a copy: {copies / 1e9:.1f} GB/s")
    shapes = [
        _shape(name, sizes, compute, options.rounds, products, copies)
        for name, sizes in (TINY if options.tiny else SHAPES).items()
    ]
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    values = {"device": device, "torch": torch.__version__, "shapes": shapes}
    print(json.dumps({**values, "product_flops_per_s": products, "copy_bytes_per_s": copies}))


def _shape(
    name: str,
    sizes: tuple[int, ...],
    compute: Compute,
    rounds: int,
    products: float,
    copies: float,
) -> dict[str, object]:
    """Time training steps, then decoding, of a model; print and return their rates.

    `products` are the FLOP/s of a matrix product, and `copies` the bytes per second of a copy.
    """
    keys = ("dim", "layers", "heads", "vocab", "context")
    spec = resolve(Model.check(dict(zip(keys, sizes, strict=False))), REGISTRIES)
    rows = sizes[-1]
    model = compute.prepare(new_model(spec, 0))
    train = Train.check({"steps": 1, "batch": rows})
    objective = Objective(model)
    optimizer = make_optimizer(objective, train)
    tokens = torch.randint(0, spec.vocab, (rows, spec.context + 1), device=compute.device)
    step = partial(update, objective, optimizer, [tokens], train, compute)
    seconds = _median(step, compute, rounds)
    counts = count(spec)
    reached = counts.train_flops_per_token * rows * spec.context / seconds
    peak = torch.cuda.max_memory_allocated() if compute.device == "cuda" else None
    optimizer.zero_grad()
    model.to(torch.bfloat16).requires_grad_(requires_grad=False)
    state = model.new_state(1, spec.context)
    model(tokens[:1, : spec.context // 2], state)

    def decode() -> None:
        model(tokens[:1, :1], state)

    token_s = _median(decode, compute, rounds)
    read = sum(p.nbytes for p in model.parameters()) - model.embedding.weight.nbytes
    print(
        f"{name:6s} {counts.parameters:13,} parameters  {rows * spec.context / seconds:12,.0f} "
        f"tokens/s  MFU {reached / products:6.1%}  decoding {1 / token_s:8,.1f} tokens/s, "
        f"{read / token_s / copies:6.1%} of a copy"
    )
    return {
        "shape": name,
        "parameters": counts.parameters,
        "tokens_per_s": rows * spec.context / seconds,
        "flops_per_s": reached,
        "mfu": reached / products,
        "decode_tokens_per_s": 1 / token_s,
        "decode_bytes_per_s": read / token_s,
        "peak_memory_bytes": peak,
    }


def _products(compute: Compute, options: argparse.Namespace) -> float:
    size = 256 if options.tiny else 8192
    a, b = (torch.randn(size, size, device=compute.device, dtype=torch.bfloat16) for _ in "ab")
    return 2 * size**3 / _median(lambda: a @ b, compute, options.rounds)


def _copies(compute: Compute, options: argparse.Namespace) -> float:
    """Return the bytes per second that a memory copy reads; it writes as many."""
    a = torch.zeros(1 << (20 if options.tiny else 30), dtype=torch.uint8, device=compute.device)
    b = torch.empty_like(a)
    return a.nbytes / _median(lambda: b.copy_(a), compute, options.rounds)


@torch.enable_grad()
def _median(call: object, compute: Compute, rounds: int) -> float:
    for _ in range(3):
        call()
    compute.synchronize()
    return statistics.median(seconds_of(call, compute.synchronize) for _ in range(rounds))


if __name__ == "__main__":
    main()
