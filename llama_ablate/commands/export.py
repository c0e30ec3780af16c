"""The command `export`: write a model as a Hugging Face checkpoint."""

import sys
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.model_input import ModelOptions
from llama_ablate.commands.shared.options import argument, option

HELP = "write a model as a Hugging Face checkpoint"
EXAMPLE = 'export "results/tutorial/one kv head" my-model --to llama'


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ModelOptions):
    """Options of `export`: the model, the target folder, and the model family to write."""

    folder: Path = argument("DIR", "a new or empty folder")
    to: str | None = option(
        None, "llama, mistral, qwen2, qwen3 or gpt2 (default: the first that can)", "FAMILY"
    )


def run(options: ExportOptions) -> Answer:
    """Write the model of a run or checkpoint as a Hugging Face checkpoint."""
    from llama_ablate.interop import huggingface

    opened = model_input.open_model(options)
    export = huggingface.write(opened.model, options.folder, options.to, opened.tokenizer_if_any)
    for note in export.notes:
        sys.stderr.write(f"note: {note}\n")
    files = sorted(path.name for path in options.folder.iterdir())
    values = {
        "family": export.family,
        "folder": str(options.folder),
        "files": files,
        "notes": export.notes,
    }
    return Answer(f"{options.folder}: {export.family}, {', '.join(files)}", values)
