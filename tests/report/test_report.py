"""Tables, figures and the page, from records made by hand: the expected numbers are worked out."""

import csv
import itertools
import math
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.text import Text
from scipy import stats

from llama_ablate.commands.cli import main
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.intervals import seeds_for
from llama_ablate.evidence.rates import rate_difference
from llama_ablate.evidence.text_error import text_error
from llama_ablate.evidence.written import Estimate
from llama_ablate.files.strict_json import sealed
from llama_ablate.findings import effects, hypotheses
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import cells
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.values import MetricRow
from llama_ablate.report import details, page, plots, tables
from llama_ablate.report.headline import headline
from llama_ablate.report.measurements import means_of
from llama_ablate.report.picture import Axis, Dot, Dots, Picture
from llama_ablate.report.sections import FIGURES, SECTIONS, SectionKind, sections
from llama_ablate.report.warnings import warnings
from llama_ablate.results import Record, Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.conftest import LEARNS
from tests.in_process import draw_nothing, run_in_process
from tests.metrics import measured

LABELS = {"aa": "baseline", "bb": "rms<b>norm</b> & co", "cc": "wild"}
MEASURED = ["perplexity", "train_speed", "decode_speed"]
LOSSES = {"aa": [2.0, 2.2, 2.1], "bb": [1.86, 2.04, 1.95], "cc": [math.nan, 2.5, 2.4]}


def record(variant, seed, loss, **changes):
    diverged = math.isnan(loss)
    perplexity = measured(
        test_loss_nats=loss,
        test_perplexity=math.exp(loss),
        test_bits_per_byte=loss / math.log(2),
        test_loss_se_nats=0.01,
    )
    values = {
        "id": f"{variant}{seed}",
        "label": LABELS[variant],
        "variant": variant,
        "seed": seed,
        "outcome": "diverged" if diverged else "ok",
        "reason": "not finite" if diverged else "",
        "steps_done": 10,
        "tokens_done": 100,
        "train_s": 1.0,
        "peak_memory_bytes": 2**20,
        "model": {"dim": 8, "norm": "layernorm" if variant == "aa" else "rmsnorm"},
        "train": {},
        "data": "f",
        "compute": {"device": "cpu", "threads": 1, "precision": "float32", "kernel": "math"},
        "environment": {"packages": {"torch": "2"}, "code": "c", "processor": "p", "gpu": None},
        "metrics": {} if diverged else {"perplexity": perplexity},
    }
    return Record(**{**values, **changes})


def variant(key, kv):
    return plans.variant(
        key,
        LABELS[key],
        baseline=key == "aa",
        residual=0.001,
        model=record(key, 0, 1.0).model,
        parameters=1234567,
        kv_bytes_per_token=kv,
    )


#: Figures of every experiment; the others are of what is tuned, of a ladder, of a factorial design.
OF_ANY_GRID = [
    name
    for name in FIGURES
    if name not in ("sensitivity", "sizes", "gaps", "transfer", "factors", "steps")
]


def read(store):
    return Frames.of(Results(store))


def comparison(store):
    """The rows of the comparison by label."""
    return framed(read(store).table.comparison).set_index("label")


def written(store, *, pictures=False):
    """Write the report, without its pictures unless they are asked for; return its page."""
    frames = read(store)
    every, notices = sections(frames), warnings(frames)
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr(page.PagePictures, "draw", draw_nothing)
        return page.write(frames, every, notices, store.report).read_text("utf-8")


def planned_anew(store, *, table=None, **experiment):
    """Change the first table of the plan that stands, and sections of its experiment."""
    plan = store.plan
    first = plan.tables[0].model_copy(update=table or {})
    changed = plan.experiment.model_copy(update=experiment)
    plan = plan.model_copy(update={"tables": [first], "experiment": changed})
    store.plan_file.write_bytes(sealed(plan.model_dump(mode="json"), store.plan_file.name))


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "x")
    runs = [plans.run(f"{v}{s}", v, s) for s in range(3) for v in LOSSES]
    table = plans.table(
        [variant("aa", 1024), variant("bb", 512), variant("cc", 1024)],
        runs,
        {"vocab": 256},
        match="parameters",
    )
    question = "Is it <script>alert(1)</script> better?"
    found.create(plans.document(table, question=question, measure=MEASURED), "name: x\n")
    for key, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            curve = [
                {
                    "step": s,
                    "tokens": 32 * s,
                    "validation_loss_nats": 3.0 / s,
                    "train_loss_nats": 3.0,
                }
                for s in ((1, 2) if math.isnan(loss) else (1, 2, 3))
            ]
            found.commit(record(key, seed, loss), curve, None)
        speed = {"aa": 1000.0, "bb": 1250.0, "cc": 500.0}[key]
        with found.alone("measure") as lease:
            train = Value("train_tokens_per_s", speed, samples=(speed,))
            cached = [
                Value(
                    f"{b} sequences, {c} tokens",  # a name that says nothing to the program
                    speed * b / c,
                    "decode_speed",
                    "tokens/s",
                    {"batch": b, "context": c, "cache": "cached"},
                    (speed * b / c,) * 2,
                )
                for b in (1, 8)
                for c in (64, 128)
            ]
            for name, rows in (("train_speed", [train]), ("decode_speed", cached)):
                found.add_variant_metric(lease, LABELS[key], key, name, Measurement(tuple(rows)))
    return found


