"""Parse YAML with the file, line and column of every value, without YAML 1.1's traps.

PyYAML reads `1e-4` as text, a bare `no` as False, `1:30` as ninety, and silently lets the last of
two equal keys win. So only its parser is used, and the values are converted here: `1e-4` is a
number, and likely mistakes are refused with their line and column. File size, number of values,
depth and digits are limited, so that parsing takes a bounded time.
"""

import codecs
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llama_ablate.errors import ConfigError, Where, dotted

LARGEST_BYTES = 65_536
MOST_VALUES = 5_000  # parsed in half a second, whatever they are
DEEPEST = 24  # levels of nested sections
_LONGEST_KEY = 80
_MOST_DIGITS = 30
# Each pattern matches a text in one way at most: otherwise, refusing a long line that is not a
# number would take hours of backtracking.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_INT = re.compile(rf"[-+]?{_DIGITS}")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
#: Words that strict JSON writes for non-finite numbers. They are refused, since such a text would
#: be read back from JSON as a number.
_NUMBERS_OF_JSON = {"NaN", "Infinity", "-Infinity"}
_OLD_BOOLEANS = {"yes", "no", "on", "off", "y", "n"}
#: Control characters, which YAML does not allow unescaped; escapes such as "\0" are refused, too.
_CONTROL = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Mark:
    """Line and column in a file, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Marked:
    """Parsed YAML: plain values, the mark of each, and the text.

    `marks` maps the path of keys to a value to its line and column.
    """

    values: dict[str, Any]
    marks: dict[Where, Mark] = field(default_factory=dict)
    text: str = ""

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with file, line, column and key before its message."""
        place = error.where
        while place and place not in self.marks:
            place = place[:-1]
        mark = self.marks.get(place)
        key = dotted(error.where)
        parts = [str(mark) if mark else "", key, error.message]
        return ConfigError(": ".join(part for part in parts if part))

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add file, line and column to a ConfigError that is raised in the block."""
        try:
            yield
        except ConfigError as error:
            raise self.locate(error) from None


def load(path: Path) -> Marked:
    """Read a YAML file with one mapping. Raises ConfigError with file, line and column."""
    try:
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise ConfigError(f"{path}: a pipe or a device, which may have no end: not a file")
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(data) > LARGEST_BYTES:
        mark = _behind(data[:LARGEST_BYTES].decode(errors="replace"), str(path))
        raise ConfigError(f"{mark}: larger than {LARGEST_BYTES:,} bytes; no experiment is")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        mark = _behind(error.object[: error.start].decode(), str(path))
        raise ConfigError(f"{mark}: not UTF-8 text") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Marked:
    """Parse YAML text with one mapping; `file` is the name that errors show."""
    marks: dict[Where, Mark] = {}
    values: dict[str, Any] = _value(_composed(text, file), (), file, marks)
    return Marked(values, marks, text)


def scalar(text: str) -> Any:
    """Parse an unquoted word: number, true or false, null, or text.

    Raises ValueError for a whole number of more than 30 digits.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise ValueError(
                f"a whole number of {len(text):,} digits; the longest has {_MOST_DIGITS}"
            )
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


class _Loader(yaml.SafeLoader):
    """PyYAML's loader up to nodes, which refuses anchors, aliases, tags and deep nesting."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file, self._depth, self._values = file, 0, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node. Raises ConfigError for refused syntax and exceeded limits."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(parent, yaml.MappingNode) and index is None:  # a key
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
                raise _refused(self.file, event, "a key must be one plain word")
        elif isinstance(event, yaml.AliasEvent) or event.anchor:
            raise _refused(self.file, event, "anchors and aliases (& and *) are not accepted")
        elif event.tag:
            raise _refused(self.file, event, f"tags like {event.tag:.80} are not accepted")
        elif self._depth > DEEPEST:
            raise _refused(self.file, event, f"nested too deeply: {DEEPEST} levels are enough")
        else:
            self._values += 1
        if self._values > MOST_VALUES:
            message = f"more than {MOST_VALUES:,} values; no experiment has so many"
            raise _refused(self.file, event, message)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _composed(text: str, file: str) -> yaml.MappingNode:
    """Parse YAML text to the node of its single mapping. Raises ConfigError for anything else."""
    try:
        loader = _Loader(text, file)
    except yaml.reader.ReaderError as error:
        mark = _behind(text[: error.position], file)
        raise ConfigError(f"{mark}: not valid YAML: {error.reason}") from None
    try:
        node = loader.get_single_node()
    except (yaml.MarkedYAMLError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        # PyYAML raises ValueError or OverflowError for an escape or a version that is not a number.
        at: Any = getattr(error, "problem_mark", None) or loader.get_mark()
        problem = getattr(error, "problem", None) or "no such character or number"
        if isinstance(error, yaml.composer.ComposerError):
            what = "a second document begins here: a file holds one"
        else:
            what = f"not valid YAML: {problem:.200}"
        raise ConfigError(f"{Mark(file, at.line + 1, at.column + 1)}: {what}") from None
    if not isinstance(node, yaml.MappingNode):
        mark = _mark(file, node) if node else Mark(file, 1, 1)
        raise ConfigError(f"{mark}: expected `key: value` lines at the top of the file")
    return node


def _value(node: Any, where: Where, file: str, marks: dict[Where, Mark]) -> Any:
    """Convert a YAML node to a plain value, and record its marks.

    `marks` gets the line and column of the node and of every node inside, by the path of keys.
    """
    marks[where] = _mark(file, node)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, file)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*where, i), file, marks) for i, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, value in node.value:
        key = _key(key_node, file)
        if key in mapping:
            first = marks[(*where, key)]
            message = f"the key '{key}' stands twice (first on line {first.line})"
            raise _refused(file, key_node, message)
        mapping[key] = _value(value, (*where, key), file, marks)
        if not isinstance(value, yaml.ScalarNode):
            # A section's mark is the mark of its key; a scalar's mark is the mark of the scalar.
            marks[(*where, key)] = _mark(file, key_node)
    return mapping


def _key(node: Any, file: str) -> str:
    if (
        (node.style is None and node.value == "<<")
        or len(node.value) > _LONGEST_KEY
        or not node.value.isprintable()
    ):
        raise _refused(file, node, "a key must be one plain word")
    return str(node.value)


def _scalar(node: Any, file: str) -> Any:
    if control := _CONTROL.search(node.value):
        code = f"U+{ord(control[0]):04X}"
        raise _refused(file, node, f"holds {code}, which is no character of a text")
    if node.value in _NUMBERS_OF_JSON:
        raise _refused(file, node, f"'{node.value}' is the word for a number that JSON lacks")
    if node.style is not None:  # a value in quotes is text, whatever it looks like
        return node.value
    if node.value.lower() in _OLD_BOOLEANS:
        raise _refused(
            file,
            node,
            f"bare '{node.value}' is ambiguous (YAML 1.1 reads it as a boolean): "
            f"write true or false, or '{node.value}' in quotes",
        )
    try:
        return scalar(node.value)
    except ValueError as error:
        raise _refused(file, node, str(error)) from None


def _refused(file: str, at: Any, message: str) -> ConfigError:
    """Return an error with the line and column of a node or event."""
    return ConfigError(f"{_mark(file, at)}: {message}")


def _mark(file: str, at: Any) -> Mark:
    return Mark(file, at.start_mark.line + 1, at.start_mark.column + 1)


def _behind(text: str, file: str) -> Mark:
    """Return the line and column just after a text's end."""
    lines = text.split("\n")
    return Mark(file, len(lines), len(lines[-1]) + 1)
