"""ConfigError for mistakes in user input, with hints on allowed names and missing packages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Where = tuple[str | int, ...]

_LISTED = 40  # most names that an error message lists
_COMPARED = 200  # most compared characters of the input: the comparison takes quadratic time
#: Names of earlier versions that are gone, and what to do instead.
_GONE = {
    "judge": "analysis/judge.py judges candidates (docs/loop.md)",
    "--follow": "`run --track NAME` sends curves while runs train, `track` finished runs",
    "--power": "`plan` prints the half width to expect, and the seeds for the stated margin",
    "--no-page": "`run` writes the page when training has ended",
}
_OTHER_WORDS = Path(__file__).parent / "config" / "other_words.yaml"


class ConfigError(ValueError):
    """Error in the user's input.

    The command line prints the message in one line, and exits with code 2. `where` is the path of
    keys to the wrong value in an experiment file, and is empty for other mistakes. Code that has
    loaded the file looks up line and column by this path.
    """

    def __init__(self, message: str, where: Where = ()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where


def need(fine: object, message: str, *where: str | int) -> None:
    """Raise ConfigError with a message at a path of keys unless `fine` is true."""
    if not fine:
        raise ConfigError(message, where)


@contextmanager
def under(where: Where, instead_of: Where | None = ()) -> Iterator[None]:
    """Place each ConfigError that is raised in the block under a path of keys.

    `where` takes the place of the start `instead_of` of an error's own path, and of the whole path
    of an error elsewhere; with None, always of the whole path.
    """
    try:
        yield
    except ConfigError as error:
        cut = None if instead_of is None else len(instead_of)
        rest = error.where[cut:] if error.where[:cut] == instead_of else ()
        raise ConfigError(error.message, (*where, *rest)) from None


class NotProvidedError(ConfigError):
    """Error for a number that a user's component does not define.

    The number is then unknown, and not 0.
    """

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"not provided by '{name}': {what}")


def dotted(where: Where) -> str:
    """Format a path of keys in an experiment file: `variants.axes.norm[1]`.

    >>> dotted(("variants", "axes", "norm", 1))
    'variants.axes.norm[1]'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
    return text.removeprefix(".")


def require(package: str, user: str) -> None:
    """Raise ConfigError, with an installation command, if a Python package is missing.

    `user` names the feature that needs the package. The message says `pip install PACKAGE`, which
    works everywhere, and not an extra of this project: no package index has the project, so that
    its extras can be installed in a checkout only.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # without an origin it is a folder of the same name
        raise ConfigError(f"{user} needs the package '{package}': pip install {package}")


def nearest(
    value: object, allowed: Iterable[str], elsewhere: Sequence[str] = (), otherwise: str = ""
) -> str:
    """Return the end of an error message: allowed names and the nearest match.

    The nearest match of `value` is the same name with other capitals or punctuation, a name for
    which `value` is another project's word, or the name with the most similar letters. Names in
    `elsewhere`, such as `train.lr`, are not listed, but may be the nearest match. A long list is
    cut to the nearest names and a count of the others. For a name of an earlier version the end
    says what to do instead. `otherwise` is added if nothing is near.

    >>> nearest("rmsnrm", ["layernorm", "rmsnorm"])
    "; allowed: layernorm, rmsnorm; did you mean 'rmsnorm'?"
    >>> nearest("factorial", ["fraction", "path", "product"])
    "; allowed: fraction, path, product; did you mean 'fraction' or 'product'?"
    """
    names = sorted(allowed)
    text = str(value)[:_COMPARED]
    if text in _GONE and text not in names:
        return f"; '{text}' is gone: {_GONE[text]}"
    meant = " or ".join(f"'{name}'" for name in _meant(text, [*names, *elsewhere]))
    hint = f"; did you mean {meant}?" if meant else otherwise
    if len(names) <= _LISTED:
        return f"; allowed: {', '.join(names)}{hint}"
    listed = get_close_matches(text, names, n=_LISTED, cutoff=0.0)
    return f"; allowed: {', '.join(listed)} and {len(names) - _LISTED:,} more{hint}"


def _meant(text: str, names: Sequence[str]) -> list[str]:
    """Return the names that a misspelt text resembles, usually one or none."""
    groups: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for name in names:
        last = name.rpartition(".")[2]  # `lr` for `train.lr`
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
    holding = [name for name in names if _plain(text) in _plain(name)]  # a part of a longer name
    return holding[:3] if len(_plain(text)) > 2 else []


@cache
def _other_words() -> Mapping[str, str]:
    """Map this project's names to the words of other projects and papers.

    The words for a name are separated by spaces.
    """
    import yaml

    words: dict[str, str] = yaml.safe_load(_OTHER_WORDS.read_text("utf-8"))
    return words


def _plain(text: str) -> str:
    """Return a word in lower case without spaces, hyphens, underscores and dots."""
    return "".join(letter for letter in text.lower() if letter not in " -_.")
