"""Each law of optimizers holds for all that are built in, and each catches a fault."""

import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.training import optimizer_laws
from llama_ablate.training.optimizers import OPTIMIZERS, Lion, groups, moments

from .test_optimizers import ENTRIES


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_every_optimizer_obeys_the_laws_with_every_option(entry):
    optimizer_laws.check(OPTIMIZERS.resolve(entry))


def test_every_option_is_under_the_laws():
    entries = [entry for entry in ENTRIES if isinstance(entry, dict)]
    for name in OPTIMIZERS:
        tried = {key for entry in entries if entry["name"] == name for key in entry}
        options = {option.name for option in OPTIMIZERS.options(name)}
        assert options <= tried, f"add {options - tried} of '{name}' to ENTRIES"


class Unscheduled(Lion):
    """Does not read the rate that the schedule sets."""

    def step(self):
        for group in self.param_groups:
            group["lr"] = 1e-2
        super().step()


class Forgetful(Lion):
    """Keeps something that is no part of its state."""

    steps = 0

    def step(self):
        self.steps += 1
        for group in self.param_groups:
            group["lr"] /= self.steps
        super().step()


def lion(weights, kind=Lion, kept=1):
    return kind(groups(weights, 0.1, state=moments(kept)), 1e-2, 0.9, 0.99)


def one_weight_rests(weights):
    """Give gains a scale of zero."""
    decaying, others = groups(weights, 0.1, state=moments(0))
    return torch.optim.SGD([decaying, {**others, "scale": 0.0}], 1e-2)


def plain_groups(weights):
    """Group weights without a word on scale and shapes."""
    return Lion([{"params": [weight.parameter for weight in weights]}], 1e-2, 0.9, 0.99)


def with_a_function(weights):
    """Keep a function in a group: torch would refuse the checkpoint, and not say why."""
    of_all = groups(weights, 0.1, state=moments(1))
    return Lion([{**group, "rule": len} for group in of_all], 1e-2, 0.9, 0.99)


FAULTS = {
    "whose 'rule' is no plain data": with_a_function,
    "does not have every weight": lambda weights: lion(weights[1:]),
    "has a group without 'scale'": plain_groups,
    "leaves blocks.0.norm.weight as it is": one_weight_rests,
    "moves weights at a learning rate of zero": lambda weights: lion(weights, Unscheduled),
    "bytes of state, and keeps": lambda weights: lion(weights, kept=2),
    "goes on from a checkpoint to other numbers": lambda weights: lion(weights, Forgetful),
    "cannot be made: IndexError: list index out of range": lambda weights: weights[9],
    "has no 'load_state_dict', 'param_groups', 'state_dict'": repr,
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_caught_by_its_law(words):
    def faulty(weights):
        return FAULTS[words](weights)

    OPTIMIZERS.register("faulty")(faulty)
    with pytest.raises(ConfigError) as error:
        optimizer_laws.check(OPTIMIZERS.resolve("faulty"))
    assert str(error.value).startswith("the optimizer 'faulty' ")
    assert words in str(error.value)
