"""The benchmarks are run by hand; that they still fit the package is seen here."""

import importlib.util
from pathlib import Path

import torch

from llama_ablate.config import experiment

FOLDER = Path(__file__).parents[1] / "benchmarks"


def script(name):
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_model_of_the_training_step_is_the_one_that_its_rivals_build():
    module = script("training_step")
    model = module.ours(128, 4, 4, "fused")
    theirs = module.hugging_face(128, 4, 4)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, theirs)]
    assert sizes[0] == sizes[1]
    assert model(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, module.VOCAB)


def test_the_grid_that_is_timed_is_a_valid_experiment(tmp_path):
    module = script("grid")
    for sizes in module.SHAPES.values():
        file = tmp_path / "grid.yaml"
        file.write_text(module.YAML.format(steps=2, **sizes), "utf-8")
        assert experiment.load(file).experiment.train.steps == 2


def test_the_plain_loop_trains_what_the_plan_says(experiment_file, monkeypatch):
    module = script("grid")
    seen = []
    whole = module.plan

    def counted(source):
        made = whole(source)
        seen.append(len(made.tables[0].runs) * made.tables[0].steps)
        return made

    monkeypatch.setattr(module, "plan", counted)
    variants = "{axes: {attention: [{name: gqa, kv_heads: 2}]}}"
    sizes = "{dim: 16, layers: 1, heads: 4, context: 16}"
    module.plain_loop(experiment_file(variants, model=sizes))
    assert seen == [2 * 2 * 6]
