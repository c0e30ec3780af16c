"""The model and the prompt that a command line names."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands.shared import options as shared
from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from llama_ablate.interop.loader import OpenedModel


def add_model(parser: ArgumentParser) -> None:
    """Add RUN|CHECKPOINT|PRESET, and how it is opened."""
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN|CHECKPOINT|PRESET",
        help="results/NAME/VARIANT, a run's folder, a folder with config.json (Hugging Face) or "
        "params.json (Meta), a llama2.c .bin, or a preset's name: then with initial weights, "
        "untrained, and bytes as tokens",
    )
    shared.add_sets(parser, "model.layers=2 of a preset")
    parser.add_argument(
        "--init-seed",
        type=int,
        metavar="N",
        help="seed of a preset's initial weights (default: 0)",
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
    """Open the model, on its device. Raises ConfigError.

    Of a preset a note says that nothing was trained.
    """
    import torch

    from llama_ablate.config import experiment
    from llama_ablate.interop import loader
    from llama_ablate.training.compute import pick_device

    device = pick_device(options.device)
    dtype = getattr(torch, options.dtype) if options.dtype else None
    name, seed = str(options.model), options.init_seed or 0
    if name in experiment.presets() and not options.model.exists():
        opened = loader.open_preset(
            name, options.sets, seed=seed, tokenizer=options.tokenizer, dtype=dtype
        )
        sys.stderr.write(f"note: '{name}' is a preset: initial weights of seed {seed}, untrained\n")
    elif options.sets or options.init_seed is not None:
        given = "--set" if options.sets else "--init-seed"
        raise ConfigError(
            f"{given} is for a preset; '{name}' is not one{nearest(name, experiment.presets())}"
        )
    else:
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
