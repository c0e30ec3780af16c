"""JSON Schema of experiment files, with which editors complete keys and mark mistakes.

It is made from the pydantic models that check a file, and is not stricter than these models. Checks
that need a registry, or several keys together, are left to `llama-ablate plan`. It is written in
draft 7 of JSON Schema, which YAML editors support completely.
"""

import json
import re
from pathlib import Path
from typing import Any

from docs import reference_pages
from llama_ablate.commands import components
from llama_ablate.config import schema

FILE = Path(schema.__file__).with_name("experiment.schema.json")
#: Registries of keys whose name differs from that of their registry.
_REGISTRIES = {"measure": "metric"}
#: Sections that a single value may replace, with the JSON type of this value.
_ALONE = {"Portion": "number", "Data": "string"}
#: Patterns of numbers with underscores: an editor that reads YAML 1.2 takes `300_000` for a string.
_GROUPED = {
    "integer": r"^[-+]?\d+(_\d+)+$",
    "number": r"^[-+]?\d+(_\d+)*(\.\d*)?([eE][-+]?\d+)?$",
}


def text() -> str:
    """Return the text of the schema file for experiment files."""
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
    assert whole["required"] == ["name"]  # by default the file's own name, so not required
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


def _bare(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in ("title", "description")}


def _single(model: Any) -> set[str]:
    """Return a model's keys that accept a single value in place of a list.

    These are the keys with a list type and a validator of mode `before`, except for pairs.
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
    """Convert a part of a pydantic schema to JSON Schema draft 7.

    Numbers may be written with underscores. `names` are the registered names that editors suggest
    for strings.
    """
    if isinstance(field, list):
        return [_written(one, names) for one in field]
    if not isinstance(field, dict):
        return field
    if "$ref" in field:  # draft 7 ignores the siblings of $ref
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
