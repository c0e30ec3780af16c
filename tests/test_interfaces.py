"""What lacks a part of its slot's interface is refused by name, when it is registered or built."""

import pytest
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.measure import METRICS
from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.feedforward import FEEDFORWARDS, SwiGLU
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.mixers.attention import ATTENTIONS, MHA
from llama_ablate.model.norms import NORMS
from llama_ablate.model.positions import POSITIONS
from llama_ablate.training.losses import LOSSES
from llama_ablate.training.optimizers import OPTIMIZERS
from llama_ablate.training.schedules import SCHEDULES

HEAD = "import torch\nfrom torch import nn\n"
MIXER = """
class Theirs(nn.Module):
    rotated = 0
    def __init__(self, dim: int): super().__init__()
    def forward(self, x_BTD, ctx, state=None): return x_BTD
    def new_state(self, batch, capacity, *, dtype, device): ...
    def state_bytes(self, context, dtype): return 0
    def flops(self, context): return 0
"""
FEEDFORWARD = """
class Theirs(nn.Module):
    def __init__(self, dim: int, *, width: int | None = None): super().__init__()
    def forward(self, x_BTD, ctx): return x_BTD
    def flops(self): return 0
"""
NORM = """
class Theirs(nn.Module):
    def __init__(self, dim: int): super().__init__()
    def forward(self, x_BTD): return x_BTD
"""
BLOCK = """
class Theirs(nn.Module):
    def __init__(self, attn, ffn, norm): super().__init__()
    def forward(self, x_BTD, ctx, state): return x_BTD
"""
INIT = """
class Theirs:
    def weight(self, weight, kind, inputs, draw): ...
    def bias(self, bias, inputs, draw): ...
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
FUNCTION = "def Theirs(step): return 0.0"
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


SOUND = [
    (ATTENTIONS, MIXER),
    (FEEDFORWARDS, FEEDFORWARD),
    (NORMS, NORM),
    (BLOCKS, BLOCK),
    (INITS, INIT),
    (LOSSES, LOSS),
    (LOSSES, "def Theirs(logits): return logits.mean()"),
    (OPTIMIZERS, OPTIMIZER),
    (SCHEDULES, FUNCTION),
]


@pytest.mark.parametrize(("registry", "text"), SOUND)
def test_what_has_all_that_its_slot_asks_for_is_let_in(enter, registry, text):
    enter(registry, text)
    assert "theirs" in registry


def line(text, word):
    """Return the line of a text that holds a word."""
    return next(line for line in text.splitlines() if word in line)


@pytest.mark.parametrize(
    ("registry", "text", "was", "wrong", "said"),
    [
        *(
            (ATTENTIONS, MIXER, line(MIXER, f"def {name}("), "    pass", f"it has no '{name}'")
            for name in ("forward", "new_state", "state_bytes", "flops")
        ),
        (
            ATTENTIONS,
            MIXER,
            "x_BTD, ctx, state=None",
            "x",
            f"{CALLED}forward(x_BTD, ctx, state), and it takes (self, x)",
        ),
        (
            ATTENTIONS,
            MIXER,
            ", *, dtype, device",
            "",
            f"{CALLED}new_state(batch, capacity, dtype=..., device=...), and it takes (self, bat",
        ),
        (ATTENTIONS, MIXER, "dim: int", "dimm: int", "supplies no size 'dimm' (an option stands"),
        (FEEDFORWARDS, FEEDFORWARD, "x_BTD, ctx", "x_BTD", f"{CALLED}forward(x_BTD, ctx), and it"),
        (FEEDFORWARDS, FEEDFORWARD, "def flops", "def flop", "it has no 'flops'"),
        (FEEDFORWARDS, FEEDFORWARD, "width", "wide", "it needs the option 'width'"),
        (NORMS, NORM, "def forward", "def normalise", "it has no 'forward'"),
        (NORMS, NORM, "x_BTD)", "x_BTD, dim)", f"{CALLED}forward(x_BTD), and it takes (self, x_"),
        (BLOCKS, BLOCK, "x_BTD, ctx, state", "x_BTD, ctx", f"{CALLED}forward(x_BTD, ctx, state)"),
        (BLOCKS, BLOCK, "attn, ffn", "attention, ffn", "supplies no size 'attention'"),
        (POSITIONS, NORM, "", "", "it has no 'bias', 'embed', 'prepare', 'rotate'"),
        (INITS, INIT, "def bias", "def biases", "it has no 'bias'"),
        (INITS, INIT, "weight, kind, inputs, draw", "weight", f"{CALLED}weight(weight, kind, "),
        (LOSSES, LOSS, "def forward", "def loss", "it has no 'forward'"),
        (LOSSES, LOSS, "model", "modle", "supplies no size 'modle'"),
        (LOSSES, "def Theirs(logit): return logit", "", "", "did you mean 'logits'?"),
        (OPTIMIZERS, OPTIMIZER, "torch.optim.SGD", "torch.nn.Module", "it has no 'step'"),
        (OPTIMIZERS, OPTIMIZER, "(self, weights", "(self, params", "supplies no size 'params'"),
        (SCHEDULES, FUNCTION, "step", "epoch", "supplies no size 'epoch'"),
        (METRICS, "Theirs = 3", "", "", "3 is not a "),
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


def test_a_method_that_is_inherited_is_looked_at_too(enter):
    base = MIXER.replace("Theirs", "Base").replace("ctx, state=None", "ctx")
    with pytest.raises(ConfigError, match=r"calls its forward\(x_BTD, ctx, state\)"):
        enter(ATTENTIONS, f"{base}\nclass Theirs(Base): pass")


class WithoutWidth(SwiGLU):
    """Do not say how wide it is."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        del self.width


class WithoutRotated(MHA):
    """Do not say what is rotated."""

    @property
    def rotated(self):
        raise AttributeError


class WithoutKinds(nn.Module):
    """Be a block that does not say which norms it has."""

    def __init__(self, attn, ffn, norm):
        super().__init__()
        self.attn, self.ffn, self.norm = attn, ffn, norm()

    def forward(self, x_BTD, ctx, state):
        """Return the stream as it is."""
        del ctx, state
        return x_BTD


@pytest.mark.parametrize(
    ("slot", "component", "said"),
    [
        ("feedforward", WithoutWidth, "the feedforward 'theirs' has no 'width'"),
        ("attention", WithoutRotated, "the attention 'theirs' has no 'rotated'"),
        ("block", WithoutKinds, "the block 'theirs' has no 'final_norm', 'norms'"),
    ],
)
def test_an_attribute_that_is_missing_is_named_when_a_model_is_built(
    monkeypatch, spec, slot, component, said
):
    for kind in ("_components", "_schemas"):
        monkeypatch.setattr(REGISTRIES[slot], kind, dict(getattr(REGISTRIES[slot], kind)))
    REGISTRIES[slot].register("theirs")(component)
    with pytest.raises(ConfigError) as caught:
        build(spec(**{slot: "theirs"}))
    lacks, _, hint = caught.value.message.partition("; ")
    assert (lacks, caught.value.where) == (said, (slot,))
    assert f"init component {slot}" in hint


def test_a_rule_of_another_file_fills_what_waits_for_it(enter, spec):
    enter(INITS, INIT.replace("draw): ...", "draw): weight.fill_(2.0)", 1))
    model = init_weights(build(spec(init="theirs")), 0)
    assert set(model.blocks[0].attn.q.weight.flatten().tolist()) == {2.0}
    assert set(model.blocks[0].attn_norm.gain.tolist()) == {1.0}
