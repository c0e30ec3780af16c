"""Arguments that several commands share."""

import re
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path


def add_experiment(parser: ArgumentParser) -> None:
    """Add FILE and `--set`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment file")
    add_sets(parser, "train.lr=3e-4")


def add_sets(parser: ArgumentParser, example: str) -> None:
    """Add `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help=f"override a key, such as {example}; may be repeated",
    )


def folder(text: str) -> Path:
    """Read a folder's name."""
    if not text:
        raise ArgumentTypeError("a folder has a name: '.' is this one")
    return Path(text)


def add_results(parser: ArgumentParser) -> None:
    """Add DIR, the results to read."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="results of one experiment")


def add_table(parser: ArgumentParser) -> None:
    """Add `--table`."""
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="which of the experiment's tables (default: the first)",
    )


def add_wide(parser: ArgumentParser) -> None:
    """Add `--wide`."""
    parser.add_argument(
        "--wide",
        action="store_true",
        help="print all columns of every table, as into a pipe; a terminal gets those that fit it",
    )


def add_device(parser: ArgumentParser) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="what to compute on (default: auto)",
    )


def difference(text: str) -> str:
    """Check a difference of losses with its unit."""
    from llama_ablate.config import margins

    if margins.of_loss(text) is None:
        raise ArgumentTypeError(f"'{text}' is not a number above 0 and 'nats'")
    return text


def count(text: str) -> int:
    """Read an integer of 1 or more."""
    if not re.fullmatch("[0-9_]{1,12}", text) or not 1 <= int(text) <= 10**9:
        raise ArgumentTypeError(f"'{text}' is not a whole number from 1 to 1,000,000,000")
    return int(text)
