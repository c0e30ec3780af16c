"""The JSON Schema for editors: it accepts every file that is right, and refuses mistakes."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from docs import reference_pages
from docs import schema as made
from llama_ablate.config import marked_yaml
from llama_ablate.errors import ConfigError

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("experiments/**/*.yaml"))
RESULTS = ROOT / "results" / "reference"
#: Packs whose file, as it was run, states what is gone: `compile: auto`, or of a hypothesis
#: `minus`, `value`, or a margin in percent.
OLD = {
    RESULTS / name / "experiment.yaml"
    for name in (
        "prose",
        "documents-small",
        "dropout-small",
        "atlas/norm-or-regulariser",
        "atlas/larger/norm-or-regulariser",
        "claims/e07-ffn-activation",
        "claims/e12-positions",
        "claims/e17-gate-and-distance",
    )
}
PACKED = sorted({*RESULTS.glob("**/experiment.yaml")} - OLD)
SCHEMA = json.loads(made.FILE.read_text("utf-8"))
#: What a section needs beside a key that is tried.
LEAST = {
    "Experiment": {"name": "x", "train": {"steps": 1}},
    "Guard": {"metric": "cloze", "worse_by": "5%"},
    "Hypothesis": {"variant": "a", "direction": "better"},
    "Looks": {"looks": [3, 6]},
    "Size": {"dim": 8},
    "Sizes": {"models": [{"dim": 8}, {"dim": 16}]},
    "Terms": {"second": {}},
    "Train": {"steps": 1},
}
TRIED = (True, -1, 0, 1, 3, 0.5, 2.5, 1e40, "", "words", "none", "0.01 nats", None)
TRIED += ([], [1, 2], ["words"], [[]], [0.9, 0.95, 0.5], {}, {"words": 1}, {"name": "words"})
MODELS = {model.__name__: model for model in reference_pages.SECTIONS.values()}


def section(name):
    """Return the validator of a section."""
    own = SCHEMA if name == "Experiment" else SCHEMA["definitions"][name]
    return jsonschema.Draft7Validator({**own, "definitions": SCHEMA["definitions"]})


def accepted(values, name="Experiment"):
    return section(name).is_valid(values)


def as_an_editor_reads(text):
    """Read YAML by the core schema of version 1.2, in which `300_000` is a text."""

    def value(node):
        if isinstance(node, dict):
            return {key: value(own) for key, own in node.items()}
        if isinstance(node, list):
            return [*map(value, node)]
        is_number = re.fullmatch(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", node)
        return json.loads(node.lower()) if is_number or node in ("true", "false", "null") else node

    return value(yaml.load(text, yaml.BaseLoader))  # noqa: S506  texts alone


def test_the_schema_is_fresh_and_one_of_draft_7():
    assert made.FILE.read_text("utf-8") == made.text(), "run make docs"
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == jsonschema.Draft7Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("file", FILES + PACKED, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_experiment_is_accepted_as_we_read_it_and_as_an_editor_does(file):
    text = file.read_text("utf-8")
    for values in (marked_yaml.parse(text, file.name).values, as_an_editor_reads(text)):
        assert not [error.message for error in section("Experiment").iter_errors(values)]


@pytest.mark.parametrize("name", MODELS)
def test_what_the_schema_refuses_is_refused_by_the_program_and_no_key_takes_everything(name):
    model, least = MODELS[name], LEAST.get(name, {})
    assert accepted(least, name)
    for key in model.model_fields:
        refused = [value for value in TRIED if not accepted({**least, key: value}, name)]
        assert len(refused) > 3, key
        for value in refused:
            with pytest.raises(ConfigError):
                model.check({**least, key: value})
        misspelt = {**least, f"{key}_": LEAST.get(key, 1)}
        assert not accepted(misspelt, name)
        with pytest.raises(ConfigError):
            model.check(misspelt)
