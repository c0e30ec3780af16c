"""Registry of functions that make parts of a report, such as figures."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from llama_ablate.errors import ConfigError
from llama_ablate.findings.frames import Frames

Part = TypeVar("Part")
#: Function that makes a part, or several parts by name; None or no parts without data to show.
Maker = Callable[[Frames], Part | Mapping[str, Part] | None]


@dataclass(frozen=True)
class Made(Generic[Part]):
    """Finished part of a report with its name, comparison table and caption.

    `table` is "" for a part that covers all tables.
    """

    #: Name of the maker, followed by the part's own name if the maker makes several.
    name: str
    table: str
    part: Part
    #: Caption, taken from the maker's docstring.
    about: str


class Parts(Mapping[str, Callable[[Frames], Part | None]], Generic[Part]):
    """Registry of makers of report parts, such as figures, in the report's reading order.

    A maker is registered by name, and makes one part, several, or none. Looking up a name gives a
    function of the report's data that returns the maker's first part, or None if it makes none.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._makers: dict[str, tuple[Maker[Part], bool]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, name: str) -> Callable[[Frames], Part | None]:
        if name not in self._makers:
            raise KeyError(name)
        return lambda frames: next(iter(self.parts(name, frames).values()), None)

    def register(
        self, name: str, *, every_table: bool = False
    ) -> Callable[[Maker[Part]], Maker[Part]]:
        """Return a decorator that registers a maker under `name`.

        The maker is called once with the frames of the whole experiment; if `every_table` is set,
        it is called once for each comparison table. Raises ConfigError if the name is taken.
        """
        if name in self._makers:
            raise ConfigError(f"the {self.kind} '{name}' is registered already")

        def enter(maker: Maker[Part]) -> Maker[Part]:
            self._makers[name] = (maker, every_table)
            return maker

        return enter

    def parts(self, name: str, frames: Frames) -> dict[str, Part]:
        """Call the maker `name` with `frames`; return its parts by name, possibly none."""
        made_parts = self._makers[name][0](frames)
        if isinstance(made_parts, Mapping):
            return {
                "_".join(filter(None, (name, part_name))): part
                for part_name, part in made_parts.items()
            }
        return {} if made_parts is None else {name: made_parts}

    def make(self, frames: Frames) -> Iterator[Made[Part]]:
        """Make and yield all parts with data to show, in the order of `arrange`."""
        kinds = {name: every_table for name, (_, every_table) in self._makers.items()}
        for name, table, only in arrange(kinds, frames):
            about = " ".join((inspect.getdoc(self._makers[name][0]) or "").split())
            about = about.removeprefix("Show ")
            for part_name, part in self.parts(name, only).items():
                yield Made(part_name, table, part, about[:1].upper() + about[1:])


def arrange(kinds: Mapping[str, bool], frames: Frames) -> Iterator[tuple[str, str, Frames]]:
    """Yield (name, table, frames) for each part to be made, in reading order.

    `kinds` maps each name to True if a part is made for every comparison table, or to False if one
    part is made for all tables (table ""). Consecutive names with True are ordered by table: all
    parts of the first table precede all parts of the second table.
    """
    for every_table, group in groupby(kinds, lambda name: kinds[name]):
        names = list(group)
        for only in map(frames.only, frames.tables) if every_table else [frames]:
            for name in names:
                yield name, only.table.plan.name if every_table else "", only
