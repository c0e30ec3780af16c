import pytest
from torch import nn

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.errors import ConfigError
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.positions import POSITIONS, Position
from llama_ablate.training.optimizers import OPTIMIZERS
from tests.in_process import own_registries


@pytest.fixture
def fruits():
    registry = Registry("fruit")

    @registry.register("apple")
    def apple(size, *, sweet: bool = True, weight: float = 1.5, kinds: int | None = None):
        """Grow on trees (Newton 1687).

        More words that are no part of the summary.
        """
        return ("apple", size, sweet, weight, kinds)

    @registry.register("pear")
    def pear():
        return "pear"

    return registry


def test_a_bare_name_resolves_with_every_default_filled_in(fruits):
    choice = fruits.resolve("apple")
    assert choice == Choice("apple", (("sweet", True), ("weight", 1.5), ("kinds", None)))
    assert fruits.resolve({"name": "apple"}) == choice
    for entry in ("pear", {"name": "apple", "kinds": 4}):  # written out, it is the same choice
        assert fruits.resolve(fruits.resolve(entry).entry()) == fruits.resolve(entry)


def test_options_replace_defaults_and_build_takes_only_the_sizes_it_names(fruits):
    choice = fruits.resolve({"name": "apple", "weight": 2, "sweet": False})
    assert fruits.build(choice, size=3, colour="red") == ("apple", 3, False, 2.0, None)
    assert fruits.build(fruits.resolve("pear"), size=3) == "pear"


@pytest.mark.parametrize("option", [{"sweet": 1}, {"weight": float("nan")}], ids=str)
def test_an_option_of_another_type_or_no_number_is_refused_at_its_key(fruits, option):
    with pytest.raises(ConfigError) as caught:
        fruits.resolve({"name": "apple", **option})
    assert caught.value.where == (*option,)


class Mixer(nn.Module):
    """A mixer without a state."""

    rotated = 0

    def forward(self, x_BTD, ctx, state=None):
        """Return the input."""

    def flops(self, context):
        """Count nothing."""


class Scheduler:
    """An optimizer that makes no step."""

    def __init__(self, weights, lr):
        """Keep nothing."""


@pytest.mark.parametrize(
    ("registry", "component", "said"),
    [
        (ATTENTIONS, Mixer, "it has no 'new_state'"),
        (OPTIMIZERS, Scheduler, "it has no .*'step'"),
        (POSITIONS, type("Still", (Position,), {}), "it overrides none of embed"),
    ],
)
def test_what_lacks_a_part_is_refused_by_name_when_it_is_registered(registry, component, said):
    with own_registries():
        with pytest.raises(ConfigError, match=f"'theirs' cannot be registered: {said}"):
            registry.register("theirs")(component)
        assert "theirs" not in registry
