"""How axes become variants: one at a time, all, a fraction of all, along a path, or as listed."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from llama_ablate.config import spec
from llama_ablate.errors import ConfigError, Where

#: Keys of axes: sizes of the model, those of `train`, and what is an entry of a registry.
SIZES = tuple(size for size in spec.SIZES if size not in ("vocab", "separator"))
TRAIN = "train."  # in front of a key of `train` on an axis
TOKENIZER = "data.tokenizer"
#: Keys of `data` that change what a variant is trained on, and nothing of what it is evaluated on.
DATA = ("data.documents", "data.order", "data.mixture")
#: Of an entry of a list: what it draws anew, `init`, `order` or `both`.
DRAWS = "draws"
#: Keys whose values may be mappings.
ENTRIES = (
    *(*spec.SLOTS, *spec.RULES, "dropout", TOKENIZER),
    *(f"{TRAIN}{key}" for key in ("optimizer", "schedule", "losses")),
)


@dataclass(frozen=True)
class Change:
    """A change of the base: a key, its new value, and its place in the file."""

    #: A slot, a size, `train.lr`, or an option of a slot's component, `position.theta`.
    key: str
    value: Any
    where: Where
    #: Its name in labels, where the file gives one.
    label: str = ""


def _one_at_a_time(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    yield ()
    yield from ((change,) for axis in axes for change in axis)


def _path(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    steps = [change for axis in axes for change in axis]
    yield from (tuple(steps[:n]) for n in range(len(steps) + 1))


def _fraction(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    for axis in axes:
        if len(axis) != 2:
            raise ConfigError(
                f"design 'fraction' needs two values on every axis, not {len(axis)}",
                axis[0].where[:-1],
            )
    for run in half_fraction(len(axes)):
        yield tuple(axis[level] for axis, level in zip(axes, run, strict=True))


def half_fraction(factors: int) -> list[tuple[int, ...]]:
    """Return the runs of a 2^(k-1) design, each a tuple of levels 0 and 1, the all-0 run first.

    The last factor is the sum of the others modulo two, so that the product of all signs is the
    same in every run: resolution k, which for five factors or more keeps main effects and two-way
    interactions clear of each other (Box, Hunter & Hunter 2005, Statistics for Experimenters,
    chapter 6). For fewer it could not, and all 2^k runs are returned.
    """
    if factors < 5:
        return list(product((0, 1), repeat=factors))
    return [(*run, sum(run) % 2) for run in product((0, 1), repeat=factors - 1)]


#: How axes (lists of alternatives) become variants (tuples of changes).
DESIGNS: dict[str, Callable[[list[list[Change]]], Iterable[tuple[Change, ...]]]] = {
    "one-at-a-time": _one_at_a_time,
    "product": lambda axes: product(*axes),
    "fraction": _fraction,
    "path": _path,
    "list": lambda entries: (tuple(entry) for entry in entries),
}
