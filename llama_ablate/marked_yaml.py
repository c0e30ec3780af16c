"""YAML in which every value knows its file, line and column, without YAML 1.1's traps.

PyYAML reads `1e-4` as text, a bare `no` as False, `1:30` as ninety, and lets the last of two equal
keys win in silence. So its parser is used, and the values are made here: `1e-4` is a number, and
what people write by mistake is refused with its place.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llama_ablate.errors import ConfigError, Where, dotted

LARGEST_BYTES = 1_000_000
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in
         ("str", "int", "float", "bool", "null", "seq", "map", "timestamp")} | {"!"}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_OLD_BOOLEANS = {"yes", "no", "on", "off", "y", "n"}


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
    """Plain values, and where each stood: path of keys -> Mark."""

    values: dict[str, Any]
    marks: dict[Where, Mark] = field(default_factory=dict)

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with file, line, column and key in front of its sentence."""
        known = error.where
        while known and known not in self.marks:
            known = known[:-1]
        mark = self.marks.get(known)
        key = dotted(error.where)
        parts = [str(mark) if mark else "", key, error.message]
        return ConfigError(": ".join(part for part in parts if part))


def load(path: Path) -> Marked:
    """Read a file that holds one mapping. Raises ConfigError with file, line and column."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ConfigError(f"{path}: larger than {LARGEST_BYTES:,} bytes; no experiment is")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Marked:
    """Read text that holds one mapping; `file` is the name that errors show."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise _at(file, event.start_mark, "anchors and aliases (& and *) are not accepted")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _at(file, mark, f"not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}:1:1: expected `key: value` lines at the top of the file")
    marks: dict[Where, Mark] = {}
    return Marked(_value(root, (), marks, file), marks)


def scalar(text: str) -> Any:
    """Give an unquoted word its value: number, true or false, null, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _value(node: yaml.Node, where: Where, marks: dict[Where, Mark], file: str) -> Any:
    marks[where] = Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*where, i), marks, file) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        _refuse_tag(node, file)
        if node.style is not None:  # in quotes: text, whatever it looks like
            return node.value
        if node.value.lower() in _OLD_BOOLEANS:
            raise _at(
                file, node.start_mark,
                f"bare '{node.value}' is ambiguous (YAML 1.1 reads it as a boolean): "
                f"write true or false, or '{node.value}' in quotes",
            )  # fmt: skip
        return scalar(node.value)
    _refuse_tag(node, file)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or key == "<<":
            raise _at(file, key_node.start_mark, "a key must be one plain word")
        if key in mapping:
            first = marks[(*where, key)]
            raise _at(file, key_node.start_mark,
                      f"the key '{key}' stands twice (first on line {first.line})")  # fmt: skip
        mapping[key] = _value(value_node, (*where, key), marks, file)
        if isinstance(value_node, yaml.ScalarNode) or (*where, key) not in marks:
            continue
        # A section's own place is its key; a scalar's is the scalar.
        marks[(*where, key)] = Mark(
            file, key_node.start_mark.line + 1, key_node.start_mark.column + 1
        )
    return mapping


def _refuse_tag(node: yaml.Node, file: str) -> None:
    if node.tag not in _TAGS:
        raise _at(file, node.start_mark, f"tags like {node.tag} are not accepted")


def _at(file: str, mark: Any, message: str) -> ConfigError:
    return ConfigError(f"{Mark(file, mark.line + 1, mark.column + 1)}: {message}")
