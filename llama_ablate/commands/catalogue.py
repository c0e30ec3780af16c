"""Every registry that YAML can name an entry of, as a table: for the command and the README."""

import textwrap
from typing import Any

from llama_ablate.config.registry import Registry
from llama_ablate.data.corpora import CORPORA
from llama_ablate.data.tokenizers import TOKENIZERS
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.measure import METRICS
from llama_ablate.model.decoder import REGISTRIES

ALL: dict[str, Registry] = {
    **REGISTRIES,
    "corpus": CORPORA,
    "tokenizer": TOKENIZERS,
    "metric": METRICS,
}


def listing(slot: str | None = None) -> list[dict[str, Any]]:
    """Return `{slot, name, options, summary}` for each component, of one slot or of all.

    Raises ConfigError for a slot that does not exist.
    """
    if slot is not None and slot not in ALL:
        raise ConfigError(f"'{slot}' is not a slot{nearest(slot, ALL)}")
    return [
        {
            "slot": kind,
            "name": name,
            "options": {
                o.name: {"type": o.kind, "default": o.default} for o in registry.options(name)
            },
            "summary": registry.summary(name),
        }
        for kind, registry in ALL.items()
        if slot in (None, kind)
        for name in registry
    ]


def text(rows: list[dict[str, Any]]) -> str:
    """Return the listing for a terminal."""
    lines = []
    for slot in dict.fromkeys(row["slot"] for row in rows):
        lines.append(f"{slot}:")
        for row in (row for row in rows if row["slot"] == slot):
            lines.append(
                f"  {row['name']:14s} "
                + textwrap.fill(
                    row["summary"], 100, subsequent_indent=" " * 17, initial_indent=" " * 17
                ).strip()
            )
            lines += [
                f"{'':17s}{o}: {w['type']} = {_written(w['default'])}"
                for o, w in row["options"].items()
            ]
    return "\n".join(lines)


def markdown() -> str:
    """Return the table of the README: the five slots of the model."""
    lines = ["| slot | component | options | what it is, and its source |", "|---|---|---|---|"]
    for row in listing():
        if row["slot"] in REGISTRIES:
            options = ", ".join(
                f"`{o}` = {_written(w['default'])}" for o, w in row["options"].items()
            )
            lines.append(f"| {row['slot']} | `{row['name']}` | {options} | {row['summary']} |")
    return "\n".join(lines) + "\n"


def _written(default: object) -> str:
    """Write a default as YAML would."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return f"{default:g}" if isinstance(default, float) else str(default)
