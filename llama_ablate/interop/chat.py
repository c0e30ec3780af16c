"""Llama 3's chat template: a dialogue as the tokens that its models were trained on.

begin_of_text, then for each message a header (start_header_id, the role, end_header_id, two line
feeds), the text without white space around it, and eot_id; last the header of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llama_ablate.data.tokenizers import Tokenizer
from llama_ablate.errors import ConfigError

_BEGIN, _START, _END, _EOT = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


@dataclass(frozen=True)
class Message:
    """What one side says."""

    role: Literal["system", "user", "assistant"]
    content: str


def render(messages: Sequence[Message]) -> str:
    """Return a dialogue as text, ready for the assistant's answer.

    >>> render([Message("user", "Hi")])[:49]
    '<|begin_of_text|><|start_header_id|>user<|end_hea'
    """
    return "".join(text for text, _ in _parts(messages))


def encode(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """Return a dialogue as tokens. What people wrote is never taken for a special token.

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
