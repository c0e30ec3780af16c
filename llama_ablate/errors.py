"""ConfigError for mistakes in user input, and hints: the nearest match, and what to install."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Where = tuple[str | int, ...]

_LISTED = 40  # names that a sentence may list
_COMPARED = 200  # letters of what was given: comparing takes their square
_OTHER_WORDS = Path(__file__).parent / "config" / "other_words.yaml"


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


class NotProvidedError(ConfigError):
    """Missing part of a user's component: its value is unknown, never 0."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"not provided by '{name}': {what}")


def dotted(where: Where) -> str:
    """Format a path: `variants.axes.norm[1]`.

    >>> dotted(("variants", "axes", "norm", 1))
    'variants.axes.norm[1]'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
    return text.removeprefix(".")


def require(package: str, user: str) -> None:
    """Raise ConfigError, with the command that installs it, where a package is missing.

    `user` is what needs it. The package's own command is the one that works everywhere: no index
    has this distribution, so its extras can be installed in a checkout alone.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # without one, a mere folder
        raise ConfigError(f"{user} needs the package '{package}': pip install {package}")


def nearest(value: object, allowed: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return the allowed names and the nearest match, as the end of a sentence.

    The nearest match is the same name with other capitals or marks, another project's word for it,
    or the name with the most similar letters; it may be allowed `elsewhere`, as `train.lr` is. A
    long list is cut to its nearest names and a count of the others.

    >>> nearest("rmsnrm", ["layernorm", "rmsnorm"])
    "; allowed: layernorm, rmsnorm; did you mean 'rmsnorm'?"
    >>> nearest("factorial", ["fraction", "path", "product"])
    "; allowed: fraction, path, product; did you mean 'fraction' or 'product'?"
    """
    names = sorted(allowed)
    text = str(value)[:_COMPARED]
    meant = " or ".join(f"'{name}'" for name in _meant(text, [*names, *elsewhere]))
    hint = f"; did you mean {meant}?" if meant else ""
    if len(names) <= _LISTED:
        return f"; allowed: {', '.join(names)}{hint}"
    listed = get_close_matches(text, names, n=_LISTED, cutoff=0.0)
    return f"; allowed: {', '.join(listed)} and {len(names) - _LISTED:,} more{hint}"


def _meant(text: str, names: Sequence[str]) -> list[str]:
    """Find the names that a misspelt text resembles: mostly one, or none."""
    groups: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for name in names:
        last = name.rpartition(".")[2]  # of `train.lr`, too
        for word in (name, last):
            groups.setdefault(_plain(word), [name])
        for word in _other_words().get(last, "").split():
            others.setdefault(word, []).append(name)
    swapped = {word: name for word, name in groups.items() if sorted(word) == sorted(_plain(text))}
    for words, alike in (
        (groups, 1.0),
        (others, 1.0),
        (swapped, 0.6),
        (groups, 0.65),
        (others, 0.75),
    ):
        for word in get_close_matches(_plain(text), words, 1, alike):
            return words[word]
    holding = [name for name in names if _plain(text) in _plain(name)]  # `qknorm`, of a label
    return holding[:3] if len(_plain(text)) > 2 else []


@cache
def _other_words() -> Mapping[str, str]:
    """Return the words that other projects and papers have for a thing of ours, by our own."""
    import yaml

    words: dict[str, str] = yaml.safe_load(_OTHER_WORDS.read_text("utf-8"))
    return words


def _plain(text: str) -> str:
    """Return a word without capitals, spaces, hyphens and underscores."""
    return "".join(letter for letter in text.lower() if letter not in " -_.")
