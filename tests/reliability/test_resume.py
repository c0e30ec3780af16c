"""R13: every registered component, stopped at a step and gone on with, equals itself unstopped."""

import random
from itertools import count

import pytest

from llama_ablate.config.experiment import Train
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import new_model
from llama_ablate.training import checkpoint
from llama_ablate.training.loop import train
from llama_ablate.training.optimizers import OPTIMIZERS
from tests.texts import prepared

from .harness import COMPUTE

STEPS = 12
#: With all that a checkpoint may hold: a clipped gradient, and warmup.
RECIPE = Train.check({"steps": STEPS, "batch": 2, "lr": 3e-3, "warmup": 0.2, "evals": 2})
COMPONENTS = [(slot, name) for slot, registry in REGISTRIES.items() for name in registry]
COMPONENTS += [("dropout", 0.3), ("feedforward", {"name": "moe", "balance": "bias"})]
COMPONENTS += [("losses", ["z_loss", "multi_token"])]
#: Those with a state of their own, beside weights and the moments of AdamW.
FEW = [("dropout", 0.3), ("feedforward", {"name": "moe", "balance": "bias"}), ("optimizer", "muon")]
COMPONENTS += [("optimizer", name) for name in OPTIMIZERS]


@pytest.fixture
def trained(book, spec, plugin):
    """Train a model with one component changed, or go on with it; return it and its curve."""
    text = prepared(book)
    plugin("multi_token")

    def work(slot, entry, saved, stop_at=None):
        saved.mkdir(exist_ok=True)
        own = {slot: entry}
        changes, recipe = ({}, own) if slot in Train.model_fields else (own, {})
        model = new_model(spec(vocab=256, **changes), 0)
        asked = count(checkpoint.latest(saved))
        done = train(
            model,
            text,
            RECIPE.with_changes(recipe),
            steps=STEPS,
            seed=0,
            compute=COMPUTE,
            saved=saved,
            stop=lambda: next(asked) == stop_at,
        )
        assert (done.outcome, done.steps_done) == (
            ("ok", STEPS) if stop_at is None else ("cancelled", stop_at)
        )
        curve = [{**row, "train_s": None} for row in done.curve]
        return bits(model.state_dict()), curve

    return work


def bits(state):
    """Return the bytes of all weights: as numbers, 0 and -0 are equal."""
    return {name: weight.numpy().tobytes() for name, weight in state.items()}


@pytest.mark.timeout(3600)
def test_every_component_goes_on_from_any_step_with_the_same_bits(trained, tmp_path, volume, tally):
    """Twice stopped: what the optimizer and the sums of the curve hold moves on between."""
    chance, wrong = random.Random(0), []
    components, steps = volume(FEW, COMPONENTS, COMPONENTS), volume(1, 1, STEPS - 2)
    for i, (slot, entry) in enumerate(components):
        unstopped = trained(slot, entry, tmp_path / f"{i}")
        for step in chance.sample(range(1, STEPS - 1), steps):
            saved = tmp_path / f"{i}-{step}"
            trained(slot, entry, saved, stop_at=step)
            trained(slot, entry, saved, stop_at=STEPS - 1)
            if trained(slot, entry, saved) != unstopped:
                wrong.append((slot, entry, step))
    print(wrong)
    what = f"stop and resume, {len(components)} components at {steps} steps each: weights, curve"
    tally("R13", what, len(components) * steps, len(wrong))
