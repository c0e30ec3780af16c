"""Command options, declared once as fields of a dataclass.

    @dataclass(frozen=True, kw_only=True)
    class ShowOptions(ResultsOptions):
        what: str | None = argument("VARIANT|RUN", "a label or an id", None, "?")
        wide: bool = option(False, WIDE)

`add_to` adds the options to an argparse parser, `create_options` builds the dataclass from parsed
values, and `of` builds it from Python keywords with the same checks. The type of a field determines
the kind of option: a `bool` is a switch, a `Literal` a choice between words, and a `tuple` an
option that may be repeated. A field whose type is another dataclass of options adds its options.
"""

import math
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_KINDS = {int: "a whole number", float: "a number"}
Device = Literal["auto", "cpu", "cuda"]

DEVICE = "what to compute on (default: auto)"
TABLE = "which of the experiment's tables (default: the first)"
WIDE = "print all columns of every table, as into a pipe; a terminal gets those that fit it"


def option(
    default: Any,
    help_: str,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    *,
    flag: str | None = None,
    nargs: str | None = None,
    const: Any = None,
) -> Any:
    """Declare a field for the option `--name VALUE`, or for another `flag`.

    The default `...` makes the option required. `const` is the value of a flag that is given alone,
    and makes the flag's value optional. `read` converts the text of a value, and raises
    ArgumentTypeError or ValueError; by default, the field's type converts it.
    """
    about = {"help": help_, "metavar": metavar, "read": read, "flag": flag, "nargs": nargs}
    about["const"] = const
    return field(default=MISSING if default is ... else default, metadata=about)


def argument(metavar: str, help_: str, default: Any = ..., nargs: str | None = None) -> Any:
    """Declare a positional argument, with argparse's `nargs`."""
    return option(default, help_, metavar, flag="", nargs=nargs)


def overrides(example: str) -> Any:
    """Declare the option `--set`, with an example of a key and its value."""
    text = f"override a key, such as {example}; may be repeated"
    return option((), text, "KEY=VALUE", flag="--set")


class _Option:
    """Properties of one option, read from its dataclass field."""

    def __init__(self, own: Field[Any]) -> None:
        kind, about = own.type, own.metadata
        kind = get_args(kind)[0] if NoneType in get_args(kind) else kind
        self.is_repeated = get_origin(kind) is tuple
        kind = get_args(kind)[0] if self.is_repeated else kind
        self.choices = get_args(kind) if get_origin(kind) is Literal else ()
        words = f"{{{','.join(self.choices)}}}" if self.choices else None
        self.name, self.help, self.nargs = own.name, about["help"], about["nargs"]
        self.const = about["const"]
        self.flag = f"--{own.name.replace('_', '-')}" if about["flag"] is None else about["flag"]
        self.metavar: str | None = about["metavar"] or words
        self.reader: Any = about["read"] or (str if self.choices else kind)
        self.is_required = own.default is MISSING

    def read(self, text: str) -> Any:
        """Convert the text of one value. Raises ArgumentTypeError if it is invalid."""
        try:
            value = self.reader(text)
        except ValueError:
            what = _KINDS.get(self.reader, self.reader.__name__)
            raise ArgumentTypeError(f"{text!r} is not {what}") from None
        if self.choices and value not in self.choices:
            raise ArgumentTypeError(f"there is no '{value}'{nearest(value, self.choices)}")
        return value


def _declared(cls: Any) -> Iterator[_Option]:
    for part in fields(cls):
        if part.metadata:
            yield _Option(part)
        else:
            yield from _declared(part.type)


def add_to(parser: ArgumentParser, cls: type) -> None:
    """Add the options of a dataclass to an argparse parser."""
    for declared in _declared(cls):
        keywords: dict[str, Any] = (
            {"dest": declared.name} if declared.flag else {"nargs": declared.nargs}
        )
        if declared.reader is bool:
            keywords["action"] = "store_true"
        else:
            choices = declared.choices or None
            keywords |= {"metavar": declared.metavar, "type": declared.read, "choices": choices}
            if declared.is_repeated and declared.flag:
                keywords["action"] = "append"
            if declared.const is not None:
                keywords |= {"nargs": "?", "const": declared.const}
        action = parser.add_argument(declared.flag or declared.name, help=declared.help, **keywords)
        action.required = declared.is_required


def create_options(cls: type[T], values: Mapping[str, Any]) -> T:
    """Create a dataclass of options from values by name; None selects the default."""
    given: dict[str, Any] = {}
    for part in fields(cls):
        value = values.get(part.name)
        if isinstance(part.type, type) and not part.metadata:
            given[part.name] = create_options(part.type, values)
        elif value is not None:
            given[part.name] = tuple(value) if isinstance(value, list) else value
    return cls(**given)


def of(cls: type[T], **values: Any) -> T:
    """Create a dataclass of options from Python keywords, checked as on the command line.

    Raises ConfigError with the line that the command prints.
    """
    given: dict[str, Any] = {}
    for declared in _declared(cls):
        value = values.get(declared.name)
        try:
            if declared.is_repeated:
                given[declared.name] = [declared.read(str(text)) for text in value or ()]
            elif value is not None:
                given[declared.name] = declared.read(str(value))
        except ArgumentTypeError as error:
            raise ConfigError(f"argument {declared.flag or declared.metavar}: {error}") from None
    return create_options(cls, given)


def folder(text: str) -> Path:
    """Convert a folder's name to a path. Raises ArgumentTypeError if it is empty."""
    if not text:
        raise ArgumentTypeError("a folder has a name: '.' is this one")
    return Path(text)


def seconds(text: str) -> float:
    """Parse a number of seconds above 0. Raises ArgumentTypeError if it is invalid."""
    if not re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", text) or not 0 < float(text) < math.inf:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return float(text)


def count(text: str) -> int:
    """Parse an integer from 1 to 10^9. Raises ArgumentTypeError if it is invalid."""
    if not re.fullmatch("[0-9_]{1,12}", text) or not 1 <= int(text) <= 10**9:
        raise ArgumentTypeError(f"'{text}' is not a whole number from 1 to 1,000,000,000")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every command has."""

    plugins: tuple[Path, ...] = option(
        (), "a Python file that registers components; repeatable", "FILE", flag="--plugin"
    )
    json: bool = option(False, "print one JSON document, nothing else")


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(Options):
    """Options of commands that read an experiment file."""

    file: Path = argument("FILE", "an experiment file")
    sets: tuple[str, ...] = overrides("train.lr=3e-4")
    wide: bool = option(False, WIDE)


@dataclass(frozen=True, kw_only=True)
class ResultsOptions(Options):
    """Options of commands that read a results folder."""

    folder: Path = argument("DIR", "results of one experiment")


@dataclass(frozen=True, kw_only=True)
class TableOptions(ResultsOptions):
    """Options of commands that print tables of a results folder."""

    wide: bool = option(False, WIDE)
