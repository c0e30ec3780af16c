"""Registries of the parts of a report, sections and figures: functions of frames by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from llama_ablate.errors import ConfigError
from llama_ablate.report.frames import Frames

Part = TypeVar("Part")
#: Makes a part; None where there is nothing to show.
Maker = Callable[[Frames], Part | None]


@dataclass(frozen=True)
class Made(Generic[Part]):
    """A part of a report: its name in the registry, and of which table it is (or of all: "")."""

    name: str
    table: str
    part: Part


class Parts(Mapping[str, Maker[Part]], Generic[Part]):
    """Parts of one kind by name, in reading order."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._makers: dict[str, tuple[Maker[Part], bool]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, name: str) -> Maker[Part]:
        return self._makers[name][0]

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

    def make(self, frames: Frames) -> Iterator[Made[Part]]:
        """Yield every part that has something to show.

        Neighbours that are made for every table stay together: all of the first table, then all of
        the second.
        """
        for every_table, entries in groupby(self._makers.items(), lambda entry: entry[1][1]):
            names = [name for name, _ in entries]
            for only in map(frames.only, frames.tables) if every_table else [frames]:
                for name in names:
                    part = self[name](only)
                    if part is not None:
                        yield Made(name, only.table.plan.name if every_table else "", part)
