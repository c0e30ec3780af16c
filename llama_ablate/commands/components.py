"""The command `components`: registered components, their options and sources."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_ablate import terminal
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument
from llama_ablate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from llama_ablate.config.registry import Registry

HELP = "list the components and what YAML may set on them"
EXAMPLE = "components position"
_INDENT = " " * 17
_WIDEST = 100  # most columns of a line, for legibility


@dataclass(frozen=True, kw_only=True)
class ComponentsOptions(Options):
    """Options of `components`: the component slot to list, or none for all slots."""

    slot: str | None = argument(
        "SLOT",
        "norm, position, attention, feedforward, block, init, parametrization, optimizer, "
        "schedule, losses, corpus, tokenizer or metric",
        None,
        "?",
    )


def run(options: ComponentsOptions) -> Answer:
    """List registered components with their options and sources."""
    rows = listing(options.slot)
    return Answer(text(rows, min(_WIDEST, terminal.width() or _WIDEST)), rows)


def listing(slot: str | None = None) -> list[dict[str, Any]]:
    """Return a dict `{slot, name, options, summary}` for each registered component.

    `slot` restricts the list to the components of one slot, such as `norm`. Raises ConfigError for
    an unknown slot.
    """
    registries = _registries()
    if slot is not None and slot not in registries:
        raise ConfigError(f"'{slot}' is not a slot{nearest(slot, registries)}")
    return [
        {
            "slot": kind,
            "name": name,
            "options": {
                o.name: {"type": o.kind, "default": o.default, "about": o.about}
                for o in registry.options(name)
            },
            "summary": registry.summary(name),
        }
        for kind, registry in registries.items()
        if slot in (None, kind)
        for name in registry
    ]


def text(rows: list[dict[str, Any]], width: int) -> str:
    """Format the listing of components for a terminal with `width` columns."""

    def wrapped(line: str, first: str, more: str) -> str:
        return textwrap.fill(line, width, initial_indent=first, subsequent_indent=more)

    lines = []
    for slot in dict.fromkeys(row["slot"] for row in rows):
        lines.append(f"{slot}:")
        for row in (row for row in rows if row["slot"] == slot):
            about = row["summary"] or "(no docstring)"
            lines.append(wrapped(about, f"  {row['name']:14s} ", _INDENT))
            for name, option in row["options"].items():
                words = f"{name}: {option['type']} = {format_default(option['default'])}"
                words += f" - {option['about']}" * bool(option["about"])
                lines.append(wrapped(words, _INDENT, f"{_INDENT}  "))
    return "\n".join(lines)


def _registries() -> "dict[str, Registry]":
    from llama_ablate.data.corpus import CORPORA
    from llama_ablate.data.tokenizer import TOKENIZERS
    from llama_ablate.measure import METRICS
    from llama_ablate.model.components import REGISTRIES
    from llama_ablate.training.registries import REGISTRIES as TRAINING

    data = {"corpus": CORPORA, "tokenizer": TOKENIZERS}
    return {**REGISTRIES, **TRAINING, **data, "metric": METRICS}


def format_default(default: object) -> str:
    """Return an option's default in YAML syntax."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return f"{default:g}" if isinstance(default, float) else str(default)
