"""The arguments of every command, with help and an example for each."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

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
    common.add_argument("--json", action="store_true", help="print one JSON document, nothing else")

    def add(name: str, help_: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=help_, description=help_, parents=[common],
            epilog=f"example:\n  llama-ablate {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def add_file(command: argparse.ArgumentParser) -> None:
        command.add_argument("file", type=Path, metavar="FILE", help="an experiment file")
        _add_sets(command, "train.lr=3e-4")

    def add_folder(command: argparse.ArgumentParser) -> None:
        command.add_argument("folder", type=Path, metavar="DIR", help="results of one experiment")

    command = add("components", "list the components and what YAML may set on them",
                  "components position")  # fmt: skip
    command.add_argument("slot", nargs="?", metavar="SLOT",
                         help="norm, position, attention, feedforward, block, corpus, "
                              "tokenizer or metric")  # fmt: skip

    command = add("plan", "show variants, exact sizes, runs and predicted time; train nothing",
                  "plan experiments/quickstart.yaml --set variants.match=flops")  # fmt: skip
    add_file(command)
    _add_device(command)
    command.add_argument("--power", type=_nats, metavar='"X nats"',
                         help="how many seeds would show X, and what they cost")  # fmt: skip
    command.add_argument("--pilot", type=Path, metavar="DIR",
                         help="with --power: whose noise to plan with (results/NAME)")  # fmt: skip

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
    _add_models(add)
    return top


def _add_models(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Add the commands that look at one model: a preset, a finished run, or a checkpoint."""
    command = add(
        "summary",
        "show what an architecture weighs and costs, part by part, exactly",
        "summary llama2-7b --batch 16 --context 1024 --set model.tie=true",
    )
    command.add_argument(
        "what",
        nargs="?",
        metavar="PRESET|CHECKPOINT",
        help="a preset's name, or a checkpoint; without one, the presets are listed",
    )
    _add_sets(command, "model.attention=mqa")
    command.add_argument(
        "--context", type=_count, metavar="N", help="tokens in cache and scores (default: its own)"
    )
    command.add_argument(
        "--batch", type=_count, default=1, metavar="N", help="sequences in the cache (default: 1)"
    )
    command.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8"],
        default="float16",
        help="of the cache (default: float16)",
    )

    command = add(
        "rope",
        "list and draw how fast each pair of a rotation turns",
        "rope llama3-8b --set model.position.theta=1e4 --out rope.svg",
    )
    command.add_argument("what", metavar="PRESET", help="a preset's name")
    _add_sets(command, "model.position.theta=1e6")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("rope"),
        metavar="FILE",
        help="the figure, as SVG and PNG (default: rope)",
    )

    command = add(
        "generate",
        "continue a prompt, written as it comes",
        'generate results/quickstart/rope --prompt "def " --temperature 0',
    )
    _add_model(command)
    _add_prompt(command, "the text to continue; - reads standard input")
    command.add_argument(
        "--max-tokens", type=_count, default=128, metavar="N", help="at most so many (default: 128)"
    )
    command.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest token (default: 0.8)",
    )
    command.add_argument("--top-k", type=_count, metavar="K", help="draw from the K likeliest")
    command.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest that reach P together",
    )
    command.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    command.add_argument(
        "--past-context",
        choices=["stop", "slide"],
        default="stop",
        help="at the context's end: stop, or forget the older half (default: stop)",
    )
    command.add_argument(
        "--no-cache",
        action="store_true",
        help="compute every token from the whole text: the same, slowly",
    )
    command.add_argument(
        "--chat", action="store_true", help="put the prompt into Llama 3's chat template"
    )
    command.add_argument("--system", default="", metavar="TEXT", help="with --chat: what to be")

    command = add(
        "attention",
        "draw what each head attends to while a prompt is read",
        'attention results/quickstart/rope --prompt "for x in xs:" --layer 0',
    )
    _add_model(command)
    _add_prompt(command, "the text to read")
    command.add_argument(
        "--layer", type=int, metavar="N", help="from 0 (default: all, a page each)"
    )
    command.add_argument(
        "--head",
        type=int,
        metavar="N",
        help="from 0: scores, masked scores and probabilities of one head",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="DIR",
        help="where figures and arrays go (default: attention)",
    )

    command = add(
        "export",
        "write a model as a Hugging Face checkpoint",
        "export results/llama-path/+pre my-model --to llama",
    )
    _add_model(command)
    command.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    command.add_argument(
        "--to",
        metavar="FAMILY",
        help="llama, mistral, qwen2, qwen3 or gpt2 (default: the first that can)",
    )

    command = add("bench", "time a component alone and in a training step, beside what was said",
                  "bench norms --dim 4096 --rows 2048 --threads 2")  # fmt: skip
    command.add_argument("what", choices=["norms", "feedforward", "decode"])
    command.add_argument("--dim", type=_count, default=1024, help="width of a vector (1024)")
    command.add_argument("--rows", type=_count, default=4096, help="vectors, or tokens (4096)")
    command.add_argument("--rounds", type=_count, default=30, help="turns of every case (30)")
    command.add_argument(
        "--threads", type=int, choices=range(1, 1025), metavar="N", default=1, help="of the CPU (1)"
    )
    command.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    command.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    _add_device(command)


def _add_sets(command: argparse.ArgumentParser, example: str) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help=f"override a key, such as {example}; may be repeated",
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        type=Path,
        metavar="RUN|CHECKPOINT",
        help="results/NAME/VARIANT, a run's folder, a folder with config.json (Hugging Face) or "
        "params.json (Meta), or a llama2.c .bin",
    )
    command.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="where it does not lie beside the model"
    )
    command.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="to compute in (default: as stored)",
    )
    _add_device(command)


def _add_prompt(command: argparse.ArgumentParser, help_: str) -> None:
    command.add_argument("--prompt", required=True, metavar="TEXT", help=help_)
    command.add_argument(
        "--parse-special",
        action="store_true",
        help="take <|names|> in the prompt for the special tokens that they name",
    )


def _nats(text: str) -> float:
    """Read a difference of losses with its unit."""
    number = re.fullmatch(r"(\d*\.?\d+(?:[eE][-+]?\d+)?) ?nats", text)
    if number is None or float(number[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0 and 'nats'")
    return float(number[1])


def _count(text: str) -> int:
    """Read a count from the command line: an integer of 1 or more."""
    if not re.fullmatch("[0-9_]{1,12}", text) or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to 1,000,000,000")
    return int(text)


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="what to compute on (default: auto)",
    )
