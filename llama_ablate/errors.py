"""ConfigError for mistakes in user input, and nearest-match hints."""

from collections.abc import Iterable
from difflib import get_close_matches

Where = tuple[str | int, ...]

_LISTED = 40  # names that a sentence may list
_COMPARED = 200  # letters of what was given: comparing takes their square


class ConfigError(ValueError):
    """The user's input is wrong. The command prints one line and exits with code 2.

    `where` is the path of keys to the offending value, for whoever knows the file to turn into
    line and column; empty where the mistake is not in an experiment file.
    """

    def __init__(self, message: str, where: Where = ()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def under(self, *prefix: str | int) -> "ConfigError":
        """Return the same error with `prefix` in front of its path."""
        return ConfigError(self.message, (*prefix, *self.where))


def dotted(where: Where) -> str:
    """Format a path: `variants.axes.norm[1]`.

    >>> dotted(("variants", "axes", "norm", 1))
    'variants.axes.norm[1]'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
    return text.removeprefix(".")


def nearest(value: object, allowed: Iterable[str]) -> str:
    """Return what is allowed, and the nearest match where there is one, as the end of a sentence.

    Of a long list the nearest are named, and the others counted.

    >>> nearest("rmsnrm", ["layernorm", "rmsnorm"])
    "; allowed: layernorm, rmsnorm; did you mean 'rmsnorm'?"
    """
    names = sorted(allowed)
    text = str(value)[:_COMPARED]
    close = get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    if len(names) <= _LISTED:
        return f"; allowed: {', '.join(names)}{hint}"
    listed = get_close_matches(text, names, n=_LISTED, cutoff=0.0)
    return f"; allowed: {', '.join(listed)} and {len(names) - _LISTED:,} more{hint}"