def test_the_comparison_pairs_by_seed_and_keeps_what_diverged(store):
    rows = comparison(store).to_dict("index")
    better = rows[LABELS["bb"]]
    # Differences -0.14, -0.16, -0.15: mean -0.15, sd 0.01; of two rows t(0.9875, 2) = 6.205347.
    half = 6.205347 * 0.01 / math.sqrt(3)
    assert better["difference"] == pytest.approx(-0.15)
    assert better["high"] == pytest.approx(-0.15 + half, rel=1e-5)
    assert better["verdict"] == "better"
    assert better["train_speed_ratio"] == pytest.approx(1.25)
    assert better["decode_tokens_per_s"] == pytest.approx(1250 * 8 / 128)
    wild = rows["wild"]
    assert wild["outcome"] == "2 ok, 1 diverged"
    assert (wild["ended"], wild["lost"], wild["too_short"]) == (3, 1, 0)
    assert (wild["lost_low"], wild["lost_high"]) == pytest.approx((0.0084, 0.9057), abs=1e-4)
    # Of three runs each, one against none; two rows. At worst both rates are 0.5: 22 / 64 a side.
    assert wild["lost_p_corrected"] == 1.0
    assert wild["verdict"] == "worse"  # by the seeds that both kept, and the lost one is no better
    assert wild["n"] == 2
    assert wild["difference"] == pytest.approx((0.3 + 0.3) / 2)  # over seeds 1 and 2
    assert rows["baseline"]["loss"] == pytest.approx(2.1)


def test_runs_without_a_record_are_pending(store):
    import shutil

    shutil.rmtree(store.folder("bb1"))
    outcomes = {run.id: run.outcome for run in read(store).table.runs}
    assert outcomes["bb1"] == "pending"
    assert any("1 of 9 planned runs have not finished" in w for w in warnings(read(store)))


def test_records_that_may_not_be_compared_are_pointed_out(store):
    usual = ("Speeds were measured in fewer", "The losses were not stored by document")
    told = [w for w in warnings(read(store)) if not w.startswith(usual)]
    assert [w for w in told if "tokens a parameter" not in w] == [
        "wild, seed 0: diverged (not finite)."
    ]
    import shutil

    shutil.rmtree(store.folder("bb1"))
    compute = {"device": "cpu", "threads": 1, "precision": "bfloat16", "kernel": "math"}
    store.commit(record("bb", 1, 2.0, compute=compute), [], None)
    told = " ".join(warnings(read(store)))
    assert "The runs were made with different precisions (bfloat16; float32)." in told
    assert "different attention kernels" not in told
    assert " in bfloat16 or float32 with the math attention kernel and 1 thread" in written(store)
    assert "wild, seed 0: diverged (not finite)." in told


def test_tables_are_written_for_people_for_papers_and_for_machines(store):
    rows = read(store).table.comparison
    tables.save(cells(rows), framed(rows), "A & B", store.report / "tables/comparison")
    folder = store.report / "tables"
    markdown = (folder / "comparison.md").read_text()
    assert (
        "| rms&lt;b>norm&lt;/b> & co | 3 | 1.950 | -0.150 [-0.186, -0.114] | better |" in markdown
    )
    assert len({line.count("|") for line in markdown.splitlines()}) == 1
    latex = (folder / "comparison.tex").read_text()
    assert r"rms\textless{}b\textgreater{}norm\textless{}/\allowbreak{}b" in latex
    assert r"\caption{A \& B}" in latex
    back = pd.read_csv(folder / "comparison.csv")
    assert back.loc[1, "difference"] == pytest.approx(-0.15)
    assert list(back.columns) == list(framed(rows).columns)


def test_the_page_holds_everything_and_asks_nothing_of_the_world(store):
    text = written(store, pictures=True)
    assert "default-src 'none'" in text
    whole, scripts = text, text.index("<script")
    text = text[:scripts]
    assert not re.search(r"\bsrc=", text)
    links = re.findall(r"href=(.{1,9})", text)
    own = [link for link in links if link.startswith(('"#', '"../runs/'))]
    assert own == links  # letters of pictures, parts of the page, records of runs
    assert {link[:4] for link in own} >= {'"#l0', '"../'}
    assert not re.search(r"(?:src|href)=", re.sub(r"(?s)<script>.*?</script>", "", whole[scripts:]))
    assert "&lt;script&gt;alert(1)" in text
    assert "rms&lt;b&gt;norm" in text
    drawn = {file.stem for file in (store.report / "figures").glob("*.svg")}
    shown = set(re.findall('<figure id="figure-([^"]+)"', text))
    assert shown | {"loss_curves_log"} == drawn
    made = {name for name in drawn if not name.startswith("metrics_")}
    assert made | {"metrics"} == {*OF_ANY_GRID, "loss_curves_log"}
    lost = ("2 ok, 1 diverged: 33% [1%, 91%], p 1.00", "(mean of the 2 that trained)")
    for words in ("-0.150 [-0.186, -0.114]", *lost, "not finite", "1,234,567"):
        assert words in text


