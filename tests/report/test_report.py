"""Tables, figures and the page, from records made by hand: the expected numbers are worked out."""

import json
import math
import re

import pandas as pd
import pytest

from llama_ablate.cli import main
from llama_ablate.report import (
    figures,
    frames,
    hypothesized,
    looking,
    page,
    sections,
    tables,
    tested,
    warned,
)
from llama_ablate.results import Record, Store

LABELS = {"aa": "baseline", "bb": "rms<b>norm</b> & co", "cc": "wild"}
LOSSES = {"aa": [2.0, 2.2, 2.1], "bb": [1.9, 2.0, 1.95], "cc": [math.nan, 2.5, 2.4]}


def record(variant, seed, loss, **changes):
    diverged = math.isnan(loss)
    measures = {} if diverged else {
        "perplexity": {"test_loss_nats": loss, "test_perplexity": math.exp(loss),
                       "test_bits_per_byte": loss / math.log(2), "test_loss_se_nats": 0.01},
    }  # fmt: skip
    values = {
        "id": f"{variant}{seed}", "label": LABELS[variant], "variant": variant, "seed": seed,
        "outcome": "diverged" if diverged else "ok", "reason": "not finite" if diverged else "",
        "steps_done": 10, "tokens_done": 100, "train_s": 1.0, "peak_memory_bytes": 2**20,
        "model": {"dim": 8, "norm": "layernorm" if variant == "aa" else "rmsnorm"},
        "train": {}, "data": "f",
        "engine": {"device": "cpu", "threads": 1, "precision": "float32", "kernel": "math"},
        "environment": {"packages": {"torch": "2"}, "code": "c", "processor": "p", "gpu": None},
        "measures": measures,
    }  # fmt: skip
    return Record(**{**values, **changes})


def variant(key, kv):
    return {"label": LABELS[key], "id": key, "baseline": key == "aa", "residual": 0.001,
            "model": record(key, 0, 1.0).model, "parameters": 1234567, "non_embedding": 1000000,
            "flops_per_token": 2000000, "kv_bytes_per_token": kv}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "x")
    plan = {
        "experiment": {"name": "x", "train": {"batch": 4, "lr": 1e-3}, "model": {"context": 8},
                       "variants": {"match": "parameters"}},
        "question": "Is it <script>alert(1)</script> better?", "data": {"fingerprint": "f"},
        "steps": 10, "tokens_per_run": 320,
        "variants": [variant("aa", 1024), variant("bb", 512), variant("cc", 1024)],
        "runs": [{"id": f"{v}{s}", "variant": v, "seed": s} for s in range(3) for v in LOSSES],
    }  # fmt: skip
    found.create(plan, "name: x\n")
    for key, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            curve = [
                {"step": s, "tokens": 32 * s, "validation_loss_nats": 3.0 / s,
                 "train_loss_nats": 3.0}
                for s in (1, 2, 3)
            ]  # fmt: skip
            found.commit(record(key, seed, loss), curve, None)
        speed = {"aa": 1000.0, "bb": 1250.0, "cc": 500.0}[key]
        with found.alone("measure") as claim:
            found.add_variant_measure(claim, LABELS[key], key, "train_speed", {
                "values": {"train_tokens_per_s": speed}, "samples": {"train_tokens_per_s": [speed]},
                "error": ""})  # fmt: skip
            cached = {f"decode_cached_b{b}_c{c}_tokens_per_s": speed * b / c
                      for b in (1, 8) for c in (64, 128)}  # fmt: skip
            found.add_variant_measure(claim, LABELS[key], key, "decode_speed", {
                "values": cached, "samples": {k: [v, v] for k, v in cached.items()},
                "error": ""})  # fmt: skip
    return found


def test_the_comparison_pairs_by_seed_and_keeps_what_diverged(store):
    rows = {row["label"]: row for row in frames.comparison(store).to_dict("records")}
    better = rows[LABELS["bb"]]
    # Differences -0.1, -0.2, -0.15: mean -0.15, sd 0.05, t(0.975, 2) = 4.302653.
    half = 4.302653 * 0.05 / math.sqrt(3)
    assert better["difference_nats"] == pytest.approx(-0.15)
    assert better["high_nats"] == pytest.approx(-0.15 + half, rel=1e-5)
    assert better["verdict"] == "better"
    assert better["train_speed_ratio"] == pytest.approx(1.25)
    assert better["decode_tokens_per_s"] == pytest.approx(1250 * 8 / 128)
    wild = rows["wild"]
    assert wild["outcome"] == "2 ok, 1 diverged"
    assert wild["verdict"] == "diverged"
    assert wild["n"] == 2
    assert wild["difference_nats"] == pytest.approx((0.3 + 0.3) / 2)  # over seeds 1 and 2
    assert rows["baseline"]["loss_nats"] == pytest.approx(2.1)


