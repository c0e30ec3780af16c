"""The command `generate`: continue a prompt with a model, as a stream of text."""

import sys
import time
from dataclasses import dataclass
from typing import Literal

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.model_input import PromptOptions
from llama_ablate.commands.shared.options import count, option
from llama_ablate.errors import ConfigError

HELP = "continue a prompt, streamed"
EXAMPLE = 'generate results/first/rope --prompt "def " --temperature 0'


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(PromptOptions):
    """Options of `generate`: the model, the prompt, and the sampling."""

    prompt: str = option(..., "the text to continue; - reads standard input", "TEXT")
    max_tokens: int = option(128, "maximum number of new tokens (default: 128)", "N", count)
    temperature: float = option(
        0.8, "sampling temperature; 0 is greedy decoding (default: 0.8)", "T"
    )
    top_k: int | None = option(None, "sample from the K most likely tokens", "K", count)
    top_p: float = option(1.0, "sample from the most likely tokens with total probability P", "P")
    seed: int = option(0, "random seed of sampling (default: 0)")
    past_context: Literal["stop", "slide"] = option(
        "stop", "at the context's end: stop, or forget the older half (default: stop)"
    )
    no_cache: bool = option(False, "decode without the KV cache: the same text, slower")
    compile: Literal["auto", "always", "never"] = option(
        "auto",
        "compile the decoding step with torch.compile, which takes some 10 to 30 seconds the "
        "first time; auto: where many tokens are asked for (default: auto)",
    )
    chat: bool = option(False, "put the prompt into Llama 3's chat template")
    system: str = option("", "with --chat: the system message", "TEXT")


def run(options: GenerateOptions) -> Answer:
    """Continue a prompt; print each piece of text once its tokens form whole characters."""
    from llama_ablate.interop import chat
    from llama_ablate.interop.generation import Generation, Sampling, Streamed

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    opened = model_input.open_model(options)
    tokenizer = opened.tokenizer
    text = model_input.read_prompt(options.prompt)
    if options.system and not options.chat:
        raise ConfigError("--system is for --chat")
    if options.chat:
        system = [chat.Message("system", options.system)] if options.system else []
        prompt = chat.encode([*system, chat.Message("user", text)], tokenizer)
    else:
        prompt = opened.prompt(text, special=options.parse_special)
    generation = Generation(
        opened.model,
        [prompt],
        max_tokens=options.max_tokens,
        sampling=sampling,
        stops=opened.stops,
        past=options.past_context,
        use_cache=not options.no_cache,
        vocab=tokenizer.vocab,
        compile=options.compile,
    )
    streamed = Streamed(tokenizer, prompt)
    out = (lambda _: None) if options.json else _write
    out("" if options.chat else text)
    start = time.perf_counter()
    for (token,) in generation:
        if token is not None:
            out(streamed.push(token))
    out(streamed.flush())
    seconds = time.perf_counter() - start
    if generation.ended == "context":
        sys.stderr.write(
            f"note: stopped at the context of {opened.model.spec.context:,} tokens; "
            "--past-context slide goes on\n"
        )
    values = {
        "prompt": text,
        "prompt_tokens": prompt,
        "text": streamed.text,
        "tokens": streamed.tokens,
        "ended": generation.ended,
        "seconds": seconds,
        "tokens_per_s": len(streamed.tokens) / seconds if seconds else None,
    }
    return Answer("", values)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe early
        sys.exit(0)
