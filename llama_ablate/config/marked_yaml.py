"""YAML in which every value knows its file, line and column, without YAML 1.1's traps.

PyYAML reads `1e-4` as text, a bare `no` as False, `1:30` as ninety, and lets the last of two equal
keys win in silence. So its parser is used, and the values are made here: `1e-4` is a number, and
what people write by mistake is refused with its place. So is what would keep a reader busy: size,
number, depth and digits have an end.
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
MOST_VALUES = 5_000  # read in half a second, whatever they are
DEEPEST = 24  # sections within sections
_LONGEST_KEY = 80
_MOST_DIGITS = 30
# One way to match each, no more: with two, a long line that is no number takes hours to refuse.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_INT = re.compile(rf"[-+]?{_DIGITS}")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
#: As a text they would come back as numbers from strict JSON, which has no others for these.
_NUMBERS_OF_JSON = {"NaN", "Infinity", "-Infinity"}
_OLD_BOOLEANS = {"yes", "no", "on", "off", "y", "n"}
#: What YAML lets nobody write as it is, and escapes such as "\0" do not bring in either.
_CONTROL = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Mark:
    """A place in a file, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Marked:
    """Plain values, the place of each (path of keys -> Mark), and the text."""

    values: dict[str, Any]
    marks: dict[Where, Mark] = field(default_factory=dict)
    text: str = ""

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with file, line, column and key in front of its sentence."""
        known = error.where
        while known and known not in self.marks:
            known = known[:-1]
        mark = self.marks.get(known)
        key = dotted(error.where)
        parts = [str(mark) if mark else "", key, error.message]
        return ConfigError(": ".join(part for part in parts if part))

    @contextmanager
    def located(self) -> Iterator[None]:
        """Locate a ConfigError that is raised inside."""
        try:
            yield
        except ConfigError as error:
            raise self.locate(error) from None


def load(path: Path) -> Marked:
    """Read a file that holds one mapping. Raises ConfigError with file, line and column."""
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
    """Read text that holds one mapping; `file` is the name that errors show."""
    reader = _Reader(text, file)
    return Marked(reader.document(), reader.marks, text)


def scalar(text: str) -> Any:
    """Give an unquoted word its value: number, true or false, null, or the text itself.

    Raises ValueError for a number with more digits than any has.
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


class _Reader:
    """Builds values, with their places, from the events of PyYAML's parser."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.marks: dict[Where, Mark] = {}
        self._events = _events(text, file)

    def document(self) -> dict[str, Any]:
        """Return the one mapping that the text holds."""
        next(self._events)  # the stream begins
        next(self._events)  # the document begins, or the stream ends
        first = next(self._events, None)
        if not isinstance(first, yaml.MappingStartEvent):
            mark = self._mark(first) if first else Mark(self.file, 1, 1)
            raise ConfigError(f"{mark}: expected `key: value` lines at the top of the file")
        values: dict[str, Any] = self._value(first, ())
        next(self._events)  # the document ends
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._refused(after, "a second document begins here: a file holds one")
        return values

    def _accept(self, event: Any, where: Where) -> None:
        """Record the place of a value. Raises ConfigError for a repeated key and other mistakes."""
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise self._refused(event, "anchors and aliases (& and *) are not accepted")
        if event.tag:
            raise self._refused(event, f"tags like {event.tag:.80} are not accepted")
        if len(where) > DEEPEST:
            raise self._refused(event, f"nested too deeply: {DEEPEST} levels are enough")
        if len(self.marks) >= MOST_VALUES:
            raise self._refused(
                event, f"more than {MOST_VALUES:,} values; no experiment has so many"
            )
        self.marks[where] = self._mark(event)

    def _value(self, event: Any, where: Where) -> Any:
        self._accept(event, where)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event, (*where, len(items))))
            return items
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key, mark = self._key(event), self._mark(event)
            if key in mapping:
                first = self.marks[(*where, key)]
                message = f"the key '{key}' stands twice (first on line {first.line})"
                raise self._refused(event, message)
            value = next(self._events)
            mapping[key] = self._value(value, (*where, key))
            if not isinstance(value, yaml.ScalarEvent):
                # A section's own place is its key; a scalar's is the scalar.
                self.marks[(*where, key)] = mark
        return mapping

    def _key(self, event: Any) -> str:
        plain = isinstance(event, yaml.ScalarEvent) and event.style is None
        key = getattr(event, "value", "")
        if (
            not isinstance(event, yaml.ScalarEvent)
            or (plain and key == "<<")
            or event.anchor
            or event.tag
            or len(key) > _LONGEST_KEY
            or not key.isprintable()
        ):
            raise self._refused(event, "a key must be one plain word")
        return str(key)

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if control := _CONTROL.search(event.value):
            code = f"U+{ord(control[0]):04X}"
            raise self._refused(event, f"holds {code}, which is no character of a text")
        if event.value in _NUMBERS_OF_JSON:
            raise self._refused(event, f"'{event.value}' is the word for a number that JSON lacks")
        if event.style is not None:  # in quotes: text, whatever it looks like
            return event.value
        if event.value.lower() in _OLD_BOOLEANS:
            raise self._refused(
                event,
                f"bare '{event.value}' is ambiguous (YAML 1.1 reads it as a boolean): "
                f"write true or false, or '{event.value}' in quotes",
            )
        try:
            return scalar(event.value)
        except ValueError as error:
            raise self._refused(event, str(error)) from None

    def _refused(self, event: Any, message: str) -> ConfigError:
        return ConfigError(f"{self._mark(event)}: {message}")

    def _mark(self, event: Any) -> Mark:
        return Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)


def _events(text: str, file: str) -> Iterator[Any]:
    """Yield the events of PyYAML's parser. Raises ConfigError for a syntax error."""
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        mark = _behind(text[: error.position], file)
        raise ConfigError(f"{mark}: not valid YAML: {error.reason}") from None
    try:
        while loader.check_event():
            yield loader.get_event()  # type: ignore[no-untyped-call]
    except (yaml.MarkedYAMLError, ValueError, OverflowError) as error:
        # The last two are PyYAML's oversights: an escape or a version that no number stands for.
        at: Any = getattr(error, "problem_mark", None) or loader.get_mark()
        mark = Mark(file, at.line + 1, at.column + 1)
        problem = getattr(error, "problem", None) or "no such character or number"
        raise ConfigError(f"{mark}: not valid YAML: {problem:.200}") from None


def _behind(text: str, file: str) -> Mark:
    """Return the place where a text ends."""
    lines = text.split("\n")
    return Mark(file, len(lines), len(lines[-1]) + 1)
