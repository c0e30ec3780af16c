"""Parametrizations against the tables of their papers, and against what models do."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from llama_ablate.config.experiment import Train
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.parametrization import PARAMETRIZATIONS, Parametrization
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import LOSSES, Objective
from llama_ablate.training.optimizers import OPTIMIZERS, list_weights, make_optimizer
from tests.model.parameters import kinds

MATRICES = ("hidden", "out")
KINDS = ("embedding", *MATRICES, "head", "vector", "last")
TOKENS = torch.randint(0, 61, (4, 25), generator=torch.Generator().manual_seed(0))
COMPUTE = Compute("cpu", 1, "float32", "math")


@pytest.fixture(autouse=True)
def _plugins(plugin):
    """Load two parametrizations, a loss and an optimizer."""
    for name in ("completep", "multi_token", "rate_transfer", "sgd"):
        plugin(name)


def chosen(entry, **sizes):
    choice = PARAMETRIZATIONS.resolve(entry)
    return PARAMETRIZATIONS.build(choice, **{"dim": 64, "layers": 2, "head_dim": 16} | sizes)


def trained(spec, optimizer="adamw", steps=3):
    model = new_model(spec, 0)
    train = Train.check({"steps": 3, "lr": 1e-2, "weight_decay": 0.1, "optimizer": optimizer})
    stepped = make_optimizer(model, train)
    for step in range(steps):
        update(Objective(model), stepped, [TOKENS.roll(step, 1)], train, COMPUTE)
    return model


def test_every_factor_of_the_standard_parametrization_is_one():
    standard = chosen("standard", dim=512, layers=24, head_dim=128)
    assert standard == Parametrization()
    assert (standard.logits, standard.residual, standard.scores) == (1, 1, 1)
    for kind in KINDS:
        assert standard.start(kind) == 1
        for update_ in ("adaptive", "gradient", "spectral", "rms"):
            assert standard.scale(kind, update_) == (1, 1, 1)


#: Of a model four times as wide and three times as deep as the base: initial variance, Adam's rate
#: and SGD's rate of mup (Yang et al. 2022, Table 8); rate, weight decay and epsilon of completep
#: (Dey et al. 2025, Table 1, alpha = 1).
ROWS = {
    "embedding": ((1, 1, 4), (1, 1, 1 / 4)),
    "hidden": ((1 / 4, 1 / 4, 1), (1 / 4, 4, 1 / 12)),
    "out": ((1 / 4, 1 / 4, 1), (1 / 4, 4, 1 / 12)),
    "head": ((1, 1, 4), (1, 1, 1 / 4)),
    "vector": ((1, 1, 4), (1, 1, 1 / 12)),
    "last": ((1, 1, 4), (1, 1, 1 / 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_mup_and_completep_have_the_rows_of_their_tables(kind):
    (variance, adam, sgd), scales = ROWS[kind]
    mup = chosen({"name": "mup", "base_dim": 16})
    complete = chosen({"name": "completep", "base_dim": 16, "base_layers": 2}, layers=6)
    assert mup.start(kind) ** 2 == complete.start(kind) ** 2 == variance
    assert mup.scale(kind, "adaptive") == (adam, 1, 1)
    assert mup.scale(kind, "gradient").rate == sgd
    assert complete.scale(kind, "adaptive") == pytest.approx(scales)
    assert (mup.logits, mup.residual) == (1 / 4, 1)
    assert (complete.logits, complete.residual) == (1 / 4, 1 / 3)


def test_scores_are_divided_by_the_head_width_and_not_by_its_root():
    """At the base's head width the scale is 1/sqrt(E); at four times it, a quarter of that."""
    entry = {"name": "mup", "base_head_dim": 16}
    scales = [chosen(entry, head_dim=E).scores / math.sqrt(E) for E in (16, 64)]
    assert scales == [1 / 4, 1 / 16]
    assert chosen("mup", head_dim=64).scores == 1


def test_embedding_rate_raises_no_rate_but_that_of_the_embedding(spec):
    model = build(spec(parametrization={"name": "embedding-rate", "base_dim": 8}))
    scales = {w.name: w.scale("adaptive") for w in list_weights(Objective(model))}
    assert scales.pop("model.embedding.weight") == (4, 1, 1)
    assert set(scales.values()) == {(1, 1, 1)}
    raised, standard = chosen({"name": "embedding-rate", "base_dim": 16}), chosen("standard")
    assert (raised.logits, raised.residual, raised.scores) == (1, 1, 1)
    assert [raised.start(kind) for kind in KINDS] == [standard.start(kind) for kind in KINDS]


