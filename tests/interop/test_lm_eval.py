"""lm-evaluation-harness asks our runs, and gets what it gets from their exported checkpoints."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from llama_ablate.commands.cli import main
from llama_ablate.measure import METRICS
from llama_ablate.results import Results
from tests.in_process import run_in_process

pytest.importorskip("lm_eval", reason="lm_eval is not installed: the extra 'eval' has it")
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),  # of the harness and what it imports
]

ROWS = [
    {"question": "The king said", "first": "to the queen", "second": "of", "label": 0},
    {"question": "What shall ", "first": "we do", "second": "three thousand", "label": 0},
    {"question": "東京 is a long way away from here, and " * 3, "first": "é", "second": "no"},
    {"question": "", "first": "A sentence.", "second": "Sentence a.", "label": 1},
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{[first, second]}}",
        "doc_to_target": "{{label or 0}}",
        "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes")],
    },
    "last": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{question}}x",
        "doc_to_target": "{{' ' + second}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{(question + first) * 4}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "written": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}The",
        "doc_to_target": "first",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture
def trained(experiment_file, tmp_path):
    """A run, its exported checkpoint, and the folder of the tasks."""
    for name, task in TASKS.items():
        data = {"data_files": str(tmp_path / "rows.jsonl")}
        values = {"task": name, "dataset_path": "json", "dataset_kwargs": data, **task}
        values["test_split"] = "train"
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values), "utf-8")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)), "utf-8")
    file = experiment_file(
        model="{dim: 16, layers: 1, heads: 2, context: 64}",
        seeds="1",
        measure=f"[perplexity, {{name: cloze, task: ['{tmp_path}/choices.yaml', "
        f"'{tmp_path}/last.yaml']}}]",
    )
    assert run_in_process(file, tmp_path / "results") == 0
    run = tmp_path / "results" / "tiny" / "baseline"
    assert main(["export", str(run), str(tmp_path / "exported"), "--to", "llama"]) == 0
    return run, tmp_path / "exported", tmp_path


def asked(model, folder):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(model=model, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0)


def test_a_run_answers_as_its_exported_checkpoint_does_through_the_backend_hf(trained):
    pytest.importorskip("accelerate", reason="the backend hf needs accelerate")
    from lm_eval.models.huggingface import HFLM

    from llama_ablate.interop.lm_eval import AblateLM

    run, exported, folder = trained
    theirs = HFLM(str(exported), dtype="float32", device="cpu", prefix_token_id=0)
    theirs.tokenizer.eos_token_id = 0  # which the tokens are bytes of, and the backend asks for
    found = [asked(model, folder) for model in (AblateLM(str(run)), theirs)]
    for task in TASKS:
        ours, of_hf = (
            sorted(one["samples"][task], key=lambda sample: sample["doc_id"]) for one in found
        )
        for own, other in zip(ours, of_hf, strict=True):
            if task == "written":
                assert own["resps"] == other["resps"]
                continue
            for (a,), (b,) in zip(own["resps"], other["resps"], strict=True):
                first, second = ((x[0], x[1]) if isinstance(x, tuple) else (x, 0) for x in (a, b))
                assert float(first[0]) == pytest.approx(float(second[0]), abs=2e-4)
                assert first[1] == second[1]
        for name, value in found[1]["results"][task].items():
            if isinstance(value, float):
                assert found[0]["results"][task][name] == pytest.approx(value, rel=1e-5), name


def test_the_metric_cloze_gives_what_the_harness_gives_on_its_own_task(trained):
    from llama_ablate.interop.lm_eval import AblateLM

    run, _, folder = trained
    results = asked(AblateLM(str(run)), folder)["results"]
    opened = Results.open(run.parent)
    record = opened.record(next(iter(opened.finished)))
    numbers = record.metrics["cloze"].numbers
    assert "cloze" in METRICS
    assert numbers["choices_accuracy"] == results["choices"]["acc,none"]
    assert numbers["choices_accuracy_norm"] == results["choices"]["acc_bytes,none"]
    assert numbers["last_accuracy"] == results["last"]["acc,none"]
    perplexity = results["last"]["perplexity,none"]
    assert numbers["last_target_perplexity"] == pytest.approx(perplexity, rel=1e-4)


def test_the_harness_own_command_knows_the_model(trained):
    run, _, folder = trained
    words = ["--model", "llama_ablate", "--tasks", "choices", "--include_path", str(folder)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "llama_ablate.interop.lm_eval",
            *words,
            "--model_args",
            f"run={run}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\|choices\|.*\|acc ", done.stdout)


def test_a_run_that_is_not_there_is_one_line(monkeypatch, capsys):
    from lm_eval import __main__ as harness

    from llama_ablate.interop import lm_eval

    monkeypatch.setattr(harness, "cli_evaluate", lambda: lm_eval.AblateLM("gone"))
    assert lm_eval.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lm_eval: there is no run and no checkpoint 'gone'")
