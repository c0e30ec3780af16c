"""The command `promote`: a second gate on fresh seeds and a second text, by an ordinary file."""

import json
import math
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment
from llama_ablate.config.schema import Controls, Guard
from llama_ablate.design import promotion
from llama_ablate.design.promotion import Gate
from llama_ablate.evidence import StandardError
from llama_ablate.evidence.power import Noise, of_rows
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results
from tests.conftest import LEARNS
from tests.in_process import in_process, run_in_process


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished first gate: two variants, tuned rates and an A/A arm."""
    folder = tmp_path_factory.mktemp("promote")
    book, other = folder / "book.txt", folder / "other.txt"
    book.write_text("the cat sat on the mat and looked at the dog " * 800, "utf-8")
    other.write_text("a bird flew over the park where the dog had run " * 800, "utf-8")
    file = folder / "tiny.yaml"
    file.write_text(
        "name: tiny\n"
        "model: {dim: 16, layers: 1, heads: 2, context: 16}\n"
        "variants: {axes: {attention: [mqa], feedforward: [relu]}, match: parameters}\n"
        f"data: {{corpus: {{name: files, path: '{book}'}}}}\n"
        "train: {steps: 30, batch: 4, precision: float32, kernel: math, evals: 2}\n"
        "tune: {lr: [1.0e-3, 3.0e-2]}\n"
        "controls: {aa: none}\n"
        "seeds: 2\nmargin: 5 nats\nmeasure: [perplexity]\n",
        "utf-8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_ABLATE_CACHE", str(folder / "cache"))
        run_in_process(file, folder / "out")
    return folder


@pytest.fixture
def promote(first, capsys):
    """Promote in process: a function from words to exit code, output and errors."""

    def command(*words, folder=None):
        capsys.readouterr()
        with in_process():
            code = main(["promote", str(folder or first / "out" / "tiny"), *map(str, words)])
        return code, *capsys.readouterr()

    return command


def test_a_promotion_runs_baseline_and_variant_on_fresh_seeds_and_a_second_text(
    first, promote, tmp_path
):
    where = ("--results", tmp_path, "--device", "cpu")
    words = ("mqa", "--text", first / "other.txt", "--margin", "4 nats", *where)
    code, out, err = promote(*words)
    assert "first gate: passed: equivalent" in out, err
    assert out.rstrip().splitlines()[-1] == "confirmed: equivalent"
    results = Results.open(tmp_path / "tiny-promoted-mqa")
    plan, before = results.plan, Results.open(first / "out" / "tiny")
    seeds = {run.seed for run in plan.runs.values()}
    assert seeds == {500_000, 500_001}
    assert not seeds & {run.seed for run in before.plan.runs.values()}
    assert plan.experiment.margin == "4 nats"
    assert [table.text.source.corpus["path"] for table in plan.tables] == [
        str(first / "book.txt"),
        str(first / "other.txt"),
    ]
    for table in plan.tables:
        assert [v.label for v in table.variants] == ["baseline", "mqa", "A/A"]
    planned = {v.label: v for v in before.plan.tables[0].variants}
    assert [v.id for v in plan.tables[0].variants[:2]] == [
        planned["baseline"].id,
        planned["mqa"].id,
    ]
    report = (results.report / "report.md").read_text("utf-8")
    assert str(first / "out" / "tiny") in report  # the link back, with what that gate said
    assert "passed: equivalent" in report
    again = promote(*words, "--json")
    assert again[0] == code
    second = json.loads(again[1])["promotion"]
    assert second["first"]["verdict"] == "equivalent"
    assert [row["table"] for row in second["second"]] == [t.name for t in plan.tables]
    assert {row["result"] for row in second["second"]} == {"supported"}
    assert second["passed"] == {"first": True, "second": True}
    code, _, err = promote("mqa", "--text", first / "other.txt", *where)  # another margin
    assert code == 2
    assert "another protocol" in err


def test_each_keeps_the_point_that_was_chosen_for_it(first):
    """The baseline's is the file's train config, the variant's a change of it."""
    frames = Frames.of(Results.open(first / "out" / "tiny"))
    table = frames.table.plan
    mqa = next(v for v in table.variants if v.label == "mqa")

    def at(label, rate):
        variant = next(v for v in table.variants if v.label == label)
        return next(r for r in table.runs if r.variant == variant.id and r.tuned == {"lr": rate})

    gate = Gate("out/tiny", "better", "better", -0.2, -0.3, -0.1, seeds=2, passed=True)
    chosen = {"baseline": at("baseline", 1e-3), "mqa": at("mqa", 3e-2)}
    chosen["positive control"] = at("A/A", 3e-2)
    controls = Controls(aa=["none"], positive={"train.warmup": 0.8})
    values = promotion.experiment(
        frames.table.experiment.model_copy(update={"controls": controls}),
        table,
        mqa,
        chosen,
        gate,
        second="python-stdlib",
        margin="0.02 nats",
        seeds=[7, 8],
    )
    second = experiment.read(promotion.written(values), first / "second.yaml").experiment
    assert (second.train.lr, second.train.steps, second.tune) == (1e-3, 30, {})
    assert [entry.get("train.lr") for entry in second.variants.entries] == [None, 3e-2]
    assert second.controls.positive == {"train.lr": 3e-2, "train.warmup": 0.8}
    assert second.controls.aa == ["none"]
    assert [(h.direction, h.margin, h.source) for h in second.hypotheses] == [
        ("better", None, "out/tiny")
    ] * 2


