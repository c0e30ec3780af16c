"""What every command gives back."""

from dataclasses import dataclass
from typing import Any

from llama_ablate.files.strict_json import to_json


@dataclass(frozen=True)
class Answer:
    """What a command says: text for people, plain values for machines, and its exit code."""

    text: str
    values: Any
    code: int = 0

    @property
    def json(self) -> str:
        """The values as one strict JSON document; a number that JSON lacks is null."""
        return to_json(self.values, nulls=True)