def test_runs_without_a_record_are_pending(store):
    import shutil

    shutil.rmtree(store.runs.folder("bb1"))
    frame = frames.runs(store)
    assert frame.set_index("id").loc["bb1", "outcome"] == "pending"
    assert any("1 of 9 planned runs have not finished" in w for w in warned.warnings(store))


def test_records_that_may_not_be_compared_are_pointed_out(store):
    assert len(warned.warnings(store)) == 1  # the diverged run alone
    import shutil

    shutil.rmtree(store.runs.folder("bb1"))
    engine = {"device": "cpu", "threads": 1, "precision": "bfloat16", "kernel": "math"}
    store.commit(record("bb", 1, 2.0, engine=engine), [], None)
    told = " ".join(warned.warnings(store))
    assert "different devices, threads, precisions or kernels" in told
    assert "bfloat16" in told
    assert "wild, seed 0: diverged (not finite)." in told


def test_tables_are_written_for_people_for_papers_and_for_machines(store):
    frame = frames.comparison(store)
    tables.save(tables.comparison_cells(frame), frame, "A & B", store.report / "tables/comparison")
    folder = store.report / "tables"
    markdown = (folder / "comparison.md").read_text()
    assert "| -0.1500 [-0.2742, -0.0258] | better |" in markdown
    assert len({line.count("|") for line in markdown.splitlines()}) == 1
    latex = (folder / "comparison.tex").read_text()
    assert r"rms<b>norm</b> \& co" in latex
    assert r"\caption{A \& B}" in latex
    back = pd.read_csv(folder / "comparison.csv")
    assert back.loc[1, "difference_nats"] == pytest.approx(-0.15)
    assert list(back.columns) == list(frames.comparison(store).columns)


def test_the_page_holds_everything_and_asks_nothing_of_the_world(store):
    text = page.write(store, sections.sections(store)).read_text("utf-8")
    assert "default-src 'none'" in text
    assert set(re.findall(r"(?:src|href)=.(.{5})", text)) == {"data:"}
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "rms&lt;b&gt;norm" in text
    assert text.count("data:image/svg+xml;base64,") == len(figures.FIGURES) == 5
    for words in ("-0.1500 [-0.2742, -0.0258]", "2 ok, 1 diverged", "not finite", "1,234,567"):
        assert words in text


def test_a_figure_of_what_was_not_measured_is_left_out(store, monkeypatch):
    monkeypatch.setattr(type(store), "variant_measures", lambda _store, _variant: {})
    text = page.write(store, sections.sections(store)).read_text("utf-8")
    assert "quality vs training cost" not in text
    assert text.count("data:image/svg+xml;base64,") == len(figures.FIGURES) - 1


def test_the_answer_names_every_verdict(store):
    told = page.answer(frames.comparison(store))
    assert "better: rms<b>norm</b> & co (-0.1500)" in told
    assert "diverged: wild" in told


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_draws_with_and_without_finished_runs(store, tmp_path, name):
    for path in figures.save(figures.FIGURES[name](store), tmp_path / name):
        assert path.stat().st_size > 3000
    empty = Store(tmp_path / "empty")
    empty.create(store.plan, "name: x\n")
    figures.save(figures.FIGURES[name](empty), tmp_path / f"{name}-empty")


def test_the_effects_figure_shows_intervals_and_what_diverged(store):
    axes = figures.effects(store).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [LABELS["bb"], "wild"]
    assert any("1 diverged" in text.get_text() for text in axes.texts)
    spans = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert any(span[0] == pytest.approx(-0.2742, abs=1e-4) for span in spans)


def test_a_pair_shows_what_differs_and_every_number(store):
    text, values = looking.pair(store, store.plan["variants"][0], store.plan["variants"][1])
    assert "norm: layernorm -> rmsnorm" in text
    assert values["effects"]["test_loss_nats"]["mean"] == pytest.approx(-0.15)
    assert "is better than baseline on test loss, over 3 paired seeds" in text
    ratio = {row["measure"]: row["ratio"] for row in values["speeds"]}
    assert ratio["train_tokens_per_s"] == "1.250"


def test_a_table_of_text_aligns_its_columns():
    cells = pd.DataFrame({"name": ["a", "long name"], "n": ["1", "1,000"], "word": ["ok", "no"]})
    assert tables.text(cells).splitlines() == [
        "name           n  word",
        "---------  -----  ----",
        "a              1  ok",
        "long name  1,000  no",
    ]


