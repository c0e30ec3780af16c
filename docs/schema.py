"""The JSON Schema of an experiment file, by which editors complete keys and mark mistakes.

It is made from the models that check a file, and says no more than they do: what it refuses, they
refuse. What only a registry or several keys together can tell is left to `llama-ablate plan`.
Draft 7 of JSON Schema is what editors of YAML know in full.
"""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from docs import reference_pages
from llama_ablate.commands import components
from llama_ablate.config import schema
from llama_ablate.judge import ledger_page

FILE = Path(schema.__file__).with_name("experiment.schema.json")
JUDGE = FILE.parents[1] / "commands" / "judge.schema.json"
#: Keys whose entries are of another registry than they are called.
_REGISTRIES = {"measure": "metric"}
#: Sections for which one value may stand alone, with its type.
_ALONE = {"Portion": "number", "Data": "string"}
#: A number as people write it: an editor that reads YAML 1.2 takes `300_000` for a text.
_GROUPED = {
    "integer": r"^[-+]?\d+(_\d+)+$",
    "number": r"^[-+]?\d+(_\d+)*(\.\d*)?([eE][-+]?\d+)?$",
}


def text() -> str:
    """Return what the file holds."""
    about, models = (
        reference_pages.keys(),
        {m.__name__: m for m in reference_pages.SECTIONS.values()},
    )
    names: dict[str, list[str]] = {}
    for row in components.listing():
        names.setdefault(row["slot"], []).append(row["name"])
    whole = schema.Experiment.model_json_schema()
    sections = {schema.Experiment.__name__: whole, **whole["$defs"]}
    for section, found in sections.items():
        single = _single(models[section])
        for key, field in found["properties"].items():
            taken = _written(field, names.get(_REGISTRIES.get(key, key), []))
            if key in single:
                taken = {"anyOf": [taken["items"], taken]}
            plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", about[section][key])
            if not isinstance(field.get("default", {}), dict | list):
                taken["default"] = field["default"]
            found["properties"][key] = {**taken, "description": plain}
    assert whole["required"] == ["name"]  # which is the file's own unless given
    kept = {name: _bare(found) for name, found in sections.items() if found is not whole}
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of llama_ablate",
        **{key: value for key, value in _bare(whole).items() if key not in ("$defs", "required")},
        "definitions": kept,
    }
    return (
        json.dumps(made, indent=1, ensure_ascii=False).replace("#/$defs/", "#/definitions/") + "\n"
    )


def of_judge() -> str:
    """Return the JSON Schema of what `judge --json` prints; a number that JSON lacks is null."""
    made = TypeAdapter(ledger_page.LedgerState).json_schema()
    return json.dumps({"title": "A ledger of llama_ablate", **made}, indent=1) + "\n"


def _bare(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in ("title", "description")}


def _single(model: Any) -> set[str]:
    """Return the keys of a model where one value stands for a list of one.

    A list that a validator sees before its type is checked is one of those, but for a pair.
    """
    before = {
        name
        for validator in model.__pydantic_decorators__.field_validators.values()
        if validator.info.mode == "before"
        for name in validator.info.fields
    }
    fields = model.model_json_schema()["properties"]
    return {name for name in before if "items" in fields[name]}


def _written(field: Any, names: list[str]) -> Any:
    """Return a part of a schema for what people write and editors know."""
    if isinstance(field, list):
        return [_written(one, names) for one in field]
    if not isinstance(field, dict):
        return field
    if "$ref" in field:  # beside which draft 7 reads nothing
        alone = _ALONE.get(field["$ref"].rpartition("/")[2])
        own = {"$ref": field["$ref"]}
        return {"anyOf": [own, {"type": alone}]} if alone else {"allOf": [own]}
    made = {k: _written(v, names) for k, v in field.items() if k not in ("title", "default")}
    if "prefixItems" in made:
        made["items"] = made.pop("prefixItems")
    if made.get("type") == "string" and names and "enum" not in made:
        made["examples"] = names
    if pattern := _GROUPED.get(made.get("type", "")):
        return {"anyOf": [made, {"type": "string", "pattern": pattern}]}
    return made
