"""Components from outside: by an explicit file or an installed package, and recorded."""

import hashlib
import math
import subprocess
import sys

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.launch import worker
from llama_ablate.results import Store
from tests.conftest import PLUGINS
from tests.in_process import in_process, own_registries

NORM = '''
"""A norm of somebody else's."""
import torch
from torch import nn
from llama_ablate.model.norms import NORMS


@NORMS.register("halved")
class Halved(nn.Module):
    """Halve, whatever it is (nobody 2026)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x):
        return x * self.weight
'''
VARIANTS = "{axes: {norm: [halved]}}"
METRIC_FILE = '''
"""Metrics of somebody else's: one with coordinates, one of plain numbers."""
from llama_ablate.measure import METRICS, row


@METRICS.add("weight_norms", per="run")
def weight_norms(subject):
    """Norm of every layer's weights."""
    for i, block in enumerate(subject.model.blocks):
        norm = sum(p.square().sum() for p in block.parameters()) ** 0.5
        yield row(f"layer_{i}_weights_norm", norm, quantity="weights_norm", layer=i)


@METRICS.add("sizes", per="variant")
def sizes(subject, *, scale: float = 2.0):
    """The number of parameters, and what cannot be said of it."""
    parameters = sum(p.numel() for p in subject.model.parameters())
    return {"scaled_parameters": scale * parameters, "unknown_nats": float("nan")}
'''


@pytest.fixture
def run(answer):
    """Give a command as if in a process of its own: with nothing loaded from outside."""

    def command(*words, code=0):
        with own_registries(), in_process():
            return answer(*words, code=code)

    return command


@pytest.fixture
def train(run, tmp_path):
    """Run an experiment with a plug-in of this text; return its results."""

    def trained(file, text, *more):
        (tmp_path / "mine.py").write_text(text)
        run("run", file, "--results", tmp_path / "r", "--plugin", tmp_path / "mine.py", *more)
        return Store(tmp_path / "r" / "tiny")

    return trained


def test_a_component_of_a_named_file_is_trained_and_the_file_is_recorded(
    experiment_file, tmp_path, run, train
):
    plugin = tmp_path / "mine.py"
    file = experiment_file(VARIANTS, measure="[perplexity, kv_cache]", seeds="1")
    refused = run("run", file, "--results", tmp_path / "r", code=2)
    assert "'halved' is not a norm; allowed: " in refused
    assert refused.endswith("; one of your own needs --plugin FILE")
    store = train(file, NORM)
    assert [record.outcome for record in store.records()] == ["ok", "ok"]
    digest = hashlib.sha256(NORM.encode()).hexdigest()
    assert store.plan.settings.plugins == {str(plugin): digest}
    # What is written in results makes no command load code: reading works without, no more.
    run("report", store.root)
    words = ("generate", store.root / "halved", "--prompt", "the ", "--max-tokens", "3")
    refused = run(*words, code=2)
    assert "'halved' is not a norm; allowed: " in refused
    assert refused.endswith(f"; it was made with --plugin {plugin}")
    run(*words, "--plugin", plugin)
    # Nor is what was trained looked at with other code of the same name.
    plugin.write_text(NORM.replace("0.5", "0.6"))
    for again in (("measure", store.root, "perplexity"), words):
        refused = run(*again, "--plugin", plugin, code=2)
        assert "the plugin that makes 'halved' is not the one that" in refused
    # Nor by a worker.
    plugin.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="is not what these runs were planned with"):
        worker.run(store.root, next(iter(store.plan.runs)))
    assert not (tmp_path / "ran").exists()


OPTIMIZER = (PLUGINS / "sgd.py").read_text("utf-8")
CROSSED = "{norm: [{pattern: [rmsnorm, halved]}]}"


@pytest.mark.parametrize(
    ("axes", "was", "wrong", "said"),
    [
        ("{norm: [halved]}", "return x", "return x.roll(-1, 1)", "lets a token see tokens that"),
        ("{norm: [halved]}", "self, dim: int", "self, depth: int", "supplies no size 'depth'"),
        (CROSSED, "(self, x)", "(self)", "the model calls its forward(x_BTD), and it"),
        ("{train.optimizer: [sgd]}", "moments(1 if", "moments(2 if", "bytes of state, and keeps"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_before_anything_is_written(
    axes, was, wrong, said, experiment_file, tmp_path, run
):
    plugin, text = tmp_path / "mine.py", NORM if "norm" in axes else OPTIMIZER
    assert was in text
    plugin.write_text(text.replace(was, wrong))
    model = "{dim: 16, layers: 2, heads: 2, context: 16}"
    file = experiment_file(f"{{axes: {axes}}}", model=model, seeds="1")
    words = ("run", file, "--results", tmp_path / "r", "--plugin", plugin)
    assert said in run(*words, code=2)
    assert not (tmp_path / "r").exists()


def test_a_plugin_of_an_installed_package_is_loaded_and_recorded(tmp_path):
    (tmp_path / "theirs.py").write_text(NORM.replace("halved", "theirs"))
    info = tmp_path / "theirs-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[llama_ablate.plugins]\ntheirs = theirs\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from llama_ablate.config import plugins\n"
        "plugins.load(); print(plugins.loaded())\n"
        "from llama_ablate.model.norms import NORMS; print('theirs' in NORMS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["{'package:theirs': '3.1'}", "True"], done.stderr


def test_an_optimizer_of_a_plugin_trains_and_its_code_is_part_of_the_id_of_its_runs(
    experiment_file, run, train
):
    axes = "{axes: {train.optimizer: [sgd, {name: sgd, momentum: 0.5}]}}"
    file = experiment_file(axes, measure="[perplexity]", seeds="1")
    assert "'sgd' is not an optimizer" in run("plan", file, code=2)
    ids = []
    for text in (OPTIMIZER, OPTIMIZER.replace("lr=lr", "lr=2 * lr")):
        plan = train(file, text).plan
        labels = {variant.id: variant.label for variant in plan.tables[0].variants}
        ids.append({labels[one.variant]: one.id for one in plan.runs.values()})
        bytes_of = {labels[one.variant]: one.optimizer_bytes for one in plan.runs.values()}
        assert 2 * bytes_of["sgd"] == bytes_of["baseline"]
    before, after = ids
    assert [*before] == ["baseline", "sgd", "sgd-momentum=0.5"]
    changed = {label for label in before if before[label] != after[label]}
    assert changed == {"sgd", "sgd-momentum=0.5"}


def test_metrics_of_a_plugin_are_stored_read_back_and_shown(experiment_file, run, train):
    measure = "[perplexity, weight_norms, {name: sizes, scale: 3.0}]"
    store = train(experiment_file("{}", measure=measure, seeds="1"), METRIC_FILE)
    (record,) = store.records()
    norms = record.metrics["weight_norms"].rows
    assert [(v.quantity, v.coordinates) for v in norms] == [
        ("weights_norm", {"layer": i}) for i in range(record.model["layers"])
    ]
    (variant,) = store.plan.tables[0].variants
    scaled, unknown = store.metrics_of([variant.id])[variant.id]["sizes"].rows
    expected = 3.0 * variant.parameters
    assert (scaled.value, scaled.samples, scaled.coordinates) == (expected, (expected,), {})
    assert math.isnan(unknown.value)
    shown = run("show", store.root, record.id)
    assert f"layer_0_weights_norm: {norms[0].value:.6g}" in shown
    assert f"scaled_parameters: {expected:,.0f}" in run("show", store.root, variant.label)
