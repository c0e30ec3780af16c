"""Escape control characters in text before it is printed."""

import re

_CONTROLS = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


def visible(text: str) -> str:
    """Return text with control characters escaped, but for line feeds and tabs."""
    return _CONTROLS.sub(lambda match: _spelled(match[0]), text)


def in_one_line(text: str) -> str:
    """Return text in one line, with everything that does not print escaped."""
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1]
