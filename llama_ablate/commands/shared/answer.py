"""Return value of commands: text, tables, values and exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Answer:
    """Output of a command: printed text and tables, values for `--json`, and exit code.

    Tables are data frames of formatted cells, which are fitted to the terminal when printed.
    """

    shown: "str | Sequence[str | DataFrame]"
    values: Any
    code: int = 0

    @property
    def text(self) -> str:
        """The printed output with every column of every table, as without a terminal."""
        return self.fitted(None)

    def fitted(self, width: int | None) -> str:
        """Return the printed output for a terminal of `width` columns; None for no limit."""
        if isinstance(self.shown, str):
            return self.shown
        from llama_ablate.report import tables

        return "\n\n".join(
            tables.filled(part, width) if isinstance(part, str) else tables.text(part, width)
            for part in self.shown
        )

    @property
    def json(self) -> str:
        """The values as strict JSON on one line, with NaN and infinities as null."""
        from llama_ablate.files.strict_json import to_line

        return to_line(self.values, nulls=True)
