"""Llama 3's chat template: a dialogue as tokens.

begin_of_text, then for each message a header (start_header_id, the role, end_header_id, two line
feeds), the text without white space around it, and eot_id; last the header of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.errors import ConfigError

_BEGIN, _START, _END, _EOT = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


@dataclass(frozen=True)
class Message:
    """Message of a dialogue."""

    role: Literal["system", "user", "assistant"]
    content: str


def encode(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """Return a dialogue as tokens, ready for the assistant's answer.

    In a message, the name of a special token is encoded as text.

    Raises ConfigError for a tokenizer that lacks the template's special tokens.
    """
    special = tokenizer.special
    if missing := [token for token in (_BEGIN, _START, _END, _EOT) if token not in special]:
        raise ConfigError(
            f"--chat needs Llama 3's special tokens; the tokenizer lacks {missing[0]}"
        )

    def plain(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).tolist()
        return ids

    def header(role: str) -> list[int]:
        return [special[_START], *plain(role), special[_END], *plain("\n\n")]

    ids = [special[_BEGIN]]
    for message in messages:
        ids += [*header(message.role), *plain(message.content.strip()), special[_EOT]]
    return ids + header("assistant")
