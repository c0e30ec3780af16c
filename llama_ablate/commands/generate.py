"""The command `generate`: text from a model, printed as it comes."""

import sys
import time
from argparse import ArgumentParser, Namespace

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import count
from llama_ablate.errors import ConfigError

HELP = "continue a prompt, streamed"
EXAMPLE = (
    'generate "results/quickstart/rmsnorm rope mha swiglu pre" --prompt "def " --temperature 0'
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the model, the prompt, and how tokens are drawn."""
    model_input.add_model(parser)
    model_input.add_prompt(parser, "the text to continue; - reads standard input")
    parser.add_argument(
        "--max-tokens",
        type=count,
        default=128,
        metavar="N",
        help="maximum number of new tokens (default: 128)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="sampling temperature; 0 is greedy decoding (default: 0.8)",
    )
    parser.add_argument(
        "--top-k", type=count, metavar="K", help="sample from the K most likely tokens"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the most likely tokens with total probability P",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of sampling (default: 0)")
    parser.add_argument(
        "--past-context",
        choices=["stop", "slide"],
        default="stop",
        help="at the context's end: stop, or forget the older half (default: stop)",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="decode without the KV cache: the same text, slower",
    )
    parser.add_argument(
        "--compile",
        choices=["auto", "always", "never"],
        default="auto",
        help="compile the decoding step with torch.compile, which takes some 10 to 30 seconds the "
        "first time; auto: where many tokens are asked for (default: auto)",
    )
    parser.add_argument(
        "--chat", action="store_true", help="put the prompt into Llama 3's chat template"
    )
    parser.add_argument(
        "--system", default="", metavar="TEXT", help="with --chat: the system message"
    )


def run(options: Namespace) -> Answer:
    """Continue a prompt, printing each piece of text as soon as it is whole."""
    from llama_ablate.interop import chat
    from llama_ablate.interop.generation import Generation, Sampling, Streamed

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    opened = model_input.open_model(options)
    tokenizer = opened.tokenizer
    text = model_input.read_prompt(options)
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
    except BrokenPipeError:  # the reader has what it wanted, and has gone
        sys.exit(0)
