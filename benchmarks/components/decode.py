"""Micro-benchmark of decoding, with and without KV cache, and by kind of attention."""

import copy
from collections.abc import Callable, Sequence

import torch

from benchmarks.components.timing import Controls, Ratio, Setup, Table, Work, in_turns, more
from llama_ablate.config.experiment import Model
from llama_ablate.design.variants import resolve
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.model.kernels import Kernel
from llama_ablate.training.compute import Compute

_NEW = (32, 100, 256)
_PROMPT, _AFTER = 448, 32
_WARM_UP = 1  # warm-up rounds: one is enough, since a call has dozens of forward passes
_ATTENTIONS = ("mha", "gqa", "mqa", "mla", "gated_delta")
_MODEL = {"dim": 256, "layers": 4, "heads": 8, "context": 512, "vocab": 1024}


def tables(setup: Setup) -> list[Table]:
    """Time decoding with and without KV cache, and by kind of attention.

    Nothing is compiled, since the tensor shapes change with each token.
    """
    model = _model("mha", setup)
    timed = []
    for new in _NEW:
        cases = {
            "without cache": _uncached(model, new, setup),
            "with cache, math": _cached(model, new, "math", setup),
            "with cache, fused": _cached(model, new, "fused", setup),
        }
        controls = Controls(
            "with cache, fused",
            _cached(_model("mha", setup), new, "fused", setup),
            _cached(model, more(new), "fused", setup),
            f"{more(new)} tokens",
        )
        title, against = f"{new} tokens, mha", "with cache, fused"
        timed.append(
            in_turns(title, cases, setup, against=against, controls=controls, warm_up=_WARM_UP)
        )
    by_attention: dict[str, Work] = {
        name: _prefilled(_model(name, setup), setup) for name in _ATTENTIONS
    }
    controls = Controls(
        "mha",
        _prefilled(_model("mha", setup), setup),
        _prefilled(_model("mha", setup), setup, more(_AFTER)),
        f"{more(_AFTER)} tokens",
    )
    title = f"{_AFTER} tokens after {_PROMPT}, batch 8"
    last = in_turns(title, by_attention, setup, against="mha", controls=controls, warm_up=_WARM_UP)
    return [*timed, last]


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of decoding times: without / with KV cache, and MHA / other mixers."""
    *of_lengths, by_attention = tables
    return [
        Ratio(
            f"{new} tokens: time without / with cache",
            table.ratio("without cache", "with cache, fused"),
            f"K and V of {(new + 1) / 2:.1f} times as many tokens computed",
            digits=1,
        )
        for new, table in zip(_NEW, of_lengths, strict=True)
    ] + [
        Ratio(f"mha / {name}, decoding a batch of 8", by_attention.ratio("mha", name))
        for name in ("gqa", "mqa", "gated_delta")
    ]


def _model(attention: str, setup: Setup) -> Decoder:
    spec = resolve(Model.check(_MODEL | {"attention": attention}))
    compute = Compute(setup.device, setup.threads, setup.dtype)
    return compute.prepare(new_model(spec, 0)).to(setup.torch_dtype).eval()


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
        cache = model.new_state(1, new)
        for _ in range(new):
            model(token, cache)

    return _in_inference(work)


def _prefilled(model: Decoder, setup: Setup, new: int = _AFTER) -> Work:
    prompt = torch.zeros(8, _PROMPT, dtype=torch.long, device=setup.device)
    cache = model.new_state(8, _PROMPT + new)
    with torch.inference_mode():
        model(prompt, cache)

    def work() -> None:
        own = copy.deepcopy(cache)  # so that each call starts from the cache after the prompt
        for _ in range(new):
            model(prompt[:, :1], own)

    return _in_inference(work)
