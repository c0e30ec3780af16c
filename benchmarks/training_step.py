"""Time a training step against `transformers`, `x-transformers` and nanoGPT's model.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --quick
    python benchmarks/training_step.py --compiled --shape 128x4x256 --precision float32 --rounds 11

All implementations have the same architecture (Llama: RMSNorm, RoPE, SwiGLU, untied head, no
biases), batch, precision, threads and optimizer (fused AdamW, clipping at 1.0). Only nanoGPT's
model is a GPT-2 without biases, with a feed-forward network of equal parameters, LayerNorm and
learned positions. Each round times one step of every implementation, so that a noisy machine slows
all alike; ratios are computed within a round. With `--compiled`, each implementation is also timed
through `torch.compile`, which takes minutes at first, and seconds from torch's cache.

The last line of a shape times only the matrix products with weights of one of this package's steps,
forward and backward. It is the time of a step in which all other operations cost nothing.
"""

import argparse
import copy
import json
import math
import statistics
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from llama_ablate.config.experiment import Model
from llama_ablate.design.variants import resolve
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import configure_process
from llama_ablate.training.timing import interleave, seconds_of

SHAPES = {  # dim, layers, heads, batch
    "96x4x256": (96, 4, 3, 8),
    "128x4x256": (128, 4, 4, 8),
    "256x6x256": (256, 6, 8, 8),
    "512x4x256": (512, 4, 8, 4),
}
CONTEXT, VOCAB = 256, 256
PRODUCTS = "products with weights alone"


def width(dim: int) -> int:
    """Return Llama's SwiGLU width, rounded up to 32, which every implementation supports."""
    return 32 * math.ceil(int(8 * dim / 3) / 32)


def ours(dim: int, layers: int, heads: int, kernel: str) -> Callable[[Tensor], Tensor]:
    """Build this package's decoder with a given attention kernel."""
    recipe = Model.check(
        {
            "vocab": VOCAB,
            "dim": dim,
            "layers": layers,
            "heads": heads,
            "context": CONTEXT,
            "norm": "rmsnorm",
            "position": "rope",
            "attention": "mha",
            "block": "pre",
            "feedforward": {"name": "swiglu", "width": width(dim)},
        }
    )
    model = new_model(resolve(recipe), 0)
    model.kernel = kernel
    return model


