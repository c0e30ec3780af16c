"""The command `export`: a model as a Hugging Face checkpoint, in a folder or a repository."""

import sys
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.model_input import ModelOptions
from llama_ablate.commands.shared.options import argument, option
from llama_ablate.errors import ConfigError

HELP = "write a model as a Hugging Face checkpoint, with a model card"
EXAMPLE = "export results/llama-path/+pre my-model --to llama"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ModelOptions):
    """The model, the folder, the family to write it as, and the repository."""

    folder: Path = argument("DIR", "a new or empty folder")
    to: str | None = option(
        None, "llama, mistral, qwen2, qwen3 or gpt2 (default: the first that can)", "FAMILY"
    )
    license: str | None = option(None, "the card's licence, such as apache-2.0", "ID")
    push: str | None = option(None, "upload DIR to this Hugging Face repository", "OWNER/NAME")
    private: bool = option(False, "with --push: a private repository")
    dry_run: bool = option(False, "with --push: write DIR, and upload nothing")


def run(options: ExportOptions) -> Answer:
    """Write a run or a checkpoint for transformers to load, and upload it if asked to."""
    from llama_ablate.interop.hub import Repository

    if not options.push and (options.private or options.dry_run):
        raise ConfigError(f"{'--private' if options.private else '--dry-run'} goes with --push")
    repository = Repository(options.push, private=options.private) if options.push else None
    if repository and not options.dry_run:
        repository.check()  # before the seconds that the imports below take
    from llama_ablate.interop import huggingface
    from llama_ablate.interop.model_card import model_card
    from llama_ablate.results import Results

    opened = model_input.open_model(options)
    run = (Results(opened.run[0]), opened.run[1]) if opened.run else None
    card = model_card(opened.title, run, options.license)
    written = huggingface.write(
        opened.model, options.folder, options.to, opened.tokenizer_if_any, card=card
    )
    for note in written.notes:
        sys.stderr.write(f"note: {note}\n")
    files = sorted(path.name for path in options.folder.iterdir())
    values = {
        "family": written.family,
        "folder": str(options.folder),
        "files": files,
        "notes": written.notes,
    }
    text = f"{options.folder}: {written.family}, {', '.join(files)}"
    if repository and options.dry_run:
        size = sum(path.stat().st_size for path in options.folder.iterdir())
        text += f"\nto be uploaded to {repository.name}: {len(files)} files, {size:,} bytes"
    elif repository:
        values["commit"] = repository.push(options.folder, f"{opened.title}, from llama-ablate")
        text += f"\nuploaded: {values['commit']}"
    return Answer(text, values)
