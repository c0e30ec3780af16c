"""Throughput of training and decoding; each call is a turn of an interleaved timing.

In interleaved timing, variants take turns. A turn is short and repeats its work for a number of
seconds; the median of the repetitions counts, since another program may lengthen some of them.
Paired timing has five processes of three turns, or up to ten processes if confidence intervals stay
wide, for at most ten minutes. All turns of a process share its memory layout, which affects speed
at random, so each process is one observation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.model.counts import count
from llama_ablate.model.dropout import Dropout
from llama_ablate.results.record import Coordinate, Value, row
from llama_ablate.training.compute import update
from llama_ablate.training.losses import Objective, losses_of
from llama_ablate.training.optimizers import make_optimizer
from llama_ablate.training.timing import seconds_of

_MAX_TURN_S = 600  # every variant has several turns


def _check_turn(_spec: ModelSpec, _tokens: Tokens, *, seconds: float, **_options: Any) -> None:
    if not 0 <= seconds <= _MAX_TURN_S:
        message = f"seconds {seconds:g}: must be from 0 to {_MAX_TURN_S}, for each turn"
        raise ConfigError(message, ("seconds",))


@METRICS.add(
    "train_speed", per="variant", check=_check_turn, timed=True, worse={"train_speed": "lower"}
)
def train_speed(
    subject: Subject,
    *,
    paired: bool = False,  # noqa: ARG001 - decides whether this is called, and how often
    seconds: float = 0.1,
) -> Iterator[Value]:
    """Training tokens per second, and the FLOP/s achieved, of full optimizer steps.

    Steps are timed only if `paired` is true; otherwise the training runs supply the speed. A turn
    takes at least `seconds`, and at least one step after a warm-up step.
    """
    model, train, compute = subject.model, subject.train, subject.compute
    objective = Objective(model, losses_of(train))
    optimizer, trained = make_optimizer(objective, train), compute.wrap(objective)
    context = model.spec.context
    batch = torch.from_numpy(subject.tokens.batch(0, 0, train.batch, context))
    parts = batch.to(compute.device).chunk(train.accumulate)
    dropout = Dropout.for_step(model.spec, 0, 0, train.batch)
    step = partial(update, trained, optimizer, parts, train, compute, dropout=dropout)
    (step_s,) = _medians(lambda: (seconds_of(step, compute.synchronize),), seconds)
    tokens_per_s = train.batch * context / step_s
    yield row("train_tokens_per_s", tokens_per_s, "tokens/s", "train_speed")
    flops = count(model.spec).train_flops_per_token
    if not math.isnan(flops):
        yield row("train_flops_per_s", tokens_per_s * flops, "FLOP/s", "train_flops")


def _check_decode(
    spec: ModelSpec,
    tokens: Tokens,
    *,
    batch: Sequence[int],
    context: Sequence[int],
    new: int,
    seconds: float,
    **_options: Any,
) -> None:
    if not batch or min(batch) < 1:
        raise ConfigError(
            f"decode_speed: batch {[*batch]!s:.60} must be whole numbers of 1 or more", ("batch",)
        )
    if new < 1:
        raise ConfigError(f"decode_speed: new {new!s:.60} must be 1 or more", ("new",))
    _check_turn(spec, tokens, seconds=seconds)
    needed, available = max(batch) * max(_lengths(spec, context, new)), tokens.counts["train"]
    if needed > available:
        raise ConfigError(
            f"decode_speed: the largest batch of the longest context has {needed!s:.60} tokens, "
            f"and the text {available:,} to train on",
            ("context" if context else "batch",),
        )


def _lengths(spec: ModelSpec, context: Sequence[int], new: int) -> Sequence[int]:
    """Return the contexts to decode at: `context`, or half and all of the training context."""
    usual = [length for length in (spec.context // 2, spec.context) if length > new]
    for length in context or usual or [spec.context]:
        if length <= new:
            message = f"decode_speed: context {length!s:.60} must be longer than new {new!s:.60}"
            raise ConfigError(message, ("context" if context else "new",))
    return context or usual


@METRICS.add(
    "decode_speed",
    per="variant",
    check=_check_decode,
    timed=True,
    worse={"decode_speed": "lower", "prefill_speed": "lower"},
)
def decode_speed(
    subject: Subject,
    *,
    paired: bool = False,
    batch: Sequence[int] = (1, 8),
    context: Sequence[int] = (),
    new: int = 8,
    seconds: float = 0.02,
    uncached: bool = False,
) -> Iterator[Value]:
    """Prefill and decode tokens per second over batch and context.

    If `paired` is true, every batch and context is timed, in five or more processes. Otherwise only
    the largest batch and the longest context are timed, in three turns of one process. `context` is
    the number of tokens in the cache when decoding ends (by default half of the training context
    and all of it, if longer than `new`); the last `new` of these tokens are decoded one at a time,
    the others are prefilled at once. With `uncached`, decoding is timed without a cache, too: every
    token takes a forward pass over all tokens before it. Prefill and decoding are repeated in a
    turn, each for at least `seconds`.
    """
    for length, size in _sizes(subject.model.spec, paired, batch, context, new):
        text = subject.tokens.split("train")[: size * length].astype("int64")
        tokens = torch.from_numpy(text).view(size, length)
        prefill_s, *decode_s = _decode_seconds(subject, tokens, new, seconds, uncached=uncached)
        at: dict[str, Coordinate] = {"batch": size, "context": length}
        end = f"b{size}_c{length}_tokens_per_s"
        prefilled, unit = size * (length - new), "tokens/s"
        yield row(f"prefill_{end}", prefilled / prefill_s, unit, "prefill_speed", **at)
        for cache, taken_s in zip(("cached", "uncached"), decode_s, strict=False):
            speed = size * new / taken_s
            yield row(f"decode_{cache}_{end}", speed, unit, "decode_speed", **at, cache=cache)


def _sizes(
    spec: ModelSpec, every: bool, batch: Sequence[int], context: Sequence[int], new: int
) -> list[tuple[int, int]]:
    """Return the contexts and batches to time: every pair, or the largest alone."""
    sizes = [(length, size) for length in _lengths(spec, context, new) for size in batch]
    return sizes if every else [max(sizes)]


@torch.inference_mode()
def _decode_seconds(
    subject: Subject, tokens: torch.Tensor, new: int, at_least_s: float, *, uncached: bool
) -> list[float]:
    """Return the seconds of a prefill, and of decoding `new` tokens with and without a cache.

    `tokens` are whole texts, (batch, context), of which the last `new` columns are decoded.
    Decoding without a cache is timed only if `uncached` is true.
    """
    compute = subject.compute
    model = subject.model.to(compute.dtype).eval()
    tokens = tokens.to(compute.device)
    size, length = tokens.shape
    prompt, rest = tokens[:, : length - new], tokens[:, length - new :]

    def with_cache() -> tuple[float, ...]:
        cache = model.new_state(size, length)

        def decode() -> None:
            for column in rest.unbind(1):
                model(column[:, None], cache)

        prefill_s = seconds_of(lambda: model(prompt, cache), compute.synchronize)
        return prefill_s, seconds_of(decode, compute.synchronize)

    def without_cache() -> tuple[float, ...]:
        def decode() -> None:
            for end in range(length - new + 1, length + 1):
                model(tokens[:, :end])

        return (seconds_of(decode, compute.synchronize),)

    cases = (with_cache, without_cache) if uncached else (with_cache,)
    return [seconds for timed in cases for seconds in _medians(timed, at_least_s)]


def _medians(timed: Callable[[], tuple[float, ...]], at_least_s: float) -> list[float]:
    """Return the medians of timings, repeated after a warm-up for at least `at_least_s` each."""
    timed()
    times = [timed()]
    while min(map(sum, zip(*times, strict=True))) < at_least_s:
        times.append(timed())
    return [*map(median, zip(*times, strict=True))]


def turn_flops(choice: Choice, spec: ModelSpec, train: Train) -> float:
    """Estimate the FLOPs of a turn, whose work is done twice or more; 0 for a plug-in's metric."""
    if choice.name == "train_speed":
        return 2 * train.batch * spec.context * count(spec).work
    if choice.name != "decode_speed":
        return 0.0
    passes = 2 * (1 + choice["new"] * choice["uncached"])
    given = (choice[option] for option in ("paired", "batch", "context", "new"))
    tokens = {(replace(spec, context=c), n): passes * n * c for c, n in _sizes(spec, *given)}
    return sum((count(at).work / 3 * number for (at, _), number in tokens.items()), start=0.0)
