"""Registries of the parts of a report, sections and figures: functions of frames by name."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from llama_ablate.errors import ConfigError
from llama_ablate.findings.frames import Frames

Part = TypeVar("Part")
#: Makes a part, or several by name, as many as there is something to show of; None for nothing.
Maker = Callable[[Frames], Part | Mapping[str, Part] | None]


@dataclass(frozen=True)
class Made(Generic[Part]):
    """Part of a report, with its name and its table ("" for all tables)."""

    #: Of several parts by one maker it ends in the part's own.
    name: str
    table: str
    part: Part
    #: What its maker's docstring says that it shows.
    about: str


class Parts(Mapping[str, Callable[[Frames], Part | None]], Generic[Part]):
    """Parts of one kind by name, in reading order; of several by one maker the first."""

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
        """Enter a function under `name` (a decorator).

        It is given the frames of the whole experiment, or with `every_table` those of each table
        alone. Raises ConfigError for a name that is taken.
        """
        if name in self._makers:
            raise ConfigError(f"the {self.kind} '{name}' is registered already")

        def enter(maker: Maker[Part]) -> Maker[Part]:
            self._makers[name] = (maker, every_table)
            return maker

        return enter

    def parts(self, name: str, frames: Frames) -> dict[str, Part]:
        """Return the parts of one maker by name: none, one, or several."""
        made_parts = self._makers[name][0](frames)
        if isinstance(made_parts, Mapping):
            return {
                "_".join(filter(None, (name, part_name))): part
                for part_name, part in made_parts.items()
            }
        return {} if made_parts is None else {name: made_parts}

    def make(self, frames: Frames) -> Iterator[Made[Part]]:
        """Yield every part that has something to show, in the order of `arrange`."""
        kinds = {name: every_table for name, (_, every_table) in self._makers.items()}
        for name, table, only in arrange(kinds, frames):
            about = " ".join((inspect.getdoc(self._makers[name][0]) or "").split())
            about = about.removeprefix("Show ")
            for part_name, part in self.parts(name, only).items():
                yield Made(part_name, table, part, about[:1].upper() + about[1:])


def arrange(kinds: Mapping[str, bool], frames: Frames) -> Iterator[tuple[str, str, Frames]]:
    """Yield names in order, each with the table that its part is of, and that table's frames.

    `kinds` says of each name whether its part is made for every table, or for all at once (of the
    table ""). Neighbours made for every table stay together: all of the first, then the second.
    """
    for every_table, group in groupby(kinds, lambda name: kinds[name]):
        names = list(group)
        for only in map(frames.only, frames.tables) if every_table else [frames]:
            for name in names:
                yield name, only.table.plan.name if every_table else "", only
