"""The answer that every command returns."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a command prints: text for people, plain values for machines; and its exit code."""

    text: str
    values: Any
    code: int = 0

    @property
    def json(self) -> str:
        """The values as one strict JSON document; a number that JSON lacks is null."""
        from llama_ablate.files.strict_json import to_json

        return to_json(self.values, nulls=True)
