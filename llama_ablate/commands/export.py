"""The command `export`: a model as a Hugging Face checkpoint."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from llama_ablate.commands import model_input
from llama_ablate.commands.answer import Answer

HELP = "write a model as a Hugging Face checkpoint"
EXAMPLE = "export results/llama-path/+pre my-model --to llama"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the model, the folder, and the family to write it as."""
    model_input.add_model(parser)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    parser.add_argument(
        "--to",
        metavar="FAMILY",
        help="llama, mistral, qwen2, qwen3 or gpt2 (default: the first that can)",
    )


def run(options: Namespace) -> Answer:
    """Write a run or a checkpoint for transformers to load."""
    from llama_ablate.interop import huggingface

    opened = model_input.open_model(options)
    written = huggingface.write(opened.model, options.folder, options.to, opened.tokenizer_if_any)
    for note in written.notes:
        sys.stderr.write(f"note: {note}\n")
    files = sorted(path.name for path in options.folder.iterdir())
    values = {
        "family": written.family,
        "folder": str(options.folder),
        "files": files,
        "notes": written.notes,
    }
    return Answer(f"{options.folder}: {written.family}, {', '.join(files)}", values)
