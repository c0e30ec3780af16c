import numpy as np
import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.files.strict_json import sealed
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results, Store
from tests.in_process import run_in_process
from tests.tables import sentences_of as warnings

ENTRIES = [
    {"name": "lag-copy", "vocab": 5, "lag": 2, "tokens": 20_000},
    {"name": "recall", "keys": 3, "values": 3, "tokens": 20_000},
    {"name": "induction", "vocab": 4, "tokens": 20_000},
]


def prepared(entry, tokenizer="chars", cache=None):
    return store.prepare(CORPORA.resolve(entry), TOKENIZERS.resolve(tokenizer), cache)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["name"])
def test_a_stream_has_its_sources_symbols_and_floor_and_three_splits(entry):
    made = prepared(entry)
    assert made.source is not None
    assert made.vocab == made.source.alphabet
    assert made.counts == {"train": 20_000, "validation": 1000, "test": 1000}
    ids = np.asarray(made.split("validation"), np.int64)[None]
    assert np.array_equal(
        made.floor(ids), made.source.floor(ids)
    )  # all symbols occur: ids are they
    assert not np.array_equal(made.split("validation"), made.split("test"))


def test_a_run_reports_how_far_it_is_above_the_floor_and_below_it_is_a_leak(
    experiment_file, unsealed, tmp_path, capsys
):
    data = "{corpus: {name: lag-copy, vocab: 8, lag: 1, tokens: 20_000}, tokenizer: chars}"
    file = experiment_file(
        variants="{design: one-at-a-time, axes: {position: [none]}}",
        measure="[perplexity, excess_loss]",
        model="{dim: 16, layers: 2, heads: 2, context: 16}",
        train="{steps: 150, batch: 16, lr: 1e-2, precision: float32, kernel: math}",
        data=data,
        seeds="1",
    )
    assert run_in_process(file, tmp_path / "results") == 0
    assert "over the floor (nats)" in capsys.readouterr().out
    root = tmp_path / "results" / "tiny"
    found = compare_variants(Frames.of(Results.open(root)).table)
    assert (found["excess_nats"] > 0).all()
    assert found["excess_nats"][0] < 1.0
    record = Store(root).records()[0].numbers
    by_hand = record["test_loss_nats"] - record["test_floor_nats"]
    assert record["test_excess_nats"] == pytest.approx(by_hand)
    assert record["test_excess_se_nats"] > 0

    for file in root.glob("runs/*/record.json"):
        values = unsealed(file)
        rows = {row["name"]: row for row in values["metrics"]["excess_loss"]["rows"]}
        rows["test_excess_nats"]["value"] = -4 * rows["test_excess_se_nats"]["value"]
        file.write_bytes(sealed(values, file.relative_to(root).as_posix()))
    assert any("something leaks" in warning for warning in warnings(Frames.of(Results.open(root))))
