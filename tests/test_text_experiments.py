"""The experiments on data sets of the hub, each on a small local copy in its layout."""

import json
import random
from pathlib import Path

import pytest
import yaml

from llama_ablate.config import experiment
from llama_ablate.data import tokens  # noqa: F401  registers corpora
from llama_ablate.data.corpus import CORPORA
from llama_ablate.results import Results
from tests.in_process import run_in_process
from tests.texts import read

FOLDER = Path(__file__).parents[1] / "experiments" / "text"
FILES = sorted(FOLDER.glob("*.yaml"))


def local_copy(folder, corpus):
    """Write documents as the data set has them: its subset, its splits, its column."""
    drawn, folder = random.Random(0), folder / "copy"
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "some", "birds", "."]
    splits = ["train"] if corpus.get("streaming") else ["train", "validation"]
    folder.mkdir()
    for split in splits:
        lines = (
            json.dumps({"text": " ".join(drawn.choices(words, k=40)), "id": i}) for i in range(300)
        )
        (folder / f"{split}.jsonl").write_text("\n".join(lines), "utf-8")
    if "subset" in corpus:
        files = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
        card = {"configs": [{"config_name": corpus["subset"], "data_files": files}]}
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n", "utf-8")
    return folder


SMALL = [
    "data.tokenizer.vocab=300",
    "model.dim=16",
    "model.layers=3",
    "model.heads=2",
    "model.context=32",
    "train={steps: 12, batch: 4, lr: 3e-3, evals: 2, precision: float32, kernel: math}",
    "variants.match=none",
    "seeds=2",
    "measure=[perplexity, kv_cache]",
]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_text_of_such_an_experiment_is_read_from_a_local_copy(file, tmp_path):
    corpus = experiment.load(file).experiment.data.corpus
    assert corpus["name"] == "hub"
    local = {"dataset": str(local_copy(tmp_path, corpus)), "streaming": False, "limit": "9kB"}
    split = {"splits": [0.8, 0.1, 0.1]} if corpus.get("streaming") else {}
    text = read(CORPORA.build(CORPORA.resolve({**corpus, **local, **split})))
    if corpus.get("streaming"):
        assert 8500 < sum(map(len, text.splits.values())) < 9500
    else:
        assert [round(len(part), -3) for part in text.splits.values()] == [9000, 9000]


@pytest.mark.full
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_an_experiment_on_a_data_set_of_the_hub_runs_on_a_local_copy(file, tmp_path):
    loaded = experiment.load(file).experiment
    corpus = loaded.data.corpus
    copy = local_copy(tmp_path, corpus)
    sets = [*SMALL, f"data.corpus.dataset={copy}", "data.corpus.limit=30kB"]
    # Two key heads of eight become one of two; windows and patterns stay.
    sets += [f"variants.axes.{key}={json.dumps(_small(axis))}" for key, axis in _axes(loaded)]
    if corpus.get("streaming"):
        sets += ["data.corpus.streaming=false", "data.corpus.splits=[0.8, 0.1, 0.1]"]
    options = [word for text in sets for word in ("--set", text)]
    assert run_in_process(file, tmp_path / "results", *options) == 0
    (folder,) = (tmp_path / "results").iterdir()
    results = Results.open(folder)
    records = [results.record(run) for run in results.finished]
    assert len(records) == 2 * (1 + sum(len(axis) for _, axis in _axes(loaded)))
    assert all(record.ok for record in records)


def _axes(loaded):
    return loaded.variants.axes.items()


def _small(axis):
    return [
        {**level, "kv_heads": 1} if isinstance(level, dict) and "kv_heads" in level else level
        for level in axis
    ]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_head_of_such_a_file_says_the_command_the_download_and_the_time(file):
    head = file.read_text("utf-8").split("name:")[0]
    assert f"llama-ablate run experiments/text/{file.name}" in head
    for word in ("GB", "exaFLOP", "on a GPU that sustains"):
        assert word in head
