"""The command `init`: a commented experiment to begin with, or a component of one's own."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, option
from llama_ablate.config.templates import COMPONENT, NAMES
from llama_ablate.errors import ConfigError

HELP = "write a commented experiment to begin with, or a component of one's own"
EXAMPLE = "init component attention --to my_heads.py"


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """The template, and where its copy goes."""

    template: str = argument(
        "TEMPLATE", f"{', '.join(NAMES)}, or {COMPONENT} with a SLOT (default: first)", "first", "?"
    )
    slot: str | None = argument(
        "SLOT", "norm, position, attention, feedforward or block: of a component", None, "?"
    )
    list: bool = option(False, "list the templates with their questions; write none")
    to: Path | None = option(
        None,
        "the file to write, whose name the experiment gets, or the component (default: "
        "TEMPLATE.yaml, mine.py)",
        "FILE",
    )


def run(options: InitOptions) -> Answer:
    """Write a template where no file is. Raises ConfigError where there is one."""
    from llama_ablate.config import templates

    if options.list:
        rows = [{"template": n, "question": templates.question(n)} for n in templates.NAMES]
        return Answer("\n".join(f"{row['template']:12s} {row['question']}" for row in rows), rows)
    if options.template == COMPONENT:
        texts = templates.component(options.slot or "", options.to or Path("mine.py"))
        code, _test, file = texts
        what, then = "a class, its test and an experiment", ["--plugin", str(code)]
    else:
        text, file = templates.text(options.template), Path(f"{options.template}.yaml")
        file = options.to or file
        if options.slot is not None:
            raise ConfigError(f"one argument too many: '{options.slot}'")
        if file.suffix not in (".yaml", ".yml"):
            raise ConfigError(f"--to {file}: the name of an experiment file ends in .yaml")
        texts, what, then = {file: text}, templates.question(options.template), []
    _write(texts)
    names = [*map(str, texts)]
    said = f"{', '.join(names)}: {what}\nnext: llama-ablate plan {shlex.join([str(file), *then])}"
    return Answer(said, {"file": str(file), "template": options.template, "files": names})


def _write(texts: Mapping[Path, str]) -> None:
    """Write files where none is: all, or none of them."""
    written: list[Path] = []
    try:
        for file, text in texts.items():
            with file.open("x", encoding="utf-8") as opened:
                written.append(file)
                opened.write(text)
    except OSError as error:
        for one in written:
            one.unlink()
        why = f"--to {file}: cannot be written: {error.strerror}"
        if isinstance(error, FileExistsError):
            why = f"'{file}' is there already: choose another name with --to"
        raise ConfigError(why) from None
