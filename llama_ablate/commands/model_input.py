"""The model and the prompt that a command line names."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands import options as shared
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.interop.loader import OpenedModel


def add_model(parser: ArgumentParser) -> None:
    """Add RUN|CHECKPOINT, and how it is opened."""
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN|CHECKPOINT",
        help="results/NAME/VARIANT, a run's folder, a folder with config.json (Hugging Face) or "
        "params.json (Meta), or a llama2.c .bin",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer file (default: the one beside the model)",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="precision to compute in (default: as stored)",
    )
    shared.add_device(parser)


def open_model(options: Namespace) -> "OpenedModel":
    """Open the model, on its device. Raises ConfigError."""
    import torch

    from llama_ablate.interop import loader
    from llama_ablate.training.compute import pick_device

    device = pick_device(options.device)
    dtype = getattr(torch, options.dtype) if options.dtype else None
    opened = loader.open_model(options.model, tokenizer=options.tokenizer, dtype=dtype)
    opened.model.to(device)
    return opened


def add_prompt(parser: ArgumentParser, help_: str) -> None:
    """Add `--prompt` and `--parse-special`."""
    parser.add_argument("--prompt", required=True, metavar="TEXT", help=help_)
    parser.add_argument(
        "--parse-special",
        action="store_true",
        help="take <|names|> in the prompt for the special tokens that they name",
    )


def read_prompt(options: Namespace) -> str:
    """Return the prompt, read from standard input for `-`. Raises ConfigError if not UTF-8."""
    if options.prompt != "-":
        text = str(options.prompt)
    elif sys.stdin is None:
        raise ConfigError("--prompt -: there is no standard input")
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError("--prompt is not UTF-8 text") from None
    return text
