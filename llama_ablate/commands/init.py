"""The command `init`: write a commented experiment, a component template, or a plug-in."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, option
from llama_ablate.config.templates import COMPONENT, NAMES, PLUGIN
from llama_ablate.errors import ConfigError

HELP = "write a commented experiment, a component or a plug-in to begin with"
EXAMPLE = "init first"


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """Options of `init`: the template, and the path of its copy."""

    template: str = argument(
        "TEMPLATE",
        f"{', '.join(NAMES)}; {COMPONENT} with a slot; {PLUGIN} with its name (default: first)",
        "first",
        "?",
    )
    name: str | None = argument(
        "NAME",
        "of a component its slot (norm, position, attention, feedforward or block), of a plug-in "
        "its name",
        None,
        "?",
    )
    list: bool = option(False, "list the templates and plug-ins; write none")
    to: Path | None = option(
        None,
        "the file to write, whose name the experiment gets, or the component (default: "
        "TEMPLATE.yaml, mine.py, NAME.py)",
        "FILE",
    )


def run(options: InitOptions) -> Answer:
    """Write a template to a new file. Raises ConfigError if the file exists."""
    from llama_ablate.config import templates

    if options.list:
        if options != InitOptions(list=True, json=options.json, plugins=options.plugins):
            raise ConfigError("--list writes nothing: leave out TEMPLATE, NAME and --to")
        listed = templates.list_templates()
        rows = [{"template": name, "question": question} for name, question in listed.items()]
        return Answer("\n".join(f"{row['template']:26s} {row['question']}" for row in rows), rows)
    if options.template == COMPONENT:
        texts = templates.component(options.name or "", options.to or Path("mine.py"))
        code, _test, file = texts
        what, then = "a class, its test and an experiment", ["plan", file, "--plugin", code]
    elif options.template == PLUGIN:
        name = options.name or ""
        file = options.to or Path(f"{name}.py")
        texts = {file: templates.plugin(name)}
        what, then = (
            templates.list_templates()[f"{PLUGIN} {name}"],
            ["components", "--plugin", file],
        )
    else:
        file = options.to or Path(f"{options.template}.yaml")
        texts = {file: templates.text(options.template)}
        if options.name is not None:
            raise ConfigError(f"one argument too many: '{options.name}'")
        if file.suffix not in (".yaml", ".yml"):
            raise ConfigError(f"--to {file}: the name of an experiment file ends in .yaml")
        what, then = templates.list_templates()[options.template], ["plan", file]
    _write(texts)
    names = [*map(str, texts)]
    said = f"{', '.join(names)}: {what}\nnext: llama-ablate {shlex.join(map(str, then))}"
    return Answer(said, {"file": str(file), "template": options.template, "files": names})


def _write(texts: Mapping[Path, str]) -> None:
    """Write new files; if a file cannot be written, delete the files written so far.

    Raises ConfigError for a file that cannot be written.
    """
    files: list[Path] = []
    try:
        for file, text in texts.items():
            with file.open("x", encoding="utf-8") as opened:
                files.append(file)
                opened.write(text)
    except OSError as error:
        for path in files:
            path.unlink()
        why = f"--to {file}: cannot be written: {error.strerror}"
        if isinstance(error, FileExistsError):
            why = f"'{file}' is there already: choose another name with --to"
        raise ConfigError(why) from None
