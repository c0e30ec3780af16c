"""Text on its way to a terminal, which would obey the control characters in it."""

import re

_CONTROLS = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


def visible(text: str) -> str:
    """Return text with its control characters spelled out; lines and tabs stay."""
    return _CONTROLS.sub(lambda found: _spelled(found[0]), text)


def in_one_line(text: str) -> str:
    """Return text with line feeds and whatever else does not print spelled out."""
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1]
