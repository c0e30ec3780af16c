"""The command `init`: a commented experiment to begin with."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, option
from llama_ablate.config.templates import NAMES
from llama_ablate.errors import ConfigError

HELP = "write a commented experiment to begin with"
EXAMPLE = "init attention --to my-heads.yaml"


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """The template, and where its copy goes."""

    template: str = argument(
        "TEMPLATE", f"{', '.join(NAMES[:-1])} or {NAMES[-1]} (default: first)", "first", "?"
    )
    list: bool = option(False, "list the templates with their questions; write none")
    to: Path | None = option(
        None, "the file to write, whose name the experiment gets (default: TEMPLATE.yaml)", "FILE"
    )


def run(options: InitOptions) -> Answer:
    """Write a template where no file is. Raises ConfigError where there is one."""
    from llama_ablate.config import templates

    if options.list:
        rows = [{"template": n, "question": templates.question(n)} for n in templates.NAMES]
        return Answer("\n".join(f"{row['template']:12s} {row['question']}" for row in rows), rows)
    text = templates.text(options.template)
    file = options.to or Path(f"{options.template}.yaml")
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--to {file}: the name of an experiment file ends in .yaml")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError(f"'{file}' is there already: choose another name with --to") from None
    except OSError as error:
        raise ConfigError(f"--to {file}: cannot be written: {error.strerror}") from None
    then = f"next: llama-ablate plan {shlex.quote(str(file))}"
    said = f"{file}: {templates.question(options.template)}\n{then}"
    return Answer(said, {"file": str(file), "template": options.template})
