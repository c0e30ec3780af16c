"""The scripts of `analysis/` as commands: what they cannot draw is one line, and exit code 2."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from llama_ablate.results import Record, Store
from tests.metrics import measured

SCRIPTS = Path(__file__).parents[2] / "analysis"


@pytest.fixture
def results(tmp_path):
    """Results of two variants and a seed, in which only losses were measured."""
    store = Store(tmp_path / "x")
    variants = [
        {
            "label": label,
            "id": label,
            "baseline": label == "base",
            "residual": 0.0,
            "model": {},
            "parameters": 9,
            "non_embedding": 8,
            "flops_per_token": 7,
            "kv_bytes_per_token": 6,
        }
        for label in ("base", "other")
    ]
    runs = [{"id": f"{v['id']}0", "variant": v["id"], "seed": 0} for v in variants]
    store.create(
        {
            "experiment": {"name": "x", "train": {}},
            "question": "",
            "data": {},
            "variants": variants,
            "runs": runs,
        },
        "name: x\n",
    )
    for run in runs:
        store.commit(
            Record(
                id=run["id"],
                label=run["variant"],
                variant=run["variant"],
                seed=0,
                outcome="ok",
                reason="",
                steps_done=1,
                tokens_done=1,
                train_s=1.0,
                peak_memory_bytes=1,
                model={},
                train={},
                data="f",
                compute={},
                environment={},
                metrics={"perplexity": measured(test_loss_nats=1.0, test_perplexity=2.7)},
            ),
            [],
            None,
        )
    return store.root


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script as a command: a function from its words to exit code, output and errors."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return run


WRONG = {
    "no results": ("comparison_table.py", "{here}", "holds no results"),
    "no results to draw": ("draw.py", "effects", "{here}", "holds no results"),
    "no results with speeds": ("decode_speed.py", "{here}", "holds no results"),
    "no maps": ("attention_maps.py", "{here}", "holds no attention maps"),
    "no frequencies": ("rope_frequencies.py", "{here}", "holds no frequencies"),
    "frequencies of another form": ("rope_frequencies.py", "{here}/rates.json", "no frequencies"),
    "no speeds": ("decode_speed.py", "{x}", "no decode speeds of these variants were measured"),
    "a figure of speeds that are not there": (
        "draw.py",
        "quality_vs_training_cost",
        "{x}",
        "nothing that quality_vs_training_cost shows",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_drawn_is_one_line_and_exit_code_2(case, script, results, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps({"radians_per_position": 3, "context": 1}))
    before = sorted(tmp_path.rglob("*"))
    name, *words, message = WRONG[case]
    code, out, err = script(name, *(word.format(here=tmp_path, x=results) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before
