"""The models of this package for EleutherAI's lm-evaluation-harness, as its model `llama_ablate`.

    python -m llama_ablate.interop.lm_eval --model llama_ablate \
      --model_args run=results/first/rope --tasks lambada_openai

is the harness' own command with one model more: it looks for none in other packages, so `lm_eval`
itself knows this one only where this module has been imported.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from llama_ablate.config import plugins
from llama_ablate.errors import ConfigError
from llama_ablate.interop.generation import Generation, Sampling
from llama_ablate.interop.loader import open_model
from llama_ablate.measure.likelihood import Encoded, likelihoods
from llama_ablate.training.compute import pick_device

_NEW = 256  # tokens of a generation, where a task does not say


class AblateLM(TemplateLM):  # type: ignore[misc]  # of a package without types
    """A run or a checkpoint that lm-evaluation-harness asks; logits are made in float32.

    `run` is what `llama-ablate generate` takes: results/NAME/VARIANT, the folder of a run, or a
    checkpoint; `plugin` a file that registers its components. What has no context stands behind the
    token `prefix_token_id`: the beginning of a text where the tokenizer has one, else its end, else
    what separates documents.
    """

    def __init__(
        self,
        run: str,
        *,
        tokenizer: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        prefix_token_id: int | None = None,
        plugin: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        del batch_size, max_batch_size  # batches have as many tokens as fit, whatever their number
        if plugin:
            plugins.load([Path(plugin)])
        if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ConfigError(f"dtype '{dtype}' is none of torch: float32, bfloat16, float16")
        chosen = device or pick_device("auto")
        if chosen.startswith("cuda") and not torch.cuda.is_available():
            chosen = "cpu"  # the harness asks for a GPU wherever it is not told
        opened = open_model(
            Path(run),
            tokenizer=Path(tokenizer) if tokenizer else None,
            dtype=getattr(torch, dtype) if dtype else None,
        )
        self.opened, self.own, self.spec = opened, opened.tokenizer, opened.model.spec
        self.decoder = opened.model.to(chosen)
        self._device, self._prefix = torch.device(chosen), prefix_token_id

    @property
    def max_length(self) -> int:
        """The context of the model in tokens."""
        return self.spec.context

    @property
    def max_gen_toks(self) -> int:
        """Tokens of a generation, where a task does not say: half the context at most."""
        return min(_NEW, self.max_length // 2)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises ConfigError where there is none."""
        token = self.own.separator
        if token is None:
            raise ConfigError(
                f"the tokenizer of {self.opened.title} has no token that begins or ends a text: "
                "give one by prefix_token_id"
            )
        return token

    @property
    def prefix_token_id(self) -> int:
        """The token before what has no context."""
        if self._prefix is not None:
            return self._prefix
        return self.eot_token_id if self.own.bos is None else self.own.bos

    @property
    def tokenizer_name(self) -> str:
        """What the harness' cache of requests knows the tokenizer by."""
        return self.opened.title.replace("/", "__")

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **_options: Any,
    ) -> list[int]:
        """Return the tokens of a text; names of special tokens in it are text."""
        del add_special_tokens
        tokens: list[int] = self.own.encode(string).tolist()
        return tokens

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_options: Any,
    ) -> list[tuple[float, bool]]:
        texts = [Encoded(context, continuation) for _, context, continuation in requests]
        with tqdm(total=len(texts), desc="likelihoods", disable=disable_tqdm) as bar:
            found = [
                (one.nats, one.is_greedy) for one in likelihoods(self.decoder, texts, bar.update)
            ]
        for (strings, _, _), answer in zip(requests, found, strict=True):
            if strings is not None:  # what is asked for again later comes from the cache
                self.cache_hook.add_partial("loglikelihood", strings, answer)
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood in nats of whole texts, window by window."""
        nats = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            nats.append(sum(one for one, _ in self._loglikelihood_tokens(parts, disable_tqdm=True)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), nats[-1])
        del disable_tqdm
        return nats

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue prompts until a text that stops them, or as many tokens as the task allows.

        Of a prompt that leaves no room for them the beginning is cut off; a task that allows as
        many tokens as the context has, gets half of it.
        """
        written = []
        for prompt, options in tqdm([r.args for r in requests], disable=disable_tqdm):
            wanted = normalize_gen_kwargs(options, self.max_gen_toks)
            text = self._continued(prompt, wanted)
            self.cache_hook.add_partial("generate_until", (prompt, options), text)
            written.append(text)
        return written

    def _continued(self, prompt: str, wanted: Any) -> str:
        most = int(wanted["max_gen_toks"])
        most = most if most < self.max_length else self.max_length // 2
        tokens = self.tok_encode(prompt)[most - self.max_length :] or [self.prefix_token_id]
        sampling = Sampling(
            wanted["temperature"], wanted.get("top_k") or None, wanted.get("top_p") or 1.0
        )
        until = [stop for stop in wanted["until"] if stop]
        new: list[int] = []
        text = ""
        for (token,) in Generation(
            self.decoder,
            [tokens],
            max_tokens=most,
            sampling=sampling,
            stops=self.own.stops,
            vocab=self.own.vocab,
        ):
            new.append(-1 if token is None else token)
            text = self.own.decode(new)
            if any(stop in text for stop in until):
                break
        for stop in until:
            text = text.split(stop)[0]
        return text


register_model("llama_ablate")(AblateLM)


def main() -> int:
    """Run the harness' own command, which knows this model now."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except ConfigError as error:
        sys.stderr.write(f"lm_eval: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