@pytest.mark.parametrize("name", ["mup", "completep", "embedding-rate"])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "sgd"])
def test_at_the_size_of_its_base_a_parametrization_is_the_standard_one(spec, name, optimizer):
    """Bit for bit, over training steps, whatever the optimizer."""
    standard = trained(spec(), optimizer)
    entry = {"name": name, "base_dim": 32} | ({"base_layers": 2} if name == "completep" else {})
    other = trained(spec(parametrization=entry), optimizer)
    for (key, mine), theirs in zip(standard.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), key


@pytest.mark.parametrize("init", list(INITS))
def test_initial_deviations_of_wide_and_deep_models_follow_those_of_the_base(spec, init):
    """Any rule: matrices fall with 1/sqrt(width) from the base's, all else is as there."""
    sizes = {"heads": 4, "bias": False, "init": init}
    entry = {"name": "completep", "base_dim": 64, "base_layers": 2}
    base = new_model(spec(dim=64, head_dim=16, layers=2, **sizes), 0)
    wide = new_model(spec(dim=256, head_dim=64, layers=8, parametrization=entry, **sizes), 0)
    kind, parameters = kinds(wide), dict(wide.named_parameters())
    for name, parameter in base.named_parameters():
        if parameter.dim() >= 2:
            expected = parameter.std() * (1 / 2 if kind[name] in MATRICES else 1)
            torch.testing.assert_close(parameters[name].std(), expected, rtol=0.1, atol=0, msg=name)


def gradients(spec, **sizes):
    """Return the root mean square of the gradient of each kind of parameter at the start."""
    model = new_model(spec(**sizes), 0)
    logits = model(TOKENS[:, :-1])
    cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    squares = {}
    for name, kind in kinds(model).items():
        squares.setdefault(kind, []).append(model.get_parameter(name).grad.square().mean())
    return {kind: math.sqrt(sum(own) / len(own)) for kind, own in squares.items()}


def test_gradients_shrink_with_width_and_depth_as_epsilon_does(spec):
    """What AdamW's epsilon and SGD's rates are derived from, measured at a fourfold size."""
    entry = {"name": "completep", "base_dim": 64, "base_layers": 4}
    small = {"dim": 64, "heads": 4, "head_dim": 16, "layers": 4}
    wide = small | {"dim": 256, "heads": 16}
    deep = small | {"layers": 16}
    base = gradients(spec, parametrization=entry, **small)
    for sizes in (wide, deep):
        built = chosen(entry, dim=sizes["dim"], layers=sizes["layers"])
        measured = gradients(spec, parametrization=entry, **sizes)
        for kind in KINDS:
            ratio = measured[kind] / base[kind]
            assert ratio == pytest.approx(built.scale(kind).eps, rel=0.2), (sizes, kind)


def test_muons_steps_change_activations_alike_at_every_width():
    """A step's spectral norm is to stay: torch gives it 1, or 0.2 sqrt(rows) of a square matrix."""
    mup = chosen({"name": "mup", "base_dim": 16}, dim=256)
    assert mup.scale("hidden", "spectral").rate == 1
    assert mup.scale("hidden", "rms").rate * math.sqrt(256 / 16) == 1


def test_layers_of_a_loss_have_the_factors_of_the_models_own(spec):
    model = new_model(spec(parametrization={"name": "mup", "base_dim": 8}), 0)
    losses = [LOSSES.resolve("multi_token")]
    rates = {w.name: w.scale("adaptive").rate for w in list_weights(Objective(model, losses))}
    own = {name for name in rates if name.startswith("losses.")}
    assert rates["model.blocks.0.ffn.down.weight"] == 1 / 4
    matrices = {name for name in own if name.endswith(("attn.q.weight", "join.weight"))}
    assert len(matrices) == 2
    assert {rates[name] for name in matrices} == {1 / 4}


def test_logits_are_scaled_before_their_soft_cap(spec):
    entry = {"name": "mup", "base_dim": 8}
    model = new_model(spec(parametrization=entry, logit_softcap=0.01), 0)
    hidden = model.hidden(TOKENS)
    expected = 0.01 * torch.tanh(model.head(hidden) / 4 / 0.01)
    torch.testing.assert_close(model.logits(hidden), expected)
