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
from llama_ablate.config.experiment import Hypothesis, load
from llama_ablate.design import plan as design
from llama_ablate.evidence.intervals import seeds_for
from llama_ablate.evidence.rates import compare_rates
from llama_ablate.files.strict_json import sealed
from llama_ablate.findings.answer import headline
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.stages import find_runs
from llama_ablate.report import details, page, tables
from llama_ablate.report.columns import cells
from llama_ablate.report.figures import FIGURES, make
from llama_ablate.report.sections import sections
from llama_ablate.results import Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.conftest import LEARNS
from tests.in_process import draw_nothing, run_in_process
from tests.metrics import measured
from tests.tables import frames as made_by_hand
from tests.tables import sentences_of as warnings

LABELS = {"aa": "baseline", "bb": "rms<b>norm</b> & co", "cc": "wild"}
BB = LABELS["bb"]
LOSSES = {"aa": [2.0, 2.2, 2.1], "bb": [1.86, 2.04, 1.95], "cc": [math.nan, 2.5, 2.4]}
SPEEDS = {"aa": 1000.0, "bb": 1250.0, "cc": 500.0}


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
        "model": {"dim": 8, "norm": "layernorm" if variant == "aa" else "rmsnorm"},
        "compute": {"device": "cpu", "threads": 1, "precision": "float32", "kernel": "math"},
        "metrics": {} if diverged else {"perplexity": perplexity},
    }
    return replace(plans.RECORD, **{**values, **changes})


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


ARMS = [variant("aa", 1024), variant("bb", 512), variant("cc", 1024)]


def runs_of(keys, seeds):
    return [plans.run(f"{key}{seed}", key, seed) for seed in range(seeds) for key in keys]


@pytest.fixture
def store(tmp_path):
    """Results of three variants and three seeds, of which a run diverged, and their speeds."""
    found = Store(tmp_path / "x")
    table = plans.table(ARMS, runs_of(LOSSES, 3), {"vocab": 256}, match="parameters")
    question = "Is it <script>alert(1)</script> better?"
    measure = ["perplexity", "train_speed", "decode_speed"]
    found.create(plans.document(table, question=question, measure=measure), "name: x\n")
    for key, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            curve = [
                {"step": s, "tokens": 32 * s, "validation_loss_nats": 3 / s, "train_loss_nats": 3.0}
                for s in ((1, 2) if math.isnan(loss) else (1, 2, 3))
            ]
            found.commit(record(key, seed, loss), curve, None)
        speed = SPEEDS[key]
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
        with found.alone("measure") as lease:
            for name, rows in (("train_speed", [train]), ("decode_speed", cached)):
                found.add_metric(
                    lease, found.variant_folder(LABELS[key], key), name, Measurement(tuple(rows))
                )
    return found


def read(store):
    return Frames.of(Results(store.root))


def comparison(store):
    """The rows of the comparison by label."""
    return compare_variants(read(store).table).set_index("label")


def written(store, *, pictures=False):
    """Write the report, without its pictures unless they are asked for; return its page."""
    frames = read(store)
    every, notices = sections(frames), warnings(frames)
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr(page, "_draw", draw_nothing)
        path, faults = page.write(frames, every, notices, store.report)
    assert faults == []
    return path.read_text("utf-8")


def planned_anew(store, *, table=None, **experiment):
    """Change the first table of the plan that stands, and sections of its experiment."""
    plan = store.plan
    first = plan.tables[0].model_copy(update=table or {})
    changed = plan.experiment.model_copy(update=experiment)
    plan = plan.model_copy(update={"tables": [first], "experiment": changed})
    store.plan_file.write_bytes(sealed(plan.model_dump(mode="json"), store.plan_file.name))


def replaced(store, run, **changes):
    """Put another record in the place of a run's."""
    shutil.rmtree(store.folder(run))
    variant, seed = run[:2], int(run[2:])
    store.commit(record(variant, seed, LOSSES[variant][seed], **changes), [], None)


def pair(store):
    table = read(store).table
    return details.pair(table, *table.plan.variants[:2])


# ---- the comparison


