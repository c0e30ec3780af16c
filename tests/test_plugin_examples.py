"""The plug-ins of docs/plugins: each against its paper's formula, under the laws, and in a run."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from llama_ablate.commands.cli import main
from llama_ablate.config import plugins
from llama_ablate.model import counts, laws
from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import REGISTRIES, build, init_weights
from llama_ablate.model.positions import Position
from llama_ablate.results import Store
from llama_ablate.training import optimizer_laws
from llama_ablate.training.optimizers import OPTIMIZERS, optimizer_bytes

from .conftest import LEARNS, make_spec
from .laws import initial_values_are_those_declared
from .training.test_optimizers import GRADIENTS, START, alone, stepped

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docs" / "plugins").glob("*.py"))
LR, DECAY = 0.01, 0.5


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    """Load every example, and forget it after the test."""
    monkeypatch.setattr(plugins, "_loaded", {})
    for registry in (*REGISTRIES.values(), OPTIMIZERS):
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
    plugins.load(FILES)
    yield
    counts.forget()
    optimizer_bytes.cache_clear()


def test_contributing_names_every_example():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert [file.name for file in FILES if f"docs/plugins/{file.name}" not in text] == []


def after(name, gradients=GRADIENTS, **options):
    """Return the weight that an optimizer makes of START."""
    entry = {"name": name, **options}
    return stepped(entry, alone(START), gradients, lr=LR, weight_decay=DECAY).numpy()


@pytest.mark.parametrize("turned", [False, True], ids=["wide", "tall"])
def test_normuon_steps_by_its_formula_with_the_singular_values_of_the_momentum(turned):
    """Newton and Schulz's polynomial acts on singular values alone, so numpy's SVD is enough."""
    start, gradients = (np.array(values) for values in (START, GRADIENTS))
    if turned:
        start, gradients = start.T, gradients.transpose(0, 2, 1)
    mean, squares, expected = np.zeros(start.shape), np.zeros((len(start), 1)), start
    for gradient in gradients:
        mean = 0.8 * mean + 0.2 * gradient
        u, values, v = np.linalg.svd(mean, full_matrices=False)
        values /= np.sqrt((values**2).sum())
        for _ in range(3):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        step = u * values @ v
        squares = 0.9 * squares + 0.1 * (step**2).mean(1, keepdims=True)
        step = step / np.sqrt(squares)
        scale = 0.2 * LR * math.sqrt(step.size) / np.linalg.norm(step)
        expected = expected * (1 - LR * DECAY) - scale * step
    entry = {"name": "normuon", "momentum": 0.8, "beta2": 0.9, "ns_steps": 3}
    found = stepped(entry, alone(start.tolist()), gradients.tolist(), lr=LR, weight_decay=DECAY)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_soap_steps_by_its_formula_with_bases_turned_every_other_step():
    gradients = np.array([*GRADIENTS, *GRADIENTS[::-1]])
    gradients[3:] *= 0.7
    expected, mean, square = np.array(START), 0.0, 0.0
    left, right = gradients[0] @ gradients[0].T, gradients[0].T @ gradients[0]
    q_left, q_right = np.linalg.eigh(left)[1], np.linalg.eigh(right)[1]
    for t, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * (q_left.T @ gradient @ q_right) ** 2
        inner = (q_left.T @ mean @ q_right) / (1 - 0.9**t)
        inner = inner / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
        expected = expected * (1 - LR * DECAY) - LR * q_left @ inner @ q_right.T
        left = 0.95 * left + 0.05 * gradient @ gradient.T
        right = 0.95 * right + 0.05 * gradient.T @ gradient
        if t % 2 == 0:
            q_left = np.linalg.qr(left @ q_left)[0]
            q_right = np.linalg.qr(right @ q_right)[0]
    found = after("soap", gradients.tolist(), frequency=2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_soap_is_adam_in_the_basis_in_which_the_gradients_are_diagonal():
    diagonals = [np.diag(values) for values in ([3.0, -1.0, 0.2], [2.0, 0.5, 0.1])]
    drawn = np.random.default_rng(0)
    u, v = (np.linalg.qr(drawn.normal(size=(3, 3)))[0] for _ in range(2))
    start = drawn.normal(size=(3, 3))
    adam, soap = (
        stepped(name, alone(values.tolist()), gradients, lr=LR, weight_decay=0.0).numpy()
        for name, values, gradients in (
            ("adamw", start, [g.tolist() for g in diagonals]),
            ("soap", u @ start @ v.T, [(u @ g @ v.T).tolist() for g in diagonals]),
        )
    )
    np.testing.assert_allclose(soap, u @ adam @ v.T, rtol=0, atol=1e-7)


class Twice(nn.Module):
    def forward(self, x, *_):
        return 2 * x


class Halve(nn.Module):
    def forward(self, x, *_):
        return x / 2


def test_deepnorm_weighs_the_stream_by_the_fourth_root_of_twice_the_layers():
    """Of 8 layers alpha is 2. x=8: (2*8 + 2*8)/2 = 16, then (2*16 + 2*16)/2 = 32."""
    choice = BLOCKS.resolve("deepnorm")
    block = BLOCKS.build(choice, attn=Twice(), ffn=Twice(), norm=Halve, layers=8, layer=0)
    assert block(torch.tensor(8.0), Context(0, 1, Position())) == 32


def test_weights_of_deepnorm_begin_as_xaviers_and_but_for_queries_and_keys_smaller():
    """Of 2 layers beta is 16^(-1/4) = 1/2."""
    spec = make_spec(block="deepnorm", dim=128, heads=4, head_dim=32)
    model = init_weights(build(spec), 0)
    for name, parameter in model.blocks.named_parameters():
        if parameter.dim() == 2:
            gain = 1 if ".attn.q." in name or ".attn.k." in name else 0.5
            expected = gain * math.sqrt(2 / sum(parameter.shape))
            assert abs(parameter.std().item() / expected - 1) < 0.03, name
    initial_values_are_those_declared(make_spec(block="deepnorm"))


@pytest.mark.parametrize("changes", [{}, {"separator": 3, "attention": "gqa"}], ids=str)
def test_deepnorm_obeys_the_laws(changes):
    laws.check(make_spec(block="deepnorm", **changes), "block")


@pytest.mark.parametrize(
    "entry",
    [
        "normuon",
        {"name": "normuon", "momentum": 0.5, "beta2": 0.5, "ns_steps": 3},
        "soap",
        {"name": "soap", "frequency": 1},
    ],
    ids=str,
)
def test_the_optimizers_obey_the_laws_with_every_option(entry):
    optimizer_laws.check(OPTIMIZERS.resolve(entry))


@pytest.mark.usefixtures("in_process")
def test_each_example_trains_in_a_run_that_names_its_file(experiment_file, tmp_path):
    file = experiment_file(
        "{design: one-at-a-time, axes: {block: [deepnorm], train.optimizer: [normuon, soap]}}",
        train=LEARNS,
        seeds="1",
        measure="[perplexity]",
    )
    options = [word for path in FILES for word in ("--plugin", str(path))]
    assert main(["run", str(file), "--results", str(tmp_path / "r"), *options]) == 0
    store = Store(tmp_path / "r" / "tiny")
    assert [record.outcome for record in store.records()] == ["ok"] * 4
    assert list(store.plan.settings.plugins) == [str(path) for path in FILES]
