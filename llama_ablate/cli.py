"""The command line: arguments in, exit code out. `commands` does the work."""

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_ablate.errors import ConfigError

#: Disk full, quota, no permission, read-only: the user's to mend, and no traceback helps.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}

_EPILOG = """\
examples:
  llama-ablate components norm
  llama-ablate plan experiments/quickstart.yaml
  llama-ablate run experiments/quickstart.yaml --set seeds=5
  llama-ablate compare results/quickstart baseline swiglu
  llama-ablate report results/quickstart

exit codes: 0 done; 1 some run did not end ok; 2 the input is wrong; 130 interrupted (the same
command goes on)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; a ConfigError becomes one line on standard error."""
    options = _parser().parse_args(arguments)
    from llama_ablate import commands

    try:
        answer = getattr(commands, options.command.replace("-", "_"))(options)
    except ConfigError as error:
        sys.stderr.write(f"llama-ablate: {error}\n")
        return 2
    except OSError as error:
        if error.errno not in _DISK:
            raise
        sys.stderr.write(f"llama-ablate: {error}; what is finished is kept\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("llama-ablate: interrupted; the same command goes on from here\n")
        return 130
    try:
        print(answer.json if options.json else answer.text, flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say
    return int(answer.code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what is wrong in one line."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    from llama_ablate import __version__

    parser: argparse.ArgumentParser = _Parser(
        prog="llama-ablate",
        description="Architecture ablations of Llama-style models: paired runs, intervals, cost.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llama-ablate {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document, nothing else")

    def add(name: str, help_: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=help_, description=help_, parents=[common],
            epilog=f"example:\n  llama-ablate {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def add_file(command: argparse.ArgumentParser) -> None:
        command.add_argument("file", type=Path, metavar="FILE", help="an experiment file")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets",
            help="override a key of the file, such as train.lr=3e-4; may be repeated",
        )  # fmt: skip

    def add_folder(command: argparse.ArgumentParser) -> None:
        command.add_argument("folder", type=Path, metavar="DIR", help="results of one experiment")

    command = add("components", "list the components and what YAML may set on them",
                  "components position")  # fmt: skip
    command.add_argument("slot", nargs="?", metavar="SLOT",
                         help="norm, position, attention, feedforward, block, corpus, "
                              "tokenizer or metric")  # fmt: skip

    command = add("summary", "show what an architecture weighs and costs, part by part, exactly",
                  "summary llama2-7b --batch 16 --context 1024 --set model.tie=true")  # fmt: skip
    command.add_argument(
        "what", nargs="?", metavar="PRESET", help="its name; without one, the presets are listed"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets",
        help="override a key, such as model.attention=mqa; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--context", type=_count, metavar="N", help="tokens in cache and scores (default: its own)"
    )
    command.add_argument(
        "--batch", type=_count, default=1, metavar="N", help="sequences in the cache (default: 1)"
    )
    command.add_argument(
        "--dtype", choices=["float32", "float16", "bfloat16", "int8"], default="float16",
        help="of the cache (default: float16)",
    )  # fmt: skip

    command = add("plan", "show variants, exact sizes, runs and predicted time; train nothing",
                  "plan experiments/quickstart.yaml --set variants.match=flops")  # fmt: skip
    add_file(command)
    _add_device(command)

    command = add("run", "train what has no record yet, measure speeds, write the report",
                  "run experiments/quickstart.yaml --results results --workers 2")  # fmt: skip
    add_file(command)
    command.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                         help="where its folder is made (default: results)")  # fmt: skip
    command.add_argument("--workers", type=int, metavar="N",
                         help="runs at a time (default: one a core, or one a GPU)")  # fmt: skip
    _add_device(command)
    command.add_argument("--launcher", choices=["local"], default="local",
                         help="what starts the runs")  # fmt: skip

    add_folder(
        add("status", "count finished, failed and pending runs", "status results/quickstart")
    )
    command = add("show", "look at the grid, one variant, or one run",
                  "show results/quickstart swiglu")  # fmt: skip
    add_folder(command)
    command.add_argument("what", nargs="?", metavar="VARIANT|RUN", help="a label or an id")
    command = add("compare", "compare two variants, paired by seed",
                  "compare results/quickstart baseline swiglu")  # fmt: skip
    add_folder(command)
    command.add_argument("a", metavar="A", help="the reference: a label or an id")
    command.add_argument("b", metavar="B", help="what is compared with it")
    command = add("measure", "take more metrics of finished runs, without training again",
                  "measure results/quickstart perplexity decode_speed")  # fmt: skip
    add_folder(command)
    command.add_argument("metrics", nargs="+", metavar="METRIC", help="see: components metric")
    add_folder(add("report", "write tables, figures and the page again",
                   "report results/quickstart"))  # fmt: skip
    return parser


def _count(text: str) -> int:
    """Read a count from the command line: an integer of 1 or more."""
    if not text.replace("_", "").isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                         help="what to compute on (default: auto)")  # fmt: skip
