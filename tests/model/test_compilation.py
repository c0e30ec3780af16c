"""The compiled decoding step: the same logits as the model's own, of one graph for all lengths."""

import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.interop.generation import COMPILED_FROM, Generation, Sampling
from llama_ablate.model.compilation import CompiledStep
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import new_model
from tests.conftest import make_spec
from tests.laws import ALONE, name_of

# torch's compiler uses parts of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GREEDY = Sampling(temperature=0)
MIXERS = [{"attention": name} for name in REGISTRIES["attention"]]
#: Components and options; a mixture of experts cannot be compiled.
COMPILED = [combination for combination in ALONE if "moe" not in str(combination)]


@pytest.fixture(autouse=True)
def forgetting():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(**changes):
    return new_model(make_spec(**{"init_std": 0.5} | changes), 0).eval()


def traced(graphs):
    """A compiler that keeps the graphs that it is given, and runs them as they are."""

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    return backend


def held_to_the_model(model, batch, most):
    """Read 20 tokens one by one by the step and by the model; compare logits and graphs."""
    graphs = []
    step = CompiledStep(model, backend=traced(graphs))
    tokens = torch.randint(0, 61, (batch, 20), generator=torch.Generator().manual_seed(1))
    pad_B = torch.arange(batch) if batch > 1 else None
    ours, theirs = model.new_state(batch, 24), model.new_state(batch, 24)
    with torch.inference_mode():
        for state in (ours, theirs):
            model(tokens[:, :4], state, pad_B=pad_B)
        for column in tokens[:, 4:].unbind(1):
            found = step(column[:, None], ours, pad_B=pad_B)
            expected = model(column[:, None], theirs, pad_B=pad_B)
            close = 1e-5 * expected.abs().max().item()
            torch.testing.assert_close(found, expected, rtol=0, atol=close)
    assert step.works
    assert ours.length == theirs.length == 20
    assert len(graphs) <= most


def test_one_graph_serves_every_length_of_the_state():
    held_to_the_model(model_of(), batch=1, most=1)


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("changes", COMPILED[::2], ids=name_of)
def test_one_graph_serves_every_length_whatever_the_components(changes, batch):
    # Three more where a window is filled, is full, and drops tokens.
    held_to_the_model(model_of(**changes), batch, most=4 if "window" in str(changes) else 1)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16]
)
def test_in_the_graph_a_vector_is_multiplied_in_one_pass_over_the_weights(dtype):
    graphs, model = [], model_of(bias=True).to(dtype)
    step = CompiledStep(model, backend=traced(graphs))
    state, tokens = model.new_state(1, 24), torch.tensor([[5, 9, 2]])
    with torch.inference_mode():
        model(tokens, state)
        found = step(tokens[:, :1], state)
        expected = model(torch.tensor([[5, 9, 2, 5]]))[:, 3:]
    close = 1e-4 if dtype == torch.float32 else 0.05 * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    called = [str(node.target) for node in graphs[0].graph.nodes]
    assert not any("linear" in name for name in called)


def test_what_cannot_be_compiled_is_computed_as_it_is_after_one_line(capsys):
    model = model_of(feedforward="moe")
    options = {"max_tokens": 6, "sampling": GREEDY}
    found = list(Generation(model, [[5, 9]], compile="always", **options))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not compiled: ")
    assert found == list(Generation(model, [[5, 9]], compile="never", **options))


def test_auto_compiles_where_many_tokens_are_asked_for():
    model = model_of()
    for tokens, compiled in ((COMPILED_FROM, True), (COMPILED_FROM - 1, False)):
        generation = Generation(model, [[5, 9]], max_tokens=tokens)
        assert isinstance(generation.step, CompiledStep) is compiled


def test_to_compile_a_step_without_a_cache_is_refused():
    with pytest.raises(ConfigError, match="compile 'always': what is compiled is the step that"):
        Generation(model_of(), [[5, 9]], max_tokens=2, use_cache=False, compile="always")


@pytest.mark.full
@pytest.mark.parametrize("changes", MIXERS, ids=str)
def test_a_compiled_step_continues_a_text_with_the_same_tokens(changes, capsys):
    model = model_of(**changes)
    options = {"max_tokens": 16, "sampling": GREEDY}
    compiled, plain = (
        [*Generation(model, [[5, 9, 2]], compile=choice, **options)]
        for choice in ("always", "never")
    )
    assert compiled == plain
    assert capsys.readouterr().err == ""
