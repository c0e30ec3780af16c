import pytest

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.errors import ConfigError
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.positions import POSITIONS
from llama_ablate.training.optimizers import OPTIMIZERS


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


MEANT = "'aple' is not a fruit; allowed: apple, pear; did you mean 'apple'?"


@pytest.mark.parametrize(
    ("entry", "where", "message"),
    [
        ("aple", (), MEANT),
        (
            *({"name": "apple", "sweet": 1}, ("sweet",)),
            "1 (int) is not accepted: it should be true or false",
        ),
        (
            *({"name": "apple", "weight": float("nan")}, ("weight",)),
            "nan (float) is not accepted: it should be a finite number",
        ),
    ],
)
def test_wrong_entries_say_what_was_given_and_what_is_allowed(fruits, entry, where, message):
    with pytest.raises(ConfigError) as caught:
        fruits.resolve(entry)
    assert (caught.value.message, caught.value.where) == (message, where)


HEAD = "import torch\nfrom torch import nn\n"
MIXER = """
class Theirs(nn.Module):
    rotated = 0
    def __init__(self, dim: int): super().__init__()
    def forward(self, x_BTD, ctx, state=None): return x_BTD
    def new_state(self, batch, capacity, *, dtype, device): ...
    def flops(self, context): return 0
"""
OPTIMIZER = """
class Theirs(torch.optim.SGD):
    def __init__(self, weights, lr): super().__init__([w.parameter for w in weights], lr)
"""
POSITION = """
from llama_ablate.model.positions import Position
class Theirs(Position):
    def bias(self, pos_T, pos_S): return None
"""
CALLED = "the model calls its "


@pytest.fixture
def enter(monkeypatch):
    """Register what a text defines as `Theirs`."""

    def entered(registry, text):
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
        names = {}
        exec(HEAD + text, names)  # noqa: S102  a component for each case
        registry.register("theirs")(names["Theirs"])

    return entered


@pytest.mark.parametrize(
    ("registry", "text", "was", "wrong", "said"),
    [
        (ATTENTIONS, MIXER, "def new_state", "def bytes", "it has no 'new_state'"),
        (
            ATTENTIONS,
            MIXER,
            "x_BTD, ctx, state=None",
            "x",
            f"{CALLED}forward(x_BTD, ctx, state), and it takes (self, x)",
        ),
        (OPTIMIZERS, OPTIMIZER, "torch.optim.SGD", "torch.nn.Module", "it has no 'step'"),
        (
            POSITIONS,
            POSITION,
            "def bias",
            "def forward",
            "it overrides none of embed, rotate, rotate_values, bias",
        ),
    ],
)
def test_what_lacks_a_part_is_refused_by_name_when_it_is_registered(
    enter, registry, text, was, wrong, said
):
    assert was in text
    with pytest.raises(ConfigError) as caught:
        enter(registry, text.replace(was, wrong))
    message = caught.value.message
    assert message.startswith(f"the {registry.slot} 'theirs' cannot be registered: ")
    assert said in message
    assert "\n" not in message
    assert "theirs" not in registry