def test_a_figure_of_what_was_not_measured_is_left_out(store, monkeypatch):
    monkeypatch.setattr(Results, "variant_metrics", lambda _results, _variant: {})
    text = written(store)
    assert "training time, multiple of" not in text
    assert not (store.report / "figures" / "metrics_decode_speed.svg").exists()


def test_runs_of_which_no_loss_is_measured_have_no_verdict(store):
    for key in ("aa", "bb"):
        for seed in range(3):
            replaced(store, f"{key}{seed}", metrics={})
    row = comparison(store).loc["rms<b>norm</b> & co"]
    assert (row.verdict, row.n) == ("no verdict", 0)
    assert "rms<b>norm</b> & co has no verdict" in headline(read(store))


def test_the_answer_names_every_verdict(store):
    told = headline(read(store))
    assert told.startswith("rms<b>norm</b> & co beats baseline by 0.150 nats [")
    assert "; wild is worse by 0.300 nats [0.279, 0.321] (2 ok, 1 diverged)." in told


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_what_there_is_or_is_none(store, tmp_path, name):
    picture = FIGURES[name](read(store))
    assert (picture is None) == (name not in OF_ANY_GRID)
    for path in plots.save(plots.draw(picture).figure, tmp_path / name) if picture else ():
        assert path.stat().st_size > 3000
    empty = Store(tmp_path / "empty")
    empty.create(store.plan, "name: x\n")
    without_runs = FIGURES[name](read(empty))
    assert (without_runs is None) == (name not in ("effects", "cache_growth"))


def test_a_report_of_runs_of_which_none_has_finished_is_written(store, tmp_path):
    empty = Store(tmp_path / "empty")
    empty.create(store.plan, "name: x\n")
    assert "9 of 9 planned runs have not finished." in written(empty)
    told = "rms&lt;b&gt;norm&lt;/b&gt; &amp; co and wild are pending."
    assert told in written(empty)


def test_metrics_of_many_variants_show_the_first_the_lowest_and_the_highest():
    named = [("speed", "tokens_per_s", f"v{n}", float(n)) for n in range(20)]
    named += [("loss", "se", "v3", math.nan), ("loss", "mean", "v3", 1.0)]
    rows = [
        MetricRow(variant=label, label=label, metric=metric, name=name, quantity=name, value=value)
        for metric, name, label, value in named
    ]
    shown = means_of(rows)
    assert shown.to_numpy().tolist() == [
        ["tokens_per_s", "speed", "0", "0 (v0)", "19 (v19)"],
        ["mean", "loss", "-", "1 (v3)", "1 (v3)"],
    ]
    few = means_of([replace(row, label=f"v{n % 2}") for n, row in enumerate(rows)])
    assert list(few.columns) == ["name", "metric", "v0", "v1"]
    assert few["v1"][0] == "10"  # the mean of 1, 3 ... 19


def test_a_figure_is_registered_once():
    with pytest.raises(ConfigError, match="the figure 'effects' is registered already"):
        FIGURES.register("effects")


def test_a_section_and_a_figure_that_are_registered_are_on_the_page(store, monkeypatch):
    seeds = SectionKind("Seeds of each", lambda frames: frames.table.comparison, "As planned.")
    monkeypatch.setitem(SECTIONS, "seeds", seeds)
    monkeypatch.setattr(FIGURES, "_makers", {})

    @FIGURES.register("losses_by_seed", every_table=True)
    def losses_by_seed(frames):
        """Show a dot for each variant."""
        marks = [Dot(row.label, Estimate(row.loss)) for row in frames.table.comparison]
        return Picture([Dots(marks, Axis("loss"))])

    html = written(store, pictures=True)
    assert "<h2>Seeds of each</h2>" in html
    assert "<figcaption>A dot for each variant.</figcaption>" in html
    assert (store.report / "tables" / "seeds-of-each.csv").is_file()
    assert (store.report / "figures" / "losses_by_seed.png").is_file()


def test_the_effects_figure_shows_intervals_and_what_diverged(store):
    axes = plots.draw(FIGURES["effects"](read(store))).figure.axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["baseline", LABELS["bb"], "wild"]
    assert any("1 diverged" in text.get_text() for text in axes.texts)
    spans = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert any(span[0] == pytest.approx(-0.1858, abs=1e-4) for span in spans)


