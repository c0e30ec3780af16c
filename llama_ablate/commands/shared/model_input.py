"""Command-line options for a model and a prompt, and functions that open them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llama_ablate.commands.shared.options import (
    DEVICE,
    Device,
    Options,
    argument,
    option,
    overrides,
)
from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from llama_ablate.interop.loader import OpenedModel


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Options for a model: its source, tokenizer, precision and device."""

    model: Path = argument(
        "RUN|CHECKPOINT|PRESET",
        "results/NAME/VARIANT, a run's folder, a folder with config.json (Hugging Face) or "
        "params.json (Meta), a llama2.c .bin, or a preset's name: then with initial weights, "
        "untrained, and bytes as tokens",
    )
    sets: tuple[str, ...] = overrides("model.layers=2 of a preset")
    init_seed: int | None = option(None, "seed of a preset's initial weights (default: 0)", "N")
    tokenizer: Path | None = option(
        None, "tokenizer file (default: the one beside the model)", "FILE"
    )
    dtype: Literal["float32", "float16", "bfloat16"] | None = option(
        None, "precision to compute in (default: as stored)"
    )
    device: Device = option("auto", DEVICE)


@dataclass(frozen=True, kw_only=True)
class PromptOptions(ModelOptions):
    """Options for a model and a prompt."""

    prompt: str = option(..., "", "TEXT")
    parse_special: bool = option(
        False, "take <|names|> in the prompt for the special tokens that they name"
    )


def open_model(options: ModelOptions) -> "OpenedModel":
    """Open the model of a command line, and move it to its device.

    For a preset, a note on standard error says that the model is untrained. Raises ConfigError if
    the model cannot be opened, or if an option for presets is used with another model.
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


def read_prompt(text: str) -> str:
    """Return the prompt; the text `-` means that standard input is read.

    Raises ConfigError if the prompt is not UTF-8 text.
    """
    if text == "-":
        if sys.stdin is None:
            raise ConfigError("--prompt -: there is no standard input")
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError("--prompt is not UTF-8 text") from None
    return text
