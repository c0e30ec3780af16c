"""The command `help`: how to begin, all commands, or what exit codes mean."""

from dataclasses import dataclass
from typing import Literal

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument

HELP = "say how to begin, list all commands, or say what exit codes mean"
EXAMPLE = "help exit-codes"
#: What each exit code of the program means.
EXIT_CODES = {
    0: "done: all runs ended `ok`, those too short to compare among them (the report names them)",
    1: "done, and some run diverged, collapsed, or failed (an error, out of memory or time)",
    2: "nothing was done, or not all: the input is wrong or the system refused; one line says what",
    3: "`judge`: the candidate is rejected",
    4: "`judge`: inconclusive",
    5: "`judge`: the candidate is invalid",
    75: "a worker was asked to stop, or another process has its run: start it again",
    129: "interrupted by a closed terminal (SIGHUP); the same command goes on",
    130: "interrupted by Ctrl-C (SIGINT); the same command goes on",
    143: "interrupted by SIGTERM; the same command goes on",
}


@dataclass(frozen=True, kw_only=True)
class HelpOptions(Options):
    """The topic."""

    topic: Literal["all", "exit-codes"] | None = argument(
        "TOPIC", "all or exit-codes (default: how to begin)", None, "?"
    )


def run(options: HelpOptions) -> Answer:
    """Return the help of a topic."""
    from llama_ablate.commands import cli

    commands = {name: command.HELP for name, command in cli.COMMANDS.items()}
    if options.topic == "exit-codes":
        lines = [f"{code:4d}  {about}" for code, about in EXIT_CODES.items()]
        return Answer("\n".join(lines), {str(code): about for code, about in EXIT_CODES.items()})
    if options.topic is None:
        return Answer(cli.brief(), commands)
    lines = []
    for group, members in {**cli.GROUPS, "help": (cli.COMMANDS["help"],)}.items():
        lines += [f"{group}:"]
        for command in members:
            name = command.__name__.rpartition(".")[2]
            lines += [f"  {name:11s} {command.HELP}", f"{'':14s}llama-ablate {command.EXAMPLE}"]
    return Answer("\n".join(lines), commands)