def pair(store):
    table = read(store).table
    return details.pair(table, *table.plan.variants[:2])


def test_a_pair_shows_what_differs_and_every_number(store):
    text, values = pair(store)
    assert "norm: layernorm -> rmsnorm" in text
    assert values["effects"]["test_loss_nats"]["mean"] == pytest.approx(-0.15)
    (sentence,) = (line for line in text.splitlines() if "is better than baseline" in line)
    assert "on test loss, -0.150 [-0.175, -0.125]" in sentence
    assert "over 3 paired seeds" in sentence
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
        margin="9 nats",
        train=LEARNS,
    )
    assert run_in_process(file, tmp_path / "out", figures=True) == 0
    out = capsys.readouterr().out
    store = Store(tmp_path / "out" / "tiny")
    frames = read(store)
    table = framed(effects.factors(frames.table)).set_index("factor")
    loss = comparison(store)["loss"]
    with_pre = loss["rmsnorm pre"] - loss["layernorm pre"]
    with_post = loss["rmsnorm post"] - loss["layernorm post"]
    assert table["difference"]["norm"] == pytest.approx((with_pre + with_post) / 2)
    assert table["effect"]["norm"] == "rmsnorm instead of layernorm"
    both = table.loc["norm x block"]
    assert both["effect"] == "rmsnorm with pre"
    assert both["difference"] == pytest.approx(with_pre - with_post)
    assert both[["with_present", "with_absent"]].tolist() == pytest.approx([with_pre, with_post])
    documents = {
        v.label: frames.table.documents("heldout")[v.id] for v in frames.table.plan.variants
    }
    of_norm = [
        sum(
            (0.5 if label.startswith("rmsnorm") else -0.5) * own[seed][0]
            for label, own in documents.items()
        )
        for seed in (0, 1)
    ]
    error = text_error(of_norm, documents["rmsnorm pre"][0][1])
    assert table["text_se"]["norm"] == pytest.approx(error.se)
    told = re.search(r"rmsnorm: ([-+0-9.]+) with pre, ([-+0-9.]+) with post", out)
    digits = len(told[1].partition(".")[2])
    assert [float(told[1]), float(told[2])] == pytest.approx(
        [with_pre, with_post], abs=10.0**-digits
    )
    assert table["verdict"].to_dict() == dict.fromkeys(["norm", "block"], "equivalent") | {
        "norm x block": "add up"
    }
    answer = headline(frames)
    assert answer.startswith("On average over the other factors, ")
    assert "are equivalent within 9 nats; no interaction larger than" in answer
    html = (store.report / "report.html").read_text("utf-8")
    assert html.index("<h2>Factors</h2>") < html.index("<h2>Combinations</h2>")
    assert "All 4 combinations were run: no effect is confounded" in html
    axes = plots.draw(FIGURES["factors"](frames)).figure.axes[0]
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert sorted(labels) == sorted(table["effect"])
    assert labels[-1] == "rmsnorm with pre"
    assert main(["show", str(store.root)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Factors") < shown.index("rmsnorm with pre") < shown.index("Combinations")


def test_a_half_fraction_says_what_its_effects_are_confounded_with(
    experiment_file, tmp_path, capsys
):
    axes = (
        "{norm: [layernorm, rmsnorm], position: [sinusoidal, rope], "
        "attention: [mha, mqa], train.lr: [0.01, 0.03], block: [post, pre]}"
    )
    file = experiment_file(
        variants=f"{{design: fraction, axes: {axes}}}",
        measure="[perplexity]",
        seeds="1",
        train=LEARNS.replace("30", "80"),
    )
    assert run_in_process(file, tmp_path / "out", figures=True) == 0
    out = capsys.readouterr().out
    assert "lr=0.03 instead of lr=0.01" in out
    page_text = (tmp_path / "out" / "tiny" / "report" / "report.md").read_text("utf-8")
    assert "## Factors" in page_text
    assert "16 of 32 combinations were run: a main effect is confounded with an" in page_text
    table = framed(effects.factors(read(Store(tmp_path / "out" / "tiny")).table))
    assert set(table["verdict"]) == {"inconclusive"}  # one seed has no interval
    aliases = dict(zip(table["factor"], table["aliases"], strict=True))
    assert aliases["norm"] == "position x attention x train.lr x block"


STATED = (
    "[{variant: baseline, against: none, direction: better, source: 001 L1, said: it helps}, "
    "{variant: none, direction: equivalent, margin: 0.5 nats}]"
)


def stated(experiment_file, tmp_path, hypotheses=STATED, seeds="2"):
    file = experiment_file(
        variants="{design: list, entries: [{label: baseline}, {label: none, position: none}]}",
        measure="[perplexity]",
        hypotheses=hypotheses,
        seeds=seeds,
        train=LEARNS,
    )
    return run_in_process(file, tmp_path / "out")


def test_hypotheses_are_held_against_the_runs_and_a_change_after_them_is_shown(
    experiment_file, tmp_path, capsys
):
    assert stated(experiment_file, tmp_path) == 0
    out = capsys.readouterr().out
    assert "baseline is better than none" in out
    assert "none equals baseline within 0.5 nats" in out
    store = Store(tmp_path / "out" / "tiny")
    found = framed(hypotheses.results(read(store)))
    loss = comparison(store)["loss"]
    assert found["difference"][0] == pytest.approx(loss["baseline"] - loss["none"])
    assert set(found["result"]) <= {"supported", "refuted", "undecided"}
    html = (store.report / "report.html").read_text("utf-8")
    assert "it helps" in html
    assert "001 L1" in html
    assert not any("hypothesis" in warning for warning in warnings(read(store)))
    assert stated(experiment_file, tmp_path, STATED.replace("0.5 nats", "0.9 nats")) == 0
    said = capsys.readouterr().err
    assert "margin: 0.9 nats}`." in said


@pytest.mark.parametrize(
    ("hypotheses", "seeds", "message"),
    [
        ("[{variant: none, direction: better}]", "1", "an interval two seeds or more"),
        ("[{direction: better}]", "2", "the key 'variant' is needed here"),
    ],
    ids=range(2),
)
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
    text = store.plan.tables[0].text.model_copy(update={"lost": "'park' becomes '<unk>'"})
    planned_anew(store, table={"text": text})
    note = "The tokenizer loses text ('park' becomes '<unk>'), so there are no bits per byte."
    assert note in warnings(read(store))
    assert "bits per byte" not in " ".join(warnings(read(store))).replace(note, "")


def hypothesis_of(store, **stated):
    planned_anew(store, hypotheses=[Hypothesis(**stated)])
    return framed(hypotheses.results(read(store))).iloc[0]


def test_a_hypothesis_about_a_row_is_decided_by_the_interval_of_its_table(store):
    row = comparison(store).loc[LABELS["bb"]]
    found = hypothesis_of(store, variant=LABELS["bb"], direction="better")
    shown = ["difference", "low", "high", "p_corrected", "n"]
    table = ["difference", "low", "high", "p_corrected", "n"]
    assert list(found[shown]) == list(row[table])
    assert (found["result"], found["family"]) == ("supported", "2 rows of its table")
    other_way = hypothesis_of(
        store, variant="baseline", against=LABELS["bb"], direction="worse", margin="0.1 nats"
    )
    assert (other_way["low"], other_way["high"]) == (-row["high"], -row["low"])
    assert other_way["result"] == "supported"  # by more than 0.1142


def test_other_comparisons_share_their_five_percent_each_quantity_counted_once(store):
    """Of five hypotheses two are about rows, and two numbers are asked for by the others."""
    bb = LABELS["bb"]
    planned_anew(
        store,
        hypotheses=[
            Hypothesis(variant=bb, direction="better"),
            Hypothesis(variant=bb, direction="worse", margin="0.1 nats"),
            Hypothesis(variant=bb, measure="test_perplexity", direction="lower"),
            Hypothesis(
                variant="baseline", against=bb, measure="test_perplexity", direction="higher"
            ),
            Hypothesis(variant=bb, measure="test_bits_per_byte", direction="lower"),
        ],
    )
    found = hypotheses.results(read(store))
    frame = framed(found)
    assert list(frame["family"]) == ["2 rows of its table"] * 2 + ["2 other comparisons"] * 3
    bits = [
        (own - base) / math.log(2) for own, base in zip(LOSSES["bb"], LOSSES["aa"], strict=True)
    ]
    ends = stats.ttest_1samp(bits, 0).confidence_interval(1 - 0.05 / 2)
    assert (frame["low"][4], frame["high"][4]) == pytest.approx((ends.low, ends.high))
    assert frame["p_corrected"][2] == pytest.approx(frame["p_corrected"][3])
    assert frame["low"][2] == pytest.approx(-frame["high"][3])
    assert cells(found)["corrected for"][4] == "2 other comparisons"


def test_no_number_has_two_verdicts(store):
    """Whatever is stated about a row: its result never contradicts the table's verdict."""
    for direction, result in (("better", "supported"), ("worse", "refuted")):
        found = hypothesis_of(store, variant=LABELS["bb"], direction=direction)
        assert found["result"] == result
    assert comparison(store).loc[LABELS["bb"], "verdict"] == "better"


@pytest.mark.parametrize(
    ("losses", "floor", "result", "why"),
    [
        ({"aa": 5.54, "bb": 5.50}, 1.0, "undecidable", "no arm has learned the task: the lowest"),
        ({"aa": 5.54, "bb": 3.0}, 1.0, "supported", ""),
        ({"aa": 1.004, "bb": 1.001}, 1.0, "undecidable", "every arm has solved the task"),
        ({"aa": 1.2, "bb": 1.001}, 1.0, "supported", ""),
        ({"aa": 5.54, "bb": 5.50}, None, "supported", ""),  # no floor is known
    ],
)
def test_what_no_arm_has_learned_and_what_all_have_solved_cannot_be_decided(
    losses, floor, result, why, store
):
    arms = [variant("aa", 1024), variant("bb", 512)]
    runs = [plans.run(f"{key}{seed}", key, seed) for key in losses for seed in range(3)]
    planned_anew(store, table={"variants": arms, "runs": runs})
    for (key, loss), seed in itertools.product(losses.items(), range(3)):
        drawn = loss + 0.0001 * seed * (key == "bb")
        values = {"test_loss_nats": drawn}
        if floor:
            values |= {"test_excess_nats": drawn - floor, "test_excess_se_nats": 0.01}
        replaced(store, f"{key}{seed}", metrics={"perplexity": measured(**values)})
    found = hypothesis_of(store, variant=LABELS["bb"], direction="better")
    assert found["result"] == result
    assert why in found["why"]
    assert any("cannot be decided" in warning for warning in warnings(read(store))) == bool(why)


def test_where_every_run_collapsed_losses_are_undecidable_and_rates_are_not(store):
    for key, seed in itertools.product(LOSSES, range(3)):
        replaced(store, f"{key}{seed}", outcome="collapsed", metrics={})
    found = hypothesis_of(store, variant=LABELS["bb"], direction="better")
    assert (found["result"], found["why"]) == (
        "undecidable",
        "no arm has learned the task: all runs collapsed",
    )
    found = hypothesis_of(store, variant=LABELS["bb"], measure="collapsed", direction="higher")
    assert found["result"] == "undecided"


def test_a_run_that_diverged_speaks_against_its_variant(store):
    found = hypothesis_of(store, variant="wild", direction="worse", margin=None)
    # Seeds 1 and 2 lost 0.3 each; that seed 0 diverged speaks for worse too.
    assert (found["n"], found["result"]) == (2, "supported")
    assert found["difference"] == pytest.approx(0.3)
    better = hypothesis_of(store, variant="baseline", against="wild", direction="worse")
    assert better["result"] == "undecided"  # the seeds that were kept may refute no more


def replaced(store, run, **changes):
    """Put another record in the place of a run's."""
    import shutil

    shutil.rmtree(store.folder(run))
    variant, seed = run[:2], int(run[2:])
    store.commit(record(variant, seed, LOSSES[variant][seed], **changes), [], None)


def test_a_collapsed_run_leaves_its_variant_undecided_and_counts_in_its_rates(store):
    replaced(store, "bb1", outcome="collapsed", reason="no better than frequencies", metrics={})
    row = comparison(store).loc[LABELS["bb"]]
    assert row["verdict"] == "inconclusive"  # of its other two runs both are better
    assert (row["lost"], row["ended"], row["n"]) == (1, 3, 2)
    assert row["outcome"] == "2 ok, 1 collapsed"
    told = "; rms<b>norm</b> & co (2 ok, 1 collapsed) is inconclusive"
    assert told in headline(read(store))
    rates = next(s for s in sections(read(store)) if s.key == "stability")
    shown = rates.cells.set_index("variant")
    # Clopper and Pearson's interval of 1 of 3 and 0 of 3, by the tails of the binomial.
    assert shown.loc[LABELS["bb"], "collapsed [95% interval]"] == "33% [1%, 91%]"
    assert shown.loc[LABELS["bb"], "diverged [95% interval]"] == "0% [0%, 71%]"
    assert shown.loc["wild", "diverged [95% interval]"] == "33% [1%, 91%]"
    assert any("no better than frequencies" in warning for warning in warnings(read(store)))
    text, _ = pair(store)
    assert "is not told apart from" in text
    assert "left out of rms<b>norm</b> & co: 1 collapsed" in text
    written(store, pictures=True)


def test_the_loss_of_a_collapsed_run_is_no_part_of_its_variants_mean(store):
    before = comparison(store).loc[LABELS["bb"]]
    replaced(
        store, "bb1", outcome="collapsed", metrics={"perplexity": measured(test_loss_nats=9.0)}
    )
    after = comparison(store).loc[LABELS["bb"]]
    assert (before["n"], after["n"]) == (3, 2)
    losses = LOSSES["bb"]
    assert after["loss"] == pytest.approx((losses[0] + losses[2]) / 2)


@pytest.mark.parametrize("lost", [False, True])
def test_seeds_are_counted_for_a_row_that_more_of_them_would_decide(lost, store):
    """A difference of 0.1, a deviation of 0.2, six seeds; one with a lost run asks for none."""
    runs = [plans.run(f"{key}{seed}", key, seed) for key in ("aa", "bb") for seed in range(6)]
    arms = [variant("aa", 1024), variant("bb", 512)]
    planned_anew(store, seeds=6, table={"variants": arms, "runs": runs})
    for key, seed in itertools.product(("aa", "bb"), range(6)):
        loss = 2.0 + (0.1 + 0.2 * (-1) ** seed) * (key == "bb")
        outcome = "diverged" if lost and (key, seed) == ("bb", 5) else "ok"
        values = {"perplexity": measured(test_loss_nats=loss)} if outcome == "ok" else {}
        if seed < 3:
            shutil.rmtree(store.folder(f"{key}{seed}"))
        store.commit(record(key, seed, loss, outcome=outcome, metrics=values), [], None)
    row = comparison(store).loc[LABELS["bb"]]
    shown = cells(read(store).table.comparison).iloc[1]
    assert shown["verdict"] == "inconclusive"
    if lost:
        assert shown["runs"].startswith("5 ok, 1 diverged")
        assert "seeds to decide" not in shown
    else:
        assert shown["seeds to decide"] == f"at least {row['seeds_low']:.0f} seeds"
        assert 6 < row["seeds_low"] < seeds_for(0.1, 0.22)


def test_a_hypothesis_about_collapse_counts_all_runs_before_tuning(store):
    """Twelve seeds at two rates: eleven of bb's 24 runs collapse, none at the rate it is given."""
    runs = []
    for key, seed, lr in itertools.product(("aa", "bb"), range(12), (0.1, 0.2)):
        id_ = plans.id_of(key, seed, lr)
        runs.append(plans.run(id_, key, seed, tuned={"lr": lr}))
        lost = key == "bb" and lr == 0.2 and seed < 11
        values = measured(test_loss_nats=2.0 + seed / 99, validation_loss_nats=2.0)
        store.commit(
            record(
                key,
                seed,
                2.0,
                id=id_,
                outcome="collapsed" if lost else "ok",
                metrics={} if lost else {"perplexity": values},
            ),
            [],
            None,
        )
    arms = [variant("aa", 1024), variant("bb", 512)]
    planned_anew(store, table={"variants": arms, "runs": runs}, tune={"lr": [0.1, 0.2]})
    found = hypothesis_of(store, variant=LABELS["bb"], measure="collapsed", direction="higher")
    exact = rate_difference((11, 24), (0, 24))
    assert (found["difference"], found["low"], found["p_corrected"]) == (
        11 / 24,
        exact.low,
        exact.p,
    )
    assert (found["result"], found["family"], found["n"]) == ("supported", "itself alone", 24)
    within = hypothesis_of(
        store,
        variant=LABELS["bb"],
        measure="collapsed",
        direction="not higher",
        margin="0.9 points",
    )
    assert within["result"] == "supported"
    assert "higher than baseline in the share of its runs that collapsed" in found["hypothesis"]
    row = comparison(store).loc[LABELS["bb"]]
    assert (row["finished"], row["collapsed"], row["outcome"]) == (24, 11, "12 ok")
    lost = next(s for s in sections(read(store)) if s.key == "stability")
    assert lost.printed  # runs that tuning leaves out are reported
    assert main(["show", str(store.root)]) == 0


@pytest.mark.parametrize("outcome", ["error", "oom", "timeout", None])
def test_a_variant_without_a_pair_has_failed_or_is_pending(store, outcome):
    import shutil

    for seed in range(3):
        shutil.rmtree(store.folder(f"bb{seed}"))
        if outcome:
            lost = record("bb", seed, 2.0, outcome=outcome, reason="why", metrics={})
            store.commit(lost, [], None)
    frame = framed(read(store).table.comparison)
    verdict = "failed" if outcome else "pending"
    assert frame.set_index("label").loc[LABELS["bb"], "verdict"] == verdict
    told = f"{LABELS['bb']} {'is ' * (verdict == 'pending')}{verdict}"
    assert told in headline(read(store))
    html = written(store)
    assert f'<td class="{verdict} ' in html


def test_what_old_plans_matched_is_read_from_where_they_have_it(store):
    written(store)  # a plan whose table has no key `match`
    assert "matched on parameters" in (store.report / "report.md").read_text("utf-8")


def test_a_metric_that_failed_is_an_empty_cell_with_its_reason(store):
    failed = Measurement(error="ValueError: too few")
    metrics = {**record("bb", 1, 2.0).metrics, "calibration": failed}
    replaced(store, "bb1", metrics=metrics)
    with store.alone("measure") as lease:
        failed = Measurement(error="OutOfMemoryError: 8 GiB")
        store.add_variant_metric(lease, LABELS["bb"], "bb", "decode_speed", failed)
    row = comparison(store).loc[LABELS["bb"]]
    assert math.isnan(row["decode_speed_ratio"])
    assert row["train_speed_ratio"] == pytest.approx(1.25)
    told = warnings(read(store))
    label = LABELS["bb"]
    assert f"decode_speed was not measured of '{label}': OutOfMemoryError: 8 GiB." in told
    what = f"calibration was not measured of 1 of 3 finished runs of '{label}'"
    assert f"{what}: ValueError: too few." in told
    html = written(store)
    assert "decode_speed: OutOfMemoryError: 8 GiB" in html
    table = read(store).table
    assert "not measured: " in details.run(Results(store), "bb1")[0]
    text, values = details.variant(table, table.plan.variants[1])
    assert "decode_speed: not measured: OutOfMemoryError: 8 GiB" in text
    assert "calibration: not measured of 1 of 3: ValueError: too few" in text
    assert [row["run"] for row in values["not_measured"]] == ["bb1", ""]


def test_a_metric_that_was_taken_of_some_runs_alone_is_pointed_out(store):
    calibration = measured(calibration_error=0.1)
    metrics = {**record("bb", 1, 2.0).metrics, "calibration": calibration}
    replaced(store, "bb1", metrics=metrics)
    told = warnings(read(store))
    rest = "`llama-ablate measure DIR calibration` measures the rest."
    label = LABELS["bb"]
    assert f"calibration was measured on 1 of 3 finished runs of '{label}'; {rest}" in told
    assert f"calibration was measured on 0 of 3 finished runs of 'baseline'; {rest}" in told
    assert f"calibration was measured on 0 of 2 finished runs of 'wild'; {rest}" in told
    planned_anew(store, measure=["perplexity", "train_speed", "loss_by_position"])
    assert [w for w in warnings(read(store)) if w.endswith("measures it.")] == [
        "loss_by_position was not measured; "
        "`llama-ablate measure DIR loss_by_position` measures it."
    ]


HOSTILE = "=a $\\lr{x}$ $b$ \x1b]0;PWNED\x07 <img src=x> [y](javascript:z)"


@pytest.fixture
def hostile(store):
    """Results of somebody else: a label and a question with whatever a label can hold."""
    base, other, *more = store.plan.tables[0].variants
    renamed = other.model_copy(update={"label": HOSTILE})
    planned_anew(store, table={"variants": [base, renamed, *more]}, question=HOSTILE)
    return store


@pytest.mark.parametrize("name", OF_ANY_GRID)
def test_labels_are_no_formulas_in_any_figure(hostile, tmp_path, name):
    figure = plots.draw(FIGURES[name](read(hostile))).figure
    plots.save(figure, tmp_path / name)
    shown = [text for text in figure.findobj(Text) if "$" in text.get_text()]
    assert all(not text.get_parse_math() for text in shown)
    assert "lr{x}" in " ".join(text.get_text() for text in shown)


@pytest.mark.usefixtures("without_pictures")
def test_labels_do_nothing_to_a_terminal_a_spreadsheet_or_a_page(hostile, capsys):
    for arguments in (["status"], ["show"], ["report"], ["show", "baseline", "bb"]):
        command, *labels = arguments
        assert main([command, str(hostile.root), *labels]) in (0, 1)
        out, err = capsys.readouterr()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err)
        assert "\\x1b]0;PWNED\\x07" in out
    rows = (hostile.report / "tables/comparison.csv").read_text("utf-8").splitlines()
    assert rows[2].startswith("'=a ")
    assert ",-0.1" in rows[2]  # numbers are no formulas
    for file in ("report.md", "tables/comparison.md"):
        markdown = (hostile.report / file).read_text("utf-8")
        assert "PWNED" in markdown
        assert "<img" not in markdown
        assert "](javascript" not in markdown


def test_text_that_a_spreadsheet_would_compute_is_quoted_and_the_steps_of_a_path_are_not(tmp_path):
    cells = ["=1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-HYPERLINK(1)", "\t=1", "+rmsnorm", "-0.5"]
    frame = pd.DataFrame({"label": cells, "number": -1.5})
    tables.save(frame.astype(str), frame, "x", tmp_path / "t")
    read = pd.read_csv(tmp_path / "t.csv")
    assert [label[0] == "'" for label in read["label"]] == [True] * 5 + [False] * 2
    assert set(read["number"]) == {-1.5}


def test_a_return_and_a_head_of_a_csv_are_cells_and_no_lines_or_formulas(tmp_path):
    frame = pd.DataFrame({"=label": ["one\rtwo"], "other": ["three"]})
    tables.save(frame, frame, "x", tmp_path / "t")
    head, *_ = (tmp_path / "t.csv").read_text("utf-8").splitlines()
    assert head.startswith("'=label")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [["one\rtwo", "three"]]


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\u2066", "\ufeff", "\x85", "\U000e0041"])
def test_what_turns_or_hides_text_is_escaped_in_terminal_and_markdown(hidden):
    frame = pd.DataFrame({"label": [f"good{hidden}evil"], "number": ["1"]})
    for shown in (tables.text(frame), tables.markdown(frame)):
        assert hidden not in shown
        assert f"good{hidden!r}".replace("'", "") + "evil" in shown
    head, *_, row = tables.text(frame).splitlines()
    assert len(head) == len(row)  # measured as it is shown