def test_the_comparison_pairs_by_seed_and_keeps_what_diverged(store):
    rows = comparison(store).to_dict("index")
    better = rows[BB]
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
    assert wild["verdict"] == "worse"  # by the seeds that both kept, and the lost one is no better
    assert wild["n"] == 2
    assert wild["difference"] == pytest.approx((0.3 + 0.3) / 2)  # over seeds 1 and 2
    assert rows["baseline"]["loss"] == pytest.approx(2.1)


def test_runs_without_a_record_are_pending_and_a_report_of_none_is_written(store, tmp_path):
    shutil.rmtree(store.folder("bb1"))
    outcomes = find_runs(read(store).table).set_index("id")["outcome"]
    assert outcomes["bb1"] == "pending"
    assert any("1 of 9 planned runs have not finished" in w for w in warnings(read(store)))
    empty = Store(tmp_path / "empty")
    empty.create(store.plan, "name: x\n")
    html = written(empty)
    assert "9 of 9 planned runs have not finished." in html
    assert "rms&lt;b&gt;norm&lt;/b&gt; &amp; co and wild are pending." in html


def test_runs_of_which_no_loss_is_measured_have_no_verdict(store):
    for key in ("aa", "bb"):
        for seed in range(3):
            replaced(store, f"{key}{seed}", metrics={})
    row = comparison(store).loc[BB]
    assert (row.verdict, row.n) == ("no verdict", 0)
    assert "rms<b>norm</b> & co has no verdict" in headline(read(store))


def test_records_that_may_not_be_compared_are_pointed_out(store):
    shutil.rmtree(store.folder("bb1"))
    compute = {"device": "cpu", "threads": 1, "precision": "bfloat16", "kernel": "math"}
    store.commit(record("bb", 1, 2.0, compute=compute), [], None)
    told = " ".join(warnings(read(store)))
    assert "The runs were made with different precisions (bfloat16; float32)." in told
    assert "different attention kernels" not in told
    assert "1 of 9 runs diverged or collapsed, of 'wild' (not finite)" in told


def test_a_collapsed_run_leaves_its_variant_undecided_and_counts_in_its_rates(store):
    metrics = {"perplexity": measured(test_loss_nats=9.0)}
    replaced(store, "bb1", outcome="collapsed", reason="no better than chance", metrics=metrics)
    row = comparison(store).loc[BB]
    assert row["verdict"] == "inconclusive"  # of its other two runs both are better
    assert (row["lost"], row["ended"], row["n"]) == (1, 3, 2)
    assert row["loss"] == pytest.approx((LOSSES["bb"][0] + LOSSES["bb"][2]) / 2)
    assert "; rms<b>norm</b> & co (2 ok, 1 collapsed) is inconclusive" in headline(read(store))
    rates = next(s for s in sections(read(store)) if s.key == "stability")
    shown = rates.cells.set_index("variant")
    # Clopper and Pearson's interval of 1 of 3 and 0 of 3, by the tails of the binomial.
    assert shown.loc[BB, "collapsed [95% interval]"] == "33% [1%, 91%]"
    assert shown.loc[BB, "diverged [95% interval]"] == "0% [0%, 71%]"
    assert shown.loc["wild", "diverged [95% interval]"] == "33% [1%, 91%]"
    assert any("no better than chance" in warning for warning in warnings(read(store)))
    text, _ = pair(store)
    assert "is not told apart from" in text
    assert "left out of rms<b>norm</b> & co: 1 collapsed" in text


def test_seeds_are_counted_for_a_row_that_more_of_them_would_decide_and_none_was_lost():
    """A difference of 0.1, a deviation of 0.2, six seeds."""
    losses = {"base": [2.0] * 6, "open": [2.3, 1.9, 2.3, 1.9, 2.3, 1.9]}
    rows = compare_variants(made_by_hand({"": losses}).table).iloc[1:]
    shown, row = cells(rows, "comparison").iloc[0], rows.iloc[0]
    assert shown["verdict"] == "inconclusive"
    assert shown["seeds to decide"] == f"at least {row.seeds_low:.0f} seeds"
    assert 6 < row.seeds_low < seeds_for(0.1, 0.22)
    losses["open"][5] = "diverged"
    lost = compare_variants(made_by_hand({"": losses}).table).iloc[1:]
    shown = cells(lost, "comparison").iloc[0]
    assert shown["verdict"] == "inconclusive: runs were lost"
    assert shown["runs"].startswith("5 ok, 1 diverged")
    assert "seeds to decide" not in shown


