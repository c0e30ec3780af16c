"""What is chosen, ranked and shown where something was tuned, or there are several tables."""

import json
import math
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from llama_ablate.findings.paired_table import samples
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.values import RunRow

from llama_ablate.commands.cli import main
from llama_ablate.findings import controls, effects, hypotheses, sizes, tuning
from llama_ablate.findings.frames import Frames
from llama_ablate.report.figures import make
from llama_ablate.report.sections import sections
from llama_ablate.results import Results, Store
from tests import filled
from tests.in_process import in_process, run_in_process
from tests.tables import changed
from tests.tables import sentences_of as warnings


def read(store):
    return Frames.of(Results(store.root))


def runs(rows):
    """Return runs from (variant, seed, lr, outcome, validation loss)."""
    made = [
        RunRow(
            id=f"{variant} {seed} {lr}",
            variant=variant,
            label=variant,
            seed=seed,
            tuned=json.dumps({"lr": lr}),
            point=tuning.point({"lr": lr}),
            outcome=outcome,
            steps_done=2,
            numbers={"validation_loss_nats": loss, "test_loss_nats": loss + 0.5},
        )
        for variant, seed, lr, outcome, loss in rows
    ]
    return tuning.mark_trials(made, {})


GRID = runs(
    [
        ("a", 0, 1e-3, "ok", 2.0),
        ("a", 1, 1e-3, "ok", 2.2),
        ("a", 0, 3e-3, "ok", 1.9),
        ("a", 1, 3e-3, "ok", 2.1),
        ("a", 0, 1e-2, "ok", 1.0),
        ("a", 1, 1e-2, "diverged", math.nan),
        ("b", 0, 1e-3, "ok", 3.0),
        ("b", 1, 1e-3, "ok", 3.0),
        ("b", 0, 3e-3, "ok", 2.0),
        ("b", 1, 3e-3, "pending", math.nan),
        ("b", 0, 1e-2, "ok", 2.9),
        ("b", 1, 1e-2, "ok", 2.9),
    ]
)


def test_the_point_of_the_lowest_mean_validation_loss_is_chosen_and_divergence_never_wins():
    points = {run.point for run in GRID if run.is_reported and run.variant == "a"}
    assert points == {"lr 0.003"}  # 0.01 diverged in one seed


def test_a_point_that_has_not_finished_is_passed_over():
    assert {run.point for run in GRID if run.is_reported and run.variant == "b"} == {"lr 0.01"}
    assert tuning.unfinished(GRID) == {"b"}


def test_trials_are_counted_and_the_edge_of_the_grid_is_seen():
    trials = framed(tuning.trials(GRID, {}, "test_loss_nats")).set_index("label")
    assert list(trials["trials"]) == [6, 6]
    assert list(trials["finished"]) == [6, 5]
    assert trials["diverged"]["a"] == 1
    assert trials["edge"].to_dict() == {"a": "", "b": "lr"}
    assert trials["loss"]["a"] == pytest.approx(2.5)


def test_sensitivity_takes_the_cap_for_what_diverged():
    found = {(run.variant, run.seed): run for run in tuning.with_sensitivity(GRID, cap=4.0)}
    # Seed 1 of a: 2.7, 2.6 and the cap 4.0 over their minimum 2.6.
    expected = pytest.approx((0.1 + 0 + 1.4) / 3)
    assert found["a", 1].number("lr_sensitivity_nats") == expected
    assert math.isnan(found["b", 1].number("lr_sensitivity_nats"))  # not tried at every point


def test_the_interval_of_a_sensitivity_does_not_reach_below_zero():
    first = changed(GRID, lambda run: run.seed == 0, {"lr_sensitivity_nats": 0.1})
    measured = changed(first, lambda run: run.seed == 1, {"lr_sensitivity_nats": 0.9})
    trials = framed(tuning.trials(measured, {}, "test_loss_nats")).set_index("label")
    assert trials["sensitivity"]["a"] == pytest.approx(0.5)
    assert 0 <= trials["low"]["a"] < 0.5 < trials["high"]["a"]


# ---- a tuned grid over two texts with controls and hypotheses, trained once

