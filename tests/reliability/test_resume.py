"""R13: every registered component, stopped at a step and gone on with, equals itself unstopped."""

import random
from itertools import count

import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.training import checkpoint
from llama_ablate.training.loop import train
from llama_ablate.training.optimizers import OPTIMIZERS

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
    corpus = CORPORA.resolve({"name": "files", "path": str(book)})
    text = store.prepare(corpus, TOKENIZERS.resolve("bytes"))
    plugin("multi_token")

    def work(slot, entry, saved, stop_at=None):
        saved.mkdir(exist_ok=True)
        own = {slot: entry}
        changes, recipe = ({}, own) if slot in Train.model_fields else (own, {})
        model = init_weights(build(spec(vocab=256, **changes)), 0)
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
        return model.state_dict(), untimed(done.curve)

    return work


def untimed(curve):
    return [{key: value for key, value in row.items() if key != "train_s"} for row in curve]


def state(saved):
    """Return all that the latest checkpoint holds, but for what a clock has measured."""
    values = checkpoint.load(saved)
    del values["train_s"], values["clock_s"]
    return {**values, "curve": untimed(values["curve"])}


def same(one, two):
    """Return whether nested values are equal, tensors in every bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(bits(one), bits(two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return one == two


def bits(tensor):
    """Return a tensor's bytes: as numbers, 0 and -0 are equal."""
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.timeout(3600)
def test_every_component_goes_on_from_any_step_with_the_same_bits(trained, tmp_path, volume, tally):
    """Weights, optimizer, losses and sums before the last step; weights and curve after it."""
    chance, trials, wrong = random.Random(0), 0, []
    every = range(1, STEPS - 1)
    components = volume(FEW, COMPONENTS, COMPONENTS)
    for i, (slot, entry) in enumerate(components):
        unstopped = tmp_path / f"{i}"
        trained(slot, entry, unstopped, stop_at=STEPS - 1)
        before, after = state(unstopped), trained(slot, entry, tmp_path / "none")
        for step in volume(chance.sample(every, 1), chance.sample(every, 1), every):
            saved = tmp_path / f"{i}-{step}"
            trained(slot, entry, saved, stop_at=step)
            trained(slot, entry, saved, stop_at=STEPS - 1)
            equal = same(state(saved), before), same(trained(slot, entry, saved), after)
            trials += 1
            if not all(equal):
                wrong.append((slot, entry, step, *equal))
    print(wrong)
    tally(
        "R13",
        f"stop and resume, {len(components)} components at {trials // len(components)} "
        "steps each: weights, optimizer, curve",
        trials,
        len(wrong),
    )
