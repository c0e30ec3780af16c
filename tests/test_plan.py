"""From a file to tables and runs: budgets, texts, sizes, tuning and controls."""

import psutil
import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment
from llama_ablate.design import forecast
from llama_ablate.design.plan import make, paced
from llama_ablate.model.counts import count, states
from llama_ablate.model.decoder import build
from tests.texts import sentences, write_jsonl

FFN = "{axes: {feedforward: [relu]}}"


@pytest.fixture
def planned(experiment_file):
    return lambda *variants, **sections: make(
        experiment.load(experiment_file(*variants, **sections))
    )


def by_label(table):
    return {variant.label: variant for variant in table.variants}


def steps_of(table, variant):
    """The steps of a variant's runs, which are all the same."""
    (steps,) = {run.steps for run in table.runs if run.variant == variant.id}
    return steps


def test_several_budgets_are_several_tables_that_share_their_runs(planned):
    plan = planned(
        "{axes: {attention: [mqa]}}",
        budget="[tokens, flops]",
        train="{steps: 100, batch: 4, lr: 1e-3}",
    )
    names = [table.name for table in plan.tables]
    assert names == ["equal tokens", "equal flops"]
    tokens, flops = plan.tables
    mqa = by_label(flops)["mqa"]
    share = count(plan.tables[0].baseline.spec).flops_per_token / count(mqa.spec).flops_per_token
    assert steps_of(flops, mqa) == round(100 * share) > 100
    assert steps_of(tokens, mqa) == 100
    shared = {run.id for run in tokens.runs} & {run.id for run in flops.runs}
    assert len(shared) == 2  # the baseline's two seeds
    assert len(plan.runs) == 2 + 2 + 2


def test_a_budget_of_seconds_gives_the_slow_fewer_steps_and_the_aa_arm_the_same(planned):
    plan = planned(
        "{axes: {attention: [mqa]}}",
        budget="seconds",
        controls="{aa: both}",
        margin="0.02 nats",
        train="{steps: 60, batch: 4, lr: 1e-3}",
    )
    (timed,) = paced(plan, lambda c: [1.0, 2.0, 3.0][: len(c.variants)]).tables
    arms = by_label(timed)
    assert [steps_of(timed, arms[name]) for name in ("baseline", "mqa", "A/A")] == [60, 30, 60]


def test_the_bytes_of_a_state_are_matched_across_kinds_of_mixers(planned):
    """Each by a size of its own: a recurrence by its keys, a window by its tokens or its heads."""
    plan = planned(
        """{axes: {attention: [
          gated_delta, mla, mqa,
          {label: hybrid, pattern: [gated_delta, mha]},
          {name: mha, window: 32},
          ]}, match: state_bytes}""",
        model="{dim: 64, layers: 2, heads: 4, context: 128}",
    )
    of = by_label(plan.tables[0])
    (target,) = states(plan.tables[0].baseline.spec, (128,))
    solved = {label: variant.solved.rpartition(" ")[0] for label, variant in of.items()}
    assert solved.pop("baseline") == ""
    assert solved == {
        "gated_delta": "key_dim",
        "mla": "latent",
        "mqa": "head_dim",
        "hybrid": "key_dim",
        "mha-window=32": "head_dim",  # a window as long as the context would hide nothing
    }
    for label, variant in of.items():
        (live,) = (build(variant.spec).new_state(1, 128, dtype=torch.float16).nbytes,)
        assert live == pytest.approx(target, rel=0.005), label
        assert count(variant.spec).state_bytes == live


def test_a_ladder_has_a_table_for_each_size_with_its_tokens_and_rate(planned):
    plan = planned(
        FFN, sizes="{models: [{dim: 16}, {dim: 32}], tokens_per_parameter: 2, lr: inverse-dim}"
    )
    small, large = plan.tables
    assert [table.name for table in plan.tables] == ["dim 16", "dim 32"]
    for table in plan.tables:
        wanted = 2 * count(table.baseline.spec).non_embedding
        assert table.tokens_per_run == pytest.approx(wanted, rel=0.05)
    assert small.runs[0].train["lr"] == 1e-3
    assert large.runs[0].train["lr"] == pytest.approx(5e-4)


def test_an_aa_arm_draws_anew_what_it_is_asked_to(planned):
    every = "{aa: [none, init, order, both]}"
    plan = planned(FFN, controls=every, margin="0.02 nats")
    arms = {variant.id: variant for variant, _ in plan.arms}
    assert [run.seed for run in plan.runs.values() if arms[run.variant].reseed == "none"] == [0]
    seeds = {
        arms[run.variant].reseed: (run.init_seed, run.order_seed)
        for run in plan.runs.values()
        if run.seed == 1 and arms[run.variant].label != "relu"
    }
    far = 1 + 2**32
    assert seeds == {
        "": (1, 1),
        "init": (far, 1),
        "order": (1, far),
        "both": (far, far),
    }
    assert len(plan.runs) == 5 * 2 + 1  # 'none' is trained again, in one seed


def test_a_model_that_the_device_cannot_hold_is_refused_and_one_that_may_not_fit_is_told(
    experiment_file, tmp_path, monkeypatch, capsys, answer
):
    file = experiment_file()
    needed = answer("plan", file, "--json")["memory"]["bytes"]
    for share, code in ((1.1, 0), (0.9, 0), (0.5, 2)):
        memory = psutil.virtual_memory()._replace(total=share * needed)
        monkeypatch.setattr(forecast.psutil, "virtual_memory", lambda has=memory: has)
        assert main(["plan", str(file)]) == code
        told = capsys.readouterr()
        assert ("is predicted to need" in told.out + told.err) == (share < 1)
    refused = answer("run", file, "--results", tmp_path / "r", code=2)
    assert "tiny.yaml:2:1: model: 'baseline' is predicted to need" in refused
    assert not (tmp_path / "r" / "tiny").exists()


def test_variants_of_other_tokenizers_train_on_as_many_bytes_or_flops(planned, tmp_path):
    file = tmp_path / "several.jsonl"
    write_jsonl(file, [sentences(9, seed=i) for i in range(40)])
    bpe = "tokenizer: {name: bpe, vocab: 300}"
    plan = planned(
        "{axes: {data.tokenizer: [bytes]}}",
        data=f"{{corpus: {{name: files, path: '{file}'}}, {bpe}, order: documents}}",
        budget="[bytes, flops]",
        train="{steps: 60, batch: 4, lr: 1e-3}",
    )
    for table in plan.tables:
        base, other = table.variants
        assert (base.spec.vocab, other.spec.vocab) == (300, 256)
        own, others = ({run.id for run in table.runs if run.variant == v.id} for v in (base, other))
        assert not own & others
    of_base, of_other = [plan.tables[0].text_of(v) for v in plan.tables[0].variants]
    by_bytes, by_flops = [steps_of(table, table.variants[1]) for table in plan.tables]
    read = 60 * of_other.tokens["train"] / of_base.tokens["train"]
    assert abs(by_bytes - read) <= 0.5
    flops = [count(v.spec).flops_per_token for v in plan.tables[1].variants]
    assert abs(by_flops - 60 * flops[0] / flops[1]) <= 0.5
    assert [text.vocab for text in plan.tables[0].texts] == [300, 256]