def test_the_second_gate_keeps_guards_states_the_margin_and_can_be_run_from_anywhere(
    first, promote, monkeypatch
):
    monkeypatch.chdir(first)
    words = ("mqa", "--text", "other.txt", "--direction", "better", "--dry-run", "--json")
    for margin, stated in ((None, None), ("0.01 nats", "0.01 nats")):
        code, out, _ = promote(*words, *(["--margin", margin] if margin else []))
        assert code == 0
        values = json.loads(out)["experiment"]
        assert [h.get("margin") for h in values["hypotheses"]] == [stated] * 2
    assert [text["corpus"]["path"] for text in values["texts"]] == [
        str(first / "book.txt"),
        str(first / "other.txt"),
    ]
    assert values["controls"]["aa"] == ["none"]
    frames = Frames.of(Results.open(first / "out" / "tiny"))
    guarded = frames.table.experiment.model_copy(
        update={"guard": [Guard(metric="perplexity", quantity="loss", worse_by="0.1 nats")]}
    )
    table, runs = frames.table.plan, frames.table.plan.runs
    mqa = next(v for v in table.variants if v.label == "mqa")
    chosen = {"baseline": runs[0], "mqa": next(r for r in runs if r.variant == mqa.id)}
    gate = Gate("out", "better", "better", -0.2, -0.3, -0.1, seeds=2, passed=True)
    made = promotion.experiment(
        guarded, table, mqa, chosen, gate, second="python-stdlib", margin="1 nats", seeds=[7, 8]
    )
    (guard,) = experiment.read(promotion.written(made), first / "second.yaml").experiment.guard
    assert (guard.metric, guard.quantity, guard.worse_by) == ("perplexity", "loss", "0.1 nats")


def test_the_chance_to_confirm_half_of_the_first_gates_difference_is_said_before(capsys):
    pack = Path(__file__).parents[1] / "results/reference/first"
    text = Path(__file__).parents[1] / "README.md"
    words = ["promote", str(pack), "swiglu", "--text", str(text), "--dry-run"]
    assert main([*words, "--json"]) == 0
    chance = json.loads(capsys.readouterr().out)["chance"]
    assert 0 < chance["power"] < 0.8
    assert chance["seeds_needed"] > 8
    assert main([*words, "--seeds", str(chance["seeds_needed"])]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    power = float(said.partition("seeds: ")[2].partition(";")[0])
    assert power == pytest.approx(0.8, abs=0.12)


@pytest.mark.parametrize("seeds", [5, 6])
def test_a_true_effect_of_three_deviations_is_confirmed_on_both_texts_by_five_and_six_seeds(seeds):
    """With the A/A's veto it was in 2 to 5%."""
    alone = of_rows([Noise(StandardError(1.0, math.inf))], [seeds], known=True, tables=2_000)
    assert alone.power(3.0)[0] ** 2 >= 0.8


def test_fresh_seeds_are_none_that_were_used_and_none_of_a_race():
    assert promotion.fresh_seeds(3, {0, 1, 500_001}) == [500_000, 500_002, 500_003]
    almost_all = range(500_000, 1_000_000)
    assert promotion.fresh_seeds(2, {0, *almost_all}) == [1, 2]


def test_a_dry_run_prints_an_ordinary_file_and_writes_nothing(first, promote, tmp_path):
    before = sorted(first.rglob("*"))
    code, out, err = promote("mqa", "--text", first / "other.txt", "--dry-run", "--seeds", "3")
    assert (code, err) == (0, "")
    file = tmp_path / "second.yaml"
    file.write_text(out, "utf-8")
    second = experiment.load(file).experiment
    assert second.seeds == [500_000, 500_001, 500_002]
    assert [h.direction for h in second.hypotheses] == ["equivalent"] * 2
    assert [h.margin for h in second.hypotheses] == ["5 nats"] * 2
    assert sorted(first.rglob("*")) == before


def test_the_standard_library_is_the_second_text_where_the_first_was_another(promote):
    code, out, _ = promote("mqa", "--dry-run")
    assert code == 0
    assert "corpus: python-stdlib" in out


WRONG = {
    "an unknown variant": (("mqq",), "'mqq' is not a variant of", "did you mean 'mqa'?"),
    "the baseline": (("baseline",), "is the baseline of", ""),
    "a control": (("A/A",), "is a control of", ""),
    "a margin without a unit": (("mqa", "--margin", "0.1"), "not a number above 0 and 'nats'", ""),
    "the first text again": (("mqa", "--text", "{first}/book.txt"), "the text of the first", ""),
    "no corpus": (("mqa", "--text", "python-stdlb"), "is not a corpus", "'python-stdlib'"),
    "no table": (("mqa", "--table", "lag 3"), "which needs no name", ""),
    "no seeds": (("mqa", "--seeds", "1"), "two seeds or more", ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(case, first, promote, tmp_path, capsys):
    words, *parts = WRONG[case]
    before = sorted(first.rglob("*"))
    words = [word.format(first=first) for word in words]
    try:
        code, out, err = promote(*words, "--results", tmp_path)
    except SystemExit as stopped:  # of the parser of arguments
        code, (out, err) = stopped.code, capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(part in err for part in parts)
    assert sorted(first.rglob("*")) == before
    assert not list(tmp_path.iterdir())


def test_a_folder_without_results_and_results_without_a_margin_are_refused(
    promote, experiment_file, tmp_path
):
    code, _, err = promote("mqa", folder=tmp_path)
    assert (code, "holds no results" in err) == (2, True)
    file = experiment_file("{axes: {attention: [mqa]}}", train=LEARNS)
    run_in_process(file, tmp_path / "out")
    code, _, err = promote("mqa", folder=tmp_path / "out" / "tiny")
    assert (code, "give one with --margin" in err) == (2, True)
