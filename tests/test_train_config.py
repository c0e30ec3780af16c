"""What may vary of a train config: its entries, their labels, and the runs that they make."""

import pytest

from llama_ablate.config.experiment import Experiment
from llama_ablate.design import variants as resolving
from llama_ablate.design.variants import variants_of
from tests.plans import table_of

SIZES = {"dim": 32, "layers": 1, "heads": 4, "context": 16}


def planned(train=None, tune=None, **variants):
    """Return the variants of an experiment and its runs."""
    sections = {"train": {"steps": 1, **(train or {})}, "tune": tune or {}, "variants": variants}
    common = {"name": "x", "model": SIZES, "controls": {"aa": []}, "seeds": 1}
    experiment = Experiment.check({**common, **sections})
    resolved = resolving.resolve_train(experiment.train)
    experiment = experiment.model_copy(update={"train": resolved})
    arms = variants_of(experiment, 64)
    return arms, table_of(experiment, arms).runs


def run_ids(*args, **kwargs):
    return [run.id for run in planned(*args, **kwargs)[1]]


MUON = {"name": "muon", "momentum": 0.9}
LION = {"name": "lion", "beta2": 0.98}
TWO = ["z_loss", {"name": "multi_token", "weight": 0.1}]


@pytest.mark.parametrize(
    ("key", "levels", "labels"),
    [
        (
            *("optimizer", ["adamw", "muon", MUON, LION]),
            ["adamw", "muon", "muon-momentum=0.9", "lion-beta2=0.98"],
        ),
        (
            *("losses", [[], ["z_loss"], TWO]),
            ["losses=none", "losses=z_loss", "losses=z_loss+multi_token-weight=0.1"],
        ),
    ],
)
def test_levels_are_named_by_what_is_special_about_them(plugin, key, levels, labels):
    plugin("multi_token")
    arms, _ = planned(axes={f"train.{key}": levels})
    assert [arm.label for arm in arms] == ["baseline", *labels[1:]]
    assert arms[0].covers == [labels[0]]
    assert [dict(arm.train) for arm in arms] == [{}, *({key: level} for level in levels[1:])]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"optimizer": "muon"}, {"optimizer": {"name": "muon", "momentum": 0.95}}),
        ({}, {"optimizer": {"name": "adamw"}, "schedule": {"name": "cosine"}}),
        ({"losses": ["z_loss"]}, {"losses": {"name": "z_loss", "weight": 1e-4}}),
    ],
)
def test_an_entry_with_an_option_at_its_default_is_the_same_run(short, long):
    assert run_ids(short) == run_ids(long)
    assert run_ids(short) != run_ids({"optimizer": "lion"})
