"""Llama 3's chat template: a dialogue as tokens.

begin_of_text, then for each message a header (start_header_id, the role, end_header_id, two line
feeds), the text without white space around it, and eot_id; last the header of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llama_ablate.data.tokenizers.tokenizer import Tokenizer
from llama_ablate.errors import ConfigError

_BEGIN, _START, _END, _EOT = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


@dataclass(frozen=True)
class Message:
    """One message of a dialogue."""

    role: Literal["system", "user", "assistant"]
    content: str


def encode(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """Return a dialogue as tokens, ready for the assistant's answer.

    A special token's name in a message is text.

    Raises ConfigError for a tokenizer that lacks the template's special tokens.
    """
    if missing := [t for t in (_BEGIN, _START, _END, _EOT) if t not in tokenizer.special]:
        raise ConfigError(
            f"--chat needs Llama 3's special tokens; the tokenizer lacks {missing[0]}"
        )
    ids: list[int] = []
    for text, special in _parts(messages):
        ids += [tokenizer.special[text]] if special else tokenizer.encode(text).tolist()
    return ids


def _parts(messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """Return the dialogue piece by piece, each with whether it is a special token."""
    parts = [(_BEGIN, True)]
    for message in messages:
        parts += [*_header(message.role), (message.content.strip(), False), (_EOT, True)]
    return [*parts, *_header("assistant")]


def _header(role: str) -> list[tuple[str, bool]]:
    return [(_START, True), (role, False), (_END, True), ("\n\n", False)]