def test_a_factorial_design_reports_main_effects_and_interactions(
    experiment_file, tmp_path, capsys
):
    file = experiment_file(
        variants="{design: product, axes: {norm: [layernorm, rmsnorm], block: [post, pre]}}",
        measure="[perplexity]",
    )
    assert main(["run", str(file), "--results", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "norm x block" in out
    assert "layernorm -> rmsnorm; post -> pre" in out
    store = Store(tmp_path / "out" / "tiny")
    found = tested.factors(store).set_index("factor")["difference_nats"]
    loss = frames.comparison(store).set_index("label")["loss_nats"]
    by_hand = (loss["rmsnorm post"] + loss["rmsnorm pre"]) / 2
    by_hand -= (loss["layernorm post"] + loss["layernorm pre"]) / 2
    assert found["norm"] == pytest.approx(by_hand)
    assert "<h2>Factors</h2>" in (store.report / "report.html").read_text("utf-8")
    assert "## Factors" in (store.report / "report.md").read_text("utf-8")


STATED = (
    "[{variant: baseline, against: none, direction: better, source: 001 L1, said: it helps}, "
    "{variant: none, direction: equivalent, margin: 0.5 nats}]"
)


def stated(experiment_file, tmp_path, hypotheses=STATED, seeds="2"):
    file = experiment_file(
        variants="{design: list, entries: [{label: baseline}, {label: none, position: none}]}",
        measure="[perplexity]", hypotheses=hypotheses, seeds=seeds,
    )  # fmt: skip
    return main(["run", str(file), "--results", str(tmp_path / "out")])


def test_hypotheses_are_held_against_the_runs_and_a_change_after_them_is_shown(
    experiment_file, tmp_path, capsys
):
    assert stated(experiment_file, tmp_path) == 0
    out = capsys.readouterr().out
    assert "baseline is better than none" in out
    assert "none equals baseline within 0.5 nats" in out
    store = Store(tmp_path / "out" / "tiny")
    found = hypothesized.hypotheses(store)
    loss = frames.comparison(store).set_index("label")["loss_nats"]
    assert found["difference"][0] == pytest.approx(loss["baseline"] - loss["none"])
    assert set(found["finding"]) <= {"supported", "refuted", "undecided"}
    html = (store.report / "report.html").read_text("utf-8")
    assert "it helps" in html
    assert "001 L1" in html
    assert not any("hypotheses" in warning for warning in warned.warnings(store))
    assert stated(experiment_file, tmp_path, STATED.replace("0.5 nats", "0.9 nats")) == 0
    assert "The hypotheses were changed after runs had finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hypotheses", "seeds", "message"),
    [
        ("[{variant: nome, direction: better}]", "2", "hypotheses[0].variant: no variant is called "
                                                      "'nome'; allowed: baseline, none; did you"),
        ("[{variant: none, against: x, direction: better}]", "2", "hypotheses[0].against: no var"),
        ("[{variant: none, direction: best}]", "2", "allowed: better, equivalent, higher"),
        ("[{variant: none, direction: equivalent}]", "2", "'equivalent' needs a margin"),
        ("[{variant: none, direction: better, margin: 0.01}]", "2", "a number and its unit"),
        ("[{variant: none, direction: better}]", "1", "an interval two seeds or more"),
        ("[{direction: better}]", "2", "the key 'variant' is needed here"),
    ],
    ids=range(7),
)  # fmt: skip
def test_hypotheses_that_cannot_be_tested_are_refused_before_any_training(
    hypotheses, seeds, message, experiment_file, tmp_path, capsys
):
    assert stated(experiment_file, tmp_path, hypotheses, seeds) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "tiny.yaml:" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_where_the_tokenizer_loses_text_no_bits_per_byte_are_shown_and_a_note_says_why(store):
    assert frames.comparison(store)["bits_per_byte"].notna().all()
    plan = store.plan
    plan["data"]["lost"] = "'park' becomes '<unk>'"
    store.plan_file.write_text(json.dumps(plan), "utf-8")
    assert frames.comparison(store)["bits_per_byte"].isna().all()
    note = "The tokenizer loses text ('park' becomes '<unk>'), so there are no bits per byte."
    assert note in warned.warnings(store)


def hypothesized_of(store, **stated):
    plan = store.plan
    plan["experiment"]["hypotheses"] = [stated]
    store.plan_file.write_text(json.dumps(plan), "utf-8")
    return hypothesized.hypotheses(store).iloc[0]


def test_a_run_that_diverged_speaks_against_its_variant(store):
    plan = store.plan
    plan["data"]["vocab"] = 256
    store.plan_file.write_text(json.dumps(plan), "utf-8")
    found = hypothesized_of(store, variant="wild", direction="worse", margin=None)
    # Seeds 1 and 2 lost 0.3 each; seed 0 diverged and counts as chance, log 256, against 2.0.
    assert found["n"] == 3
    assert found["difference"] == pytest.approx((math.log(256) - 2.0 + 0.3 + 0.3) / 3)


def test_a_share_of_nothing_is_not_measured(store):
    found = hypothesized_of(store, variant="wild", measure="diverged", direction="lower",
                            margin="5%")  # fmt: skip
    assert found["n"] == 0
    assert found["finding"] == "undecided"
