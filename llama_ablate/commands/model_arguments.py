"""The arguments of the commands that look at one model, and those that many commands share."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path


def add_models(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Add the commands that look at one model: a preset, a finished run, or a checkpoint."""
    command = add(
        "summary",
        "show what an architecture weighs and costs, part by part, exactly",
        "summary llama2-7b --batch 16 --context 1024 --set model.tie=true",
    )
    command.add_argument(
        "what",
        nargs="?",
        metavar="PRESET|CHECKPOINT",
        help="a preset's name, or a checkpoint; without one, the presets are listed",
    )
    add_sets(command, "model.attention=mqa")
    command.add_argument(
        "--context", type=_count, metavar="N", help="tokens in cache and scores (default: its own)"
    )
    command.add_argument(
        "--batch", type=_count, default=1, metavar="N", help="sequences in the cache (default: 1)"
    )
    command.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8"],
        default="float16",
        help="of the cache (default: float16)",
    )

    command = add(
        "rope",
        "list and draw how fast each pair of a rotation turns",
        "rope llama3-8b --set model.position.theta=1e4 --out rope.svg",
    )
    command.add_argument("what", metavar="PRESET", help="a preset's name")
    add_sets(command, "model.position.theta=1e6")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("rope"),
        metavar="FILE",
        help="the figure, as SVG and PNG (default: rope)",
    )

    command = add(
        "generate",
        "continue a prompt, written as it comes",
        'generate results/quickstart/rope --prompt "def " --temperature 0',
    )
    _add_model(command)
    _add_prompt(command, "the text to continue; - reads standard input")
    command.add_argument(
        "--max-tokens", type=_count, default=128, metavar="N", help="at most so many (default: 128)"
    )
    command.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest token (default: 0.8)",
    )
    command.add_argument("--top-k", type=_count, metavar="K", help="draw from the K likeliest")
    command.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest that reach P together",
    )
    command.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    command.add_argument(
        "--past-context",
        choices=["stop", "slide"],
        default="stop",
        help="at the context's end: stop, or forget the older half (default: stop)",
    )
    command.add_argument(
        "--no-cache",
        action="store_true",
        help="compute every token from the whole text: the same, slowly",
    )
    command.add_argument(
        "--chat", action="store_true", help="put the prompt into Llama 3's chat template"
    )
    command.add_argument("--system", default="", metavar="TEXT", help="with --chat: what to be")

    command = add(
        "attention",
        "draw what each head attends to while a prompt is read",
        'attention results/quickstart/rope --prompt "for x in xs:" --layer 0',
    )
    _add_model(command)
    _add_prompt(command, "the text to read")
    command.add_argument(
        "--layer", type=int, metavar="N", help="from 0 (default: all, a page each)"
    )
    command.add_argument(
        "--head",
        type=int,
        metavar="N",
        help="from 0: scores, masked scores and probabilities of one head",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="DIR",
        help="where figures and arrays go (default: attention)",
    )

    command = add(
        "export",
        "write a model as a Hugging Face checkpoint",
        "export results/llama-path/+pre my-model --to llama",
    )
    _add_model(command)
    command.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    command.add_argument(
        "--to",
        metavar="FAMILY",
        help="llama, mistral, qwen2, qwen3 or gpt2 (default: the first that can)",
    )

    command = add(
        "bench",
        "time a component alone and in a training step: naive, fused, compiled",
        "bench norms --dim 4096 --rows 2048 --threads 2",
    )
    command.add_argument("what", choices=["norms", "feedforward", "decode"])
    command.add_argument("--dim", type=_count, default=1024, help="width of a vector (1024)")
    command.add_argument("--rows", type=_count, default=4096, help="vectors, or tokens (4096)")
    command.add_argument("--rounds", type=_count, default=30, help="turns of every case (30)")
    command.add_argument(
        "--threads", type=int, choices=range(1, 1025), metavar="N", default=1, help="of the CPU (1)"
    )
    command.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    command.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    add_device(command)


def add_sets(command: argparse.ArgumentParser, example: str) -> None:
    """Add `--set`."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help=f"override a key, such as {example}; may be repeated",
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        type=Path,
        metavar="RUN|CHECKPOINT",
        help="results/NAME/VARIANT, a run's folder, a folder with config.json (Hugging Face) or "
        "params.json (Meta), or a llama2.c .bin",
    )
    command.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="where it does not lie beside the model"
    )
    command.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="to compute in (default: as stored)",
    )
    add_device(command)


def _add_prompt(command: argparse.ArgumentParser, help_: str) -> None:
    command.add_argument("--prompt", required=True, metavar="TEXT", help=help_)
    command.add_argument(
        "--parse-special",
        action="store_true",
        help="take <|names|> in the prompt for the special tokens that they name",
    )


def _count(text: str) -> int:
    """Read a count from the command line: an integer of 1 or more."""
    if not re.fullmatch("[0-9_]{1,12}", text) or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to 1,000,000,000")
    return int(text)


def add_device(command: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    command.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="what to compute on (default: auto)",
    )
