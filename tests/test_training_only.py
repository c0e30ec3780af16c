"""A mixer of `forward(x)` alone trains; what it does not provide is missing, and said to be."""

import copy
import html
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from llama_ablate.config.spec import SLOTS
from llama_ablate.errors import ConfigError
from llama_ablate.model import counts, laws
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.mixers.attention import ATTENTIONS
from tests.conftest import LLAMA, SMALL
from tests.in_process import in_process, own_registries


class CausalSelfAttention(nn.Module):
    """Attend as nanoGPT's module does, knowing nothing of this package."""

    def __init__(self, dim, heads, bias):
        super().__init__()
        assert dim % heads == 0
        self.c_attn = nn.Linear(dim, 3 * dim, bias=bias)
        self.c_proj = nn.Linear(dim, dim, bias=bias)
        self.resid_dropout = nn.Dropout(0.0)
        self.n_head, self.n_embd = heads, dim

    def forward(self, x):
        """Return what each token takes from itself and those before it."""
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


@pytest.fixture(autouse=True)
def _own_registries():
    """Let each test register what it likes."""
    with own_registries():
        yield


@pytest.fixture
def mine(spec):
    """Return a maker of specs whose attention is a class of the user's."""

    def made(component=CausalSelfAttention, **changes):
        ATTENTIONS._components.pop("mine", None)
        assert ATTENTIONS.register("mine")(component) is component
        return spec(**LLAMA | {"position": "sinusoidal", "attention": "mine"} | changes)

    return made


def test_the_causal_self_attention_of_nanogpt_trains_as_it_stands(mine):
    theirs = mine()
    laws.check(theirs, "attention")
    model = new_model(theirs, 0)
    tokens_BT = torch.randint(
        0, SMALL["vocab"], (4, 24), generator=torch.Generator().manual_seed(0)
    )
    x = model.embedding(tokens_BT)
    alone = CausalSelfAttention(SMALL["dim"], SMALL["heads"], model.spec.bias)
    alone.load_state_dict(model.blocks[0].attn.state_dict())  # names are the class's own
    assert alone(x).equal(model.blocks[0].attn(x, model.context(tokens_BT)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(tokens_BT[:, :-1]).flatten(0, 1), tokens_BT[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
    assert copy.deepcopy(model)(tokens_BT).equal(model(tokens_BT))


def test_what_it_does_not_count_is_nan_and_never_0(mine):
    counted = counts.count(mine())
    for name in ("flops_per_token", "kv_bytes_per_token", "state_bytes"):
        assert math.isnan(getattr(counted, name)), name
        with pytest.raises(ConfigError, match=f"{name} is not provided by 'mine'"):
            counts.exact(mine(), name)
    assert counted.parameters == sum(p.numel() for p in build(mine()).parameters())
    assert counted.work == 6 * counted.parameters
    assert math.isnan(counts.states(mine(), (8,))[0])
    hybrid = counts.count(mine(attention={"pattern": ["mine", "mha"]}))
    assert math.isnan(hybrid.flops_per_token)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"position": "rope"}, "position: rope"),
        ({"separator": 3}, "documents: mask"),
        ({"dropout": 0.1}, "dropout of attention"),
        ({"parametrization": {"name": "mup", "base_dim": 16, "base_head_dim": 4}}, "mup"),
    ],
)
def test_what_acts_inside_attention_is_refused(mine, changes, what):
    with pytest.raises(ConfigError) as caught:
        build(mine(**changes))
    assert f"{what}' acts inside attention" in caught.value.message
    assert caught.value.where == ("attention",)


@pytest.fixture
def command(answer, tmp_path, monkeypatch):
    """Give a command as if in a process of its own, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def given(*words, code=0):
        with own_registries(), in_process():
            return answer(*words, code=code)

    return given


#: With these, a template's experiment takes seconds.
SMALL_GRID = ("model.dim=16", "model.layers=2", "model.heads=2", "model.context=16")
SMALL_GRID += ("train.tokens=2048", "train.batch=8", "seeds=2", "controls.aa=[]")


def test_an_experiment_that_init_wrote_runs_and_its_page_says_what_is_not_provided(
    command, book, tmp_path
):
    command("init", "component", "attention")
    data = f"data.corpus={{name: files, path: {book}, splits: [0.8, 0.1, 0.1]}}"
    sets = (word for one in (*SMALL_GRID, data) for word in ("--set", one))
    mine = ("mine.yaml", "--plugin", "mine.py", *sets)
    command("run", *mine, "--set", "measure=[perplexity, kv_cache]")
    page = (tmp_path / "results" / "mine" / "report" / "report.html").read_text("utf-8")
    page = html.unescape(page)
    assert "kv_cache was not measured of 'mine': not provided by 'mine': a state to" in page
    assert "A dash in FLOPs or in bytes of a state: 'mine' does not provide them." in page
    assert command("show", "results/mine", "mine", "--json")["flops_per_token"] is None
    for key, value, words in (
        ("variants.match", "flops", "flops_per_token is not provided by 'mine'"),
        ("budget", "flops", "flops_per_token is not provided by 'mine'"),
    ):
        refused = command("plan", *mine, "--set", f"{key}={value}", code=2)
        assert words in refused
        assert refused.startswith("llama-ablate: mine.yaml:6:")  # where it is named


@pytest.mark.full  # a process for each slot's own test
@pytest.mark.parametrize("slot", SLOTS)
def test_the_test_that_init_writes_passes_and_ruff_finds_nothing(command, tmp_path, slot):
    command("init", "component", slot)
    for tool in (
        ["pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        ["ruff", "check", "--isolated", "--no-cache", "."],
    ):
        words = [sys.executable, "-m", *tool]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
