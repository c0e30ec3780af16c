"""The answer that every command returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Answer:
    """Output of a command: text and tables, plain values for machines, exit code.

    Tables are the cells that people read, to be fitted to the terminal when they are printed.
    """

    shown: "str | Sequence[str | DataFrame]"
    values: Any
    code: int = 0

    @property
    def text(self) -> str:
        """Output without a terminal: every column of every table."""
        return self.fitted(None)

    def fitted(self, width: int | None) -> str:
        """Return the output for a terminal of `width` columns; None for any width."""
        if isinstance(self.shown, str):
            return self.shown
        from llama_ablate.report import tables

        return "\n\n".join(
            tables.filled(part, width) if isinstance(part, str) else tables.text(part, width)
            for part in self.shown
        )

    @property
    def json(self) -> str:
        """The values as strict JSON on one line; a number that JSON lacks is null."""
        from llama_ablate.files.strict_json import to_line

        return to_line(self.values, nulls=True)