def test_a_metric_that_failed_is_an_empty_cell_with_its_reason(store):
    failed = Measurement(error="ValueError: too few")
    replaced(store, "bb1", metrics={**record("bb", 1, 2.0).metrics, "calibration": failed})
    with store.alone("measure") as lease:
        failed = Measurement(error="OutOfMemoryError: 8 GiB")
        store.add_metric(lease, store.variant_folder(BB, "bb"), "decode_speed", failed)
    row = comparison(store).loc[BB]
    assert math.isnan(row["decode_speed_ratio"])
    assert row["train_speed_ratio"] == pytest.approx(1.25)
    told = warnings(read(store))
    assert f"decode_speed was not measured of '{BB}': OutOfMemoryError: 8 GiB." in told
    what = f"calibration was not measured of 1 of 3 finished runs of '{BB}'"
    assert f"{what}: ValueError: too few." in told
    assert "decode_speed: OutOfMemoryError: 8 GiB" in written(store)
    table = read(store).table
    assert "not measured: " in details.run(Results(store.root), "bb1")[0]
    text, values = details.variant(table, table.plan.variants[1])
    assert "decode_speed: not measured: OutOfMemoryError: 8 GiB" in text
    assert "calibration: not measured of 1 of 3: ValueError: too few" in text
    assert [row["run"] for row in values["not_measured"]] == ["bb1", ""]


def test_a_metric_that_was_taken_of_some_runs_alone_is_pointed_out_with_the_command(store):
    calibration = measured(calibration_error=0.1)
    replaced(store, "bb1", metrics={**record("bb", 1, 2.0).metrics, "calibration": calibration})
    planned_anew(store, measure=["perplexity", "train_speed", "loss_by_position"])
    told = warnings(read(store))
    rest = "`llama-ablate measure DIR calibration` measures the rest."
    assert f"calibration was measured on 1 of 3 finished runs of '{BB}'; {rest}" in told
    every = "`llama-ablate measure DIR loss_by_position` measures it."
    assert f"loss_by_position was not measured; {every}" in told


def test_a_pair_shows_what_differs_and_every_number(store):
    text, values = pair(store)
    assert "norm: layernorm -> rmsnorm" in text
    assert values["effects"]["test_loss_nats"]["mean"] == pytest.approx(-0.15)
    (sentence,) = (line for line in text.splitlines() if "is better than baseline" in line)
    assert "on test loss, -0.150 [-0.175, -0.125]" in sentence
    assert "over 3 paired seeds" in sentence
    ratio = {row["measure"]: row["ratio"] for row in values["speeds"]}
    assert ratio["train_tokens_per_s"] == "1.250"


# ---- tables, figures and the page


def test_tables_are_written_for_people_for_papers_and_for_machines(store):
    rows = compare_variants(read(store).table)
    shown = cells(rows, "comparison")
    tables.save(shown, rows, "A & B", store.report / "tables/comparison")
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
    assert list(back.columns) == list(rows.columns)


# ---- factorial designs


def store_of_file(root, file, loss):
    """Plan a file, and write a store of its runs with the losses of labels and seeds.

    One of None ended in an error.
    """
    plan = design.make(load(file))
    made = Store(root)
    labels = {variant.id: variant.label for variant in plan.tables[0].variants}
    made.create(plan, file.read_text("utf-8"))
    for run in plan.tables[0].runs:
        value = loss(labels[run.variant], run.seed)
        metrics = {} if value is None else {"perplexity": measured(test_loss_nats=value)}
        outcome = "error" if value is None else "ok"
        record = plans.record_of(run, label=labels[run.variant], outcome=outcome, metrics=metrics)
        made.commit(record, [], None)
    return made