def hugging_face(dim: int, layers: int, heads: int) -> nn.Module:
    """Build transformers' `LlamaForCausalLM` with its default attention (sdpa)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=width(dim),
        max_position_embeddings=CONTEXT,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def x_transformers(dim: int, layers: int, heads: int, flash: bool) -> nn.Module:
    """Build the same architecture with x-transformers; `flash` selects flash attention."""
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=VOCAB,
        max_seq_len=CONTEXT,
        use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=dim,
            depth=layers,
            heads=heads,
            attn_dim_head=dim // heads,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_mult=width(dim) / dim,
            ff_no_bias=True,
            attn_flash=flash,
        ),
    )


class NanoGPT(nn.Module):
    """nanoGPT's GPT-2 without biases: joint QKV projection, torch's attention, and GELU."""

    def __init__(self, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, dim), nn.Embedding(CONTEXT, dim)
        self.blocks = nn.ModuleList(_Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, tokens, vocabulary) for token ids (batch, tokens)."""
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = (
            nn.Linear(dim, 4 * dim, bias=False),
            nn.Linear(4 * dim, dim, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def main() -> None:
    """Run every shape and print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true", help="each compiled, too")
    parser.add_argument("--quick", action="store_true", help="the two usual shapes, 7 rounds")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.rounds = ["128x4x256", "256x6x256"], 7
    configure_process(options.threads)  # for all implementations, which share the process
    results = [
        race(shape, precision, options)
        for shape in options.shape or SHAPES
        for precision in options.precision or ["float32", "bfloat16"]
    ]
    print(json.dumps({"torch": torch.__version__, "threads": options.threads, "races": results}))


def race(shape: str, precision: str, options: argparse.Namespace) -> dict[str, object]:
    """Time all implementations at one shape and precision; print and return medians and ratios."""
    dim, layers, heads, batch = SHAPES[shape]
    contestants = {
        "llama_ablate (fused)": ours(dim, layers, heads, "fused"),
        "llama_ablate (math)": ours(dim, layers, heads, "math"),
        "transformers": hugging_face(dim, layers, heads),
        "x-transformers": x_transformers(dim, layers, heads, flash=False),
        "x-transformers (flash)": x_transformers(dim, layers, heads, flash=True),
        "nanoGPT": NanoGPT(dim, layers, heads),
    }
    if options.compiled:
        contestants |= {
            f"{name}, compiled": torch.compile(model, dynamic=False)
            for name, model in copy.deepcopy(contestants).items()
        }
    steps = {
        name: stepper(model, batch, precision, options.device)
        for name, model in contestants.items()
    }
    steps[PRODUCTS] = products(steps["llama_ablate (math)"])
    synchronize = torch.cuda.synchronize if options.device != "cpu" else lambda: None
    timed = {name: partial(seconds_of, step, synchronize) for name, step in steps.items()}
    times, errors = interleave(timed, options.rounds, warm_up=2)
    if errors:
        raise next(iter(errors.values()))
    medians = {name: statistics.median(values) for name, values in times.items()}
    own, others = (
        min((name for name in contestants if is_ours(name) == side), key=medians.__getitem__)
        for side in (True, False)
    )
    ours_s = medians[own]
    ratios = sorted(b / a for a, b in zip(times[own], times[others], strict=True))
    ratio = statistics.median(ratios)
    print(f"{shape}, batch {batch}, {precision}, {options.threads} thread(s), {options.device}")
    remarks = {
        name: f"{sum(p.numel() for p in model.parameters()):,} parameters"
        for name, model in contestants.items()
    }
    remarks[PRODUCTS] = f"{others} takes {medians[others] / medians[PRODUCTS]:.2f} times as long"
    for name, value in medians.items():
        print(f"  {name:34s} {value * 1e3:9.2f} ms   {value / ours_s:5.2f} x   {remarks[name]}")
    quarter = len(ratios) // 4
    spread = [ratios[quarter], ratios[-1 - quarter]]
    print(f"  {others} / {own}: {ratio:.2f} (middle half {spread[0]:.2f} to {spread[1]:.2f})")
    return {
        "shape": shape,
        "precision": precision,
        "seconds": medians,
        "best": [own, others],
        "ratio": ratio,
        "middle_half": spread,
    }


def is_ours(name: str) -> bool:
    """Return whether an implementation belongs to this package."""
    return name.startswith("llama_ablate")


def stepper(model: nn.Module, batch: int, precision: str, device: str) -> Callable[[], None]:
    """Return a function that does one training step on fixed random tokens."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (batch, CONTEXT + 1), generator=generator).to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16")

    def step() -> None:
        with autocast:
            output = model(inputs)
            logits = getattr(output, "logits", output)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


#: Size, stride, dtype and device of a tensor.
Like = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class Recorder(TorchDispatchMode):
    """Dispatch mode that records the operands of all matrix products with weights.

    `pairs` has for each product the size, stride, dtype and device of both operands.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[list[Like]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        """Record the operands if the operation is a matrix product, and execute it."""
        if operation is torch.ops.aten.mm.default:
            self.pairs.append([(x.size(), x.stride(), x.dtype, x.device) for x in args])
        return operation(*args, **(kwargs or {}))


def products(step: Callable[[], None]) -> Callable[[], None]:
    """Return a function that computes a step's matrix products with weights on random numbers."""
    with Recorder() as seen:
        step()

    @cache
    def filled(like: Like) -> Tensor:
        size, stride, dtype, device = like
        return torch.empty_strided(size, stride, dtype=dtype, device=device).normal_()

    pairs = [list(map(filled, pair)) for pair in seen.pairs]

    def alone() -> None:
        for first, second in pairs:
            torch.mm(first, second)

    return alone


if __name__ == "__main__":
    main()
