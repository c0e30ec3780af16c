"""The command `help`: first steps, all commands, or exit codes."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument

HELP = "say how to begin, list all commands, or say what exit codes mean"
EXAMPLE = "help exit-codes"

#: Commands by group. The first group lists the main workflow, in order.
GROUPS = {
    "to begin": ["init", "plan", "run", "report"],
    "results": ["status", "show", "compare", "measure", "pack"],
    "models, trackers": [
        *("components", "summary", "generate", "trace", "attention", "export", "track")
    ],
}
#: Module of each command, with its `HELP`, `EXAMPLE` and `run`.
COMMANDS: dict[str, Any] = {
    name: import_module(f"llama_ablate.commands.{name}")
    for names in GROUPS.values()
    for name in names
}
#: What each exit code of the program means.
EXIT_CODES = {
    0: "done: all runs ended `ok`, those too short to compare among them (the report names them)",
    1: "done, and some run diverged, collapsed, or failed (an error, out of memory or time)",
    2: "nothing was done, or not all: the input is wrong or the system refused; one line says what",
    75: "a worker was asked to stop, or another process has its run: start it again",
    129: "interrupted by a closed terminal (SIGHUP); the same command goes on",
    130: "interrupted by Ctrl-C (SIGINT); the same command goes on",
    143: "interrupted by SIGTERM; the same command goes on",
}
_BRIEF = """usage: llama-ablate COMMAND [options]

Architecture ablations of Llama-style models: paired runs, intervals, cost.

{groups}

for example:
  llama-ablate init first
  llama-ablate plan first.yaml
  llama-ablate run first.yaml

llama-ablate COMMAND --help   the options of a command
llama-ablate help all         all commands, with an example each
llama-ablate help exit-codes  what exit codes mean"""


@dataclass(frozen=True, kw_only=True)
class HelpOptions(Options):
    """Options of `help`: the topic."""

    topic: Literal["all", "exit-codes"] | None = argument(
        "TOPIC", "all or exit-codes (default: how to begin)", None, "?"
    )


def run(options: HelpOptions) -> Answer:
    """Return the help text of a topic."""
    if options.topic == "exit-codes":
        lines = [f"{code:4d}  {about}" for code, about in EXIT_CODES.items()]
        return Answer("\n".join(lines), {str(code): about for code, about in EXIT_CODES.items()})
    commands = {name: command.HELP for name, command in COMMANDS.items()}
    return Answer(_all() if options.topic else _brief(), commands)


def _brief() -> str:
    """Return the help of `llama-ablate` without arguments, in at most 24 lines."""
    (begin, first), *others = GROUPS.items()
    lines = [f"{begin}:", *(f"  {name:9s} {COMMANDS[name].HELP}" for name in first), ""]
    lines += [f"{group}: {', '.join(names)}" for group, names in others]
    return _BRIEF.format(groups="\n".join(lines))


def _all() -> str:
    """Return the help of all commands by group, with an example each."""
    lines = []
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        for name in names:
            lines.append(f"  {name:11s} {COMMANDS[name].HELP}")
            lines.append(f"{'':14s}llama-ablate {COMMANDS[name].EXAMPLE}")
    return "\n".join(lines)
