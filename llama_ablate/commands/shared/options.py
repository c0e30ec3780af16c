"""What a command takes, declared once: a dataclass whose fields are its options.

    @dataclass(frozen=True, kw_only=True)
    class ShowOptions(ResultsOptions):
        what: Annotated[str | None, argument("VARIANT|RUN", "a label or an id", "?")] = None
        wide: Wide = False

`add_to` declares them to a parser, `made` reads what that parsed, and `of` takes keywords from
Python, checked alike. The type says what is given: a `bool` is a switch, a `Literal` one of several
words, a `tuple` what may be repeated. A field without a default must be given; one that is itself
such a dataclass stands for its options.
"""

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Option(NamedTuple):
    """What help says of a field, and how it is given on a command line."""

    help: str
    metavar: str | None = None
    #: Reads a text, and raises ArgumentTypeError or ValueError; the field's type unless given.
    read: Callable[[str], Any] | None = None
    flag: str | None = None  # `--name` unless given; empty for what is given by its place
    nargs: str | None = None  # of the latter, as argparse has it


def argument(metavar: str, help_: str, nargs: str | None = None) -> Option:
    """Return what is given by its place."""
    return Option(help_, metavar, flag="", nargs=nargs)


class _Field(NamedTuple):
    """A field that is an option: what it declares, and the type of one value."""

    name: str
    about: Option
    kind: Any
    many: bool
    required: bool

    @property
    def flag(self) -> str:
        flag = self.about.flag
        return f"--{self.name.replace('_', '-')}" if flag is None else flag

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def read(self, text: str) -> Any:
        """Read a value, or raise ArgumentTypeError."""
        read = self.about.read or (str if self.choices else self.kind)
        try:
            value = read(text)
        except ValueError:
            raise ArgumentTypeError(f"invalid {read.__name__} value: {text!r}") from None
        if self.choices and value not in self.choices:
            raise ArgumentTypeError(f"there is no '{value}'{nearest(value, self.choices)}")
        return value


def _fields(cls: Any) -> Iterator[_Field]:
    for field in fields(cls):
        if isinstance(field.type, type):
            yield from _fields(field.type)
            continue
        kind, about = get_args(field.type)
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
        many = get_origin(kind) is tuple
        kind = get_args(kind)[0] if many else kind
        yield _Field(field.name, about, kind, many, field.default is MISSING)


def add_to(parser: ArgumentParser, cls: type) -> None:
    """Declare the options of a dataclass to a parser."""
    for own in _fields(cls):
        listed = f"{{{','.join(own.choices)}}}" if own.choices else None
        keywords: dict[str, Any] = {"metavar": own.about.metavar or listed, "type": own.read}
        if own.kind is bool:
            keywords = {"action": "store_true"}
        elif own.many and own.flag:
            keywords["action"] = "append"
        if own.flag:
            keywords["dest"] = own.name
        else:
            keywords["nargs"] = own.about.nargs
        action = parser.add_argument(own.flag or own.name, help=own.about.help, **keywords)
        action.required = own.required


def made(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return options from values by name, such as a parser's; None is what was not given."""
    given: dict[str, Any] = {}
    for field in fields(cls):
        if isinstance(field.type, type):
            given[field.name] = made(field.type, values)
        elif (value := values.get(field.name)) is not None:
            given[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**given)


def of(cls: type[T], **values: Any) -> T:
    """Return options from keywords, each read and checked as on the command line.

    Raises ConfigError with the line that the command prints.
    """
    given: dict[str, Any] = {}
    for own in _fields(cls):
        if (value := values.get(own.name)) is None:
            continue
        try:
            given[own.name] = (
                [own.read(str(one)) for one in value] if own.many else own.read(str(value))
            )
        except ArgumentTypeError as error:
            name = own.flag or own.about.metavar
            raise ConfigError(f"argument {name}: {error}") from None
    return made(cls, given)


def folder(text: str) -> Path:
    """Read a folder's name."""
    if not text:
        raise ArgumentTypeError("a folder has a name: '.' is this one")
    return Path(text)


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


# Options that several commands have.
Device = Annotated[Literal["auto", "cpu", "cuda"], Option("what to compute on (default: auto)")]
Table = Annotated[
    str | None, Option("which of the experiment's tables (default: the first)", "NAME")
]
Wide = Annotated[
    bool,
    Option("print all columns of every table, as into a pipe; a terminal gets those that fit it"),
]


def overrides(example: str) -> Option:
    """Return `--set`, with an example of a key and its value."""
    text = f"override a key, such as {example}; may be repeated"
    return Option(text, "KEY=VALUE", flag="--set")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command takes."""

    plugins: Annotated[
        tuple[Path, ...],
        Option("a Python file that registers components; repeatable", "FILE", flag="--plugin"),
    ] = ()
    json: Annotated[bool, Option("print one JSON document, nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(Options):
    """What a command on an experiment file takes."""

    file: Annotated[Path, argument("FILE", "an experiment file")]
    sets: Annotated[tuple[str, ...], overrides("train.lr=3e-4")] = ()
    wide: Wide = False


@dataclass(frozen=True, kw_only=True)
class ResultsOptions(Options):
    """What a command on results takes."""

    folder: Annotated[Path, argument("DIR", "results of one experiment")]
