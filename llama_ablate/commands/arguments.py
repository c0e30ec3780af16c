"""The arguments of every command, with help and an example for each."""

import argparse
import math
import re
from pathlib import Path

from llama_ablate.commands.model_arguments import add_device, add_models, add_sets
from llama_ablate.config import margins

_EPILOG = """\
examples:
  llama-ablate components norm
  llama-ablate plan experiments/quickstart.yaml
  llama-ablate run experiments/quickstart.yaml --set seeds=5
  llama-ablate compare results/quickstart baseline swiglu
  llama-ablate report results/quickstart
  llama-ablate generate results/quickstart/rope --prompt "def "
  llama-ablate summary llama3-8b --batch 16

exit codes: 0 done; 1 some run did not end ok; 2 wrong input; 130 interrupted (run again: goes on)
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what is wrong in one line."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    from llama_ablate import __version__

    top: argparse.ArgumentParser = _Parser(
        prog="llama-ablate",
        description="Architecture ablations of Llama-style models: paired runs, intervals, cost.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"llama-ablate {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--plugin",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that registers components; repeatable",
    )
    common.add_argument("--json", action="store_true", help="print one JSON document, nothing else")

    def add(name: str, help_: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=help_,
            description=help_,
            parents=[common],
            epilog=f"example:\n  llama-ablate {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_file(command: argparse.ArgumentParser) -> None:
        command.add_argument("file", type=Path, metavar="FILE", help="an experiment file")
        add_sets(command, "train.lr=3e-4")

    def add_folder(command: argparse.ArgumentParser) -> None:
        command.add_argument("folder", type=Path, metavar="DIR", help="results of one experiment")

    command = add(
        "components", "list the components and what YAML may set on them", "components position"
    )
    command.add_argument(
        "slot",
        nargs="?",
        metavar="SLOT",
        help="norm, position, attention, feedforward, block, corpus, tokenizer or metric",
    )

    command = add(
        "plan",
        "show variants, exact sizes, runs and predicted time; train nothing",
        "plan experiments/quickstart.yaml --set variants.match=flops",
    )
    add_file(command)
    add_device(command)
    command.add_argument(
        "--power",
        type=_nats,
        metavar='"X nats"',
        help="how many seeds would show X, and what they cost",
    )
    command.add_argument(
        "--pilot",
        type=Path,
        metavar="DIR",
        help="with --power: whose noise to plan with (results/NAME)",
    )

    command = add(
        "run",
        "train what has no record yet, measure speeds, write the report",
        "run experiments/quickstart.yaml --results results --workers 2",
    )
    add_file(command)
    command.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where its folder is made (default: results)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs at a time (default: one a core, or one a GPU)",
    )
    add_device(command)
    command.add_argument(
        "--keep-weights",
        choices=["none", "best", "all"],
        default="all",
        help="of finished runs: none, each variant's best in every table, or all "
        "(default), to add metrics later",
    )
    command.add_argument(
        "--checkpoint-every",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="what a crash may cost a run (default: 30)",
    )
    command.add_argument(
        "--launcher",
        choices=["local", "ray", "slurm"],
        default="local",
        help="what starts the runs: see docs/launchers.md",
    )
    command.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="a Ray cluster's head (default: a Ray of this machine)",
    )
    command.add_argument(
        "--slurm",
        type=_flag,
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="an option of sbatch, such as time=4:00:00; repeatable",
    )

    def add_table(command: argparse.ArgumentParser) -> None:
        what = "which of the experiment's tables (default: the first)"
        command.add_argument("--table", metavar="NAME", help=what)

    add_folder(
        add("status", "count finished, failed and pending runs", "status results/quickstart")
    )
    command = add(
        "show", "look at the grid, one variant, or one run", "show results/quickstart swiglu"
    )
    add_folder(command)
    command.add_argument("what", nargs="?", metavar="VARIANT|RUN", help="a label or an id")
    add_table(command)
    command = add(
        "compare",
        "compare two variants, paired by seed",
        "compare results/quickstart baseline swiglu",
    )
    add_folder(command)
    command.add_argument("a", metavar="A", help="the reference: a label or an id")
    command.add_argument("b", metavar="B", help="what is compared with it")
    add_table(command)
    command = add(
        "measure",
        "take more metrics of finished runs, without training again",
        "measure results/quickstart perplexity decode_speed",
    )
    add_folder(command)
    command.add_argument("metrics", nargs="+", metavar="METRIC", help="see: components metric")
    add_folder(
        add("report", "write tables, figures and the page again", "report results/quickstart")
    )
    command = add(
        "pack",
        "write results as a few files that a repository can hold",
        "pack results/quickstart --out packed/quickstart",
    )
    add_folder(command)
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="the pack's folder (default: DIR-packed)"
    )
    add_models(add)
    return top


def _nats(text: str) -> float:
    """Read a difference of losses with its unit."""
    size = margins.nats(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0 and 'nats'")
    return size


def _flag(text: str) -> tuple[str, str | bool]:
    """Read an option of another program: KEY=VALUE, or KEY alone."""
    found = re.fullmatch(r"-{0,2}([a-z][a-z-]*)(?:=([^\n]*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE or KEY")
    return found[1], True if found[2] is None else found[2]


def _seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return found
