"""Autoregressive generation with a key/value cache, for one prompt or a batch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.errors import ConfigError, need
from llama_ablate.interop.stored_tensors import check_memory
from llama_ablate.model.compilation import CompiledStep
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.state import DecoderState

Past = Literal["stop", "slide"]
Ended = Literal["", "stop token", "max tokens", "context"]
Compile = Literal["auto", "always", "never"]

#: Number of new tokens at which compilation saves twice the time that it takes: with four layers of
#: width 128 it takes about 14 s of one core, and saves 1.4 ms per token. Both grow with the number
#: of layers. This is a constant, not a measurement, so that a seed gives the same text on a busy
#: machine.
COMPILED_FROM = 20_000


@dataclass(frozen=True)
class Sampling:
    """Options for sampling the next token. Temperature 0 takes the likeliest token (greedy)."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for options out of range."""
        at, top_k, top_p, seed = self.temperature, self.top_k, self.top_p, self.seed
        need(0 <= at < math.inf, f"--temperature {at:g}: must be 0 (greedy) or more")
        need(top_k is None or top_k >= 1, f"--top-k {top_k}: must be 1 or more")
        need(0 <= seed < 1 << 63, f"--seed {seed}: must be 0 or more, and below 2^63")
        need(0 < top_p <= 1, f"--top-p {top_p:g}: must be above 0 and at most 1")

    @property
    def greedy(self) -> bool:
        """True if the temperature is 0, or too small to divide by without overflow."""
        return self.temperature < torch.finfo(torch.float32).tiny


def probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the sampling distribution, (B, V): temperature, then top k, then nucleus.

    The nucleus is the smallest set of tokens whose probabilities sum to `top_p` (Holtzman et al.
    2019, arXiv:1904.09751).
    """
    if sampling.greedy:
        return torch.zeros_like(logits_BV).scatter_(-1, logits_BV.argmax(-1, keepdim=True), 1.0)
    # With the maximum at 0, a small temperature sends the others to -inf, never anything to inf.
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(sampling.top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    falling_BV, order_BV = logits_BV.softmax(-1).sort(-1, descending=True)
    # A token is kept if the more likely tokens sum to less than top_p; the first is always kept.
    excluded_BV = falling_BV.cumsum(-1) - falling_BV >= sampling.top_p
    excluded_BV[:, 0] = False
    falling_BV[excluded_BV] = 0.0
    kept_BV = torch.zeros_like(falling_BV).scatter_(-1, order_BV, falling_BV)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


class Generation:
    """Iterator over the next tokens of all prompts; None for a prompt that has ended.

    Prompts of different lengths are padded on the left. Each prompt has its own random generator,
    so neither the rest of the batch nor the cache changes the continuation of a prompt. At the end
    of the context, generation stops, or drops the older half of the tokens and continues
    (`past="slide"`). Afterwards `ended` says why generation stopped. Only the first `vocab` tokens
    are drawn, for models with more tokens than their tokenizer. `compile` says whether decoding
    steps are compiled (`CompiledStep`); `auto` compiles them if `max_tokens` is large. Raises
    ConfigError for an empty or too long prompt, a cache that does not fit into memory, and logits
    that are not finite.
    """

    def __init__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        stops: frozenset[int] = frozenset(),
        past: Past = "stop",
        use_cache: bool = True,
        vocab: int | None = None,
        compile: Compile = "auto",  # noqa: A002  as the key of `train` is called
    ) -> None:
        self.model, self.max_tokens, self.stops = model, max_tokens, stops
        self.vocab = vocab or model.spec.vocab
        self.past, self.use_cache = past, use_cache
        self.sampling = sampling or Sampling()
        self.ended: Ended = ""
        self._rows = [list(prompt) for prompt in prompts]
        self._streams = [torch.Generator().manual_seed(self.sampling.seed) for _ in prompts]
        self._cache: DecoderState | None = None
        self._pad_B: Tensor | None = None
        said = "compile 'always': what is compiled is the step that has a cache"
        need(use_cache or compile != "always", said)
        pays = compile == "always" or (compile == "auto" and max_tokens >= COMPILED_FROM)
        #: Forward pass over one new token of each sequence: the model, or its compiled step.
        self.step = CompiledStep(model) if pays and use_cache else model
        context, longest = model.spec.context, max(map(len, self._rows), default=0)
        said = "an empty prompt gives nothing to continue: this tokenizer has no token that begins "
        need(all(self._rows), f"{said}a text")
        if use_cache:
            model.state_bytes(context, model.embedding.weight.dtype)  # raises if not provided
        if unknown := [t for row in self._rows for t in row if not 0 <= t < model.spec.vocab]:
            raise ConfigError(
                f"token {unknown[0]} of the prompt is not among the model's {model.spec.vocab:,}"
            )
        if longest > context and past == "stop":
            raise ConfigError(
                f"the prompt has {longest:,} tokens, more than the context of {context:,}; "
                "shorten it, or see only its end with --past-context slide"
            )

    def __iter__(self) -> Iterator[list[int | None]]:
        """Yield the next token of each prompt."""
        going = [True] * len(self._rows)
        for _ in range(self.max_tokens):
            if max(map(len, self._rows)) > self.model.spec.context and not self._make_room():
                self.ended = "context"
                return
            with torch.inference_mode():
                tokens = self._draw(self._logits()[:, -1].float())
            for row, token in zip(self._rows, tokens, strict=True):
                row.append(token)
            going = [g and t not in self.stops for g, t in zip(going, tokens, strict=True)]
            if not any(going):
                self.ended = "stop token"
                return
            yield [t if g else None for g, t in zip(going, tokens, strict=True)]
        self.ended = "max tokens"

    def _make_room(self) -> bool:
        if self.past == "stop":
            return False
        length = max(1, self.model.spec.context // 2)
        self._rows = [row[-length:] for row in self._rows]
        self._cache = None
        return True

    def _logits(self) -> Tensor:
        """Return the logits of each sequence, (B, T, V), whose last are of the next token.

        With a cache only the newest tokens are read, otherwise all tokens.
        """
        device = self.model.embedding.weight.device
        if self._cache is not None:
            newest_B1 = torch.tensor([row[-1:] for row in self._rows], device=device)
            new_B1V: Tensor = self.step(newest_B1, self._cache, pad_B=self._pad_B)
            return new_B1V
        longest = max(map(len, self._rows))
        pads = [longest - len(row) for row in self._rows]
        padded = [[0] * pad + row for pad, row in zip(pads, self._rows, strict=True)]
        self._pad_B = torch.tensor(pads, device=device) if any(pads) else None
        if self.use_cache:
            capacity = min(self.model.spec.context, longest + self.max_tokens)
            weight, rows = self.model.embedding.weight, len(padded)
            needed = rows * self.model.state_bytes(capacity, weight.dtype)
            check_memory(needed, f"a cache of {capacity:,} tokens (--max-tokens)", device)
            self._cache = self.model.new_state(len(padded), capacity)
        tokens_BT = torch.tensor(padded, device=device)
        logits_BTV: Tensor = self.model(tokens_BT, self._cache, pad_B=self._pad_B)
        return logits_BTV

    def _draw(self, logits_BV: Tensor) -> list[int]:
        logits_BV = logits_BV[:, : self.vocab].cpu()
        if not math.isfinite(logits_BV.sum()):  # faster than a test of each logit
            raise ConfigError(
                "the model's logits are not finite numbers: its weights are damaged, "
                "or too large for this precision"
            )
        if self.sampling.greedy:
            likeliest: list[int] = logits_BV.argmax(-1).tolist()
            return likeliest
        chances_BV = probabilities(logits_BV, self.sampling)
        return [
            int(torch.multinomial(chances_V, 1, generator=stream))
            for chances_V, stream in zip(chances_BV, self._streams, strict=True)
        ]


class Streamed:
    """Detokenizer of a token stream; delays characters whose bytes are not complete."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self._tokenizer, self._prompt = tokenizer, list(prompt)
        # Decoded with the prompt: a tokenizer may put a space between both.
        self._start = len(tokenizer.decode(self._prompt))

    def push(self, token: int) -> str:
        """Add a token; return the text that the token completes."""
        self.tokens.append(token)
        decoded = self._tokenizer.decode(self._prompt + self.tokens)[self._start :]
        return "" if decoded.endswith("\ufffd") else self._advance(decoded)

    def flush(self) -> str:
        """Return the remaining text, with characters that are not complete."""
        return self._advance(self._tokenizer.decode(self._prompt + self.tokens)[self._start :])

    def _advance(self, whole: str) -> str:
        new = whole[len(self.text) :]
        self.text = whole
        return new
