"""What lacks a part of its slot's interface is refused by name, when it is registered or built."""

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.positions import POSITIONS
from llama_ablate.training.losses import LOSSES
from llama_ablate.training.optimizers import OPTIMIZERS

HEAD = "import torch\nfrom torch import nn\n"
MIXER = """
class Theirs(nn.Module):
    rotated = 0
    def __init__(self, dim: int): super().__init__()
    def forward(self, x_BTD, ctx, state=None): return x_BTD
    def new_state(self, batch, capacity, *, dtype, device): ...
    def flops(self, context): return 0
"""
LOSS = """
class Theirs(nn.Module):
    def __init__(self, model): super().__init__()
    def forward(self, logits, targets): return logits.mean()
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
        (LOSSES, LOSS, "model", "modle", "supplies no size 'modle'"),
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