def test_a_factorial_design_reports_main_effects_and_interactions(
    experiment_file, tmp_path, capsys
):
    file = experiment_file(
        variants="{design: product, axes: {norm: [layernorm, rmsnorm], block: [post, pre]}}",
        measure="[perplexity]",
        margin="0.6 nats",
    )
    effects_of = {"layernorm post": 0.4, "rmsnorm post": 0.2, "layernorm pre": 0.1}
    noise = itertools.cycle([0.0, 0.01, -0.01])

    def loss(label, seed):
        return 2.0 + effects_of.get(label, -0.2) + 0.1 * seed + next(noise)

    store = store_of_file(tmp_path / "tiny", file, loss)
    frames = read(store)
    table = estimate_factors(frames.table).set_index("factor")
    own = comparison(store)["loss"]
    with_pre = own["rmsnorm pre"] - own["layernorm pre"]
    with_post = own["rmsnorm post"] - own["layernorm post"]
    assert table["difference"]["norm"] == pytest.approx((with_pre + with_post) / 2)
    assert table["effect"]["norm"] == "rmsnorm instead of layernorm"
    both = table.loc["norm x block"]
    assert both["effect"] == "rmsnorm with pre"
    assert both["difference"] == pytest.approx(with_pre - with_post)
    assert both[["with_present", "with_absent"]].tolist() == pytest.approx([with_pre, with_post])
    assert table["verdict"].to_dict() == {
        "norm": "equivalent",
        "block": "equivalent",
        "norm x block": "add up",
    }
    html = written(store)
    assert html.index("<h2>Factors</h2>") < html.index("<h2>Combinations</h2>")
    assert "All 4 combinations were run: no effect is confounded" in html
    assert [*make("factors", frames)]
    assert main(["show", str(store.root)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Factors") < shown.index("rmsnorm with pre") < shown.index("Combinations")
    told = re.search(r"rmsnorm: ([-+0-9.]+) with pre, ([-+0-9.]+) with post", shown)
    assert [*map(float, told.groups())] == pytest.approx([with_pre, with_post], abs=0.01)


def test_a_half_fraction_says_what_its_effects_are_confounded_with(experiment_file, tmp_path):
    axes = (
        "{norm: [layernorm, rmsnorm], position: [sinusoidal, rope], "
        "attention: [mha, mqa], train.lr: [0.01, 0.03], block: [post, pre]}"
    )
    variants = f"{{design: fraction, axes: {axes}}}"
    file = experiment_file(variants=variants, measure="[perplexity]", seeds="1")
    store = store_of_file(tmp_path / "tiny", file, lambda label, _seed: 2 + len(label) / 100)
    written(store)
    page_text = (store.report / "report.md").read_text("utf-8")
    assert "## Factors" in page_text
    assert "16 of 32 combinations were run: a main effect is confounded with an" in page_text
    table = estimate_factors(read(store).table).set_index("factor")
    assert table["effect"]["train.lr"] == "lr=0.03 instead of lr=0.01"
    assert set(table["verdict"]) == {"inconclusive"}  # one seed has no interval
    assert table["aliases"]["norm"] == "position x attention x train.lr x block"


# ---- hypotheses


def test_hypotheses_are_held_against_the_runs_and_a_change_after_them_is_shown(
    experiment_file, tmp_path, capsys
):
    def run(margin):
        file = experiment_file(
            variants="{design: list, entries: [{label: baseline}, {label: none, position: none}]}",
            measure="[perplexity]",
            hypotheses="[{variant: baseline, against: none, direction: better, source: 001 L1, "
            f"said: it helps}}, {{variant: none, direction: equivalent, margin: {margin}}}]",
            train=LEARNS,
        )
        assert run_in_process(file, tmp_path / "out") == 0
        return capsys.readouterr()

    out = run("0.5 nats").out
    assert "baseline is better than none" in out
    assert "none equals baseline within 0.5 nats" in out
    store = Store(tmp_path / "out" / "tiny")
    found = judge_hypotheses(read(store))
    loss = comparison(store)["loss"]
    assert found["difference"][0] == pytest.approx(loss["baseline"] - loss["none"])
    html = (store.report / "report.html").read_text("utf-8")
    assert "it helps" in html
    assert "001 L1" in html
    assert not any("hypothesis" in warning for warning in warnings(read(store)))
    assert "margin: 0.9 nats}`." in run("0.9 nats").err


def hypothesis_of(store, **stated):
    planned_anew(store, hypotheses=[Hypothesis(**stated)])
    return judge_hypotheses(read(store)).iloc[0]


def test_other_comparisons_share_their_five_percent_each_quantity_counted_once(store):
    """Of five hypotheses two are about rows, and two numbers are asked for by the others."""
    perplexity = {"measure": "test_perplexity"}
    stated = [
        {"variant": BB, "direction": "better"},
        {"variant": BB, "direction": "worse", "margin": "0.1 nats"},
        {"variant": BB, "direction": "lower", **perplexity},
        {"variant": "baseline", "against": BB, "direction": "higher", **perplexity},
        {"variant": BB, "direction": "lower", "measure": "test_bits_per_byte"},
    ]
    planned_anew(store, hypotheses=[Hypothesis(**one) for one in stated])
    frame = judge_hypotheses(read(store))
    assert list(frame["family"]) == ["2 rows of its table"] * 2 + ["2 other comparisons"] * 3
    bits = [
        (own - base) / math.log(2) for own, base in zip(LOSSES["bb"], LOSSES["aa"], strict=True)
    ]
    ends = stats.ttest_1samp(bits, 0).confidence_interval(1 - 0.05 / 2)
    assert (frame["low"][4], frame["high"][4]) == pytest.approx((ends.low, ends.high))
    assert frame["low"][2] == pytest.approx(-frame["high"][3])


@pytest.mark.parametrize(
    ("losses", "floor", "result", "why"),
    [
        ((5.54, 5.50), 1.0, "undecidable", "no arm has learned the task: the lowest"),
        ((5.54, 3.0), 1.0, "supported", ""),
        ((1.004, 1.001), 1.0, "undecidable", "every arm has solved the task"),
        ((5.54, 5.50), None, "supported", ""),  # no floor is known
    ],
)
def test_what_no_arm_has_learned_and_what_all_have_solved_cannot_be_decided(
    losses, floor, result, why
):
    own = dict(zip(("base", "arm"), losses, strict=True))
    drawn = {
        arm: [loss + 0.0001 * n * (arm == "arm") for n in range(3)] for arm, loss in own.items()
    }
    stated = [{"variant": "arm", "direction": "better"}]
    made = made_by_hand({"": drawn}, hypotheses=stated)
    planned = made.table.planned
    if floor is not None:
        above = planned["test_loss_nats"] - floor
        planned = planned.assign(test_excess_nats=above, test_excess_se_nats=0.01)
    made = replace(made, tables=(replace(made.table, planned=planned),))
    found = judge_hypotheses(made).iloc[0]
    assert found["result"] == result
    assert why in found["why"]
    assert any("cannot be decided" in warning for warning in warnings(made)) == bool(why)


def results_of(losses, *stated):
    made = made_by_hand({"": losses}, hypotheses=[*stated])
    return judge_hypotheses(made).to_dict("records")


def test_where_every_run_collapsed_losses_are_undecidable_and_rates_are_not():
    of_loss, of_rate = results_of(
        dict.fromkeys(("base", "arm"), ["collapsed"] * 3),
        {"variant": "arm", "direction": "better"},
        {"variant": "arm", "direction": "higher", "measure": "collapsed"},
    )
    assert of_loss["result"] == "undecidable"
    assert of_loss["why"] == "no arm has learned the task: all runs collapsed"
    assert of_rate["result"] == "undecided"


def test_a_run_that_diverged_speaks_against_its_variant():
    harmed, mirrored = results_of(
        {"base": LOSSES["aa"], "other": LOSSES["bb"], "wild": ["diverged", 2.5, 2.4]},
        {"variant": "wild", "direction": "worse"},
        {"variant": "base", "against": "wild", "direction": "worse"},
    )
    # Seeds 1 and 2 lost 0.3 each; that seed 0 diverged speaks for worse too.
    assert (harmed["n"], harmed["result"]) == (2, "supported")
    assert harmed["difference"] == pytest.approx(0.3)
    assert mirrored["result"] == "undecided"  # the seeds that were kept may refute no more


def test_a_hypothesis_about_collapse_counts_all_runs_before_tuning(store):
    """Twelve seeds at two rates: eleven of bb's 24 runs collapse, none at the rate it is given."""
    runs = []
    for key, seed, lr in itertools.product(("aa", "bb"), range(12), (0.1, 0.2)):
        id_ = plans.id_of(key, seed, lr)
        runs.append(plans.run(id_, key, seed, tuned={"lr": lr}))
        own = measured(test_loss_nats=2.0 + seed / 99, validation_loss_nats=2.0)
        ended = {"outcome": "ok", "metrics": {"perplexity": own}}
        if key == "bb" and lr == 0.2 and seed < 11:
            ended = {"outcome": "collapsed", "metrics": {}}
        store.commit(record(key, seed, 2.0, id=id_, **ended), [], None)
    table = {"variants": ARMS[:2], "runs": runs}
    planned_anew(store, table=table, tune={"lr": [0.1, 0.2]})
    found = hypothesis_of(store, variant=BB, measure="collapsed", direction="higher")
    exact = compare_rates((11, 24), (0, 24), 0.05)
    assert found[["difference", "low"]].tolist() == [11 / 24, exact["low"]]
    assert (found["result"], found["family"], found["n"]) == ("supported", "itself alone", 24)
    stated = {"measure": "collapsed", "direction": "not higher", "margin": "0.9 points"}
    assert hypothesis_of(store, variant=BB, **stated)["result"] == "supported"
    row = comparison(store).loc[BB]
    assert (row["finished"], row["collapsed"], row["outcome"]) == (24, 11, "12 ok")
    lost = next(s for s in sections(read(store)) if s.key == "stability")
    assert lost.printed  # runs that tuning leaves out are reported


# ---- results of somebody else

HOSTILE = "=a $\\lr{x}$ $b$ \x1b]0;PWNED\x07 <img src=x> [y](javascript:z)"


@pytest.fixture
def hostile(store):
    """Results with a label and a question with whatever a label can hold."""
    base, other, *more = store.plan.tables[0].variants
    renamed = other.model_copy(update={"label": HOSTILE})
    planned_anew(store, table={"variants": [base, renamed, *more]}, question=HOSTILE)
    return store


def test_every_figure_draws_what_there_is_or_is_none_and_no_label_is_a_formula(hostile, tmp_path):
    empty = Store(tmp_path / "empty")
    empty.create(hostile.plan, "name: x\n")
    assert {name for name in FIGURES if [*make(name, read(empty))]} <= {"effects", "cache_growth"}
    drawn = {name: [*make(name, read(hostile))] for name in FIGURES}
    assert {name for name, made in drawn.items() if made} == {
        *("costs", "cache_growth", "effects", "learning_curves", "loss_curves", "metrics")
    }
    for made in itertools.chain(*drawn.values()):
        shown = [text for text in made.figure.findobj(Text) if "$" in text.get_text()]
        assert all(not text.get_parse_math() for text in shown), made.name


@pytest.mark.usefixtures("without_pictures")
def test_labels_do_nothing_to_a_terminal_a_spreadsheet_or_a_page(hostile, capsys):
    for command, *labels in (["status"], ["show"], ["report"], ["show", "baseline", "bb"]):
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
    frame = pd.DataFrame({"=label": cells, "number": -1.5, "of two lines": "one\rtwo"})
    tables.save(frame.astype(str), frame, "x", tmp_path / "t")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head[0] == "'=label"
    assert [row[0][0] == "'" for row in rows] == [True] * 5 + [False] * 2
    assert {tuple(row[1:]) for row in rows} == {("-1.5", "one\rtwo")}


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\x85", "\U000e0041"])
def test_what_turns_or_hides_text_is_escaped_in_terminal_and_markdown(hidden):
    frame = pd.DataFrame({"label": [f"good{hidden}evil"], "number": ["1"]})
    for shown in (tables.text(frame), tables.markdown(frame)):
        assert hidden not in shown
        assert f"good{hidden!r}".replace("'", "") + "evil" in shown
    head, *_, row = tables.text(frame).splitlines()
    assert len(head) == len(row)  # measured as it is shown