BASE = "swiglu (baseline)"
LAGS = (1, 3)
TEXT = "{{name: lag {0}, corpus: {{name: lag-copy, vocab: 8, lag: {0}, tokens: 6_000}}, "
FILE = f"""name: rich
model: {{dim: 16, layers: 1, heads: 2, context: 16}}
variants: {{axes: {{feedforward: [relu]}}, match: parameters}}
texts: [{", ".join(TEXT.format(lag) + "tokenizer: chars}" for lag in LAGS)}]
train: {{steps: 24, batch: 8, lr: 1e-3, precision: float32, kernel: math, evals: 2}}
tune: {{lr: [5e-3, 3e-2]}}
controls: {{aa: [none, init], positive: {{train.warmup: 0.9}}}}
seeds: 2
margin: 0.5 nats
measure: [perplexity, excess_loss, calibration]
hypotheses:
  - {{variant: relu, direction: equivalent, margin: 0.5 nats}}
  - {{variant: A/A none, direction: equivalent, margin: 1e-9 nats}}
  - {{variant: relu, measure: test_perplexity, direction: lower}}
  - {{variant: relu, direction: better, table: lag 3}}
  - {{variant: relu, measure: not_measured, direction: lower}}
"""


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rich")
    (folder / "rich.yaml").write_text(FILE, "utf-8")
    assert run_in_process(folder / "rich.yaml", folder / "out") == 0
    return Store(folder / "out" / "rich")


@pytest.fixture(scope="module")
def tables(rich):
    return read(rich).tables


def test_an_aa_arm_in_which_nothing_changed_is_equal_bit_for_bit(tables):
    for table in tables:
        frame = framed(table.comparison).set_index("label")
        row = frame.loc["A/A none"]
        assert row["difference"] == row["low"] == row["high"] == 0
        assert frame.loc["A/A init", "difference"] != 0
        assert table.bias == (0, 0)
        checks = {check.control: check.result for check in controls.check_controls(table)}
        assert (checks["repeat"], checks["redraw"]) == ("holds", "")


def test_every_table_compares_its_own_runs_at_the_chosen_points(tables):
    near, far = (framed(table.comparison).set_index("label") for table in tables)
    assert near["n"].to_dict() == {**dict.fromkeys(near.index, 2), "A/A none": 1}
    assert not near["loss"].equals(far["loss"])
    for table, frame in zip(tables, (near, far), strict=True):
        everything = framed(table.runs)
        assert len(everything) == (4 * 2 + 1) * 2
        of = everything[(everything["label"] == "relu")]
        means = of.groupby("point")["validation_loss_nats"].mean()
        assert frame.loc["relu", "point"] == means.idxmin()


def test_hypotheses_reach_any_number_and_any_table(rich):
    frames = read(rich)
    frame = framed(hypotheses.results(frames))
    assert frame["result"][1] == "supported"
    far = framed(frames.tables[1].comparison).set_index("label")["difference"]
    assert frame["difference"][3] == far["relu"]
    ids = {variant.label: variant.id for variant in frames.table.plan.variants}
    relu, base = (samples(frames.table, ids[label], "test_perplexity") for label in ("relu", BASE))
    assert frame["difference"][2] == pytest.approx(sum(relu[s] - base[s] for s in (0, 1)) / 2)
    assert math.isnan(frame["difference"][4])
    assert frame["result"][4] == "undecided"


def test_a_variant_that_was_tried_less_is_not_ranked(rich, tmp_path):
    shutil.copytree(rich.root, tmp_path / "rich")
    fewer = Store(tmp_path / "rich")
    runs = read(rich).table.runs
    lost = next(r.id for r in runs if (r.label, r.tuned) == ("relu", '{"lr": 0.005}'))
    shutil.rmtree(fewer.folder(lost))
    frames = read(fewer)
    row = framed(frames.table.comparison).set_index("label").loc["relu"]
    assert row["verdict"] == "pending"
    assert math.isnan(row["difference"])
    assert any("not ranked" in warning for warning in warnings(frames))


def test_the_report_has_a_section_for_everything_that_was_asked(rich):
    titles = [section.title for section in sections(read(rich))]
    assert titles[:2] == ["Comparison: lag 1", "Comparison: lag 3"]
    html = (rich.report / "report.html").read_text("utf-8")
    markdown = (rich.report / "report.md").read_text("utf-8")
    for title in titles:
        kind, _, table = title.partition(": ")
        assert f"<h2>{kind}</h2>" in html or kind == "Comparison"
        assert not table or f"{table}</h" in html
        assert f"## {title}" in markdown
    for name in ("effects", "tuning"):
        assert "lag 3" in {part.table for part in make(name, read(rich))}


def test_every_measured_value_of_every_run_and_variant_is_a_row_of_the_metrics(rich):
    frame = pd.read_csv(rich.report / "tables" / "metrics.csv")
    values = dict(zip(zip(frame["run"], frame["name"], strict=True), frame["value"], strict=True))
    expected = {}
    for record in rich.records():
        expected |= {(record.id, name): value for name, value in record.numbers.items()}
        expected[record.id, "train_s"] = record.train_s
        expected[record.id, "peak_memory_bytes"] = record.peak_memory_bytes
    assert values == pytest.approx(expected, nan_ok=True)
    shown = next(s for s in sections(read(rich)) if s.key == "metrics").cells
    ok = [r for r in read(rich).tables[1].reported if (r.label, r.outcome) == ("relu", "ok")]
    row = shown[(shown["table"] == "lag 3") & (shown["name"] == "accuracy")].iloc[0]
    assert row["relu"] == f"{statistics.mean(r.number('accuracy') for r in ok):.5g}"


