"""Micro-benchmark of decoding, with and without a key/value cache, and by attention."""

from collections.abc import Callable

import torch

from llama_ablate.bench.timing import Ratio, Setup, Table, Work, in_turns
from llama_ablate.config.experiment import Model
from llama_ablate.design.grid import resolve
from llama_ablate.model.decoder import REGISTRIES, Decoder, build, init_weights
from llama_ablate.model.kernels import Kernel
from llama_ablate.training.compute import Compute

_NEW = (32, 100, 256)
_ATTENTIONS = ("mha", "gqa", "mqa", "mla")
_MODEL = {"dim": 256, "layers": 4, "heads": 8, "context": 512, "vocab": 1024}


def run(setup: Setup) -> tuple[list[Table], list[Ratio]]:
    """Time the decoding of n tokens after one, without and with a cache, and by attention.

    Nothing is compiled here: each token has other shapes than the one before.
    """
    tables, ratios = [], []
    model = _model("mha", setup)
    for new in _NEW:
        cases = {
            "without cache": _uncached(model, new, setup),
            "with cache, math": _cached(model, new, "math", setup),
            "with cache, fused": _cached(model, new, "fused", setup),
        }
        table = in_turns(f"{new} tokens, mha", cases, setup, against="with cache, fused")
        tables.append(table)
        r = table.ratio("without cache", "with cache, fused")
        ratios.append(
            Ratio(
                f"{new} tokens: time without / with cache",
                f"{r.times(1)}; K and V of {(new + 1) / 2:.1f} times as many tokens computed",
            )
        )
    by_attention: dict[str, Work] = {
        name: _prefilled(_model(name, setup), setup) for name in _ATTENTIONS
    }
    table = in_turns("32 tokens after 448, batch 8", by_attention, setup, against="mha")
    tables.append(table)
    for name in ("gqa", "mqa"):
        r = table.ratio("mha", name)
        ratios.append(Ratio(f"mha / {name}, decoding a batch of 8", r.times()))
    return tables, ratios


def _model(attention: str, setup: Setup) -> Decoder:
    spec = resolve(Model.check(_MODEL | {"attention": attention}), REGISTRIES)
    compute = Compute(setup.device, setup.threads, setup.dtype)
    return compute.prepare(init_weights(build(spec), 0)).to(setup.torch_dtype).eval()


def _in_inference(work: Callable[[], None]) -> Work:
    def quietly() -> None:
        with torch.inference_mode():
            work()

    return quietly


def _uncached(model: Decoder, new: int, setup: Setup) -> Work:
    tokens = torch.zeros(1, new, dtype=torch.long, device=setup.device)

    def work() -> None:
        model.kernel = "fused"
        for end in range(1, new + 1):
            model(tokens[:, :end])

    return _in_inference(work)


def _cached(model: Decoder, new: int, kernel: Kernel, setup: Setup) -> Work:
    token = torch.zeros(1, 1, dtype=torch.long, device=setup.device)

    def work() -> None:
        model.kernel = kernel
        cache = model.new_cache(1, new)
        for _ in range(new):
            model(token, cache)

    return _in_inference(work)


def _prefilled(model: Decoder, setup: Setup) -> Work:
    prompt = torch.zeros(8, 448, dtype=torch.long, device=setup.device)
    cache = model.new_cache(8, 480)
    with torch.inference_mode():
        model(prompt, cache)

    def work() -> None:
        # Each call writes the same 32 positions again; the prompt stays.
        cache.rewind(448)
        for _ in range(32):
            model(prompt[:, :1], cache)

    return _in_inference(work)
