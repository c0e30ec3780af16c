"""Time generation beside `transformers` on the same weights, and what fewer key/value heads save.

    python benchmarks/decode.py
    python benchmarks/decode.py --quick

First: one prompt of 32 tokens, continued greedily by `transformers.generate` (with its default
cache, and with its static one) and by `llama_ablate.interop.generation`, float32 and bfloat16
weights, two threads, one process, in turn; all give the same tokens. Then: one token after a
context of 4,096 for 64 sequences at once, by the number of key/value heads.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llama_ablate.config.experiment import Model
from llama_ablate.design.grid import resolve
from llama_ablate.interop import huggingface
from llama_ablate.interop.generation import Compile, Generation, Sampling
from llama_ablate.model.decoder import REGISTRIES, Decoder, build, init_weights
from llama_ablate.training.compute import settle
from llama_ablate.training.timing import interleave, seconds_of

SHAPES = {
    "128x4": {"dim": 128, "layers": 4, "heads": 4},
    "256x6": {"dim": 256, "layers": 6, "heads": 8},
    "512x8": {"dim": 512, "layers": 8, "heads": 8},
}
VOCAB, PROMPT = 4096, 32
#: Of the second table: a layer's keys and values of 64 sequences are 64 MiB a pair of heads.
MANY = {"dim": 512, "layers": 2, "heads": 8, "context": 4096}
BATCH = 64


def model_of(sizes: dict[str, int], dtype: torch.dtype, **changes: Any) -> Decoder:
    """Build a Llama with random weights."""
    recipe = {"vocab": VOCAB, "context": 1024, "feedforward": "swiglu", **sizes, **changes}
    spec = resolve(Model.check(recipe), REGISTRIES)
    return init_weights(build(spec), 0).to(dtype).eval()


def hugging_face(model: Decoder) -> Any:
    """Return transformers' model with these weights."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        huggingface.write(model, Path(folder))
        dtype = model.embedding.weight.dtype
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def generations(
    sizes: dict[str, int], dtype: torch.dtype, new: int
) -> dict[str, Callable[[], Any]]:
    """Return what continues the same prompt by `new` tokens, by name."""
    model = model_of(sizes, dtype)
    theirs = hugging_face(model)
    prompt = torch.randint(0, VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(0))
    options = {
        "max_new_tokens": new,
        "min_new_tokens": new,
        "do_sample": False,
        "attention_mask": torch.ones(1, PROMPT, dtype=torch.long),
        "pad_token_id": 0,
    }

    def ours(compile: Compile) -> list[int | None]:  # noqa: A002
        generation = Generation(
            model,
            [prompt.tolist()],
            max_tokens=new,
            sampling=Sampling(temperature=0),
            compile=compile,
        )
        return [row[0] for row in generation]

    def generate(**more: Any) -> list[int]:
        with torch.inference_mode():
            whole = theirs.generate(prompt[None], **options, **more)
        return whole[0, PROMPT:].tolist()

    return {
        "llama_ablate": partial(ours, "never"),
        "llama_ablate (compiled)": partial(ours, "always"),
        "transformers": generate,
        "transformers (static cache)": partial(
            generate, cache_implementation="static", disable_compile=True
        ),
    }


def race(shape: str, dtype: torch.dtype, new: int, rounds: int) -> dict[str, Any]:
    """Time a generation by each contestant in turn; print and return medians and the ratio."""
    contestants = generations(SHAPES[shape], dtype, new)
    first = {name: generate() for name, generate in contestants.items()}
    same = {name: tokens == first["llama_ablate"] for name, tokens in first.items()}
    timed = {
        name: partial(seconds_of, generate, lambda: None) for name, generate in contestants.items()
    }
    times, errors = interleave(timed, rounds, warm_up=1)
    if errors:
        raise next(iter(errors.values()))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ratios = sorted(
        min(taken for name, taken in zip(times, turn, strict=True) if name != "llama_ablate")
        / turn[[*times].index("llama_ablate")]
        for turn in zip(*times.values(), strict=True)
    )
    ratio = statistics.median(ratios)
    precision = str(dtype).removeprefix("torch.")
    print(f"{shape}, {precision}: {new} tokens after {PROMPT}, one sequence")
    for name, seconds in medians.items():
        note = "" if same[name] else "   other tokens than ours"
        print(f"  {name:28s} {new / seconds:9,.0f} tokens/s{note}")
    print(f"  best of transformers / ours: {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return {"shape": shape, "precision": precision, "seconds": times, "ratio": ratio, "same": same}


def by_heads(dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Time one token of many sequences behind a long context, by key/value heads."""
    works, sizes = {}, {}
    tokens = torch.zeros(BATCH, 1, dtype=torch.long)
    for heads in (8, 4, 2, 1):
        attention = {"name": "gqa", "kv_heads": heads} if heads < MANY["heads"] else "mha"
        model = model_of(MANY, dtype, attention=attention)
        state = model.new_state(BATCH, MANY["context"])
        sizes[heads] = state.nbytes

        def work(model: Decoder = model, state: Any = state) -> None:
            # What the context says changes nothing of the time: the state is as it was made.
            for layer in state.layers:
                layer.length = MANY["context"] - 1
            state.length = MANY["context"] - 1
            with torch.inference_mode():
                model(tokens, state)

        works[heads] = partial(seconds_of, work, lambda: None)
    times, errors = interleave(works, rounds, warm_up=1)
    if errors:
        raise next(iter(errors.values()))
    print(f"one token of {BATCH} sequences after {MANY['context'] - 1:,} tokens each, {dtype}")
    for heads, taken in times.items():
        share = statistics.median(a / b for a, b in zip(times[8], taken, strict=True))
        print(
            f"  {heads} kv heads  {statistics.median(taken) * 1e3:8.1f} ms a token   "
            f"{share:5.2f} x   state {sizes[heads] / 2**20:6,.0f} MiB"
        )
    return {"precision": str(dtype), "seconds": times, "bytes": sizes}


def main() -> None:
    """Run both tables; print them, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="the two smaller shapes, 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.rounds, options.new = ["128x4", "256x6"], 3, 64
    settle(options.threads)
    races = [
        race(shape, dtype, options.new, options.rounds)
        for shape in options.shape or SHAPES
        for dtype in (torch.float32, torch.bfloat16)
    ]
    heads = by_heads(torch.bfloat16, options.rounds)
    print(json.dumps({"torch": torch.__version__, "races": races, "heads": heads}))


if __name__ == "__main__":
    main()
