"""What a variant is trained on, and how: documents, order, mixture, batch and precision as axes."""

import numpy as np
import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment
from llama_ablate.data.batches import TextMixture
from llama_ablate.design import checks
from llama_ablate.design.plan import make
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.warnings import warn_of_text
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import build
from llama_ablate.model.weights import load_weights
from llama_ablate.results import Results, Store
from tests.conftest import LEARNS
from tests.texts import prepared, write_jsonl


@pytest.fixture
def cats(tmp_path):
    cat = "the cat {} sat on the mat, and the dog {} ran. "
    write_jsonl(tmp_path / "cats.jsonl", [cat.format(i, i * i) * 6 for i in range(60)])
    return tmp_path / "cats.jsonl"


@pytest.fixture
def ships(tmp_path):
    ship = "Ship {} left Quay {} for Zanzibar; none came. "
    write_jsonl(tmp_path / "ships.jsonl", [ship.format(i, i * i) * 6 for i in range(90)])
    return tmp_path / "ships.jsonl"


@pytest.fixture
def planned(experiment_file, cats, ships):
    """Return a function from axes, keys of `data` and other sections to a plan."""

    def plan(axes="{norm: [layernorm]}", data="", **sections):
        sources = f"sources: {{ships: {{name: files, path: '{ships}'}}}}"
        corpus = f"corpus: {{name: files, path: '{cats}'}}, tokenizer: bytes, {sources}"
        sections = {"data": f"{{{corpus}{data}}}", "train": LEARNS, **sections}
        return make(experiment.load(experiment_file(f"{{axes: {axes}}}", **sections)))

    return plan


def ids(plan, label):
    """Return the runs of a variant, by id."""
    called = {v.id for table in plan.tables for v in table.variants if v.label == label}
    return [run.id for table in plan.tables for run in table.runs if run.variant in called]


def test_a_model_trained_with_documents_apart_is_another_run_where_it_is_evaluated_otherwise(
    planned,
):
    axis = "{data.documents: [mask]}"
    apart = planned(data=", documents: mask")  # trained and evaluated so, as ever
    both = planned(axis)
    assert not {*ids(both, "documents=mask")} & {*ids(apart, "baseline")}
    assert ids(both, "baseline") == ids(planned(), "baseline")
    so = planned(axis, evaluation="{documents: mask}")
    assert ids(so, "documents=mask") == ids(apart, "baseline")
    assert not {*ids(so, "baseline")} & {*ids(both, "baseline")}
    (table,) = both.tables
    base, other = table.variants
    assert base.spec.separator is None
    assert other.spec.separator == table.text.separator


def test_a_larger_batch_takes_as_many_fewer_steps_for_the_same_tokens_or_the_same_flops(planned):
    for budget in ("tokens", "flops"):
        (table,) = planned("{train.batch: [8, 2, 3]}", budget=budget).tables
        assert [run.steps for run in table.runs if run.seed == 0] == [30, 15, 60, 40]
        assert [dict(v.train) for v in table.variants] == [{}, *({"batch": n} for n in (8, 2, 3))]


def test_one_source_at_weight_one_has_its_own_batches_bit_for_bit(cats, ships):
    own, other = ((text, text.counts["train"]) for text in (prepared(cats), prepared(ships)))
    one = TextMixture([(own[0], 1.0, own[1])])
    half = TextMixture([(text, 0.5, size) for text, size in (own, other)])
    for k in range(20):
        mine, others = (text.batch(3, k, 8, 16) for text, _size in (own, other))
        assert np.array_equal(one.batch(3, k, 8, 16), mine)
        for row, *whole in zip(half.batch(3, k, 8, 16), mine, others, strict=True):
            assert any(np.array_equal(row, source) for source in whole)


def test_sources_have_their_shares_and_a_limit_draws_from_the_beginning_alone(cats, ships):
    own, other = prepared(cats), prepared(ships)
    mixture = TextMixture([(own, 0.7, own.counts["train"]), (other, 0.3, 100)])
    rows = np.concatenate([mixture.batch(0, k, 64, 16) for k in range(200)])
    begin = {tuple(other.training[at : at + 17]) for at in range(100 - 16)}
    of_other = [tuple(row) in begin for row in rows]
    assert abs(np.mean(of_other) - 0.3) < 4 * (0.3 * 0.7 / len(rows)) ** 0.5
    of_own = rows[~np.array(of_other)]
    text = own.training.tobytes()
    assert all(row.astype(own.training.dtype).tobytes() in text for row in of_own)