def test_show_compare_and_status_reach_every_table(rich, answer):
    assert answer("status", rich.root, "--json")["outcomes"] == {"ok": 36}
    losses = set()
    for name in ("lag 1", "lag 3"):
        losses.add(answer("show", rich.root, "--table", name, "--json")[0]["loss"])
        pair = answer("show", rich.root, "baseline", "relu", "--table", name)
        assert "paired seeds" in pair
    assert len(losses) == 2
    wrong = answer("show", rich.root, "--table", "lag 2", code=2)
    assert "there is none of that name; allowed: lag 1, lag 3" in wrong
    last = rich.plan.tables[1].runs[-1].id
    assert last in answer("show", rich.root, last)
    assert "--table does not go with a run" in answer(
        "show", rich.root, last, "--table", "lag 3", code=2
    )


@pytest.mark.full
def test_metrics_can_be_added_to_every_table(rich):
    with in_process():
        assert main(["measure", str(rich.root), "loss_by_position"]) == 0
    for table in read(rich).tables:
        assert not any(math.isnan(run.number("loss_at_position_1_to_1_nats")) for run in table.runs)


# ---- ladders and paths


def test_a_ladder_is_fitted_and_drawn_with_the_budgets_on_the_way(
    experiment_file, tmp_path, capsys
):
    file = experiment_file(
        "{axes: {feedforward: [relu]}}",
        sizes="{models: [{dim: 8}, {dim: 16}, {dim: 24}], tokens_per_parameter: 0.5}",
        train="{steps: 6, batch: 4, lr: 6e-2, precision: float32, kernel: math, evals: 2, "
        "schedule: wsd, warmup: 0, branches: [0.25, 0.5]}",
        margin="0.5 nats",
    )
    assert run_in_process(file, tmp_path / "out") == 0
    assert "By size" in capsys.readouterr().out
    frames = read(Store(tmp_path / "out" / "tiny"))
    rows = sizes.by_size(frames)
    assert [row.label for row in rows] == ["relu"] * 3
    assert [row.difference for row in rows] == [
        next(row.difference for row in table.comparison if row.label == "relu")
        for table in frames.tables
    ]
    # By hand: the slope of a line through each seed's three differences, and their mean.
    ends = pd.DataFrame(frames.ladder).query("not branch")
    relu, base = (
        ends[ends["baseline"] == is_base].pivot_table("loss", "rung", "seed", sort=False)
        for is_base in (False, True)
    )
    logs = np.log10([row.parameters for row in rows])
    gap = (relu - base).to_numpy()
    assert rows[0].slope.value == pytest.approx(np.polyfit(logs, gap, 1)[0].mean())
    points = frames.ladder
    ends = [point for point in points if not point.branch]
    assert len(ends) == 3 * 2 * 2
    assert len(points) == 3 * len(ends)  # every run supplies two budgets on the way
    assert {point.tokens for point in ends} == {t.plan.tokens_per_run for t in frames.tables}
    assert [*make("sizes", frames)]
    (first, *others) = frames.tables  # of which a run is too short: it is no point of a ladder
    planned = changed(first.planned, lambda run: run is first.planned[0], too_short=True)
    short = replace(frames, tables=(replace(first, planned=planned), *others))
    assert len(short.ladder) == len(points) - 3


def test_a_path_has_marginal_and_cumulative_effects(experiment_file, tmp_path, answer):
    file = experiment_file("{design: path, axes: {norm: [layernorm], feedforward: [relu]}}")
    losses = {"+layernorm": [2.2, 2.3], "+relu": [1.7, 1.9]}
    store = filled.of_file(
        tmp_path / "path", file, lambda label, seed: losses.get(label, [2.0, 2.3])[seed]
    )
    found = framed(effects.steps(read(store).table)).set_index("step")
    assert found["marginal"].tolist() == pytest.approx([0.1, -0.45])
    assert found["cumulative"].tolist() == pytest.approx([0.1, -0.35])
    # The first step is also the sum so far; steps are as many rows of a family as variants are.
    ends = found.loc["+layernorm", ["marginal_low", "marginal_high"]].tolist()
    assert ends == found.loc["+layernorm", ["cumulative_low", "cumulative_high"]].tolist()
    assert "Steps" in answer("show", store.root)
