"""The command `init`: a commented experiment to begin with, or a component of one's own."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, option
from llama_ablate.config.spec import SLOTS
from llama_ablate.config.templates import COMPONENT, NAMES
from llama_ablate.errors import ConfigError, nearest

HELP = "write a commented experiment to begin with, or a component of one's own"
EXAMPLE = "init component attention --to my_heads.py"


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """The template, and where its copy goes."""

    template: str = argument(
        "TEMPLATE", f"{', '.join(NAMES)}, or {COMPONENT} with a SLOT (default: first)", "first", "?"
    )
    slot: str | None = argument(
        "SLOT", f"{', '.join(SLOTS)}: a class, its test and an experiment are written", None, "?"
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
        return _component(options.slot, options.to or Path("mine.py"))
    if options.slot is not None:
        raise ConfigError(f"one argument too many: '{options.slot}'")
    text = templates.text(options.template)
    file = options.to or Path(f"{options.template}.yaml")
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--to {file}: the name of an experiment file ends in .yaml")
    _write({file: text})
    then = f"next: llama-ablate plan {shlex.quote(str(file))}"
    said = f"{file}: {templates.question(options.template)}\n{then}"
    return Answer(said, {"file": str(file), "template": options.template})


def _component(slot: str | None, file: Path) -> Answer:
    from llama_ablate.config import templates
    from llama_ablate.model.decoder import REGISTRIES

    if slot not in SLOTS:
        what = "component needs a slot" if slot is None else f"'{slot}' is not a slot"
        raise ConfigError(f"{what}{nearest(slot or '', SLOTS)}")
    if file.suffix != ".py":
        raise ConfigError(f"--to {file}: the name of a component's file ends in .py")
    if file.stem in REGISTRIES[slot]:
        raise ConfigError(f"--to {file}: the {slot} '{file.stem}' is registered already")
    texts = {file.with_name(n): text for n, text in templates.component(slot, file.stem).items()}
    _write(texts)
    code, test, experiment = (shlex.quote(str(one)) for one in texts)
    then = f"llama-ablate plan {experiment} --plugin {code}"
    said = f"{code}: the class\n{test}: its test, for pytest\n{experiment}: an experiment"
    return Answer(f"{said}\nnext: {then}", {"files": [*map(str, texts)], "slot": slot})


def _write(texts: Mapping[Path, str]) -> None:
    """Write files where none is, or none of them. Raises ConfigError where there is one."""
    written: list[Path] = []
    try:
        for file, text in texts.items():
            with file.open("x", encoding="utf-8") as opened:
                written.append(file)
                opened.write(text)
    except OSError as error:
        for one in written:
            one.unlink(missing_ok=True)
        why = f"--to {file}: cannot be written: {error.strerror}"
        if isinstance(error, FileExistsError):
            why = f"'{file}' is there already: choose another name with --to"
        raise ConfigError(why) from None
