"""The command `examples`: the experiments that `init` writes."""

from argparse import ArgumentParser, Namespace

from llama_ablate.commands.shared.answer import Answer

HELP = "list the experiments that init writes, or print one"
EXAMPLE = "examples ladder"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the template."""
    parser.add_argument(
        "template", nargs="?", metavar="TEMPLATE", help="print this one, comments and all"
    )


def run(options: Namespace) -> Answer:
    """List the templates with their questions, or print one."""
    from llama_ablate.config import templates

    if options.template:
        text = templates.text(options.template)
        return Answer(text.rstrip("\n"), {"template": options.template, "text": text})
    rows = [{"template": name, "question": templates.question(name)} for name in templates.NAMES]
    lines = [f"{row['template']:12s} {row['question']}" for row in rows]
    return Answer("\n".join([*lines, "", "llama-ablate init TEMPLATE writes one"]), rows)