def test_a_mixture_is_part_of_the_run_and_a_null_one_is_the_text_itself(planned):
    plain = planned()
    for null in ("{corpus: 1, ships: 0}", "{}"):
        assert ids(planned(data=f", mixture: {null}"), "baseline") == ids(plain, "baseline")
    mixed = planned(data=", mixture: {corpus: 1, ships: 1}")
    assert ids(mixed, "baseline") == ids(
        planned(data=", mixture: {corpus: 0.5, ships: 0.5}"), "baseline"
    )
    assert not {*ids(mixed, "baseline")} & {*ids(plain, "baseline")}
    axes = "{data.mixture: [{label: half, value: {corpus: 1, ships: 1}}, {corpus: 2}]}"
    plan = planned(axes)
    assert [v.label for v in plan.tables[0].variants] == ["baseline", "half"]
    assert ids(plan, "half") == ids(mixed, "baseline")
    assert "half" in next(warn_of_text(plan.tables[0], plan.experiment))


CROSSED = """{data.documents: [mask], train.precision: [bfloat16],
    data.mixture: [{label: half, value: {corpus: 1, ships: 1}}]}""".replace("\n", " ")


@pytest.mark.usefixtures("in_process")
def test_each_table_has_the_losses_of_the_same_runs_read_in_its_own_way(
    planned, tmp_path, monkeypatch
):
    """The reference reads each document by itself: what is seen before it is nothing."""
    monkeypatch.setattr(checks, "multiplies_bfloat16", lambda _device: True)  # whatever the CPU
    sections = {"evaluation": "{documents: [continue, mask]}", "seeds": "1"}
    plan = planned(CROSSED, **sections)
    assert [table.name for table in plan.tables] == ["evaluated continue", "evaluated mask"]
    assert [run.id for run in plan.tables[0].runs] == [run.id for run in plan.tables[1].runs]
    root = tmp_path / "r"
    assert main(["run", str(tmp_path / "tiny.yaml"), "--results", str(root)]) == 0
    frames, store = Frames.of(Results.open(root / "tiny")), Store(root / "tiny")
    tokens = plan.tables[0].text.opened["corpus"]
    ids_N = torch.from_numpy(tokens.split("test").astype(np.int64))
    every = [find_runs(table) for table in frames.tables]
    for one, apart in zip(*(runs.itertuples() for runs in every), strict=True):
        record = store.record(one.id)
        assert record.compute["precision"] == record.train["precision"]
        assert record.tokens_done == 30 * 4 * 16
        spec = {**record.model, "separator": None}
        model = load_weights(build(spec_from(spec)), store.weights(one.id))
        found = apart.test_loss_nats
        measured = frames.tables[1].measured
        values = measured[measured["run"].eq(apart.id)].set_index("name")
        assert values.loc["test_loss_nats", "value"] == found
        assert sum(values.loc["test_nats_by_document", "samples"]) == pytest.approx(
            found * values.loc["test_predicted_tokens", "value"], abs=0.01
        )
        assert found == pytest.approx(by_document(model, ids_N, tokens.separator), abs=1e-5)
        assert abs(found - one.test_loss_nats) > 1e-4
    trained = every[1].set_index("label")["test_loss_nats"].to_dict()
    assert len({*trained.values()}) == len(trained) == 4


@torch.no_grad()
def losses(model, ids):
    logits = model(ids[None, :-1])[0]
    return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").tolist()


def by_document(model, ids, separator):
    """Score each document from the separator before it, in pieces of the context."""
    begins = [0, *[at for at in np.flatnonzero(ids == separator) if 0 < at < len(ids) - 1]]
    parts = [ids[a : b + 1] for a, b in zip(begins, [*begins[1:], len(ids) - 1], strict=True)]
    pieces = [part[at : at + 17] for part in parts for at in range(0, len(part) - 1, 16)]
    return np.mean([x for piece in pieces for x in losses(model, piece)])
