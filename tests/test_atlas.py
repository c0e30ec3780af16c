"""The atlas: what its experiments state beforehand, and that its sentences keep to the packs."""

import math
from pathlib import Path

import pytest
import yaml

from docs import atlas
from llama_ablate.config import experiment as experiments

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments" / "atlas").rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_experiment_of_the_atlas_states_beforehand_how_it_is_judged(file):
    stated = experiments.load(file).experiment
    assert stated.margin
    assert stated.controls.aa
    assert stated.controls.positive
    assert stated.train.precision != "auto"
    assert stated.hypotheses
    effect = math.prod(map(len, stated.variants.axes.values())) // 2  # cells on a side of it
    pairs = effect if stated.variants.design == "product" else 1
    assert len(stated.seed_list) * pairs >= 4


def test_a_sentence_whose_row_says_something_else_is_an_error():
    row = {"name": "mask", "label": "mask", "table": "evaluated mask", "is": "worse"}
    with pytest.raises(ValueError, match=r"atlas.yaml: 'mask' is inconclusive, not worse"):
        atlas.read_row(row, "atlas/documents-higher-rates")


@pytest.mark.parametrize("one", yaml.safe_load((ROOT / "docs" / "atlas.yaml").read_text("utf-8")))
def test_a_question_names_both_sides_and_its_own_file(one):
    assert len(one["says"]) >= 2
    (file,) = [word for word in one["command"].split() if word.endswith(".yaml")]
    assert (ROOT / file).is_file()
